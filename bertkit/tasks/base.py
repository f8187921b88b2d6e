"""The interface between a task and the pipeline.

A task consists of its properties (`TaskSpec`), the columns that it reads (`InputSchema`), and the
methods of `Task`. The pipeline calls these methods roughly in the order of their definitions. Task
modules import heavy libraries inside of functions, because `bertkit --help` loads all task modules.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import RunConfig
from bertkit.errors import UserError
from bertkit.tasks.confidence import NOT_FITTED
from bertkit.tasks.input_schema import InputSchema
from bertkit.tasks.training_method import TrainingMethod

if TYPE_CHECKING:
    import torch

    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.readers.delimited import Dialect
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.tasks.evaluation import Evaluation, Outputs
    from bertkit.utils.reporting import Reporter

Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class TransformersPipeline:
    """Arguments with which `transformers.pipeline()` makes the same predictions as bertkit.

    Attributes:
        task: Task name of `pipeline()`, which is also the pipeline tag on the Hub.
        init_kwargs: Further arguments of `pipeline()`.
        call_kwargs: Keyword arguments of the call of the pipeline.
        example_input: Input in the example code of the model card.
        caveat: Why the predictions differ from bertkit's, or None if they are the same. The text completes
            the sentence "`transformers.pipeline` ..." in the model card.
    """

    task: str
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    call_kwargs: Mapping[str, Any] = field(default_factory=dict)
    example_input: str = "..."
    caveat: str | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Properties of a task.

    The class attribute `Task.spec` holds the defaults. A task replaces its instance attribute `spec` if a
    property depends on the settings, the dataset or the model.

    Attributes:
        name: Name of the task, which is also its command.
        help: Help text of the command.
        config: Class of the settings.
        pipeline: Arguments of `transformers.pipeline()` for a model of this task.
        best_metric: Metric that selects the best checkpoint, and +1 if higher is better or -1 if lower is.
        unit: Noun for one row in messages.
        default_max_length: `max_length` in tokens if neither the user nor the dataset sets it.
        default_hyperparameters: Hyperparameters that replace those suggested from the sizes of the data and
            of the model.
        column_aliases: Settings of this task by the names that the dataset registry uses for them.
        reads_conll: Whether plain text files are in the CoNLL format, with one word per line.
        sequence_grouping: What the sequences of an example are: "document" for the windows of a text,
            "choice" for the choices of a row. None if each example is one sequence.
        uses_windows: Whether long inputs are split into windows; otherwise they are truncated.
        resamples_examples: Whether new examples of at most `max_length` tokens are sampled in each epoch.
        scores_tokens: Whether the logits belong to tokens, so that they depend on the tokenizer.
        predicts_rows: Whether there is one prediction per row, which is written with the columns of the row.
        predictions_name: File name of the predictions, without extension.
        trains_encoder: Whether the encoder is trained. Otherwise, the head is fitted to the vectors of texts
            (see `TrainingMethod.fit_head`), and the run has no training steps.
        training_phrase: Words between the initial model and the name of the task in the model card.
    """

    name: str
    help: str
    config: type[RunConfig]
    pipeline: TransformersPipeline
    best_metric: tuple[str, int] = ("accuracy", 1)
    unit: str = "row"
    default_max_length: int = 256
    default_hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    column_aliases: Mapping[str, str] = field(default_factory=dict)
    reads_conll: bool = False
    sequence_grouping: Literal["document", "choice"] | None = None
    uses_windows: bool = False
    resamples_examples: bool = False
    scores_tokens: bool = False
    predicts_rows: bool = True
    predictions_name: str = "predictions"
    trains_encoder: bool = True
    training_phrase: str = "fine-tuned for"

    def make_dialect(self, encoding: str | None) -> "Dialect":
        """Return how the text files of the task are read, given the value of `--encoding`."""
        from bertkit.data.readers.delimited import Dialect

        return Dialect(conll=self.reads_conll, encoding=encoding)


@dataclass(frozen=True)
class Preview:
    """Training examples as the model reads them.

    Attributes:
        statistics: Statistics of the examples by name.
        samples: The examples, in the format of the predictions file.
        notes: Remarks for the console.
    """

    statistics: Scores
    samples: list[dict[str, Any]]
    notes: list[str]


class Task(ABC):
    """A task with the settings, columns and labels of one run.

    Attributes:
        spec: Properties of the task.
        config: The settings. `parse_dataset` fills in the columns that it guesses.
        has_new_head: Whether the head is re-initialized; set by `configure_model`.
        head_note: Remark about the head for the console; None for the default remark.
        fitted_params: Parameters that `fit_decision` chooses. They are saved in the model's `config.json`.
        fitted_confidence: Numbers that `calibrate` stored in the model's `config.json`.
        use_cache: Whether tokenized texts are cached on disk.
        new_tokens: Tokens that the task needs in addition to those of the tokenizer; set by `parse_dataset`
            or `load_state`.
    """

    spec: TaskSpec
    has_new_head: bool = True
    head_note: str | None = None
    new_tokens: Sequence[str] = ()

    def __init__(self, config: RunConfig) -> None:
        self.config: Any = config
        self.fitted_params: dict[str, Any] = {}
        self.fitted_confidence = NOT_FITTED
        self.use_cache = True

    @property
    @abstractmethod
    def input_schema(self) -> InputSchema:
        """The columns that the task reads; those that are not guessed yet are missing."""

    # ---- rows

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """Load the splits of `--data`.

        The values of `--validation` and `--test` replace the splits of these names.
        """
        from bertkit.data.loading import load_dataset, load_split

        config = self.config
        dialect = self.spec.make_dialect(config.encoding)
        dataset = load_dataset(config.data, self.spec.name, config.data_dir, dialect)
        dataset.require_training_split()
        sources = {"validation": config.validation, "test": config.test}
        return dataset.add_splits(
            {split: load_split(source, split, dialect) for split, source in sources.items() if source}
        )

    @abstractmethod
    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find the columns and the labels, and return the dataset with parsed rows.

        The notes of the returned dataset report the rows that were left out or changed.

        Raises:
            UserError: A column cannot be found, or a row cannot be parsed.
        """

    @abstractmethod
    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return the rows in the task's internal format, and notes on rows that are left out.

        Args:
            rows: Rows of any split. Rows in the internal format are returned unchanged.
            split: Name of the split, for the notes.
            require_labels: Whether every returned row must have a label that the model can predict.

        Raises:
            UserError: A row has no text, or a required label is invalid.
        """

    @abstractmethod
    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Return keys by which rows are split into training and validation rows."""

    @abstractmethod
    def validate_splits(self, splits: "Splits") -> None:
        """Check the values of all splits. `bertkit check` calls this with one split, and with single rows.

        Raises:
            UserError: A value is invalid.
        """

    def get_labels(self, rows: "Rows") -> list[Any]:
        """Return the label of each parsed row like the key `gold` of the predictions; tags are in IOB2."""
        raise NotImplementedError

    def replace_labels(self, rows: "Rows", labels: Mapping[int, Any]) -> "Rows":
        """Return parsed rows with other labels, which are given by the index of the row as in `get_labels`.

        Raises:
            UserError: A label does not occur in the rows, or cannot be changed.
        """
        raise NotImplementedError

    def map_columns(self, rows: "Rows", named: Mapping[str, Any]) -> None:
        """Adapt the column settings to these rows.

        If the rows lack a column that training used, a column with another common name is used.

        Args:
            rows: The rows as read.
            named: Columns that the user named, by setting. They take precedence.

        Raises:
            UserError: The rows lack a column that the user named.
        """
        from bertkit.data.columns import require_named_columns

        self.config = dataclasses.replace(self.config, **require_named_columns(rows, named))

    # ---- model

    def resolve_model(
        self, is_model_requested: bool, reporter: "Reporter", needs_weights: bool = True
    ) -> "ModelSource":
        """Find the model that training starts from.

        If the model was suggested by the dataset and cannot be found, the default model is used.

        Args:
            is_model_requested: Whether the user named the model.
            reporter: Receives the warning that the default model is used.
            needs_weights: Whether the weights are needed.

        Raises:
            UserError: The model cannot be found.
        """
        from bertkit.modeling import loading

        name = self.config.model
        if name is None or is_model_requested:
            return loading.find_model(name or loading.choose_default_model(), needs_weights=needs_weights)
        try:
            return loading.find_model(name, needs_weights=needs_weights)
        except UserError as error:
            default = loading.choose_default_model()
            reporter.warn(f"using {default} instead of the model that the dataset suggests ({error})")
            self.config = dataclasses.replace(self.config, model=None)
            return loading.find_model(default, needs_weights=needs_weights)

    @abstractmethod
    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return the model's config with the labels of this task, and decide whether to keep its head.

        Raises:
            UserError: The model cannot be trained on this task.
        """

    @abstractmethod
    def load_state(self, model_config: Any) -> None:
        """Restore the labels and the fitted parameters from the model config of a finished run."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line on the inputs and the labels, for the console and the model card."""

    @abstractmethod
    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Return the tokenized inputs of parsed rows, and their labels if the rows have labels.

        Args:
            rows: Parsed rows of one split.
            tokenizer: The tokenizer of the model.
            training: Whether the features are for training.
        """

    def preview(self, features: "Features", tokenizer: Any) -> "Preview | None":
        """Return training examples if the user passed `--preview`; None to train."""
        return None

    @abstractmethod
    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return the encoder with this task's head; weights that `source` lacks are initialized randomly."""

    def combine_logits(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Combine the logits of several models [models, ...] to those of one; by default by probability."""
        from bertkit.modeling.ensemble import average_probabilities

        return average_probabilities(logits)

    def make_collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Return a function that pads a list of features to a batch."""
        from bertkit.data.collator import PaddingCollator
        from bertkit.modeling.loading import takes_token_type_ids

        return PaddingCollator(
            tokenizer.pad_token_id, takes_token_type_ids(model), self.spec.sequence_grouping
        )

    @property
    def training_method(self) -> TrainingMethod:
        """How the encoder and the head are trained; by default, together."""
        return TrainingMethod()

    def verify_label_order(self, predict_sample: "Callable[[], Outputs]") -> None:
        """Check the label order of a head that is not re-initialized, before training.

        Args:
            predict_sample: Returns the model's outputs on a sample of validation rows.

        Raises:
            UserError: The predictions fit the gold labels far better if the labels of the head are reordered.
        """
        return

    @abstractmethod
    def make_loss(self, features: "Features") -> "Loss":
        """Return the loss of predictions, for these training features."""

    # ---- results

    @abstractmethod
    def evaluate(self, outputs: "Outputs") -> "Evaluation":
        """Return the predictions of a split."""

    def fit_decision(self, evaluation: "Evaluation") -> None:
        """Fit thresholds on the validation split, and store them in `fitted_params`."""
        return

    @abstractmethod
    def score_baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Return the scores of simple baselines by name; they are fitted on `train` and scored on `rows`."""

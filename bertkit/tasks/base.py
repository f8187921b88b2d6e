"""The columns that a task reads."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from bertkit.data.columns import find_column, require_named_columns
from bertkit.data.features import PaddingCollator
from bertkit.data.sources import load_dataset, load_split
from bertkit.errors import UserError
from bertkit.models import loading
from bertkit.models.forward import average_probabilities
from bertkit.models.loading import takes_token_type_ids
from bertkit.settings.run_settings import RunConfig
from bertkit.tasks.definition import TaskSpec
from bertkit.utils.reporting import report_warning

if TYPE_CHECKING:
    from bertkit.data.features import Features
    from bertkit.data.sources import LoadedDataset
    from bertkit.data.split import SplitKeys
    from bertkit.data.table import Rows, Splits
    from bertkit.models.loading import ModelSource
    from bertkit.models.losses import Loss
    from bertkit.tasks.evaluation import Evaluation, Outputs


# What a column of a row to predict holds; "words" is a list of words or a text.
ColumnKind = Literal["text", "words", "texts", "optional text", "optional span"]


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """The columns that a task reads, and the flags of `bertkit predict` that fill them.

    Attributes:
        text_columns: Columns of texts, in reading order.
        gold_columns: Columns of labels, which prediction ignores.
        hidden_columns: Input columns that are not copied to the predictions.
        columns_by_flag: Column that each text flag of `bertkit predict` fills, in the order of the columns.
        group_columns: Possible names of the column that defines groups; the first name that exists is used.
            Adjacent rows with the same value form a group and must be predicted together.
        span_columns: Columns of spans of the first text, which may be missing if the text marks the spans.
        example_text: The first text of an example row.
        column_kinds: What those text columns hold that do not hold one text.
        label_key: Key of a label fix that selects one of several labels of a row; None for a single label.
    """

    text_columns: tuple[str, ...]
    gold_columns: frozenset[str] = frozenset()
    hidden_columns: frozenset[str] = frozenset()
    columns_by_flag: Mapping[str, str] = field(default_factory=dict)
    group_columns: tuple[str, ...] = ()
    span_columns: tuple[str, ...] = ()
    example_text: str = "..."
    column_kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    label_key: Literal["word", "label"] | None = None

    def build_rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return rows that combine the texts of several flags.

        A flag with a single text fills its column in all rows with this text.

        Args:
            texts_by_flag: The texts that the user passed, by flag; see `columns_by_flag`.

        Raises:
            UserError: The flags have different numbers of texts.
        """
        num_rows = max(map(len, texts_by_flag.values()))
        if any(len(texts) not in (1, num_rows) for texts in texts_by_flag.values()):
            counts = ", ".join(
                f"{len(texts)} of --{flag.replace('_', '-')}" for flag, texts in texts_by_flag.items()
            )
            raise UserError(f"{counts}: the numbers differ; pass equally many of each, or a single one")
        columns = {
            self.columns_by_flag[flag]: texts if len(texts) == num_rows else texts * num_rows
            for flag, texts in texts_by_flag.items()
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def sample_texts(self, rows: "Rows", count: int) -> list[str]:
        """Return the first texts of parsed rows."""
        texts: list[str] = []
        for row in rows.select(range(min(len(rows), count))):
            for column in self.text_columns:  # of texts, or of lists of texts, which may be missing
                values = [row[column]] if isinstance(row[column], str) else row[column] or ()
                texts += [text for text in values if isinstance(text, str)]
        return texts[:count]

    def make_example_row(self) -> dict[str, Any]:
        """Return a row with placeholder texts, for the example code of the model card."""
        first_text = dict.fromkeys(self.text_columns[:1], self.example_text)
        return dict.fromkeys(self.text_columns, "...") | first_text

    def get_column_kinds(self) -> dict[str, ColumnKind]:
        """Return what the columns of a row to predict hold: texts, spans and the key of a group."""
        kinds = {column: self.column_kinds.get(column, "text") for column in self.text_columns}
        spans: dict[str, ColumnKind] = dict.fromkeys(self.span_columns, "optional span")
        groups: dict[str, ColumnKind] = dict.fromkeys(self.group_columns[:1], "optional text")
        return kinds | spans | groups

    def get_group_ids(self, rows: "Rows") -> Sequence[Any] | None:
        """Return the group of each row; None if rows can be predicted one by one."""
        for name in self.group_columns:
            if column := find_column(rows, name):
                return rows[column]
        return None


CONFIDENCE_KEY = "bertkit_confidence"  # in config.json


@dataclass(frozen=True)
class FittedConfidence:
    """What a run says about its confidence in a prediction; None for a number that is not fitted.

    Attributes:
        min_confidence: Confidence below which the model abstains.
        set_margin: Margin of the classes in a prediction set; see `bertkit.stats.calibration`.
        answer_weights: Weights of the probability that an answer is right; see
            `bertkit.tasks.qa.spans`.
    """

    min_confidence: float | None = None
    set_margin: float | None = None
    answer_weights: Mapping[str, float] | None = None

    @classmethod
    def load(cls, model_config: Any) -> "FittedConfidence":
        """Return the numbers in the model config of a finished run."""
        return cls(**(getattr(model_config, CONFIDENCE_KEY, None) or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted numbers as a JSON object."""
        return {name: value for name, value in vars(self).items() if value is not None}


NOT_FITTED = FittedConfidence()


def remove_fitted_confidence(model_config: Any) -> None:
    """Remove the numbers from a model config: they were fitted for the model that a run starts from."""
    vars(model_config).pop(CONFIDENCE_KEY, None)


Scores = dict[str, float]


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

    def load_data(self) -> "LoadedDataset":
        """Load the splits of `--data`.

        The values of `--validation` and `--test` replace the splits of these names.
        """
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
        self.config = dataclasses.replace(self.config, **require_named_columns(rows, named))

    # ---- model

    def resolve_model(self, is_model_requested: bool, needs_weights: bool = True) -> "ModelSource":
        """Find the model that training starts from.

        If the model was suggested by the dataset and cannot be found, the default model is used.

        Args:
            is_model_requested: Whether the user named the model.
            needs_weights: Whether the weights are needed.

        Raises:
            UserError: The model cannot be found.
        """
        name = self.config.model
        if name is None or is_model_requested:
            return loading.find_model(name or loading.choose_default_model(), needs_weights=needs_weights)
        try:
            return loading.find_model(name, needs_weights=needs_weights)
        except UserError as error:
            default = loading.choose_default_model()
            report_warning(f"using {default} instead of the model that the dataset suggests ({error})")
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

    def combine_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Combine the logits of several models [models, ...] to those of one; by default by probability."""
        return average_probabilities(logits)

    def make_collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Return a function that pads a list of features to a batch."""
        return PaddingCollator(
            tokenizer.pad_token_id, takes_token_type_ids(model), self.spec.sequence_grouping
        )

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

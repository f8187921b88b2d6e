"""The interface between a task and the pipeline.

A task consists of static facts (`TaskSpec`), the columns it reads (`InputSchema`), and the methods of
`Task`. The pipeline calls them roughly in the order in which they are defined. Task modules import
nothing heavy at the top, because the command line loads them to build `--help`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import RunConfig
from bertkit.errors import UserError

if TYPE_CHECKING:
    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.tasks.evaluation import Evaluation, Outputs
    from bertkit.utils.reporting import Reporter

Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How `transformers.pipeline()` runs a model of a task.

    Attributes:
        task: the pipeline's name, which is also the pipeline tag on the Hub.
        init_kwargs: arguments of `pipeline()` that make it predict as bertkit does.
        call_kwargs: the same for the call of the pipeline.
        example_input: an input for the model card.
        caveat: why `transformers.pipeline()` gives other predictions; None if it gives the same.
    """

    task: str
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    call_kwargs: Mapping[str, Any] = field(default_factory=dict)
    example_input: str = "..."
    caveat: str | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Static facts about a task.

    A task class has one spec. A task object refines its own copy where a fact depends on more: on the
    settings (`__init__`), on the labels (`parse_dataset`) or on the model (`configure_model`).

    Attributes:
        help: the help text of the command.
        best_metric: the metric that selects the checkpoint, and +1 if higher is better, else -1.
        unit: what messages call one row.
        default_max_length: `max_length` in tokens where neither the user nor the dataset sets it.
        default_hyperparameters: values that replace the suggestions by data and model size.
        column_aliases: the dataset registry's name of a column setting -> this task's name.
        reads_word_lines: whether plain text files hold one word per line.
        sequence_grouping: what the sequences of one example are, if it can have several.
        uses_windows: whether long inputs are split into windows; otherwise they are truncated.
        dynamic_examples: whether examples are sampled so that they fit `max_length`.
        row_level: whether there is one prediction per row, written with the row's columns.
        predictions_name: the stem of the file of predictions.
        training_phrase: how the model card introduces the task's name.
    """

    name: str
    help: str
    config: type[RunConfig]
    pipeline: Pipeline
    best_metric: tuple[str, int] = ("accuracy", 1)
    unit: str = "row"
    default_max_length: int = 256
    default_hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    column_aliases: Mapping[str, str] = field(default_factory=dict)
    reads_word_lines: bool = False
    sequence_grouping: Literal["document", "choice"] | None = None
    uses_windows: bool = False
    dynamic_examples: bool = False
    row_level: bool = True
    predictions_name: str = "predictions"
    training_phrase: str = "fine-tuned for"


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """The columns that a task reads, and how the command line gives rows to predict.

    Attributes:
        text_columns: columns that a person would read, in order.
        gold_columns: columns of labels, which are not read when predicting.
        dropped_columns: columns that predictions do not repeat; by default `gold_columns`.
        flags: setting of `bertkit predict` -> the column it fills, in the order of the columns.
        group_columns: candidate columns; adjacent rows with equal values in the first one that exists
            must be read together.
    """

    text_columns: tuple[str, ...]
    gold_columns: frozenset[str] = frozenset()
    dropped_columns: frozenset[str] | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    group_columns: tuple[str, ...] = ()

    @property
    def hidden_columns(self) -> frozenset[str]:
        """The columns that predictions do not repeat."""
        return self.gold_columns if self.dropped_columns is None else self.dropped_columns

    def rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return one row for each text given by flag; a single text is combined with every other.

        Raises:
            UserError: the flags have different numbers of texts.
        """
        count = max(map(len, texts_by_flag.values()))
        if any(len(texts) not in (1, count) for texts in texts_by_flag.values()):
            counts = ", ".join(
                f"{len(texts)} of --{flag.replace('_', '-')}" for flag, texts in texts_by_flag.items()
            )
            raise UserError(f"{counts}: the numbers differ; pass equally many of each, or a single one")
        columns = {self.flags[flag]: texts * (count // len(texts)) for flag, texts in texts_by_flag.items()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def example_row(self) -> dict[str, Any]:
        """Return a row to predict, for documentation."""
        return dict.fromkeys(self.text_columns, "...")

    def group_ids(self, rows: "Rows") -> list[Any] | None:
        """Return the group of each row; None if every row can be read by itself."""
        from bertkit.data.columns import find_column

        for name in self.group_columns:
            if column := find_column(rows, name):
                return rows[column]
        return None


@dataclass(frozen=True)
class Preview:
    """Training examples as the model reads them, with statistics over them and notes."""

    statistics: Scores
    samples: list[dict[str, Any]]
    notes: list[str]


class Task(ABC):
    """One task with its settings, on one dataset.

    Attributes:
        spec: static facts; see `TaskSpec`.
        config: the settings; methods fill in what the rows decide.
        has_new_head: whether the head is re-initialized; set by `configure_model`.
        head_note: a remark on the head for the console; by default the usual one.
        fitted_params: what `fit_decision` or `load_state` found; saved in the model's `config.json`.
        use_cache: whether tokenized texts are cached on disk.
    """

    spec: TaskSpec
    has_new_head: bool = True
    head_note: str | None = None

    def __init__(self, config: RunConfig) -> None:
        self.config: Any = config
        self.fitted_params: dict[str, Any] = {}
        self.use_cache = not config.dry_run

    @property
    @abstractmethod
    def inputs(self) -> InputSchema:
        """The columns, as far as they are known."""

    # ---- rows

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """Load the splits that `--data`, `--validation` and `--test` name; the latter two take precedence."""
        from bertkit.data.loading import load_dataset
        from bertkit.data.readers.files import Dialect, read_file

        config, dialect = self.config, Dialect(conll=True) if self.spec.reads_word_lines else None
        dataset = load_dataset(str(config.data), self.spec.name, config.data_dir, dialect)
        paths = {"validation": config.validation, "test": config.test}
        return dataset.add_splits({name: read_file(Path(p), dialect) for name, p in paths.items() if p})

    @abstractmethod
    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find the columns and kinds of labels; return the usable rows with notes on the others."""

    @abstractmethod
    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Return rows in the form that the task works on, and notes on rows that are left out.

        Args:
            rows: rows of any split; rows that are parsed already are returned unchanged.
            split: the name of the split, for notes.
            require_labels: whether the rows are to be scored.

        Raises:
            UserError: a row lacks an input, or its label is missing or unknown to the model.
        """

    @abstractmethod
    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Return what identifies an example, so that no example is in two splits."""

    @abstractmethod
    def validate_splits(self, splits: "Splits") -> None:
        """Check every value of every split.

        Raises:
            UserError: a value is invalid; the message names its row.
        """

    def map_columns(self, rows: "Rows") -> None:
        """Look up the columns of new rows by their usual names where the training names are absent."""
        return

    # ---- model

    def resolve_model(self, is_explicit: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """Find the model; if only the dataset suggests one and it cannot be found, use the default.

        Args:
            is_explicit: whether the user named the model.
            reporter: receives the warning about the default.
            weights: whether the weights are needed.
        """
        from bertkit.modeling import loading

        name = self.config.model
        if name is None or is_explicit:
            return loading.find_model(name or loading.choose_default_model(), needs_weights=weights)
        try:
            return loading.find_model(name, needs_weights=weights)
        except UserError as error:
            default = loading.choose_default_model()
            reporter.warn(f"using {default} instead of the model that the dataset suggests ({error})")
            self.config = dataclasses.replace(self.config, model=None)
            return loading.find_model(default, needs_weights=weights)

    @abstractmethod
    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Return the model's config with this task's head; labels are matched with the model's by name."""

    @abstractmethod
    def load_state(self, model_config: Any) -> None:
        """Restore from a finished run's config what `parse_dataset` and `configure_model` determined."""

    @abstractmethod
    def describe(self) -> str:
        """Return one line on what is learned, for the console and the model card."""

    @abstractmethod
    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Return the features of parsed rows; their labels are None where the rows have none."""

    def preview(self, features: "Features", tokenizer: Any) -> "Preview | None":
        """Return some training examples if the settings ask for them instead of training."""
        return None

    @abstractmethod
    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Load the encoder with this task's head."""

    def collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Return a function from features to a padded batch."""
        from bertkit.data.collator import PaddingCollator
        from bertkit.modeling.loading import takes_token_type_ids

        return PaddingCollator(
            tokenizer.pad_token_id, takes_token_type_ids(model), self.spec.sequence_grouping
        )

    def precompute_features(
        self, model: Any, features: "Features", collator: Any, reporter: "Reporter"
    ) -> "Features":
        """Return features that hold the outputs of a frozen encoder, where the encoder is frozen."""
        return features

    def verify_label_order(self, score_sample: "Callable[[], Outputs]") -> None:
        """Check a model's own head on some validation rows before training.

        Raises:
            UserError: its labels are evidently in another order than its config states.
        """
        return

    @abstractmethod
    def loss(self, features: "Features") -> "Loss":
        """Return the loss function for these training features."""

    # ---- results

    @abstractmethod
    def evaluate(self, outputs: "Outputs") -> "Evaluation":
        """Return the predictions of a split, from which scores and files are derived."""

    def fit_decision(self, evaluation: "Evaluation") -> None:
        """Choose parameters of the decision on the validation split; they go to `fitted_params`."""
        return

    @abstractmethod
    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Return the scores of baselines without an encoder, fitted on `train` and scored on `rows`."""

"""What a task must say of itself. Everything else is the pipeline's, in `bertkit.pipeline.run`.

A task's methods are called in the order they stand here. Nothing heavy is imported at the top of a
task's file: the command line loads it to build `--help`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bertkit.config import RunConfig
from bertkit.errors import UserError
from bertkit.tasks.task_checks import TaskChecks

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss
    from bertkit.utils.reporting import Reporter

Scores = dict[str, float]


@dataclass(frozen=True)
class Pipeline:
    """What `transformers.pipeline()` calls a task, and the options that make it do as bertkit does."""

    name: str
    init_kwargs: dict[str, Any]
    call_kwargs: dict[str, Any]
    example_input: str = "..."


@dataclass(frozen=True)
class Outputs:
    """A scored split: `logits` [decisions, outputs], with the features and the rows they belong to."""

    logits: "np.ndarray"
    features: Any  # what the task's own `prepare` gave
    rows: "Rows"


@dataclass(frozen=True)
class Preview:
    """Training examples as a model reads them: what was measured over them, each of them, and what to say."""

    statistics: Scores
    samples: list[dict[str, Any]]
    notes: list[str]


class Task(TaskChecks, ABC):
    """One task on one data set. What is asked before training alone stands in `Looks`.

    Attributes:
        config: the settings; methods fill in what the rows decide.
        best: the score that chooses the checkpoint, and its sign (+1: the higher the better).
        text_columns: the columns a person would read, known after `columns`.
        new_head: whether the head starts afresh, known after `adopt`.
        pipeline: how `transformers.pipeline()` does the task; None where it has no such pipeline.
        hub_task: what the Hub calls the task, known from the settings.
        ours_alone: where `pipeline` is None though the stock one would load the model, what it does wrong.
        known_as: names under which the known data sets list this task's column settings.
        several: what the sequences of one example are, where it may have more than one.
        words: whether plain text files hold a word a line.
        default_max_length: in pieces, where nothing else says it.
        in_windows: whether what is too long is read in windows, else it is cut.
        drawn_to_fit: whether examples are drawn so that they fit: none is too long.
        unit: what a row is called, for people.
        told: what the file of predictions is called, without its ending.
        rows_told: whether a prediction belongs to a row and is told with its columns.
        caches: whether what is made of texts is kept for the next run on them.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    Config: ClassVar[type[RunConfig]]
    hub_task: str
    pipeline: Pipeline | None = None
    pipeline_caveat: str = ""
    column_aliases: ClassVar[dict[str, str]] = {}
    reads_word_lines: ClassVar[bool] = False
    best_metric: tuple[str, int]
    text_columns: list[str]
    has_new_head: bool = True
    sequence_grouping: Literal["document", "choice"] | None = None
    uses_windows: bool = False
    dynamic_examples: ClassVar[bool] = False
    default_max_length: ClassVar[int] = 256
    unit: ClassVar[str] = "row"
    predictions_name: ClassVar[str] = "predictions"
    row_level: ClassVar[bool] = True

    def __init__(self, config: RunConfig) -> None:
        self.config: Any = config
        self.use_cache = not config.dry_run

    def config_from_run(self, run_dir: Path) -> RunConfig:
        """The settings, with a finished run of theirs in the place of the model that it began with."""
        return dataclasses.replace(self.config, model=str(run_dir), new_head=False, fp16=False, bf16=False)

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """The rows that `--data` names, by split; the files of --validation and --test go before its own."""
        from bertkit.data.loading import load_dataset
        from bertkit.data.readers.files import Dialect, read_file

        config, dialect = self.config, Dialect(conll=True) if self.reads_word_lines else None
        found = load_dataset(str(config.data), self.name, config.data_dir, dialect)
        named = {"validation": config.validation, "test": config.test}
        files = {split: read_file(Path(path), dialect) for split, path in named.items() if path}
        return found.add_splits(files)

    def resolve_model(self, is_explicit: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """The model; where only the data set names one that is not to be had, the default, with a warning.

        Args:
            given: whether the user named it.
            weights: whether they are needed.
        """
        from bertkit.modeling import loading

        named = self.config.model
        if named is None or is_explicit:
            return loading.find_model(named or loading.choose_default_model(), needs_weights=weights)
        try:
            return loading.find_model(named, needs_weights=weights)
        except UserError as error:
            instead = loading.choose_default_model()
            reporter.warn(f"{instead} is used instead of the model that the set names ({error})")
            self.config = dataclasses.replace(self.config, model=None)
            return loading.find_model(instead, needs_weights=weights)

    @abstractmethod
    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find and check the columns; gives the rows that can be used, with a note on what is left out."""

    @abstractmethod
    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """What tells the examples of a split apart, so that none stands on both sides of a split."""

    @abstractmethod
    def validate_splits(self, splits: "Splits") -> None:
        """Check every value of every split. Raises `UserError` naming the row."""

    @property
    def training_phrase(self) -> str:
        """What was done to the model, as its card says it before the task's name."""
        return "fine-tuned for"

    @abstractmethod
    def describe(self) -> str:
        """One line on what is to be learned: the classes, say."""

    @abstractmethod
    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """The model's config with this task's head; labels are matched with the model's own by name."""

    def describe_head(self, had_head: bool) -> str:
        """What is said of the head beside the model's name, once it is adopted.

        Args:
            had_head: whether the checkpoint came with one, of any task.
        """
        if not self.has_new_head:
            return "its own head"
        return "a new head in place of its own" if had_head else ""

    @abstractmethod
    def load_state(self, model_config: Any) -> None:
        """Take from a finished run's config what `columns` and `adopt` found out when it was trained."""

    @abstractmethod
    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Rows to score a finished run by, in the form the task works on, and notes on what is left out.

        Raises:
            UserError: they have no answers, or one that the run does not know.
        """

    @abstractmethod
    def normalize_rows(self, rows: "Rows") -> "Rows":
        """Rows to predict in the form the task works on. Raises `UserError` naming the row that lacks it."""

    def map_columns(self, rows: "Rows") -> None:
        """Take the columns of rows that training did not see by their usual names, where they have others."""
        return

    def group_ids(self, rows: "Rows") -> list[Any] | None:
        """What rows in a row that must be read together have in common; None: each is by itself."""
        return None

    @property
    def input_flags(self) -> dict[str, str]:
        """What a row to predict is made of, without a file: the flags, in order -> the columns they fill."""
        return dict(zip(("text", "text_pair"), self.text_columns, strict=False))

    def rows_from_flags(self, values: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """A row for each of the texts said by flag; one alone goes with all of another flag.

        Raises:
            UserError: the flags have unlike numbers of texts.
        """
        count = max(map(len, values.values()))
        if any(len(texts) not in (1, count) for texts in values.values()):
            told = ", ".join(f"{len(texts)} of --{flag.replace('_', '-')}" for flag, texts in values.items())
            raise UserError(f"{told}: give as many of each, or one that goes with all of the others")
        columns = {self.input_flags[flag]: texts * (count // len(texts)) for flag, texts in values.items()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def example_row(self) -> dict[str, Any]:
        """A row to predict, for documentation."""
        return dict.fromkeys(self.text_columns, "...")

    @property
    @abstractmethod
    def gold_columns(self) -> set[str]:
        """The columns of the answers: not read where rows are predicted."""

    @property
    def dropped_columns(self) -> set[str]:
        """The columns that predictions tell in their own words, and so do not repeat."""
        return self.gold_columns

    @abstractmethod
    def featurize(self, rows: "Rows", tokenizer: Any) -> "Features":
        """Features of one split; labels are None where it has none."""

    def featurize_training(self, rows: "Rows", tokenizer: Any) -> "Features":
        """Features of the training split, where they are made otherwise than those that are scored."""
        return self.featurize(rows, tokenizer)

    def collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """From examples of `prepare` to a padded batch."""
        from bertkit.data.collator import PaddingCollator
        from bertkit.modeling.loading import takes_token_type_ids

        return PaddingCollator(tokenizer.pad_token_id, takes_token_type_ids(model), self.sequence_grouping)

    @property
    def train_max_length(self) -> int:
        """The longest sequence that training reads, in pieces, known once `max_length` is."""
        return int(self.config.max_length)

    def default_hyperparameters(self) -> dict[str, Any]:
        """Settings the user may leave open that the task knows better than the sizes of data and model."""
        return {}

    def preview(self, features: "Features", tokenizer: Any) -> "Preview | None":
        """Some training examples as the model reads them, where that is asked for in place of training."""
        return None

    @abstractmethod
    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """The encoder with this task's head."""

    def precompute_features(
        self, model: Any, features: "Features", collator: Any, reporter: "Reporter"
    ) -> "Features":
        """What training and scoring read, computed once, in place of what a part that never changes reads."""
        return features

    def verify_label_order(self, score_sample: Callable[[], Outputs]) -> None:
        """Judge a model's own head before any training, by some validation rows as it scores them.

        Raises:
            UserError: its labels evidently stand in another order than its config says.
        """
        return

    @abstractmethod
    def loss(self, train: "Features") -> "Loss":
        """The loss, in sums and counts."""

    def fit_decision(self, outputs: Outputs) -> dict[str, Any]:
        """What is chosen on the validation split once training is over; it goes into the model's config."""
        return {}

    @property
    def fitted_params(self) -> dict[str, Any]:
        """What `settle` chose, or `restore` found."""
        return {}

    @abstractmethod
    def compute_metrics(self, outputs: Outputs) -> Scores:
        """Scores of a labelled split."""

    @abstractmethod
    def scorer(self, outputs: Outputs) -> "Scorer":
        """The scores of any draw of a labelled split's rows, quickly: a bootstrap asks a thousand times."""

    def compute_intervals(self, outputs: Outputs) -> dict[str, list[float]]:
        """The 95 % interval of each score: a bootstrap over the rows; of a share of them Wilson's."""
        from bertkit.metrics.significance import compute_intervals

        return compute_intervals(self.scorer(outputs), self.config.seed)

    def compute_details(self, outputs: Outputs) -> dict[str, Scores]:
        """Scores of the parts of a labelled split, by name: each type of entity, say."""
        return {}

    @abstractmethod
    def iter_predictions(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Readable predictions, a record a row, with the keys of `predictions.jsonl`."""

    def compact(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record of `decode` without the scores of what was not predicted."""
        return record

    def iter_extra_scores(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """What `decode` leaves out of each row's scores."""
        return repeat({})

    def prediction_files(self, outputs: Outputs) -> dict[str, Iterator[str]]:
        """Further files of predictions, in the forms that the field's own tools read: name -> its parts."""
        return {}

    @abstractmethod
    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Scores of what needs no encoder, fitted on `train` and scored on `rows`."""

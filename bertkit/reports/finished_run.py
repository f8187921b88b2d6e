"""A finished run of a single task, as the pages show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from bertkit.errors import UserError, format_list
from bertkit.run_directory import EXTRA_SPLITS, RETRAIN_HINT, RunDir
from bertkit.settings.recipes import read_recipe
from bertkit.settings.validation import DataObject
from bertkit.stats.scores import Scores
from bertkit.tasks import TASKS, TaskDef, task_definition
from bertkit.utils.compat import NotRequired
from bertkit.utils.text import validate


class DataRecord(TypedDict):
    name: str
    fingerprint: str
    validation: int
    test: NotRequired[int]
    validation_mismatched: NotRequired[int]
    test_mismatched: NotRequired[int]


class DifferenceRecord(TypedDict):
    difference: float
    interval: tuple[float, float]
    p: float
    test: str


ComparedRecord = TypedDict(
    "ComparedRecord", {"with": str, "validation": Scores, "difference": dict[str, DifferenceRecord]}
)


class ModelSizeRecord(TypedDict):
    parameters: int
    megabytes: float
    rows_per_second: float


class DistillationRecord(TypedDict):
    """The teacher of a student, and the size and the speed of both."""

    teacher: str
    models: dict[Literal["teacher", "student"], ModelSizeRecord]


class RunMetricsRecord(TypedDict):
    """The part of the `metrics.json` of a single run that pages show."""

    model: str
    data: DataRecord
    validation: Annotated[Scores, Meta(min_length=1)]
    intervals: dict[str, tuple[float, float]]
    baselines: dict[str, Scores]
    baseline_rows: NotRequired[dict[str, int]]
    test: NotRequired[Scores]
    validation_mismatched: NotRequired[Scores]
    test_mismatched: NotRequired[Scores]
    details: NotRequired[dict[str, dict[str, Scores]]]
    compared: NotRequired[ComparedRecord]
    distillation: NotRequired[DistillationRecord]
    training: NotRequired[dict[str, Any]]


class LogRecord(TypedDict):
    """A line of the training log; further keys may have any values."""

    step: Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True)
class FinishedRun(RunDir):
    """A run directory whose files are read at first use.

    Attributes:
        metrics: Content of `metrics.json`. When a run ends, the page is written before this file exists.
        definition: What the task is.
    """

    metrics: Mapping[str, Any]
    definition: TaskDef

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.folder.absolute().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings that differ from their defaults."""
        recipe = read_recipe(str(self.settings_file), self.definition.name, self.definition.config)
        return {
            name: str(value) if isinstance(value, DataObject) else value
            for name, value in recipe.settings.items()
        }

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Command and package versions."""
        return self.read_provenance()

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """Lines of the training log."""
        lines = list(self.iter_lines(self.LOG_FILE))
        for number, line in enumerate(lines, 1):
            validate(line, LogRecord, f"{self.folder / self.LOG_FILE}:{number}")
        return lines


def load_finished_run(folder: Path) -> FinishedRun:
    """Load a finished run.

    Raises:
        UserError: The directory has no finished run, has several runs, or has an invalid `metrics.json`.
    """
    metrics = RunDir(folder).require_metrics()
    if metrics["task"] not in TASKS:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/**/{RunDir.METRICS_FILE}"))
        raise UserError(f"{folder}: contains several runs; pass one of them: {format_list(runs)}")
    validate(metrics, RunMetricsRecord, folder / RunDir.METRICS_FILE)
    # keys to which another part of the file refers
    sizes, compared = metrics["data"], metrics.get("compared", {})
    missing = [f"data.{split}" for split in EXTRA_SPLITS if metrics.get(split) and split not in sizes]
    lost = [name for name in compared.get("difference", {}) if name not in compared.get("validation", {})]
    missing += [f"compared.validation.{name}" for name in lost]
    if missing:
        raise UserError(f"{folder / RunDir.METRICS_FILE}: {format_list(missing)} missing; {RETRAIN_HINT}")
    return FinishedRun(folder, metrics, task_definition(metrics["task"]))

"""Read a finished run from its directory."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from bertkit import run_directory
from bertkit.errors import UserError, format_list, shorten_repr
from bertkit.settings.recipes import read_recipe
from bertkit.settings.validation import DataObject
from bertkit.stats.scores import Scores
from bertkit.tasks import TASKS, TaskDef, task_definition
from bertkit.utils.compat import NotRequired
from bertkit.utils.text import validate

EXTRA_SPLITS = ("test", "validation_mismatched", "test_mismatched")  # in addition to validation
PREDICTION_FILES = ("predictions.jsonl", "masked_samples.jsonl")  # for the validation split


class _Data(TypedDict):
    name: str
    fingerprint: str
    validation: int
    test: NotRequired[int]
    validation_mismatched: NotRequired[int]
    test_mismatched: NotRequired[int]


class _Difference(TypedDict):
    difference: float
    interval: tuple[float, float]
    p: float
    test: str


class _ModelSize(TypedDict):
    parameters: int
    megabytes: float
    rows_per_second: float


class _Distillation(TypedDict):
    """The teacher of a student, and the size and the speed of both."""

    teacher: str
    models: dict[Literal["teacher", "student"], _ModelSize]


_Compared = TypedDict("_Compared", {"with": str, "validation": Scores, "difference": dict[str, _Difference]})


class _Metrics(TypedDict):
    """The part of `metrics.json` that pages show."""

    model: str
    data: _Data
    validation: Annotated[Scores, Meta(min_length=1)]
    intervals: dict[str, tuple[float, float]]
    baselines: dict[str, Scores]
    baseline_rows: NotRequired[dict[str, int]]
    test: NotRequired[Scores]
    validation_mismatched: NotRequired[Scores]
    test_mismatched: NotRequired[Scores]
    details: NotRequired[dict[str, dict[str, Scores]]]
    compared: NotRequired[_Compared]
    distillation: NotRequired[_Distillation]
    training: NotRequired[dict[str, Any]]


class _Reliability(TypedDict):
    """Statistics of confidence bins; null for an empty bin."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


class RiskCoverage(TypedDict):
    """Points of the risk-coverage curve."""

    coverage: list[float]
    risk: list[float]
    min_confidence: list[float]
    aurc: float


class _Abstention(TypedDict):
    min_confidence: float


class ThresholdRecord(TypedDict):
    """The thresholds, and the scores by threshold."""

    thresholds: dict[str, float]
    curve: NotRequired[dict[str, list[float]]]


class _CalibrationData(TypedDict):
    rows: int
    name: NotRequired[str]
    is_validation_split: NotRequired[bool]


class CalibrationRecord(TypedDict):
    """The part of `calibration.json` that pages show."""

    data: NotRequired[_CalibrationData]
    reliability: dict[str, _Reliability]
    risk_coverage: NotRequired[RiskCoverage]
    abstention: NotRequired[_Abstention]
    threshold: NotRequired[ThresholdRecord]


class _Step(TypedDict):
    """A line of the training log; further keys may have any values."""

    step: Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True)
class FinishedRun:
    """A run directory whose files are read at first use.

    Attributes:
        metrics: Content of `metrics.json`. When a run ends, the page is written before this file exists.
        definition: What the task is.
    """

    folder: Path
    metrics: Mapping[str, Any]
    definition: TaskDef

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.folder.absolute().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings that differ from their defaults."""
        settings_path = str(self.folder / run_directory.SETTINGS_FILE)
        recipe = read_recipe(settings_path, self.definition.name, self.definition.config)
        return {
            name: str(value) if isinstance(value, DataObject) else value
            for name, value in recipe.settings.items()
        }

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Command and package versions."""
        return run_directory.read_provenance(self.folder)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """Lines of the training log."""
        lines = list(self._lines(run_directory.LOG_FILE))
        for number, line in enumerate(lines, 1):
            validate(line, _Step, f"{self.folder / run_directory.LOG_FILE}:{number}")
        return lines

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Predictions for the validation split, or masked samples from it."""
        return list(self._lines(self.predictions_path.name))

    @cached_property
    def calibration(self) -> CalibrationRecord:
        """Content of `calibration.json`; empty if the run is not calibrated."""
        record: CalibrationRecord = self.read_json(run_directory.CALIBRATION_FILE, CalibrationRecord)
        return record

    @property
    def is_calibrated_on_validation(self) -> bool:
        """Whether the calibration used the validation split of the run."""
        return self.calibration.get("data", {}).get("is_validation_split", False)

    @property
    def predictions_path(self) -> Path:
        """Path of `records`, whether or not the file exists."""
        paths = [self.folder / name for name in PREDICTION_FILES]
        return next((path for path in paths if path.exists()), paths[0])

    def read_json(self, name: str, schema: Any) -> Any:
        """Read a JSON file of the run and validate it; empty if the file does not exist."""
        path = self.folder / name
        return validate(_parse_json(path.read_bytes(), path), schema, path) if path.exists() else {}

    def make_record_error(self, index: int, problem: str) -> UserError:
        """Build the error for an invalid record; `index` is its position in `records`."""
        return UserError(f"{self.predictions_path}:{index + 1}: {problem}; run the training again")

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return
        with path.open("rb") as file:  # binary mode: the parser reports invalid UTF-8 with the line
            for number, line in enumerate(file, 1):
                yield _parse_json(line, f"{path}:{number}")


def load_finished_run(folder: Path) -> FinishedRun:
    """Load a finished run.

    Raises:
        UserError: The directory has no finished run, has several runs, or has an invalid `metrics.json`.
    """
    metrics = run_directory.require_metrics(folder)
    if metrics["task"] not in TASKS:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/**/{run_directory.METRICS_FILE}"))
        raise UserError(f"{folder}: contains several runs; pass one of them: {format_list(runs)}")
    validate(metrics, _Metrics, folder / run_directory.METRICS_FILE)
    if missing := _find_missing_keys(metrics):
        raise UserError(
            f"{folder / run_directory.METRICS_FILE}: {format_list(missing)} missing; run the training again"
        )
    return FinishedRun(folder, metrics, task_definition(metrics["task"]))


def _find_missing_keys(metrics: Mapping[str, Any]) -> list[str]:
    """Return keys that are missing although another part of `metrics.json` refers to them."""
    sizes = metrics["data"]
    compared = metrics.get("compared", {})
    compared_scores = compared.get("validation", {})
    return [
        *(f"data.{split}" for split in EXTRA_SPLITS if metrics.get(split) and split not in sizes),
        *(
            f"compared.validation.{name}"
            for name in compared.get("difference", {})
            if name not in compared_scores
        ),
    ]


def _parse_json(text: bytes, location: object) -> dict[str, Any]:
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{location}: cannot parse as JSON ({error}); run the training again") from error
    if not isinstance(content, dict):
        raise UserError(
            f"{location}: expected a JSON object, found {shorten_repr(content)}; run the training again"
        )
    return content

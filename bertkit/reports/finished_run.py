"""A finished run as its directory tells it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from bertkit import run_directory
from bertkit.errors import UserError, format_list, shorten_repr
from bertkit.recipes import read_recipe
from bertkit.tasks import TASKS, task_class
from bertkit.utils.schema import validate

EXTRA_SPLITS = ("test", "validation_mismatched", "test_mismatched")  # that a run may have scored too
PREDICTION_FILES = (
    "predictions.jsonl",
    "masked_samples.jsonl",
)  # what a run may have of its validation split


Scores = dict[str, float]


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


_Compared = TypedDict("_Compared", {"with": str, "validation": Scores, "difference": dict[str, _Difference]})


class _Metrics(TypedDict):
    """`metrics.json`, as far as pages tell it."""

    model: str
    data: _Data
    validation: Annotated[Scores, Meta(min_length=1)]
    intervals: dict[str, tuple[float, float]]
    baselines: dict[str, Scores]
    test: NotRequired[Scores]
    validation_mismatched: NotRequired[Scores]
    test_mismatched: NotRequired[Scores]
    details: NotRequired[dict[str, dict[str, Scores]]]
    compared: NotRequired[_Compared]
    training: NotRequired[dict[str, Any]]


class _Step(TypedDict):
    """A line of the log; what was logged at that step is any figures."""

    step: Annotated[int, Meta(ge=0, le=2**53)]


@dataclass(frozen=True)
class FinishedRun:
    """A run directory; files are read when they are asked for.

    Attributes:
        metrics: the content of `metrics.json`, which a run that is about to end has not written yet.
    """

    folder: Path
    metrics: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.folder.absolute().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        kind = task_class(self.metrics["task"])
        return read_recipe(str(self.folder / run_directory.SETTINGS_FILE), kind.spec.name, kind.spec.config).settings

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Command and versions."""
        return run_directory.read_provenance(self.folder)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The steps that were logged."""
        lines = list(self._lines(run_directory.LOG_FILE))
        for number, line in enumerate(lines, 1):
            validate(line, _Step, f"{self.folder / run_directory.LOG_FILE}:{number}")
        return lines

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The validation split's predictions, or samples of it."""
        return list(self._lines(self.predictions_path.name))

    @property
    def predictions_path(self) -> Path:
        """The file of its predictions, or of samples; if it has none, where they would be."""
        paths = [self.folder / name for name in PREDICTION_FILES]
        return next((path for path in paths if path.exists()), paths[0])

    def read_json(self, name: str, schema: Any) -> Any:
        """A JSON file of the run, as the form has it; empty where it has none of the name."""
        path = self.folder / name
        return validate(_parsed(path.read_bytes(), path), schema, path) if path.exists() else {}

    def make_record_error(self, number: int, problem: str) -> UserError:
        """What is wrong with a record, counted from 0, whose form is right."""
        return UserError(f"{self.predictions_path}:{number + 1}: {problem}; the run must be made again")

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return
        with path.open("rb") as file:  # by bytes: a text may hold U+2028
            for number, line in enumerate(file, 1):
                yield _parsed(line, f"{path}:{number}")


def load_finished_run(folder: Path) -> FinishedRun:
    """A finished run.

    Raises:
        UserError: the directory holds none, or several.
    """
    metrics = run_directory.require_metrics(folder)
    if metrics["task"] not in TASKS:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/**/{run_directory.METRICS_FILE}"))
        raise UserError(f"{folder}: holds several runs; name some of them: {format_list(runs)}")
    validate(metrics, _Metrics, folder / run_directory.METRICS_FILE)
    if unsaid := _unsaid(metrics):
        raise UserError(
            f"{folder / run_directory.METRICS_FILE}: is not what a run writes, it has no {format_list(unsaid)}; "
            "the run must be made again"
        )
    return FinishedRun(folder, metrics)


def _unsaid(metrics: Mapping[str, Any]) -> list[str]:
    """What one part of `metrics.json` speaks of and another, which should, does not."""
    sizes, compared = metrics["data"], metrics.get("compared", {})
    theirs = compared.get("validation", {})
    return [
        *(f"data.{split}" for split in EXTRA_SPLITS if metrics.get(split) and split not in sizes),
        *(f"compared.validation.{name}" for name in compared.get("difference", {}) if name not in theirs),
    ]


def _parsed(text: bytes, where: object) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); the run must be made again") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: {shorten_repr(found)} is no JSON object; the run must be made again")
    return found

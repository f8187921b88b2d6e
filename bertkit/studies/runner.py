"""Training of the runs of a study, which have the same data."""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertkit import run_directory
from bertkit.config import RunConfig
from bertkit.data.rows import Splits
from bertkit.metrics.modules import LoadedModule
from bertkit.pipeline.loaded_data import LoadedData
from bertkit.pipeline.prepare import PreparedRun, StudyPart, prepare
from bertkit.pipeline.run import train_prepared
from bertkit.training.memory import report_out_of_memory
from bertkit.utils.reporting import Reporter

T = TypeVar("T")
LOADING_MEMORY = "out of memory while the model is loaded; use a smaller model, or a machine with more memory"


class RunReporter(Reporter):
    """A reporter for the runs of a study: it passes on the progress, and each warning only once."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.warnings: set[str] = set()

    def warn(self, message: str) -> None:
        """Report a warning that no earlier run has reported."""
        if message not in self.warnings:
            self.warnings.add(message)
            self.reporter.warn(message)

    def on_train_begin(self, total: int, done: int) -> None:
        """Pass on that training begins."""
        self.reporter.on_train_begin(total, done)

    def on_step_end(self, step: int, **metrics: Any) -> None:
        """Pass on the end of a step."""
        self.reporter.on_step_end(step, **metrics)

    def on_train_end(self) -> None:
        """Pass on the end of training."""
        self.reporter.on_train_end()

    def track(
        self, batches: Iterable[T], total: int, description: str, get_size: Callable[[T], int] = lambda _: 1
    ) -> Iterator[T]:
        """Pass on the progress of scoring."""
        yield from self.reporter.track(batches, total, description, get_size)


@dataclasses.dataclass(frozen=True)
class Runner:
    """Trains runs on data that is loaded and parsed once.

    Attributes:
        data: The data.
        config: The settings of a run without trial settings.
        modules: The modules of `--metric`.
        reporter: Receives progress and warnings.
    """

    data: LoadedData
    config: RunConfig
    modules: Sequence[LoadedModule]
    reporter: Reporter

    def prepare(
        self, settings: Mapping[str, Any], splits: Splits, part: StudyPart | None = None
    ) -> PreparedRun:
        """Prepare a run with these settings and splits."""
        config = dataclasses.replace(self.config, **settings)
        data = self.data.for_run(dict(settings), splits)
        prepared = prepare(data.task.spec.name, config, self.reporter, self.modules, data)
        prepared.study_part = part or StudyPart()
        return prepared

    def train(
        self, folder: Path, settings: Mapping[str, Any], splits: Splits, part: StudyPart
    ) -> dict[str, Any]:
        """Train a run in a locked directory, resume it, or read its metrics if it is finished.

        Afterwards, the caller releases the memory, because an error may keep the tensors alive.

        Args:
            folder: The run directory.
            settings: Settings of this run.
            splits: Rows by split.
            part: Callbacks and files of the run.

        Returns:
            Content of `metrics.json`.
        """
        if (metrics := run_directory.read_metrics(folder)) is None:
            is_started = (folder / run_directory.SETTINGS_FILE).exists()
            call_settings = {"output_dir": str(folder), "resume": is_started}
            prepared = self.prepare({**settings, **call_settings}, splits, part)
            with report_out_of_memory(LOADING_MEMORY):
                metrics = train_prepared(prepared, folder, self.reporter).metrics
        shutil.rmtree(folder / run_directory.CHECKPOINTS_DIR, ignore_errors=True)
        return metrics

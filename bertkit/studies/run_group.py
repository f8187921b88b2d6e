"""Preparation of runs that have the same data."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from bertkit.data.table import Splits
from bertkit.run.load_data import LoadedData, load_data, split_parsed_rows
from bertkit.run.prepare import PreparedRun, RunOptions, prepare, score_encoder_baselines
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.metric_modules import MetricModule, load_module
from bertkit.stats.scores import Scores
from bertkit.utils.reporting import Reporter, get_reporter, use_reporter


class RunReporter(Reporter):
    """A reporter for several runs: it passes on the progress, and each warning only once.

    Args:
        reporter: Receives what is passed on.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.warnings: set[str] = set()
        self.is_info_shown = False
        for name in ("on_train_begin", "on_step_end", "on_train_end", "track", "track_position"):
            setattr(self, name, getattr(reporter, name))

    @contextmanager
    def show_info(self, is_shown: bool = True) -> Iterator[None]:
        """Pass on information in the block."""
        self.is_info_shown = is_shown
        try:
            yield
        finally:
            self.is_info_shown = False

    def info(self, message: str) -> None:
        """Report information in the block of `show_info`, and otherwise nothing."""
        if self.is_info_shown:
            self.reporter.info(message)

    def warn(self, message: str) -> None:
        """Report a warning that no earlier run has reported."""
        if message not in self.warnings:
            self.warnings.add(message)
            self.reporter.warn(message)


class RunGroup:
    """Runs of one task on the same data, which is loaded and parsed once, when the first run needs it.

    Information about the data and about the first run is reported; further runs report only new warnings.

    Args:
        task_name: The task.
        config: The settings that the runs have in common.
        reporter: The reporter of the runs; by default, a new one.
    """

    def __init__(self, task_name: str, config: RunConfig, reporter: "RunReporter | None" = None) -> None:
        self.task_name, self.config = task_name, config
        self.reporter = reporter or RunReporter(get_reporter())
        self._has_prepared = False
        self._baselines: dict[str, Scores] | None = None
        self._encoder_baselines: dict[tuple[str, int], dict[str, Scores]] = {}  # by model and maximum length

    @cached_property
    def data(self) -> LoadedData:
        """The parsed data."""
        with use_reporter(self.reporter), self.reporter.show_info():
            return load_data(self.task_name, self.config)

    @cached_property
    def modules(self) -> Sequence[MetricModule]:
        """The modules of `--metric`."""
        return [load_module(value) for value in self.config.metric]

    @cached_property
    def splits(self) -> Splits:
        """The splits of a single run with these settings."""
        with use_reporter(self.reporter), self.reporter.show_info():
            return split_parsed_rows(self.data.task, self.data.dataset)

    def prepare(
        self, settings: Mapping[str, Any], splits: Splits | None = None, options: RunOptions | None = None
    ) -> PreparedRun:
        """Prepare a run.

        Args:
            settings: Settings of this run. They must not change how rows are parsed.
            splits: Rows by split; by default, `self.splits`.
            options: Options of this run.
        """
        config = dataclasses.replace(self.config, **settings)
        options = options or RunOptions()
        data = self.data.for_run(dict(settings), self.splits if splits is None else splits)
        with use_reporter(self.reporter), self.reporter.show_info(not self._has_prepared):
            prepared = prepare(self.task_name, config, self.modules, data)
        self._has_prepared = True
        if splits is None:
            options = dataclasses.replace(options, score_baselines=partial(self._score_baselines, prepared))
        prepared.options = options
        return prepared

    def _score_baselines(self, prepared: PreparedRun) -> dict[str, Scores]:
        """Return the scores of the baselines.

        All runs with the splits of the group share them. Those that read vectors of the encoder are shared by
        the runs with the same model.
        """
        train, rows = prepared.splits["train"], prepared.splits["validation"]
        task = copy.copy(prepared.task)
        task.resolve(seed=self.config.seed)
        if self._baselines is None:
            self._baselines = task.score_baselines(train, rows)
        encoder = (task.config.model, task.config.max_length)
        if encoder not in self._encoder_baselines:
            scores = score_encoder_baselines(task, train, rows, prepared.tokenizer)
            self._encoder_baselines[encoder] = scores
        return self._baselines | self._encoder_baselines[encoder]

"""What suites share: several runs in one directory, gone on with where they were stopped."""

import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bertkit import locks, rundir
from bertkit.config import RunConfig, fill, saved_settings
from bertkit.data.known import plain
from bertkit.data.sources import data_directory
from bertkit.errors import Stopped, UserError, listed, nearest
from bertkit.files import write_text
from bertkit.prepare import settings
from bertkit.reporter import Reporter
from bertkit.run import Run, train
from bertkit.suite.shown import Shown
from bertkit.training import precision


class Suite(ABC):
    """Several runs and what they come to. Methods are called in the order they stand here.

    Attributes:
        name: the command.
        own: settings that are the suite's, and not handed on to its runs.
        leaves: what it may leave beside the files of a run: what --overwrite removes.
        parts: the folders of the runs, or of several runs each.
    """

    name: ClassVar[str]
    Config: ClassVar[type[RunConfig]]
    own: ClassVar[frozenset[str]]
    leaves: ClassVar[list[str]]
    parts: list[str]

    def __init__(self, config: Any, reporter: Reporter) -> None:
        precision.check(config)
        directory = data_directory(config.data_dir)
        self.config: Any = fill(config, {"data_dir": str(directory) if directory else None})
        self.reporter = reporter

    @abstractmethod
    def require_all(self) -> list[str]:
        """What all runs need must be at hand; gives what the default directory is called after.

        Raises:
            UserError: naming what is not.
        """

    @abstractmethod
    def planned(self) -> list[dict[str, Any]]:
        """What each run would be: its `folder`, its `recipe`, the `data`, and what else tells it apart."""

    @abstractmethod
    def results(self, folder: Path) -> dict[str, Any]:
        """Make the runs that are not finished yet: what each of `parts` left."""

    @abstractmethod
    def metrics(self, folder: Path, results: dict[str, Any]) -> dict[str, Any]:
        """The content of the suite's `metrics.json`."""

    @staticmethod
    @abstractmethod
    def shown(metrics: Mapping[str, Any], folder: Path) -> Shown:
        """What a person sees of the content of `folder/metrics.json`."""

    def run(self, called: list[str]) -> Run:
        """All runs that are not finished yet, then what they come to."""
        named = self.config.output_dir
        with locks.held(Path(named) if named else rundir.reserve_default(self.name, *called)) as folder:
            return self._run(folder)

    def _run(self, folder: Path) -> Run:
        if not self.config.resume:
            rundir.check_writable(folder, self.config.overwrite)
            rundir.put_aside(folder, self.leaves)
            rundir.write_settings(folder, self.name, self.config, {})
        try:
            results = self.results(folder)
        except (Stopped, KeyboardInterrupt) as error:
            if not self._has_runs(folder):
                raise
            way_on = f"bertkit {self.name} --resume --output-dir {shlex.quote(str(folder))}"
            raise Stopped(f"stopped; go on with: {way_on}") from error
        finally:
            self._settle(folder)
        metrics = self.metrics(folder, results)
        write_text(folder / "README.md", self.shown(metrics, folder).page())
        rundir.write_metrics(folder, metrics)
        return Run(folder, metrics)

    def shared(self, kind: str) -> dict[str, Any]:
        """The suite's settings that it hands on to runs of task `kind`."""
        return {key: value for key, value in saved_settings(self.config).items() if key not in self.own}

    def train(self, kind: str, recipe: str | None, own: Mapping[str, Any], place: Path) -> Run:
        """One run of task `kind`, or the rest of it; `own` goes before the suite's settings."""
        if finished := rundir.read_metrics(place):
            self.reporter.say("finished before")
            run = Run(place, finished)
        elif (place / rundir.SETTINGS).exists():
            run = train(kind, {"resume": True, "output_dir": str(place)}, None, self.reporter)
        else:
            given = {**self.shared(kind), **own, "output_dir": str(place)}
            run = train(kind, given, recipe, self.reporter)
        shutil.rmtree(place / rundir.CHECKPOINTS, ignore_errors=True)  # it is finished
        return run

    def _settle(self, folder: Path) -> None:
        """Leave nothing of a suite whose first run was refused, and else nothing of the one it replaces."""
        if self._has_runs(folder):
            rundir.drop_replaced(folder)
            return
        for part in self.parts:
            shutil.rmtree(folder / part, ignore_errors=True)
        rundir.discard_unstarted(folder)

    def _has_runs(self, folder: Path) -> bool:
        return any(found for part in self.parts for found in folder.glob(f"{part}/**/{rundir.SETTINGS}"))


def run_suite(
    kind: type[Suite], given: Mapping[str, Any], recipe: str | None, reporter: Reporter | None
) -> Run:
    """Make the runs of a suite, or what is left of them.

    Raises:
        UserError: anything the user can mend; what all runs need is looked for before any of them.
        Stopped: Ctrl-C or SIGTERM; what is finished stays, and `--resume` goes on.
    """
    reporter = reporter or Reporter()
    config, _ = settings(kind.name, kind.Config, given, recipe, Reporter())
    finished = rundir.read_metrics(Path(config.output_dir or "")) if config.resume else None
    if finished:
        reporter.say("all runs are finished; these are their scores")
        return Run(Path(config.output_dir or ""), finished)
    suite = kind(config, reporter)
    called = suite.require_all()
    if config.dry_run:
        return Run(None, {"task": kind.name, "model": suite.config.model, "runs": suite.planned()})
    return suite.run(called)


def chosen(flag: str, names: Sequence[str] | None, known: Sequence[str], what: str) -> list[str]:
    """The names of `known` that `flag` gives, repeated or parted by commas, in the order of `known`.

    Raises:
        UserError: a name that is none, or no name at all.
    """
    parts = [part.strip() for name in names or known for part in name.split(",") if part.strip()]
    for part in parts:
        if plain(part) not in map(plain, known):
            raise UserError(f"{flag} {part}: no {what}{nearest(part, known)} ({listed(known)})")
    if not parts:
        raise UserError(f"{flag}: names none of {listed(known)}")
    return [name for name in known if plain(name) in map(plain, parts)]

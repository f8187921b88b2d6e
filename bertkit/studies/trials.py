"""The trials of a search, stored by optuna in a journal file that several processes can use.

A trial proposes settings, which depend on the seed of the study, the number of the trial and the finished
trials. A study that is stopped and resumed therefore has the same trials.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bertkit.errors import UserError
from bertkit.studies.space import Dimension

if TYPE_CHECKING:
    import optuna

JOURNAL_FILE, STUDY_NAME = "journal.log", "study"
RANDOM_TRIALS = 10  # sampled at random, before TPE (Bergstra et al. 2011) models the scores
UNPRUNED_TRIALS = 3  # finished trials before the first one is pruned
INSTALL_HINT = "install the extra: pip install 'bertkit[study]'"
State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A finished trial.

    Attributes:
        number: Number of the trial, from 0.
        settings: The settings of the trial; empty for the default settings.
        state: How the trial ended.
        score: Best validation score, or None if the trial failed before its first evaluation.
        steps: Number of optimizer steps.
        planned_steps: Number of optimizer steps of a trial that is not pruned.
        seconds: Duration.
        reason: Why the trial failed.
    """

    number: int
    settings: dict[str, Any]
    state: State
    score: float | None
    steps: int
    planned_steps: int
    seconds: float
    reason: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the line of `trials.jsonl`."""
        record = asdict(self)
        return {"trial": record.pop("number"), **record}


@dataclass
class RunningTrial:
    """A trial whose run is being trained."""

    trial: "optuna.Trial"
    settings: dict[str, Any]

    @property
    def number(self) -> int:
        """Number of the trial, from 0."""
        return self.trial.number

    @property
    def _score_by_epoch(self) -> dict[int, float]:
        return self.trial.study.trials[self.number].intermediate_values

    @property
    def scores(self) -> list[float]:
        """The scores of all evaluations, also of those before a resume."""
        return list(self._score_by_epoch.values())

    def report(self, epoch: int, score: float) -> bool:
        """Store the score of an evaluation, and return whether to prune the trial."""
        if epoch not in self._score_by_epoch:  # a resumed trial may repeat an evaluation
            self.trial.report(score, epoch)
        return self.trial.should_prune()


def require_optuna() -> None:
    """Raise `UserError` if optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError(f"--trials: needs optuna, which is not installed; {INSTALL_HINT}") from error


def _check_journal(path: Path) -> None:
    """Raise `UserError` if a journal file is damaged; optuna would append to an incomplete line."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if not lines and any(other.is_dir() for other in path.parent.iterdir()):  # the directories of trials
        raise UserError(f"{path}: is empty or missing; restore the file, or start again with --overwrite")
    for number, line in enumerate(lines, 1):
        try:
            is_valid = line.endswith(b"\n") and "op_code" in json.loads(line)
        except (ValueError, TypeError):
            is_valid = False
        if not is_valid:
            raise UserError(
                f"{path}: line {number} is damaged; restore the file, or start again with --overwrite"
            )


class TrialStore:
    """The trials of a study in a directory.

    Args:
        folder: Directory of the journal file.
        space: The search space.
        defaults: Default values of the settings in the space.
        seed: Seed of the proposals.
        sign: 1 if a higher score is better, else -1.

    Raises:
        UserError: The journal file is damaged.
    """

    def __init__(
        self, folder: Path, space: Sequence[Dimension], defaults: Mapping[str, Any], seed: int, sign: int
    ) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.seed, self.sign = space, seed, sign
        _check_journal(folder / JOURNAL_FILE)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
        self.study = optuna.create_study(
            storage=storage, study_name=STUDY_NAME, load_if_exists=True,
            direction="maximize" if sign > 0 else "minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS),
        )  # fmt: skip
        self.first_values = {
            dimension.name: _get_stored_value(dimension, defaults[dimension.name])
            for dimension in space
            if dimension.contains(defaults[dimension.name])
        }

    # ---- running trials

    def count(self) -> int:
        """Return the number of trials, including those that are running."""
        return len(self.study.get_trials(deepcopy=False))

    def begin(self) -> RunningTrial:
        """Create the next trial and propose its settings."""
        if not self.count():
            self.study.enqueue_trial(self.first_values)
        return self._propose(self.study.ask())

    def list_running(self) -> list[RunningTrial]:
        """Return the trials that have begun and have not ended, in this or another process."""
        import optuna

        running = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        return [self._propose(optuna.Trial(self.study, trial._trial_id)) for trial in running]

    def _propose(self, trial: "optuna.Trial") -> RunningTrial:
        """Propose a value for each setting; those that the trial already has are kept."""
        if trial.number == 0:  # the defaults; the sampler learns those values that are in the space
            for dimension in self.space:
                if dimension.name in self.first_values:
                    self._suggest(trial, dimension, 0)
            return RunningTrial(trial, {})
        values = {
            dimension.name: self._suggest(trial, dimension, index)
            for index, dimension in enumerate(self.space)
        }
        return RunningTrial(trial, values)

    def _suggest(self, trial: "optuna.Trial", dimension: Dimension, index: int) -> Any:
        import optuna

        entropy = np.random.SeedSequence([self.seed, trial.number, index])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some arguments of the sampler are experimental
            self.study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_TRIALS, seed=int(entropy.generate_state(1)[0]), multivariate=False
            )
        name = dimension.name
        if dimension.values:
            # by position, because optuna stores only texts and numbers
            position = trial.suggest_categorical(name, tuple(range(len(dimension.values))))
            return dimension.values[position]
        if dimension.is_integer:
            return trial.suggest_int(name, int(dimension.low), int(dimension.high), log=dimension.is_log)
        return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.is_log)

    def end(self, trial: RunningTrial, outcome: Trial) -> None:
        """Store how a trial ended."""
        import optuna

        trial.trial.set_user_attr("outcome", outcome.to_record())
        states = optuna.trial.TrialState
        if outcome.state == "complete":
            self.study.tell(trial.trial, outcome.score)
        else:
            state = states.PRUNED if outcome.state == "pruned" else states.FAIL
            self.study.tell(trial.trial, state=state)

    # ---- ended trials

    def list_ended(self) -> list[Trial]:
        """Return the trials that have ended, by number."""
        records = [
            dict(trial.user_attrs["outcome"])
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]
        return [Trial(number=record.pop("trial"), **record) for record in records]

    def find_best(self) -> Trial:
        """Return the complete trial with the best score; of equal scores, the first one.

        Raises:
            UserError: No trial is complete.
        """
        ended = self.list_ended()
        complete = [trial for trial in ended if trial.state == "complete" and trial.score is not None]
        if not complete:
            reason = next((trial.reason for trial in ended if trial.reason), "none has begun")
            raise UserError(f"--trials: no trial is complete ({reason}); change the settings or --search")
        return max(complete, key=lambda trial: (self.sign * (trial.score or 0.0), -trial.number))

    @property
    def is_search_ended(self) -> bool:
        """Whether the search has ended; a time limit may have ended it before the last trial."""
        return bool(self.study.user_attrs.get("is_search_ended"))

    def end_search(self) -> None:
        """Store that no further trial begins."""
        self.study.set_user_attr("is_search_ended", True)


def _get_stored_value(dimension: Dimension, value: Any) -> Any:
    """Return the value that optuna stores: the position in a list of values, or the number."""
    return dimension.values.index(value) if dimension.values else value

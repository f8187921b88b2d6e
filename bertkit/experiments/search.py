"""The search of a study: the space of `--search`, the trials, which optuna proposes, and pruning.

A trial proposes settings, which depend on the seed of the study, the number of the trial and the trials that
have ended. A study that is stopped and resumed therefore has the same trials.
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from transformers import TrainerCallback

from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.experiments.config import STUDY_SETTINGS
from bertkit.settings.declaration import DATA_PANELS, Panel, SettingField, get_settings
from bertkit.settings.run_settings import SINGLE_RUN_SETTINGS, RunConfig
from bertkit.settings.validation import parse_flag

if TYPE_CHECKING:
    import optuna

# ---- the space

# Settings that change what is compared, and not how well it is learned.
FIXED_SETTINGS = {
    "context", "greater_is_better", "metric", "metric_for_best_model", "report_to", "seed", "set",
}  # fmt: skip
WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}
FORMS = "NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C"
MAX_INTEGER = 2**31 - 1  # of a range; optuna cannot sample from much larger ones
RATE_FACTOR = 3.0  # the default space has learning rates from a third to three times the default


@dataclass(frozen=True)
class Dimension:
    """A setting of the search space: a range of numbers, or the values to choose from.

    With `is_log`, values are sampled uniformly in the logarithm.
    """

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_integer: bool = False

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the space."""
        if self.values:
            return value in self.values
        return value is not None and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.values:
            return f"{self.name}={','.join(map(format_value, self.values))}"
        return f"{self.name}={self.low:g}..{self.high:g}{':log' if self.is_log else ''}"


def format_value(value: Any) -> str:
    """Format a value as `--search` accepts it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings in one line, such as `learning_rate 3e-05, epochs 3`."""
    return ", ".join(f"{name} {format_value(value)}" for name, value in settings.items())


def parse_space(items: Sequence[str], config: RunConfig) -> list[Dimension]:
    """Parse the values of `--search`, and refuse those that have no effect with the settings of the user."""
    space = []
    for item in items:
        name, separator, text = item.partition("=")
        if not (separator and name and text):
            raise UserError(f"--search {item}: cannot be parsed; write {FORMS}")
        name = name.lstrip("-").replace("-", "_")
        field = _find_setting(name, type(config))
        if ".." in text:
            space.append(_parse_range(name, field, text, item))
            continue
        texts = [value.strip() for value in text.split(",")]
        values = tuple(_parse_value(value, field, f"--search {name}") for value in texts)
        if len(set(values)) < len(values):
            raise UserError(f"--search {item}: a value occurs twice; list each value once")
        space.append(Dimension(name, values))
    names, reasons = [dimension.name for dimension in space], config.list_ineffective_settings()
    for dimension in space:
        name = dimension.name
        if names.count(name) > 1:
            raise UserError(f"--search {name}: is given {names.count(name)} times; pass it once")
        if name in reasons:
            raise UserError(f"--search {dimension}: {reasons[name]}; omit it")
    return space


def _find_setting(name: str, config_class: type[RunConfig]) -> SettingField:
    """Return the declaration of a setting that can be searched."""
    settings = get_settings(config_class)
    searchable = [
        other
        for other, field in settings.items()
        if field.metadata.panel not in DATA_PANELS | {Panel.RUN_DIRECTORY, Panel.OUTPUT}
        and other not in FIXED_SETTINGS | STUDY_SETTINGS | SINGLE_RUN_SETTINGS
    ]
    if name in searchable:
        return settings[name]
    if name in settings:
        raise UserError(f"--search {name}: cannot be searched; choose from {', '.join(searchable)}")
    named = [other for other in searchable if f"--{name.replace('_', '-')}" in settings[other].metadata.flags]
    hint = suggest_similar(named[0] if named else name, searchable)
    hint = hint or f" (choose from {', '.join(searchable)})"
    raise UserError(f"--search {name}: unknown setting{hint}")


def _parse_range(name: str, field: SettingField, text: str, item: str) -> Dimension:
    kinds = {field.type, *get_args(field.type)}
    if not kinds & {int, float}:
        raise UserError(f"--search {item}: {name} is not a number; list its values: {name}=A,B,C")
    bounds, colon, scale = text.partition(":")
    low_text, _, high_text = bounds.partition("..")
    if not (low_text and high_text):
        raise UserError(f"--search {item}: a bound is missing; write {name}=LOW..HIGH")
    if colon and scale != "log":
        raise UserError(f"--search {item}: unknown scale {scale!r}; write :log or omit it")
    low, high = (_parse_value(value, field, f"--search {name}") for value in (low_text, high_text))
    if low is None or high is None or low >= high:
        raise UserError(f"--search {item}: {low_text} is not below {high_text}; write the lower bound first")
    if float not in kinds and high > MAX_INTEGER:
        raise UserError(f"--search {item}: {high_text} is too large; use at most {MAX_INTEGER}")
    if scale == "log" and low <= 0:
        raise UserError(f"--search {item}: a logarithmic range needs a lower bound above 0; raise it")
    return Dimension(name, low=low, high=high, is_log=scale == "log", is_integer=float not in kinds)


def _parse_value(text: str, field: SettingField, where: str) -> Any:
    if text.lower() in WORDS and {bool, type(None)} & {field.type, *get_args(field.type)}:
        value = WORDS[text.lower()]
        if isinstance(value, bool) or type(None) in get_args(field.type):
            return value
    return parse_flag(text, field.type, field.metadata, where)


def make_default_space(config: RunConfig, defaults: RunConfig) -> list[Dimension]:
    """Return a small space around the default learning rate and number of epochs.

    Settings of the user (`config`) are not searched. The defaults depend on the task and on the sizes of the
    data and the model.
    """
    space = []
    if config.learning_rate is None and defaults.learning_rate:
        rate = defaults.learning_rate
        low, high = (float(f"{bound:.1e}") for bound in (rate / RATE_FACTOR, rate * RATE_FACTOR))
        space.append(Dimension("learning_rate", low=low, high=high, is_log=True))
    if config.epochs is None and config.max_steps is None and defaults.epochs:
        epochs = defaults.epochs
        fewer, more = max(1.0, float(math.floor(epochs * 2 / 3))), float(math.ceil(epochs * 4 / 3))
        space.append(Dimension("epochs", tuple(dict.fromkeys([fewer, epochs, more]))))
    if not space:
        if reason := config.list_ineffective_settings().get("learning_rate"):
            raise UserError(f"--trials: {reason}, so the default space is empty; pass --search {FORMS}")
        names = format_list(["--learning-rate", "--epochs or --max-steps"])
        raise UserError(f"--trials: {names} are set, so nothing is left to search; pass --search {FORMS}")
    return space


# ---- trials

JOURNAL_FILE, STUDY_NAME = "journal.log", "study"
RANDOM_TRIALS = 10  # sampled at random, before TPE (Bergstra et al. 2011) models the scores
UNPRUNED_TRIALS = 3  # finished trials before the first one is pruned
INSTALL_HINT = "install the extra: pip install 'bertkit[study]'"
State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial that has ended."""

    number: int
    settings: dict[str, Any]  # empty for the default settings
    state: State
    score: float | None  # the best one on validation rows; None without an evaluation
    steps: int
    planned_steps: int  # optimizer steps of a trial that is not pruned
    seconds: float
    reason: str | None = None  # why the trial failed

    def to_record(self) -> dict[str, Any]:
        """Return the line of `trials.jsonl`."""
        record = asdict(self)
        return {"trial": record.pop("number"), **record}


class RunningTrial:
    """A trial whose run is being trained, in this process or in another one."""

    def __init__(self, study: "optuna.Study", number: int, settings: dict[str, Any]) -> None:
        import optuna

        self.number, self.settings = number, settings
        self._trial = optuna.Trial(study, study.trials[number]._trial_id)

    @property
    def scores(self) -> dict[int, float]:
        """The scores of all evaluations by epoch, also of those before a resume."""
        return self._trial.study.trials[self.number].intermediate_values

    @property
    def best_score(self) -> float | None:
        """The best score of all evaluations."""
        find = max if self._trial.study.direction.name == "MAXIMIZE" else min
        return find(self.scores.values(), default=None)

    def report(self, epoch: int, score: float) -> bool:
        """Store the score of an evaluation, and return whether to prune the trial."""
        if epoch not in self.scores:  # a resumed trial may repeat an evaluation
            self._trial.report(score, epoch)
        return self._trial.should_prune()


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


def _open_storage(folder: Path) -> dict[str, Any]:
    """Return the arguments with which optuna creates or loads the study in a directory."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return {
        "storage": optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE))),
        "study_name": STUDY_NAME,
        "pruner": optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS),
    }


def open_trial(folder: Path, number: int, settings: dict[str, Any]) -> RunningTrial:
    """Return a running trial of the store in a directory, for the process that trains it."""
    import optuna

    return RunningTrial(optuna.load_study(**_open_storage(folder)), number, settings)


class TrialStore:
    """The trials of a study in a directory. `sign` is 1 if a higher score is better, else -1."""

    def __init__(
        self, folder: Path, space: Sequence[Dimension], defaults: Mapping[str, Any], seed: int, sign: int
    ) -> None:
        import optuna

        self.space, self.seed, self.sign = space, seed, sign
        _check_journal(folder / JOURNAL_FILE)
        direction = "maximize" if sign > 0 else "minimize"
        storage = _open_storage(folder)
        self.study = optuna.create_study(**storage, load_if_exists=True, direction=direction)
        # optuna stores the position in a list of values, or the number
        self.first_values = {
            dimension.name: dimension.values.index(value) if dimension.values else value
            for dimension in space
            if dimension.contains(value := defaults[dimension.name])
        }

    def count(self) -> int:
        """Return the number of trials, including those that are running."""
        return len(self.study.get_trials(deepcopy=False))

    def begin(self) -> RunningTrial:
        """Create the next trial and propose its settings."""
        if not self.count():
            self.study.enqueue_trial(self.first_values)
        return self._propose(self.study.ask())

    def list_running(self) -> list[RunningTrial]:
        """Return the trials that have begun and have not ended."""
        import optuna

        running = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        return [self._propose(optuna.Trial(self.study, trial._trial_id)) for trial in running]

    def _propose(self, trial: "optuna.Trial") -> RunningTrial:
        """Propose a value for each setting; those that the trial already has are kept."""
        values = {}
        for index, dimension in enumerate(self.space):
            if trial.number > 0:
                values[dimension.name] = self._suggest(trial, dimension, index)
            elif dimension.name in self.first_values:  # so that the sampler learns from the defaults
                self._suggest(trial, dimension, 0)
        return RunningTrial(self.study, trial.number, values)

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

    def end(self, trial: Trial) -> None:
        """Store how a trial ended."""
        import optuna

        running = optuna.Trial(self.study, self.study.trials[trial.number]._trial_id)
        running.set_user_attr("outcome", trial.to_record())
        states = optuna.trial.TrialState
        if trial.state == "complete":
            self.study.tell(running, trial.score)
        else:
            self.study.tell(running, state=states.PRUNED if trial.state == "pruned" else states.FAIL)

    def list_ended(self) -> list[Trial]:
        """Return the trials that have ended, by number."""
        records = [
            dict(trial.user_attrs["outcome"])
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]
        return [Trial(number=record.pop("trial"), **record) for record in records]

    def find_best(self) -> Trial:
        """Return the complete trial with the best score; of equal scores, the first one."""
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


# ---- pruning


class TrialPruned(Exception):
    """End of a trial whose score is too low to continue."""


class PruningCallback(TrainerCallback):
    """Report the validation scores of a trial, and end the trial if it is to be pruned.

    `is_interrupted` is whether a signal arrived during the evaluation that ended the trial.
    """

    def __init__(self, report: Callable[[int, float], bool], metric: str) -> None:
        self.report = report
        self.metric = metric
        self.steps = self.planned_steps = 0
        self.is_interrupted = False

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Report the score; after the last step, the trial is complete and not pruned."""
        self.steps, self.planned_steps = state.global_step, state.max_steps
        score = (metrics or {}).get(f"eval_{self.metric}")
        if score is None:  # a module of --metric gave no finite score
            return
        is_below_median = self.report(round(state.epoch), float(score))
        if is_below_median and state.global_step < state.max_steps:
            self.is_interrupted = control.should_training_stop  # by an earlier callback, on a signal
            raise TrialPruned

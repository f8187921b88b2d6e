"""The scores of the modules that `--metric` names, and the metric that selects the best checkpoint."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from bertkit.config import FineTuningConfig
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.metrics.modules import DecodedPredictions, MetricModule, is_lower_better, name_scores
from bertkit.metrics.significance import ScoreDifference, bootstrap, compare_scorers
from bertkit.tasks.base import Scores, Task
from bertkit.tasks.evaluation import Evaluation, Outputs, RowEvaluation
from bertkit.utils.reporting import Reporter

LOSS = "loss"  # the validation loss, a score during training


class MetricModules:
    """The modules of a run, which score evaluations in addition to the task.

    Attributes:
        modules: The modules, in the order of the flags.
        reporter: Receives warnings about modules that fail. A module that fails after the check before
            training does not stop the run: its scores are left out.
    """

    def __init__(self, modules: Sequence[MetricModule] = (), reporter: Reporter | None = None) -> None:
        self.modules = list(modules)
        self.reporter = reporter or Reporter()
        # The finite scores of each module: a slow module scores all rows of an evaluation only once.
        self._scores: WeakKeyDictionary[Evaluation, list[Scores]] = WeakKeyDictionary()

    def score(self, evaluation: Evaluation) -> Scores:
        """Return the scores of the task and those of the modules; see `name_scores`."""
        scores = dict(evaluation.scores)
        for _, module_scores, names in self._iter_scores(evaluation):
            scores |= {names[name]: value for name, value in module_scores.items()}
        return scores

    def compute_intervals(self, evaluation: Evaluation, seed: int) -> dict[str, list[float]]:
        """Return the 95 % bootstrap intervals of the scores of the modules."""
        intervals: dict[str, list[float]] = {}
        for module, _, names in self._iter_scores(evaluation):
            found = bootstrap(module.make_scorer(_decode(evaluation)), seed)
            intervals |= {names[name]: interval for name, interval in found.items() if name in names}
        return intervals

    def compare(self, first: Evaluation, second: Evaluation, seed: int) -> dict[str, ScoreDifference]:
        """Return the differences of two runs in the scores of the modules."""
        differences: dict[str, ScoreDifference] = {}
        for module, _, names in self._iter_scores(second):
            first_scorer, second_scorer = (module.make_scorer(_decode(run)) for run in (first, second))
            found = compare_scorers(first_scorer, second_scorer, seed)
            differences |= {names[name]: difference for name, difference in found.items() if name in names}
        return differences

    def _iter_scores(self, evaluation: Evaluation) -> Iterator[tuple[MetricModule, Scores, dict[str, str]]]:
        """Yield each module that has scores, its scores, and the names of the scores in `metrics.json`."""
        if self.modules and evaluation not in self._scores:
            self._scores[evaluation] = [self._compute(module, evaluation) for module in self.modules]
        taken = {LOSS, *evaluation.scores}
        for module, scores in zip(self.modules, self._scores.get(evaluation, []), strict=True):
            if scores:
                yield module, scores, name_scores(module.name, list(scores), taken)

    def _compute(self, module: MetricModule, evaluation: Evaluation) -> Scores:
        """Return the finite scores of one module, or none if it fails."""
        try:
            scores, _ = module.compute(_decode(evaluation))
        except UserError as error:
            self.reporter.warn(f"{error} (its scores are left out)")
            return {}
        undefined = [name for name, value in scores.items() if not math.isfinite(value)]
        if undefined:
            self.reporter.warn(f"{module.flag}: not a finite number, left out: {format_list(undefined)}")
        return {name: value for name, value in scores.items() if name not in undefined}


def _decode(evaluation: Evaluation) -> DecodedPredictions:
    assert isinstance(evaluation, RowEvaluation)
    return evaluation.decode()


def bind_modules(
    loaded: Sequence[MetricModule], task: Task, rows: Rows, reporter: Reporter
) -> tuple[MetricModules, list[str]]:
    """Choose the inputs of the modules for a task, and call each module with a few correct predictions.

    Args:
        loaded: The modules.
        task: The task, with its labels.
        rows: Parsed and labeled rows of the task.
        reporter: Receives the values of the modules that are not numbers, and later warnings.

    Returns:
        The modules, and the names of all scores.

    Raises:
        UserError: A module does not accept the predictions of the task, or fails.
    """
    evaluation = task.evaluate(Outputs(np.empty((0, 0)), None, rows))
    assert isinstance(evaluation, RowEvaluation)
    examples, names = evaluation.make_examples(), [LOSS, *evaluation.list_scores()]
    modules, taken = [module.bind(examples) for module in loaded], set(names)
    for module in modules:
        scores, left_out = module.compute(examples)
        if left_out:
            reporter.info(f"{module.flag}: values that are not numbers are left out: {format_list(left_out)}")
        names += name_scores(module.name, list(scores), taken).values()
    return MetricModules(modules, reporter), names


def set_best_metric(task: Task, names: Sequence[str], reporter: Reporter) -> None:
    """Select checkpoints by `--metric-for-best-model`, if it is set.

    Args:
        task: The task, whose `spec.best_metric` is replaced.
        names: Names of all scores.
        reporter: Receives the metric and its direction.

    Raises:
        UserError: There is no score of this name, or a direction is set without a metric.
    """
    config: FineTuningConfig = task.config
    name, is_greater_better = config.metric_for_best_model, config.greater_is_better
    if name is None:
        if is_greater_better is not None:
            flag = "--greater-is-better" if is_greater_better else "--no-greater-is-better"
            raise UserError(f"{flag}: has no effect without --metric-for-best-model; add it, or leave it out")
        return
    if name not in names:
        raise UserError(
            f"--metric-for-best-model {name}: no such score{suggest_similar(name, names)}; choose one of "
            f"{', '.join(names)}"
        )
    if is_greater_better is None:
        is_greater_better = not is_lower_better(name)
    task.spec = dataclasses.replace(task.spec, best_metric=(name, 1 if is_greater_better else -1))
    reporter.info(f"best checkpoint: {'highest' if is_greater_better else 'lowest'} {name}")


def require_named_modules(origin: str, saved: Sequence[str], named: Sequence[str]) -> None:
    """Refuse modules that a file of a run names unless the user names them, too.

    The directory may come from somebody else, so `run.yaml` must not decide which code is executed.

    Args:
        origin: What names the modules, for the error message.
        saved: The modules in `run.yaml`.
        named: The modules that the user names.
    """
    missing = [value for value in saved if value not in named]
    if missing:
        flags = " ".join(f"--metric {value}" for value in missing)
        raise UserError(
            f"{origin}: the run executes the code of {format_list(missing)}; if you trust it, add {flags}"
        )

"""Pruning: end a trial after an epoch if its score is below the median of the finished trials."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class TrialPruned(Exception):
    """End of a trial whose score is too low to continue."""


class PruningCallback(TrainerCallback):
    """Report the validation scores of a trial, and end the trial if it is to be pruned.

    Args:
        report: Receives epoch and score, and returns whether to prune.
        metric: Name of the score.

    Attributes:
        steps: Number of optimizer steps at the last evaluation.
        planned_steps: Number of optimizer steps of the whole run.
        is_interrupted: Whether a signal arrived during the evaluation that ended the trial.
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

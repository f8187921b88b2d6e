"""When to evaluate, checkpoint and stop, and what the reporter is told."""

import time
from collections.abc import Callable
from typing import Any

import psutil
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bertkit.training.stop_signal import StopRequest
from bertkit.utils.reporting import Reporter


class EvaluateAndSaveCallback(TrainerCallback):
    """Evaluate and checkpoint at the end of each epoch, checkpoint every `save_steps`, stop when asked.

    Trainer's own strategies would also evaluate where an epoch was left half-way, which a resumed run
    does not, so its best checkpoint could be another one.
    """

    def __init__(self, steps_per_epoch: int, save_steps: int | None, stop_request: StopRequest) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.save_steps = save_steps
        self.stop_request = stop_request

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Set the flags that Trainer acts on after this step."""
        step = state.global_step
        if step % self.steps_per_epoch == 0 or step >= state.max_steps:
            control.should_evaluate = control.should_save = control.should_log = True
        if self.save_steps and step % self.save_steps == 0:
            control.should_save = True
        if self.stop_request.is_requested_on_any_rank():
            control.should_save = control.should_training_stop = True

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """A signal that came while scoring stops training now, not a step later."""
        if self.stop_request.is_requested_on_any_rank():
            control.should_save = control.should_training_stop = True


class TrainBeginCallback(TrainerCallback):
    """Calls back once Trainer has set up all it keeps while training."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.on_begin = begin

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:
        """Before the first step."""
        self.on_begin()


class FirstStepTimer(TrainerCallback):
    """Takes down when the first optimizer step is done: `seconds` since the process began, None before it.

    What comes before it, from imports to a compiled model, is what a user waits for to see a run begin.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:
        """Later steps are no first ones."""
        if self.seconds is None:
            self.seconds = time.time() - psutil.Process().create_time()


class ReporterCallback(TrainerCallback):
    """Tells the reporter of each step, with the latest logged loss.

    Args:
        switches: step -> what is to be said after it.
    """

    def __init__(self, reporter: Reporter, phase_changes: dict[int, str]) -> None:
        self.reporter = reporter
        self.phase_changes = phase_changes

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:
        """How many steps there will be, and how many a resumed run already has."""
        self.reporter.on_train_begin(state.max_steps, state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:
        """One step more."""
        self.reporter.on_step_end(state.global_step)
        if state.global_step in self.phase_changes:
            self.reporter.info(self.phase_changes[state.global_step])

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **more: Any) -> None:
        """The loss and its parts, whenever Trainer logs them."""
        if logs and "loss" in logs:
            parts = {key[: -len("_loss")]: logs[key] for key in logs if key.endswith("_loss")}
            self.reporter.on_step_end(state.global_step, loss=logs["loss"], parts=parts)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **more: Any) -> None:
        """No more steps."""
        self.reporter.on_train_end()

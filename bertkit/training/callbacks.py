"""Callbacks: evaluate, checkpoint and stop at the right steps, and report the progress."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import psutil
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bertkit.utils import distributed
from bertkit.utils.reporting import Reporter


class StopRequest:
    """Context manager that turns Ctrl-C and SIGTERM into a request to stop.

    After the first signal, training stops at the next step with a checkpoint. A second signal stops it at
    once. In threads other than the main one (a notebook's worker), signals are not handled.

    Attributes:
        requested: whether this process has received a signal. Others may not have received it.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous_handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def is_requested_on_any_rank(self) -> bool:
        """Return whether any rank has received a signal; all ranks must call this at the same point."""
        return distributed.any_rank(self.requested)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class EvaluateAndSaveCallback(TrainerCallback):
    """Evaluate and checkpoint after each epoch, checkpoint every `save_steps`, and stop on request.

    Trainer's own strategies would also evaluate when an epoch is interrupted. A resumed run does not repeat
    that evaluation, so its best checkpoint could differ.
    """

    def __init__(self, steps_per_epoch: int, save_steps: int | None, stop_request: StopRequest) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.save_steps = save_steps
        self.stop_request = stop_request

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the flags that Trainer acts on after this step."""
        step = state.global_step
        if step % self.steps_per_epoch == 0 or step >= state.max_steps:
            control.should_evaluate = control.should_save = control.should_log = True
        if self.save_steps and step % self.save_steps == 0:
            control.should_save = True
        self._stop_on_request(control)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop after the evaluation if a signal arrived during it, instead of one step later."""
        self._stop_on_request(control)

    def _stop_on_request(self, control: TrainerControl) -> None:
        if self.stop_request.is_requested_on_any_rank():
            control.should_save = control.should_training_stop = True


class TrainBeginCallback(TrainerCallback):
    """Call a function after Trainer has set up its state and before the first step."""

    def __init__(self, on_begin: Callable[[], None]) -> None:
        self.on_begin = on_begin

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Call the function."""
        self.on_begin()


class FirstStepTimer(TrainerCallback):
    """Timer for the start-up, which includes imports and compilation.

    Attributes:
        seconds: time from the start of the process to the end of the first optimizer step; None before it.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Take the time after the first step only."""
        if self.seconds is None:
            self.seconds = time.time() - psutil.Process().create_time()


class ReporterCallback(TrainerCallback):
    """Report each step with the latest logged loss.

    Args:
        reporter: shows the progress.
        phase_changes: step -> message to print after it.
    """

    def __init__(self, reporter: Reporter, phase_changes: dict[int, str]) -> None:
        self.reporter = reporter
        self.phase_changes = phase_changes

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Report the total number of steps, and the number already done by a resumed run."""
        self.reporter.on_train_begin(state.max_steps, state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Report the step, and a change of phase."""
        self.reporter.on_step_end(state.global_step)
        if state.global_step in self.phase_changes:
            self.reporter.info(self.phase_changes[state.global_step])

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report the loss and its parts whenever Trainer logs them."""
        if logs and "loss" in logs:
            parts = {key[: -len("_loss")]: logs[key] for key in logs if key.endswith("_loss")}
            self.reporter.on_step_end(state.global_step, loss=logs["loss"], parts=parts)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Report the end of training."""
        self.reporter.on_train_end()

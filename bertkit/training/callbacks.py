"""What happens around the steps: evaluate, save, stop and report (callbacks), and measure (meters)."""

import inspect
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from bertkit.errors import UserError, shorten_repr
from bertkit.utils import distributed
from bertkit.utils.reporting import get_reporter, report_info
from bertkit.utils.system import STOP_SIGNALS, get_process_seconds, note_stop_signal

# ---- callbacks


def check_callbacks(callbacks: object) -> None:
    """Refuse what is not a list of callbacks: instances of `TrainerCallback`, or classes."""
    if not isinstance(callbacks, (list, tuple)):
        raise UserError(f"callbacks: {shorten_repr(callbacks)} is not a list; pass callbacks=[...]")
    for callback in callbacks:
        kind = callback if isinstance(callback, type) else type(callback)
        if not issubclass(kind, TrainerCallback):
            raise UserError(
                f"callbacks: {shorten_repr(callback)} is no transformers.TrainerCallback; pass instances or "
                "subclasses of it"
            )
        if issubclass(kind, EarlyStoppingCallback):  # it requires the evaluation of Trainer itself
            raise UserError(f"callbacks: {kind.__name__}: bertkit evaluates itself; pass early_stopping=N")
        if kind is callback:
            try:
                inspect.signature(kind).bind()
            except TypeError as error:
                raise UserError(f"callbacks: {kind.__name__}: {error}; pass an instance") from error


class StopRequest:
    """Context manager that turns Ctrl-C, SIGTERM, SIGUSR1 and the end of a console into a request to stop.

    After the first signal, training saves a checkpoint at the end of the current step, and stops. A second
    signal stops training at once, unless it repeats the first one (`note_stop_signal`). Outside the main
    thread, such as in a notebook's worker, signals are not handled. `requested` is true if this process has
    received a signal; other ranks may not have received one.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for signal_number in STOP_SIGNALS:
                self._previous_handlers[signal_number] = signal.signal(signal_number, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self._previous_handlers.items():
            signal.signal(signal_number, handler)

    def is_requested_on_any_rank(self) -> bool:
        """Return whether any rank has received a signal; all ranks must call this at the same point."""
        return distributed.any_rank(self.requested)

    def _handle_signal(self, signal_number: int, frame: FrameType | None) -> None:
        is_repeated = note_stop_signal(signal_number)
        if self.requested and not is_repeated:
            raise KeyboardInterrupt
        self.requested = True


class EvaluateAndSaveCallback(TrainerCallback):
    """Evaluate and save every `evaluation_steps` steps and at the end, also save every `save_steps` steps.

    Training stops on request.

    At `kept_steps`, it also evaluates and saves, and calls `keep_model` with the step.

    Trainer's own strategies would also evaluate if training is interrupted within an epoch. An uninterrupted
    run does not have this evaluation, so its best checkpoint could be another one.

    The score of a probe is logged before the first step, and before each evaluation and checkpoint, so that a
    resumed run has the same log.
    """

    def __init__(
        self, evaluation_steps: int, save_steps: int | None, stop_request: StopRequest,
        log_probe_score: Callable[[], None] | None,
        keep_model: Callable[[int], None] | None = None, kept_steps: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.evaluation_steps = evaluation_steps
        self.save_steps = save_steps
        self.stop_request = stop_request
        self.log_probe_score = log_probe_score
        self.keep_model, self.kept_steps = keep_model, kept_steps
        self.is_interrupted = False  # by a signal, on all ranks

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.log_probe_score is not None and state.global_step == 0:
            state.epoch = 0.0
            self.log_probe_score()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step = state.global_step
        # A callback of the user, which is called before this one, may stop the training within an epoch.
        is_last = step >= state.max_steps or control.should_training_stop
        is_kept = self.keep_model is not None and step in self.kept_steps
        is_evaluation_due = is_last or is_kept or step % self.evaluation_steps == 0
        is_save_due = is_evaluation_due or (self.save_steps is not None and step % self.save_steps == 0)
        if is_save_due and self.log_probe_score is not None:
            self.log_probe_score()  # first, because logging resets `should_log`
        if self.keep_model is not None and is_kept:
            self.keep_model(step)  # before the checkpoint: a run that is resumed from it has the model
        if is_evaluation_due:
            control.should_evaluate = control.should_log = True
        if is_save_due:
            control.should_save = True
        self._stop_on_request(control)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Evaluate and save if a callback of the user has stopped the training in its own `on_log`."""
        if control.should_training_stop and not self.is_interrupted:
            control.should_evaluate = control.should_save = True

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop right after the evaluation if a signal arrived during it, without another step."""
        self._stop_on_request(control)

    def _stop_on_request(self, control: TrainerControl) -> None:
        if self.stop_request.is_requested_on_any_rank():
            self.is_interrupted = True
            control.should_save = control.should_training_stop = True


class TrainBeginCallback(TrainerCallback):
    """Call a function when training begins: Trainer's state is complete, and no step has run."""

    def __init__(self, on_begin: Callable[[], None]) -> None:
        self.on_begin = on_begin

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.on_begin()


class FirstStepTimer(TrainerCallback):
    """The time from the start of the process to the end of the first step, with imports and compilation."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # until then

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.seconds is None:
            self.seconds = get_process_seconds()


class ReporterCallback(TrainerCallback):
    """Pass steps and logged losses on to a reporter."""

    def __init__(self, phase_changes: dict[int, str]) -> None:
        self.phase_changes = phase_changes

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        get_reporter().on_train_begin(state.max_steps, state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        get_reporter().on_step_end(state.global_step)
        if state.global_step in self.phase_changes:
            report_info(self.phase_changes[state.global_step])

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            parts = {key[: -len("_loss")]: logs[key] for key in logs if key.endswith("_loss")}
            get_reporter().on_step_end(state.global_step, loss=logs["loss"], parts=parts)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        get_reporter().on_train_end()


# ---- meters


class InputStats:
    """Statistics of the training batches since the run was started or resumed."""

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        self._num_positions = 0
        # A tensor on the device after the first batch, because reading it would wait for all pending work.
        self._num_tokens: Any = 0

    def track_batches(self, batches: Iterator[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches unchanged; measure the wait for each batch, and count its tokens."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self.wait_seconds += time.perf_counter() - started
            if batch is None:
                return
            self._num_tokens = self._num_tokens + batch["attention_mask"].sum()
            self._num_positions += batch["attention_mask"].numel()
            yield batch

    @property
    def padding_fraction(self) -> float | None:
        """Fraction of positions that are padding; None before the first batch."""
        return 1 - int(self._num_tokens) / self._num_positions if self._num_positions else None

    def count_tokens_of_all_ranks(self) -> int:
        """Return the number of tokens without padding. All ranks must call this."""
        return sum(distributed.gather_object(int(self._num_tokens)))


class LossMeter:
    """Loss and accuracy of each part of the loss (such as `mlm`) since the last log entry.

    The sums stay on the device until they are logged, because reading them would wait for all pending work.
    """

    def __init__(self) -> None:
        # By part of the loss, a tensor `[3]`: sum of losses, number of correct predictions, number of items.
        self.sums: dict[str, torch.Tensor] = {}

    def add(
        self,
        losses: dict[str, torch.Tensor],
        correct: dict[str, torch.Tensor],
        counts: dict[str, torch.Tensor],
    ) -> None:
        for part in losses:
            values = (losses[part], correct[part], counts[part])
            sums = torch.stack([value.detach().float() for value in values])
            self.sums[part] = self.sums[part] + sums if part in self.sums else sums

    def load_sums(self, saved: dict[str, list[list[float]]], rank: int, device: torch.device) -> None:
        """Restore the sums of this rank from `saved`: for each part, the sums of each rank."""
        self.sums = {part: torch.tensor(sums[rank], device=device) for part, sums in saved.items()}


def compute_part_metrics(sums: dict[str, list[list[float]]]) -> dict[str, float]:
    """Return means such as `mlm_loss` from the sums of the `LossMeter` of each rank, by part of the loss."""
    metrics = {}
    for part, rank_sums in sums.items():
        loss, correct, count = map(sum, zip(*rank_sums, strict=True))
        metrics[f"{part}_loss"] = loss / max(count, 1)
        metrics[f"{part}_accuracy"] = correct / max(count, 1)
    return metrics


def merge_log_history(history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the entries of Trainer's log into one entry per step, with validation scores as `eval_NAME`."""
    entries: dict[int, dict[str, Any]] = {}
    for logged in history:
        if "train_runtime" not in logged:  # skips the totals that Trainer logs at the end of `train`
            entry = entries.setdefault(logged["step"], {"step": logged["step"], "epoch": logged["epoch"]})
            entry |= dict(sorted(logged.items()))  # sorted as in checkpoints, so resumed runs log the same
    return list(entries.values())

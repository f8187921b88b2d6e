"""Run a bertkit command, and profile some of its training steps.

    python benchmarks/profiled_command.py WARMUP STEPS classify --data DATA ...

`step_profile.py` runs this script with the checkout of bertkit in PYTHONPATH. STEPS steps after the first
WARMUP steps are profiled. The milliseconds per step of each group of operators are printed to standard output
as one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import time
from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers.trainer_callback import CallbackHandler

MATRIX_PRODUCTS, ATTENTION, RANDOM = "matrix products", "attention", "dropout random numbers"
OPTIMIZER, COPIES, FILLS = "optimizer", "casts and copies", "zero fills"
NORMALIZATION, OTHER, PYTHON = "normalization and activation", "other operators", "Python"
GROUPS = (MATRIX_PRODUCTS, ATTENTION, RANDOM, OPTIMIZER, COPIES, FILLS, NORMALIZATION, OTHER, PYTHON)
CALLERS = {  # part of the name of a caller -> group of all operators it calls, except random numbers
    "Optimizer.": OPTIMIZER, "Dropout": RANDOM, "Attention": ATTENTION, "ScaledDotProduct": ATTENTION,
    "scaled_dot_product": ATTENTION,
}  # fmt: skip
OPERATORS = {  # names without "aten::" or "mkldnn::" -> group
    MATRIX_PRODUCTS: {"mm", "addmm", "linear", "matmul", "_addmm_activation", "_linear_pointwise", "einsum"},
    ATTENTION: {"bmm", "baddbmm", "softmax", "_softmax", "_softmax_backward_data", "masked_fill"},
    RANDOM: {"bernoulli_", "bernoulli", "random_", "rand", "uniform_", "native_dropout", "dropout"},
    COPIES: {"copy_", "_to_copy", "to", "clone", "contiguous", "cat", "_foreach_copy_"},
    FILLS: {"fill_", "zero_", "zeros", "zeros_like", "new_zeros"},
    NORMALIZATION: {
        "native_layer_norm", "native_layer_norm_backward", "layer_norm", "gelu", "gelu_backward", "tanh",
        "tanh_backward", "silu", "relu",
    },
}  # fmt: skip
GROUP_BY_OPERATOR = {name: group for group, names in OPERATORS.items() for name in names}


def find_group(name: str, callers: list[str]) -> str:
    """Return the group of an operator.

    Args:
        name: Name of the operator, such as "aten::mm".
        callers: Names of the operators that call it, innermost first.
    """
    operator = name.removeprefix("aten::").removeprefix("mkldnn::")
    if GROUP_BY_OPERATOR.get(operator) == RANDOM and not any("Optimizer." in caller for caller in callers):
        return RANDOM
    for caller in (name, *callers):
        for part, group in CALLERS.items():
            if part in caller:
                return group
    if operator in GROUP_BY_OPERATOR:
        return GROUP_BY_OPERATOR[operator]
    return OPTIMIZER if operator.startswith(("_foreach_", "_fused_")) else OTHER


class StepProfiler:
    """A profiler of some training steps; `end_step` must be called at the end of each step."""

    def __init__(self, warmup_steps: int, steps: int) -> None:
        self.first, self.last, self.steps = warmup_steps, warmup_steps + steps, steps
        self.number = 0
        self.started = self.seconds = 0.0
        cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self.profile = profile(activities=[ProfilerActivity.CPU, *cuda])

    def end_step(self) -> None:
        """Count a step; start the profile after the warm-up, and stop it after the last step."""
        self.number += 1
        if self.number not in (self.first, self.last):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.number == self.first:
            self.profile.start()
            self.started = time.perf_counter()
        else:
            self.seconds = time.perf_counter() - self.started
            self.profile.stop()

    def summarize(self) -> dict[str, float]:
        """Return milliseconds per step by group, of the device if there is an accelerator."""
        microseconds: dict[str, float] = defaultdict(float)
        key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        for event in self.profile.events():  # type: ignore[no-untyped-call]
            microseconds[find_group(event.name, list_callers(event))] += getattr(event, key)
        remaining = 1e6 * self.seconds - sum(microseconds.values())
        microseconds[PYTHON] = max(0.0, remaining)  # and waiting, on an accelerator
        return {group: microseconds[group] / 1000 / self.steps for group in GROUPS}


def list_callers(event: Any) -> list[str]:
    """Return the names of the operators that call an operator, innermost first."""
    names = []
    while (event := event.cpu_parent) is not None:
        names.append(event.name)
    return names


def run_command(command: list[str], profiler: StepProfiler) -> None:
    """Run a command of bertkit, and call `end_step` of the profiler at the end of each training step.

    Raises:
        SystemExit: the command failed, or ended before the last profiled step.
    """
    original = CallbackHandler.on_step_end

    def on_step_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        profiler.end_step()
        return original(self, *args, **kwargs)

    CallbackHandler.on_step_end = on_step_end
    sys.argv = ["bertkit", *command]
    try:
        runpy.run_module("bertkit", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code:
            raise
    finally:
        CallbackHandler.on_step_end = original
    if not profiler.seconds:
        profiler.profile.stop()
        raise SystemExit(f"training ended after {profiler.number} steps, before step {profiler.last}")


def main() -> None:
    """Run the command, and print the profile."""
    warmup_steps, steps, *command = sys.argv[1:]
    profiler = StepProfiler(int(warmup_steps), int(steps))
    with contextlib.redirect_stdout(sys.stderr):
        run_command(command, profiler)
    print(json.dumps(profiler.summarize()))


if __name__ == "__main__":
    main()

"""Check that training on this device is reproducible and stable, and measure what determinism costs.

    python benchmarks/gpu_checks.py '{"system": "bertkit", "workload": "fine-tuning", "size": "base",
    "length": 128, "precision": "bf16"}'

* Resume: a run is interrupted at half of its steps and resumed. Its weights are compared with those of an
  uninterrupted run, with PyTorch's deterministic algorithms and without them.
* fp16: 200 steps with loss scaling end with finite weights. This needs an accelerator.
* ONNX: a run of the sample with `minilm` is exported with `--quantize fp16`, and predicts with the CUDA
  provider of onnxruntime. The probabilities are compared with those of PyTorch. This needs onnxruntime-gpu.

`gpu.py` runs this script.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

import bertkit
from bertkit.errors import RunInterrupted, UserError
from bertkit.models.exported import CUDA_PROVIDER
from bertkit.run.prepare import PreparedRun
from bertkit.run.session import Session
from bertkit.training.arguments import choose_deterministic_workspace, restore_algorithms
from bertkit.utils.reporting import silence_libraries
from gpu_step import Setup, measure, prepare_setup

FP16_STEPS = 200
ONNX_REPETITIONS = 100  # of the 12 validation rows of the sample
Result = Mapping[str, Any]


class Interruption(TrainerCallback):
    """A request to stop after a step, like a signal to the process."""

    def __init__(self, session: Session, step: int) -> None:
        self.session, self.step = session, step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Request the stop in the last step before the interruption."""
        if state.global_step + 1 == self.step:
            self.session.stop_request.requested = True


def check_resume(setup: Setup, deterministic: bool) -> Result:
    """Compare an uninterrupted run with one that is interrupted and resumed.

    Returns:
        `is_identical`, whether all weights are bit-identical, and `sequences_per_second` of the first run.
    """
    with tempfile.TemporaryDirectory() as scratch, silence_libraries(), restore_algorithms():
        prepared = prepare_setup(setup, Path(scratch))
        prepared.task.config = dataclasses.replace(prepared.config, deterministic=deterministic)
        whole, measurements = train(prepared, Path(scratch) / "whole")
        half = (setup.warmup_steps + setup.steps) // 2
        resumed, _ = train(prepared, Path(scratch) / "resumed", interrupted_at=half)
    return {
        "is_identical": all(torch.equal(whole[name], resumed[name]) for name in whole),
        "sequences_per_second": measurements["examples_per_second"],
    }


def train(
    prepared: PreparedRun, folder: Path, interrupted_at: int | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Train, if requested with an interruption; return the last weights and the measurements."""
    if interrupted_at is not None:
        session = Session(prepared, folder)
        session.trainer.add_callback(Interruption(session, interrupted_at))
        with contextlib.suppress(RunInterrupted):
            session.train(resume=False)
    session = Session(prepared, folder)
    measurements = session.train(resume=interrupted_at is not None)
    if interrupted_at is not None and measurements["resumed_from"] != interrupted_at:
        raise UserError(f"the run was resumed from {measurements['resumed_from']}, not {interrupted_at}")
    return {name: weight.cpu().clone() for name, weight in session.model.state_dict().items()}, measurements


def check_fp16(setup: Setup) -> Result:
    """Train in fp16; `measure` raises an error if the weights are not finite."""
    steps = FP16_STEPS - setup.warmup_steps
    speed = measure(dataclasses.replace(setup, precision="fp16", steps=steps)).sequences_per_second
    return {"is_finite": True, "sequences_per_second": speed}


def check_onnx() -> Result:
    """Compare a graph in fp16 with PyTorch in fp32, both on the GPU."""
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise UserError("onnxruntime has no CUDA provider; install onnxruntime-gpu in place of onnxruntime")
    with tempfile.TemporaryDirectory() as scratch, silence_libraries():
        run = Path(scratch) / "run"
        bertkit.classify(data="sample", model="minilm", epochs=3, output_dir=str(run))
        exported = bertkit.export(run, quantize="fp16").output_dir
        rows = [{"text": text} for text in load_texts(run) * ONNX_REPETITIONS]
        predictors = [bertkit.load(folder, device="cuda") for folder in (run, exported / "fp16")]
        if not predictors[1].model.uses_gpu:
            raise UserError(
                "onnxruntime cannot load its CUDA provider; compare its version with that of CUDA"
            )
        probabilities, seconds = [], []
        for predictor in predictors:
            list(predictor.predict(rows))  # warm-up
            started = time.perf_counter()
            records = list(predictor.predict(rows))
            seconds.append(time.perf_counter() - started)
            probabilities.append([list(record["probabilities"].values()) for record in records])
    difference = np.abs(np.array(probabilities[0]) - np.array(probabilities[1]))
    return {
        "max_difference": float(difference.max()),
        "sequences_per_second": len(rows) / seconds[1],
        "pytorch_sequences_per_second": len(rows) / seconds[0],
    }


def load_texts(run: Path) -> list[str]:
    """Return the validation texts of a run."""
    lines = (run / "predictions.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def run_checks(setup: Setup) -> dict[str, Result | str]:
    """Run all checks; a check that cannot run has the reason instead of a result."""
    checks: dict[str, Callable[[], Result]] = {
        "resume": lambda: check_resume(setup, deterministic=False),
        f"fp16, {FP16_STEPS} steps": lambda: check_fp16(setup),
        "resume, deterministic": lambda: check_resume(setup, deterministic=True),
        "ONNX in fp16": check_onnx,
    }
    choose_deterministic_workspace()  # for all checks, because PyTorch reads it once in a process
    results: dict[str, Result | str] = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except (UserError, RuntimeError) as error:  # an operator may have no deterministic implementation
            results[name] = str(error).splitlines()[0]
    return results


def format_checks(results: Mapping[str, Result | str]) -> list[str]:
    """Format the results as a list; the cost of determinism compares the two checks of resuming."""
    lines = []
    for name, result in results.items():
        if isinstance(result, str):
            lines.append(f"* {name}: {result}")
            continue
        if "max_difference" in result:
            lines.append(
                f"* {name}: probabilities differ from PyTorch's by at most {result['max_difference']:.1e}; "
                f"{result['sequences_per_second']:,.1f} sequences/s, PyTorch in fp32 "
                f"{result['pytorch_sequences_per_second']:,.1f}"
            )
            continue
        outcome = (
            "all weights are finite" if "is_finite" in result
            else "bit-identical" if result["is_identical"] else "not bit-identical"
        )  # fmt: skip
        lines.append(f"* {name}: {outcome}; {result['sequences_per_second']:,.1f} sequences/s")
    return lines


def main() -> None:
    """Run the checks, and print their results."""
    settings = json.loads(sys.argv[1])
    setup = Setup(**settings | {"options": tuple(settings.get("options", ()))})
    with contextlib.redirect_stdout(sys.stderr):
        results = run_checks(setup)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

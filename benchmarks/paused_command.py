"""Run a training command that pauses after some steps, and trains only while it is requested to.

    python benchmarks/paused_command.py bertkit classify --data DATA ...
    python benchmarks/paused_command.py benchmarks/classify_script.py --train_file FILE ...

`shared_machine.py` runs this script. After the first `WARMUP_STEPS` steps, it prints `null`. For each line of
standard input, a number of seconds, it trains for as long, and prints one line of JSON: the seconds of each
step. At the end of the input, the process ends.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

WARMUP_STEPS = 4


class Pauses:
    """Pauses between training steps, controlled by standard input."""

    def __init__(self) -> None:
        self.results, sys.stdout = sys.stdout, sys.stderr
        self.number = 0
        self.times: list[float] = []
        self.seconds = 0.0

    def end_step(self) -> None:
        """Count a step; if the requested time is over, report the steps and wait for the next request."""
        self.number += 1
        self.times.append(time.perf_counter())
        if self.number < WARMUP_STEPS or self.times[-1] - self.times[0] < self.seconds:
            return
        steps = [end - start for start, end in zip(self.times, self.times[1:], strict=False)]
        print(json.dumps(steps if self.number > WARMUP_STEPS else None), file=self.results, flush=True)
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # training has not ended, and nothing of it is needed
        self.seconds, self.times = float(line), [time.perf_counter()]


def main() -> None:
    """Run the command."""
    program, *_ = sys.argv = sys.argv[1:]
    if program == "bertkit":
        import bertkit  # noqa: F401  # before torch, as in the command itself
    from transformers.trainer_callback import CallbackHandler

    original, pauses = CallbackHandler.on_step_end, Pauses()

    def on_step_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        control = original(self, *args, **kwargs)
        pauses.end_step()
        return control

    CallbackHandler.on_step_end = on_step_end
    if program == "bertkit":
        runpy.run_module("bertkit", run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
    raise SystemExit(f"training ended after {pauses.number} steps; pass more --rows")


if __name__ == "__main__":
    main()

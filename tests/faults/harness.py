"""A task with a tiny model, and the reference run without faults."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conftest import save_tiny_model

from bertkit.data.sources import SAMPLES_DIR
from bertkit.utils.files import verify_checksums
from faults.forked_process import ForkedProcess, import_recorded_modules, start_bertkit

TRAIN_OPTIONS = [
    "--epochs", "2", "--batch-size", "8", "--max-length", "32", "--save-steps", "2", "--lr", "1e-3",
    "--no-bf16",
]  # fmt: skip
COMPARED_FILES = (
    "model.safetensors",
    "training_log.jsonl",
    "predictions*",
    "masked_samples.jsonl",
    "*_predictions.json",
)


@dataclass
class FaultHarness:
    """A task and its reference run.

    Attributes:
        task: name of the command.
        folder: contains all files of the harness.
        rng: selects the faults.
        seconds: duration of the reference run.
    """

    task: str
    folder: Path
    rng: random.Random
    seconds: float = 0.0

    @property
    def data(self) -> Path:
        return self.folder / "sample"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def prepare(self) -> None:
        """Create the model, and train without faults."""
        sample = "text" if self.task == "pretrain-mlm-nsp" else self.task
        shutil.copytree(SAMPLES_DIR / sample, self.data)
        self._run_in_fork(lambda: save_tiny_model(self.folder / "tiny"))
        (self.folder / "tiny" / "model.safetensors").chmod(0o644)  # safetensors makes its files private
        assert self.train("scout").wait() == 0
        import_recorded_modules()
        started = time.monotonic()
        child = self.train("whole")
        assert child.wait() == 0, child.output_file.read_text()
        self.seconds = time.monotonic() - started

    def _run_in_fork(self, function: Callable[[], object]) -> None:
        """Call a function in a fork, because this process must not start threads."""
        pid = os.fork()
        if not pid:
            function()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    def train(
        self, name: str = "run", *options: str, before: Callable[[], object] | None = None
    ) -> ForkedProcess:
        """Start a training run."""
        os.environ["BERTKIT_CACHE_DIR"] = str(self.cache)
        args = [
            self.task,
            "--data",
            str(self.data),
            "--model",
            str(self.folder / "tiny"),
            *TRAIN_OPTIONS,
        ]
        return start_bertkit([*args, "-o", str(self.folder / name), *options], before)

    def resume(self, before: Callable[[], object] | None = None) -> ForkedProcess:
        """Resume the run, or start it again if nothing was kept."""
        if (self.run / "run.yaml").exists():
            return start_bertkit([self.task, "--resume", "-o", str(self.run)], before)
        return self.train()

    def stop_at_checkpoint(self) -> None:
        """Train until a checkpoint, and stop there."""
        child = self.train()
        child.wait_for_phase("a checkpoint", self.rng.randint(1, 3))
        child.send_signal(signal.SIGTERM)
        assert child.wait() in (0, 130), child.output_file.read_text()

    def remove_run(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    def verify_files_complete(self) -> None:
        """Verify the checksums of all checkpoints, and that all other files are complete."""
        if not self.run.is_dir():
            return
        for path in self.run.glob("checkpoints/checkpoint-*"):
            assert verify_checksums(path) is None, f"{path}: {verify_checksums(path)}"
        for path in self.run.iterdir():
            if path.is_file() and not path.name.startswith("."):
                other = (self.folder / "whole" / path.name).read_bytes()
                same_end = path.read_bytes()[-8:] == other[-8:]
                assert same_end or path.name in ("run.yaml", "README.md"), f"{path.name} is not complete"

    def verify_same_as_reference(self) -> None:
        """Verify that the results are bit-identical to the reference run, and no temporary files are left."""
        names = sorted({path.name for name in COMPARED_FILES for path in (self.folder / "whole").glob(name)})
        assert len(names) >= 3
        for name in names:
            same = (self.run / name).read_bytes() == (self.folder / "whole" / name).read_bytes()
            assert same, f"{name} differs"
        left = [path.name for path in self.run.rglob(".*") if path.name != ".checksums.json"]
        assert left == [], f"left behind: {left}"

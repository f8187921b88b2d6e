"""A task, a tiny model, and how its run ends where nothing happens."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conftest import save_tiny

from bertkit.data.sources import SAMPLES
from bertkit.seals import unlike
from faults.process import Child, bertkit, import_all

SHORT = [
    "--epochs", "2", "--batch-size", "8", "--max-length", "32", "--save-steps", "2", "--lr", "1e-3",
    "--no-bf16",
]  # fmt: skip
SAME = (
    "model.safetensors",
    "training_log.jsonl",
    "predictions*",
    "masked_samples.jsonl",
    "*_predictions.json",
)


@dataclass
class Bench:
    """One task and the run of it that nothing happened to.

    Attributes:
        folder: everything lies in it.
        rng: draws what happens next.
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
        """Make the model, and train without any fault."""
        sample = "text" if self.task == "pretrain-mlm-nsp" else self.task
        shutil.copytree(SAMPLES / sample, self.data)
        self._aside(lambda: save_tiny(self.folder / "tiny"))
        (self.folder / "tiny" / "model.safetensors").chmod(0o644)  # safetensors makes its files private
        assert self.train("scout").wait() == 0
        import_all()
        started = time.monotonic()
        child = self.train("whole")
        assert child.wait() == 0, child.printed.read_text()
        self.seconds = time.monotonic() - started

    def _aside(self, make: Callable[[], object]) -> None:
        """In a fork: this process must not compute."""
        pid = os.fork()
        if not pid:
            make()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    def train(self, name: str = "run", *more: str, before: Callable[[], object] | None = None) -> Child:
        """Start the run."""
        os.environ["BERTKIT_CACHE_DIR"] = str(self.cache)
        args = [
            self.task,
            "--data",
            str(self.data),
            "--model",
            str(self.folder / "tiny"),
            *SHORT,
        ]
        return bertkit([*args, "-o", str(self.folder / name), *more], before)

    def resume(self, before: Callable[[], object] | None = None) -> Child:
        """Go on with it, or begin it again where nothing was kept."""
        if (self.run / "run.yaml").exists():
            return bertkit([self.task, "--resume", "-o", str(self.run)], before)
        return self.train()

    def stop(self) -> None:
        """Bring it to a checkpoint, and end it there."""
        child = self.train()
        child.reach("a checkpoint", self.rng.randint(1, 3))
        child.signal(signal.SIGTERM)
        assert child.wait() in (0, 130), child.printed.read_text()

    def clear(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    def require_whole(self) -> None:
        """What lies in the run directory is whole: files as in the other run, checkpoints as sealed."""
        if not self.run.is_dir():
            return
        for path in self.run.glob("checkpoints/checkpoint-*"):
            assert unlike(path) is None, f"{path}: {unlike(path)}"
        for path in self.run.iterdir():
            if path.is_file() and not path.name.startswith("."):
                other = (self.folder / "whole" / path.name).read_bytes()
                ends = path.read_bytes()[-8:] == other[-8:]
                assert ends or path.name in ("run.yaml", "README.md"), f"{path.name} is not whole"

    def require_same(self) -> None:
        """It has ended as the run that nothing happened to, to the bit."""
        names = sorted({path.name for name in SAME for path in (self.folder / "whole").glob(name)})
        assert len(names) >= 3
        for name in names:
            same = (self.run / name).read_bytes() == (self.folder / "whole" / name).read_bytes()
            assert same, f"{name} is another one"
        left = [path.name for path in self.run.rglob(".*") if path.name != ".sealed.json"]
        assert left == [], f"left behind: {left}"

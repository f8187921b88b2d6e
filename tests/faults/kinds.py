"""The kinds of faults: each strikes a run of a bench, and says what the run should have made of it."""

import importlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertkit.run_directory import last_checkpoint
from faults.bench import FaultHarness
from faults.process import PHASES, ForkedProcess

NOBODY_UID = 65534


@dataclass(frozen=True)
class FaultOutcome:
    """What a fault led to at once: the exit status, what was said, and the statuses that are right."""

    child: ForkedProcess
    expected_statuses: tuple[int, ...]
    expected_message: str = ""

    def check(self) -> None:
        """Raise where the process ended otherwise than the command line promises."""
        status, line = self.child.wait(), self.child.last_line
        assert status in self.expected_statuses, f"status {status}, not {self.expected_statuses}: {line}"
        if status == 2:
            assert line.startswith("bertkit: "), f"no line of bertkit's: {line}"
            assert self.expected_message in line, f"{self.expected_message!r} is not said: {line}"


Fault = Callable[[FaultHarness], FaultOutcome]
FAULTS: dict[str, Fault] = {}


def register_fault(name: str) -> Callable[[Fault], Fault]:
    """Enter a kind of fault."""

    def enter(strike: Fault) -> Fault:
        FAULTS[name] = strike
        return strike

    return enter


def _struck_in(phase: str, numbers: tuple[int, ...], right: tuple[int, ...]) -> Fault:
    """Signals some time after a phase has begun, one soon after the other."""

    def strike(bench: FaultHarness) -> FaultOutcome:
        child = bench.train()
        if child.wait_for_phase(
            phase, bench.rng.randint(1, 3) if phase in ("a checkpoint", "scoring") else 1
        ):
            time.sleep(bench.rng.uniform(0, bench.seconds / 8))
            for number in numbers:
                child.send_signal(number) if _alive(child) else None
                time.sleep(bench.rng.uniform(0, 0.02))
        return FaultOutcome(child, (*right, 0))

    return strike


def _alive(child: ForkedProcess) -> bool:
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        child.status = os.waitstatus_to_exitcode(status)
    return not pid


for _phase in PHASES:
    FAULTS[f"kill -9 in {_phase}"] = _struck_in(_phase, (signal.SIGKILL,), (-signal.SIGKILL,))
FAULTS["SIGTERM in training"] = _struck_in("training", (signal.SIGTERM,), (130,))
FAULTS["SIGTERM in scoring"] = _struck_in("scoring", (signal.SIGTERM,), (130,))
FAULTS["Ctrl-C twice"] = _struck_in("training", (signal.SIGINT, signal.SIGINT), (130,))


@register_fault("a full disk")
def _full(bench: FaultHarness) -> FaultOutcome:
    """No file can grow beyond a size, which gives EFBIG where a full disk gives ENOSPC."""
    largest = max(path.stat().st_size for path in (bench.folder / "whole").rglob("*") if path.is_file())
    size = bench.rng.randrange(2_000, largest)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return FaultOutcome(
        bench.train(before=limit), (2,), "cannot be written" if size > 20_000 else "written"
    )


@register_fault("a directory that cannot be written")
def _shut(bench: FaultHarness) -> FaultOutcome:
    """Shut from the beginning, or before the first checkpoint; root is told no, too, by being nobody."""
    bench.run.mkdir(parents=True)
    late = bench.rng.random() < 0.5
    bench.run.chmod(0o777 if late else 0o555)

    def become_nobody() -> None:
        if os.getuid() == 0:
            os.setresuid(NOBODY_UID, NOBODY_UID, NOBODY_UID)
        if late:
            _before("bertkit.training.trainer.BertkitTrainer._save_checkpoint", shut)

    def shut() -> None:
        (bench.run / "checkpoints").chmod(0o555)

    struck = FaultOutcome(bench.train(before=become_nobody), (2,), "written")
    struck.child.wait()
    bench.remove_run()  # it is nobody's, and has nothing in it
    return struck


def _before(name: str, act: Callable[[], object]) -> None:
    """Have something happen whenever a method is called."""
    owner, _, last = name.rpartition(".")
    module, _, kind = owner.rpartition(".")
    place = getattr(importlib.import_module(module), kind)
    method = getattr(place, last)

    def both(*args: object, **named: object) -> object:
        act()
        return method(*args, **named)

    setattr(place, last, both)


@register_fault("a damaged checkpoint")
def _damaged(bench: FaultHarness) -> FaultOutcome:
    """One of its files is cut, has other bytes, or is gone; without the folder --resume goes on."""
    bench.stop_at_checkpoint()
    if (bench.run / "metrics.json").exists() or (folder := last_checkpoint(bench.run)) is None:
        return FaultOutcome(bench.resume(), (0,))
    path = bench.rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    _damage(path, bench.rng)
    child = bench.resume()
    struck = FaultOutcome(child, (2,), path.name)
    child.wait()
    shutil.rmtree(folder)
    return struck


def _damage(path: Path, rng: random.Random) -> None:
    before = path.read_bytes()
    at = rng.randrange(len(before))
    flipped = before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :]
    after = rng.choice([before[:at], bytes(len(before)), flipped, None])
    path.unlink() if after is None else path.write_bytes(after)


@register_fault("a damaged cache")
def _cache(bench: FaultHarness) -> FaultOutcome:
    """A file of each kind of cache is damaged: it is made again."""
    for kind in sorted(bench.cache.iterdir()):
        files = sorted(path for path in kind.rglob("*") if path.is_file())
        _damage(bench.rng.choice(files), bench.rng)
    return FaultOutcome(bench.train(), (0,))


@register_fault("other data on --resume")
def _data(bench: FaultHarness) -> FaultOutcome:
    """Refused; with the data as they were it goes on."""
    bench.stop_at_checkpoint()
    if (bench.run / "metrics.json").exists():
        return FaultOutcome(bench.resume(), (0,))
    path = bench.rng.choice(
        sorted(path for path in bench.data.iterdir() if "train" in path.name or path.suffix == ".txt")
    )
    before = path.read_bytes()
    assert b"the" in before
    path.write_bytes(before.replace(b"the", b"tha", 1))
    child = bench.resume()
    struck = FaultOutcome(child, (2,), "data has changed")
    child.wait()
    path.write_bytes(before)
    return struck


@register_fault("two runs in one directory")
def _two(bench: FaultHarness) -> FaultOutcome:
    """The second is refused, the first does not notice."""
    first = bench.train()
    second = bench.train() if first.wait_for_phase("training") else first
    struck = FaultOutcome(second, (2,), "another run is at work")
    second.wait()
    assert first.wait() == 0, first.last_line
    return struck


@register_fault("a loader of batches dies")
def _loader(bench: FaultHarness) -> FaultOutcome:
    """One of two processes that load batches is killed."""

    def kill_one() -> None:
        import torch.utils.data.dataloader as loaders

        iterator = loaders._MultiProcessingDataLoaderIter
        begin = iterator.__init__

        def both(self: object, *args: object) -> None:
            begin(self, *args)
            os.kill(bench.rng.choice(self._workers).pid, signal.SIGKILL)

        iterator.__init__ = both

    more = ["--set", "dataloader_num_workers=2"]
    return FaultOutcome(bench.train("run", *more, before=kill_one), (2,), "dataloader_num_workers")


@register_fault("a loss that is no number")
def _nan(bench: FaultHarness) -> FaultOutcome:
    """By a learning rate; nothing is kept that could be gone on with."""
    child = bench.train("run", "--lr", "1e30", "--warmup", "0")
    struck = FaultOutcome(child, (2,), "--learning-rate")
    child.wait()
    bench.verify_files_complete()
    bench.remove_run()
    return struck

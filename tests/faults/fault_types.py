"""The faults: each is injected into a run, and states the expected outcome."""

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

from bertkit.run_directory import RunDir
from faults.forked_process import PHASES, ForkedProcess
from faults.harness import FaultHarness

NOBODY_UID = 65534


@dataclass(frozen=True)
class FaultOutcome:
    """The process that a fault hit, with the exit statuses and the message that are expected."""

    child: ForkedProcess
    expected_statuses: tuple[int, ...]
    expected_message: str = ""

    def check(self) -> None:
        """Raise if the process ended with another status or message than expected."""
        status, line = self.child.wait(), self.child.last_line
        assert status in self.expected_statuses, f"status {status}, not {self.expected_statuses}: {line}"
        if status == 2:
            assert line.startswith("bertkit: "), f"not a message of bertkit: {line}"
            assert self.expected_message in line, f"{self.expected_message!r} is missing: {line}"


Fault = Callable[[FaultHarness], FaultOutcome]
FAULTS: dict[str, Fault] = {}


def register_fault(name: str) -> Callable[[Fault], Fault]:
    """Return a decorator that registers a fault under this name."""

    def register(inject: Fault) -> Fault:
        FAULTS[name] = inject
        return inject

    return register


def _signal_fault(phase: str, signals: tuple[int, ...], expected: tuple[int, ...]) -> Fault:
    """Return a fault that sends signals at a random time after a phase has begun."""

    def inject(harness: FaultHarness) -> FaultOutcome:
        child = harness.train()
        if child.wait_for_phase(
            phase, harness.rng.randint(1, 3) if phase in ("a checkpoint", "scoring") else 1
        ):
            time.sleep(harness.rng.uniform(0, harness.seconds / 8))
            for number in signals:
                child.send_signal(number) if _is_alive(child) else None
                time.sleep(harness.rng.uniform(0, 0.02))
        return FaultOutcome(child, (*expected, 0))

    return inject


def _is_alive(child: ForkedProcess) -> bool:
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        child.status = os.waitstatus_to_exitcode(status)
    return not pid


for _phase in PHASES:
    FAULTS[f"kill -9 in {_phase}"] = _signal_fault(_phase, (signal.SIGKILL,), (-signal.SIGKILL,))
FAULTS["SIGTERM in training"] = _signal_fault("training", (signal.SIGTERM,), (130,))
FAULTS["SIGTERM in scoring"] = _signal_fault("scoring", (signal.SIGTERM,), (130,))
FAULTS["Ctrl-C twice"] = _signal_fault("training", (signal.SIGINT, signal.SIGINT), (130,))


@register_fault("a full disk")
def _fill_disk(harness: FaultHarness) -> FaultOutcome:
    """Limit the size of files, which raises EFBIG instead of the ENOSPC of a full disk."""
    largest = max(path.stat().st_size for path in (harness.folder / "whole").rglob("*") if path.is_file())
    size = harness.rng.randrange(2_000, largest)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return FaultOutcome(
        harness.train(before=limit), (2,), "cannot be written" if size > 20_000 else "written"
    )


@register_fault("a directory that cannot be written")
def _remove_write_permission(harness: FaultHarness) -> FaultOutcome:
    """Remove the permission from the start, or before the first checkpoint; as root, run as nobody."""
    harness.run.mkdir(parents=True)
    late = harness.rng.random() < 0.5
    harness.run.chmod(0o777 if late else 0o555)

    def become_nobody() -> None:
        if os.getuid() == 0:
            os.setresuid(NOBODY_UID, NOBODY_UID, NOBODY_UID)
        if late:
            _call_before("bertkit.training.trainer.BertkitTrainer._save_checkpoint", remove_permission)

    def remove_permission() -> None:
        (harness.run / "checkpoints").chmod(0o555)

    outcome = FaultOutcome(harness.train(before=become_nobody), (2,), "written")
    outcome.child.wait()
    harness.remove_run()  # it belongs to nobody and is empty
    return outcome


def _call_before(name: str, function: Callable[[], object]) -> None:
    """Call a function before each call of a method."""
    owner, _, last = name.rpartition(".")
    module, _, kind = owner.rpartition(".")
    place = getattr(importlib.import_module(module), kind)
    method = getattr(place, last)

    def patched(*args: object, **kwargs: object) -> object:
        function()
        return method(*args, **kwargs)

    setattr(place, last, patched)


@register_fault("a damaged checkpoint")
def _damage_checkpoint(harness: FaultHarness) -> FaultOutcome:
    """Truncate, change or remove one of its files; without the folder, --resume must work."""
    harness.stop_at_checkpoint()
    if (harness.run / "metrics.json").exists() or (
        folder := RunDir(harness.run).find_last_checkpoint()
    ) is None:
        return FaultOutcome(harness.resume(), (0,))
    path = harness.rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    _damage_file(path, harness.rng)
    child = harness.resume()
    outcome = FaultOutcome(child, (2,), path.name)
    child.wait()
    shutil.rmtree(folder)
    return outcome


def _damage_file(path: Path, rng: random.Random) -> None:
    before = path.read_bytes()
    at = rng.randrange(len(before))
    flipped = before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :]
    after = rng.choice([before[:at], bytes(len(before)), flipped, None])
    path.unlink() if after is None else path.write_bytes(after)


@register_fault("a damaged cache")
def _damage_cache(harness: FaultHarness) -> FaultOutcome:
    """Damage a file of each kind of cache; it must be rebuilt."""
    for kind in sorted(harness.cache.iterdir()):
        files = sorted(path for path in kind.rglob("*") if path.is_file())
        _damage_file(harness.rng.choice(files), harness.rng)
    return FaultOutcome(harness.train(), (0,))


@register_fault("other data on --resume")
def _change_data(harness: FaultHarness) -> FaultOutcome:
    """Change a word of the data; with the old data, --resume must work."""
    harness.stop_at_checkpoint()
    if (harness.run / "metrics.json").exists():
        return FaultOutcome(harness.resume(), (0,))
    path = harness.rng.choice(
        sorted(path for path in harness.data.iterdir() if "train" in path.name or path.suffix == ".txt")
    )
    before = path.read_bytes()
    assert b"the" in before
    path.write_bytes(before.replace(b"the", b"tha", 1))
    child = harness.resume()
    outcome = FaultOutcome(child, (2,), "data has changed")
    child.wait()
    path.write_bytes(before)
    return outcome


@register_fault("two runs in one directory")
def _start_second_run(harness: FaultHarness) -> FaultOutcome:
    """Start a second run, which must be refused without affecting the first."""
    first = harness.train()
    second = harness.train() if first.wait_for_phase("training") else first
    outcome = FaultOutcome(second, (2,), "another run is using")
    second.wait()
    assert first.wait() == 0, first.last_line
    return outcome


@register_fault("a data loader worker dies")
def _kill_worker(harness: FaultHarness) -> FaultOutcome:
    """Kill one of two data loader workers."""

    def kill_one() -> None:
        import torch.utils.data.dataloader as loaders

        iterator = loaders._MultiProcessingDataLoaderIter
        original_init = iterator.__init__

        def patched(self: object, *args: object) -> None:
            original_init(self, *args)
            os.kill(harness.rng.choice(self._workers).pid, signal.SIGKILL)

        iterator.__init__ = patched

    options = ["--set", "dataloader_num_workers=2"]
    return FaultOutcome(harness.train("run", *options, before=kill_one), (2,), "dataloader_num_workers")


@register_fault("a loss that is NaN or infinite")
def _make_loss_nan(harness: FaultHarness) -> FaultOutcome:
    """Set a huge learning rate; the run must keep nothing that could be resumed."""
    child = harness.train("run", "--lr", "1e30", "--warmup", "0")
    outcome = FaultOutcome(child, (2,), "--learning-rate")
    child.wait()
    harness.verify_files_complete()
    harness.remove_run()
    return outcome

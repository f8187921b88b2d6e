"""Faults of every kind, struck at random: what is left is whole, and --resume ends as if there had been none.

    python tests/faults.py --count 100 --seed 0

Each fault strikes a process forked from this one, which has imported what a run imports and computed
nothing: so a fault costs a second or two, and no thread is lost in the fork. What came of each is compared
with a run of the same task that nothing happened to.
"""

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}

from conftest import save_tiny

from bertkit.cli.app import main as command_line
from bertkit.data.sources import SAMPLES
from bertkit.rundir import last_checkpoint
from bertkit.seals import unlike

TASKS = ("classify", "ner", "qa", "swag", "pretrain-mlm-nsp")
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
NOBODY = 65534
# Everything lies in it, and nobody may go through: pytest's own folders are root's alone.
FOLDER = Path(tempfile.mkdtemp(prefix="faults-"))
MODULES = FOLDER / "modules"
PATIENCE = 300  # seconds until a process that hangs is a fault of its own
PHASES = {  # what a process is at -> the function in which it is
    "training": "transformers.Trainer._inner_training_loop",
    "a checkpoint": "bertkit.training.trainer.BertkitTrainer._save_checkpoint",
    "scoring": "bertkit.training.scoring.predict_logits",
    "the run directory": "bertkit.run._write_model",
}  # fmt: skip


# ---- a process


@dataclass
class Child:
    """A forked `bertkit ARGS`: its number, where it tells of phases, and what it prints."""

    pid: int
    told: int
    printed: Path
    status: int | None = None

    def wait(self) -> int:
        """Its exit status; minus the signal that ended it."""
        deadline = time.monotonic() + PATIENCE
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                deadline += PATIENCE
            else:
                time.sleep(0.005)
        return self.status

    def reach(self, phase: str, times: int = 1) -> bool:
        """Wait until it is in a phase for so many times; False: it ended before."""
        seen = 0
        while line := _line(self.told):
            seen += line == phase
            if seen == times:
                return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal, unless it is gone."""
        if self.status is None:
            os.kill(self.pid, number)

    @property
    def last_line(self) -> str:
        """The last that it printed."""
        return (self.printed.read_text("utf-8", "replace").strip().splitlines() or [""])[-1]


def import_all() -> None:
    """What the last process imported, so that the next ones have it already."""
    for name in MODULES.read_text().split("\n"):
        with suppress(ImportError, AttributeError):
            importlib.import_module(name)


def _line(handle: int) -> str:
    found = b""
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        found += byte
    return found.decode()


def bertkit(args: list[str], before: Callable[[], object] | None = None) -> Child:
    """Start `bertkit ARGS` in a fork; `before` happens in it first."""
    told, tell = os.pipe()
    printed = Path(tempfile.mkstemp(prefix="printed-", dir=FOLDER)[1])
    pid = os.fork()
    if pid:
        os.close(tell)
        return Child(pid, told, printed)
    status = 1
    try:
        os.close(told)
        with printed.open("w") as out, redirect_stdout(out), redirect_stderr(out):
            _announce(tell)
            if before:
                before()
            sys.argv = ["bertkit", *args]
            try:
                command_line()
            except SystemExit as end:
                status = end.code
            finally:
                traceback.print_exc() if status == 1 else None
                MODULES.write_text("\n".join(sys.modules))
    finally:
        os._exit(status)


def _announce(tell: int) -> None:
    """Have the functions of phases tell when they are called."""
    for phase, name in PHASES.items():
        owner, _, last = name.rpartition(".")
        try:
            place = importlib.import_module(owner)
        except ModuleNotFoundError:
            module, _, kind = owner.rpartition(".")
            place = getattr(importlib.import_module(module), kind)
        setattr(place, last, _telling(getattr(place, last), phase, tell))


def _telling(function: Callable, phase: str, tell: int) -> Callable:
    def told(*args: object, **named: object) -> object:
        os.write(tell, f"{phase}\n".encode())
        return function(*args, **named)

    return told


# ---- a bench: a task, a tiny model, and how its run ends where nothing happens


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
    extra: list[str] = field(default_factory=list)

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
            *self.extra,
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


# ---- faults


@dataclass(frozen=True)
class Struck:
    """What a fault led to at once: the exit status, what was said, and the statuses that are right."""

    child: Child
    right: tuple[int, ...]
    words: str = ""

    def check(self) -> None:
        """Raise where the process ended otherwise than the command line promises."""
        status, line = self.child.wait(), self.child.last_line
        assert status in self.right, f"status {status}, not {self.right}: {line}"
        if status == 2:
            assert line.startswith("bertkit: "), f"no line of bertkit's: {line}"
            assert self.words in line, f"{self.words!r} is not said: {line}"


Fault = Callable[[Bench], Struck]
FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    """Enter a kind of fault."""

    def enter(strike: Fault) -> Fault:
        FAULTS[name] = strike
        return strike

    return enter


def _struck_in(phase: str, numbers: tuple[int, ...], right: tuple[int, ...]) -> Fault:
    """Signals some time after a phase has begun, one soon after the other."""

    def strike(bench: Bench) -> Struck:
        child = bench.train()
        if child.reach(phase, bench.rng.randint(1, 3) if phase in ("a checkpoint", "scoring") else 1):
            time.sleep(bench.rng.uniform(0, bench.seconds / 8))
            for number in numbers:
                child.signal(number) if _alive(child) else None
                time.sleep(bench.rng.uniform(0, 0.02))
        return Struck(child, (*right, 0))

    return strike


def _alive(child: Child) -> bool:
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        child.status = os.waitstatus_to_exitcode(status)
    return not pid


for _phase in PHASES:
    FAULTS[f"kill -9 in {_phase}"] = _struck_in(_phase, (signal.SIGKILL,), (-signal.SIGKILL,))
FAULTS["SIGTERM in training"] = _struck_in("training", (signal.SIGTERM,), (130,))
FAULTS["SIGTERM in scoring"] = _struck_in("scoring", (signal.SIGTERM,), (130,))
FAULTS["Ctrl-C twice"] = _struck_in("training", (signal.SIGINT, signal.SIGINT), (130,))


@fault("a full disk")
def _full(bench: Bench) -> Struck:
    """No file can grow beyond a size, which gives EFBIG where a full disk gives ENOSPC."""
    largest = max(path.stat().st_size for path in (bench.folder / "whole").rglob("*") if path.is_file())
    size = bench.rng.randrange(2_000, largest)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return Struck(bench.train(before=limit), (2,), "could not be written" if size > 20_000 else "written")


@fault("a directory that cannot be written")
def _shut(bench: Bench) -> Struck:
    """Shut from the beginning, or before the first checkpoint; root is told no, too, by being nobody."""
    bench.run.mkdir(parents=True)
    late = bench.rng.random() < 0.5
    bench.run.chmod(0o777 if late else 0o555)

    def become_nobody() -> None:
        if os.getuid() == 0:
            os.setresuid(NOBODY, NOBODY, NOBODY)
        if late:
            _before("bertkit.training.trainer.BertkitTrainer._save_checkpoint", shut)

    def shut() -> None:
        (bench.run / "checkpoints").chmod(0o555)

    struck = Struck(bench.train(before=become_nobody), (2,), "written")
    struck.child.wait()
    bench.clear()  # it is nobody's, and has nothing in it
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


@fault("a damaged checkpoint")
def _damaged(bench: Bench) -> Struck:
    """One of its files is cut, has other bytes, or is gone; without the folder --resume goes on."""
    bench.stop()
    if (bench.run / "metrics.json").exists() or (folder := last_checkpoint(bench.run)) is None:
        return Struck(bench.resume(), (0,))
    path = bench.rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    _damage(path, bench.rng)
    child = bench.resume()
    struck = Struck(child, (2,), path.name)
    child.wait()
    shutil.rmtree(folder)
    return struck


def _damage(path: Path, rng: random.Random) -> None:
    before = path.read_bytes()
    at = rng.randrange(len(before))
    flipped = before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :]
    after = rng.choice([before[:at], bytes(len(before)), flipped, None])
    path.unlink() if after is None else path.write_bytes(after)


@fault("a damaged cache")
def _cache(bench: Bench) -> Struck:
    """A file of each kind of cache is damaged: it is made again."""
    for kind in sorted(bench.cache.iterdir()):
        files = sorted(path for path in kind.rglob("*") if path.is_file())
        _damage(bench.rng.choice(files), bench.rng)
    return Struck(bench.train(), (0,))


@fault("other data on --resume")
def _data(bench: Bench) -> Struck:
    """Refused; with the data as they were it goes on."""
    bench.stop()
    if (bench.run / "metrics.json").exists():
        return Struck(bench.resume(), (0,))
    path = bench.rng.choice(
        sorted(path for path in bench.data.iterdir() if "train" in path.name or path.suffix == ".txt")
    )
    before = path.read_bytes()
    assert b"the" in before
    path.write_bytes(before.replace(b"the", b"tha", 1))
    child = bench.resume()
    struck = Struck(child, (2,), "data has changed")
    child.wait()
    path.write_bytes(before)
    return struck


@fault("two runs in one directory")
def _two(bench: Bench) -> Struck:
    """The second is refused, the first does not notice."""
    first = bench.train()
    second = bench.train() if first.reach("training") else first
    struck = Struck(second, (2,), "another run is at work")
    second.wait()
    assert first.wait() == 0, first.last_line
    return struck


@fault("a loader of batches dies")
def _loader(bench: Bench) -> Struck:
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
    return Struck(bench.train("run", *more, before=kill_one), (2,), "dataloader_num_workers")


@fault("a loss that is no number")
def _nan(bench: Bench) -> Struck:
    """By a learning rate; nothing is kept that could be gone on with."""
    child = bench.train("run", "--lr", "1e30", "--warmup", "0")
    struck = Struck(child, (2,), "--learning-rate")
    child.wait()
    bench.require_whole()
    bench.clear()
    return struck


# ---- struck


def strike(bench: Bench, kind: str) -> str | None:
    """One fault and what comes after it; None: all is well, else what went wrong."""
    bench.clear()
    try:
        struck = FAULTS[kind](bench)
        struck.check()
        bench.require_whole()
        if not (bench.run / "metrics.json").exists():
            child = bench.resume()
            assert child.wait() == 0, f"--resume: {child.last_line}"
        bench.require_same()
    except (AssertionError, OSError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


@contextmanager
def bench_of(task: str, folder: Path, seed: int) -> Iterator[Bench]:
    """A bench, whose run without faults is made first."""
    bench = Bench(task, folder, random.Random(f"{seed} {task}"))
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    bench.prepare()
    yield bench


def main() -> int:
    """Strike, and print what came of it; 1: something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=600, help="begin no other fault after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help="only those that hold this")
    parser.add_argument("--tasks", default=",".join(TASKS))
    given = parser.parse_args()
    kinds = [kind for kind in FAULTS if given.kinds is None or given.kinds in kind]
    wrong: dict[str, list[str]] = defaultdict(list)
    struck: Counter[str] = Counter()
    rng, started = random.Random(given.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        Path(name).chmod(0o755)
        benches = {}
        for task in given.tasks.split(","):
            with bench_of(task, Path(name) / task, given.seed) as bench:
                benches[task] = bench
        for number in range(given.count):
            if time.monotonic() - started > 60 * given.minutes:
                break
            kind = kinds[number % len(kinds)] if number < len(kinds) else rng.choice(kinds)
            task = list(benches)[number % len(benches)]
            struck[kind] += 1
            if came := strike(benches[task], kind):
                wrong[kind].append(came)
                print(f"{number} {task}: {kind}: {came}", file=sys.stderr, flush=True)
    print("| fault | struck | wrong |\n| --- | ---: | ---: |")
    for kind in sorted(struck):
        print(f"| {kind} | {struck[kind]} | {len(wrong[kind])} |")
    minutes = (time.monotonic() - started) / 60
    print(f"| all | {struck.total()} | {sum(map(len, wrong.values()))} |\n\n{minutes:.0f} min")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Faults of every kind, struck at random: what is left is whole, and --resume ends as if there had been none.

    PYTHONPATH=tests python -m faults --count 100 --seed 0

Each fault strikes a process forked from this one, which has imported what a run imports and computed
nothing: so a fault costs a second or two, and no thread is lost in the fork. What came of each is compared
with a run of the same task that nothing happened to.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}

from faults.bench import FaultHarness
from faults.kinds import FAULTS

TASKS = ("classify", "ner", "qa", "swag", "pretrain-mlm-nsp")


def inject_fault(bench: FaultHarness, kind: str) -> str | None:
    """One fault and what comes after it; None: all is well, else what went wrong."""
    bench.remove_run()
    try:
        struck = FAULTS[kind](bench)
        struck.check()
        bench.verify_files_complete()
        if not (bench.run / "metrics.json").exists():
            child = bench.resume()
            assert child.wait() == 0, f"--resume: {child.last_line}"
        bench.verify_same_as_reference()
    except (AssertionError, OSError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def prepare_harnesses(tasks: list[str], folder: Path, seed: int) -> dict[str, FaultHarness]:
    """A bench for each task, whose run without faults is made first."""
    benches = {}
    for task in tasks:
        benches[task] = FaultHarness(task, folder / task, random.Random(f"{seed} {task}"))
        benches[task].folder.mkdir()
        benches[task].prepare()
    return benches


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=600, help="begin no other fault after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="only those that hold this")
    parser.add_argument("--tasks", default=",".join(TASKS))
    return parser.parse_args()


def main() -> int:
    """Strike, and print what came of it; 1: something went wrong."""
    given = parse_args()
    kinds = [kind for kind in FAULTS if given.kinds in kind]
    struck: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    rng, started = random.Random(given.seed), time.monotonic()
    with make_temporary_folder() as folder:
        benches = prepare_harnesses(given.tasks.split(","), folder, given.seed)
        for number, (task, bench) in zip(range(given.count), cycle(benches.items()), strict=False):
            if time.monotonic() - started > 60 * given.minutes:
                break
            kind = kinds[number] if number < len(kinds) else rng.choice(kinds)
            struck[kind] += 1
            if came := inject_fault(bench, kind):
                wrong[kind] += 1
                print(f"{number} {task}: {kind}: {came}", file=sys.stderr, flush=True)
    print(format_table(struck, wrong, (time.monotonic() - started) / 60))
    return 1 if wrong else 0


@contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """Where all temporary files go. Anybody may write: pytest's own folders are shut to who is not root."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        Path(name).chmod(0o777)
        tempfile.tempdir = name
        yield Path(name)
    tempfile.tempdir = None


def format_table(struck: Counter[str], wrong: Counter[str], minutes: float) -> str:
    """How often each kind struck, and how often something went wrong."""
    rows = [("fault", "struck", "wrong"), ("---", "---:", "---:")]
    rows += [(kind, struck[kind], wrong[kind]) for kind in sorted(struck)]
    rows += [("all", struck.total(), wrong.total())]
    lines = ["| {} | {} | {} |".format(*row) for row in rows]
    return "\n".join([*lines, "", f"{minutes:.0f} min"])


if __name__ == "__main__":
    sys.exit(main())

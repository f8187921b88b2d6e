"""Time a study of eight runs in one process, and with `--ray` on one node, on two, and when one of two dies.

    python benchmarks/ray_study.py --data-dir DATA --rows 600

The study has four folds and two seeds of SST-2. Each node has one CPU and is a process of this machine; the
node of the cluster that answers to the command has none. In the last way, a node is killed as soon as a
quarter of the runs has ended. The table also says whether the weights of all runs are those of one process.
It goes to standard output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docs_page import format_table
from harness import OUT_HELP, ROOT, describe_machine, publish
from text_datasets import draw_rows

FOLDS, SEEDS = 4, 2
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
ONE_PROCESS = "one process, no Ray"
WAYS = {ONE_PROCESS: 0, "Ray, one node": 1, "Ray, two nodes": 2, "Ray, two nodes, one is killed": 2}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


@contextmanager
def start_cluster(nodes: int) -> Iterator[tuple[Any, list[Any]]]:
    """Start a cluster with a node without CPUs, and `nodes` others with one CPU each; stop it at the end."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster, [cluster.add_node(num_cpus=1) for _ in range(nodes)]
    finally:
        cluster.shutdown()


def count_finished(study: Path) -> int:
    return len(list(study.glob("folds/*/metrics.json")))


def kill_in_the_middle(cluster: Any, node: Any, study: Path) -> None:
    """Kill a node when a quarter of the runs has ended."""
    while count_finished(study) < FOLDS * SEEDS // 4:
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)
    print(f"killed a node after {count_finished(study)} runs", file=sys.stderr)


def time_study(
    data: Path, model: str, study: Path, flags: Sequence[str], environment: dict[str, str]
) -> float:
    """Return the seconds of the command."""
    command = [
        *(sys.executable, "-m", "bertkit", "study", "classify", "--data", str(data), "--model", model),
        *("--folds", str(FOLDS), "--seeds", str(SEEDS), "-o", str(study), *flags),
    ]
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def digest_weights(study: Path) -> str:
    """Return a digest of the weights of all runs."""
    paths = sorted(study.rglob("model.safetensors"))
    assert len(paths) >= FOLDS * SEEDS
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def main(argv: list[str] | None = None) -> None:
    """Time each way and report."""
    args = parse_args(argv)
    environment = {
        **os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    os.environ |= environment  # the nodes inherit it
    rows, _ = draw_rows("SST-2", args.data_dir, 0, args.rows, 0)
    seconds: dict[str, float] = {}
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "rows.jsonl"
        data.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
        for way, nodes in WAYS.items():
            study = Path(scratch) / way.replace(" ", "-").replace(",", "")
            environment["BERTKIT_CACHE_DIR"] = f"{study}-cache"  # each way tokenizes the texts
            if not nodes:
                seconds[way] = time_study(data, args.model, study, [], environment)
            else:
                with start_cluster(nodes) as (cluster, started):
                    if "killed" in way:
                        kill = threading.Thread(
                            target=kill_in_the_middle, args=(cluster, started[0], study), daemon=True
                        )
                        kill.start()
                    flags = ["--ray", cluster.address]
                    seconds[way] = time_study(data, args.model, study, flags, environment)
            digests[way] = digest_weights(study)
            print(f"{way}: {seconds[way]:.0f} s", file=sys.stderr)
    one_node = seconds["Ray, one node"]
    table = {
        way: [
            f"{value:.0f}",
            f"{one_node / value:.2f}",
            "yes" if digests[way] == digests[ONE_PROCESS] else "no",
        ]
        for way, value in seconds.items()
    }
    lines = [
        f"A study of {FOLDS * SEEDS} runs on {args.rows:,} rows of SST-2 with {args.model}, one thread for "
        "each run, one round:",
        "",
        *format_table(["seconds", "times one node", "weights of one process"], table),
        "",
        *describe_machine(),
    ]
    publish("\n".join(lines) + "\n", args.out)


if __name__ == "__main__":
    main()

"""Compare a search of hyperparameters with pruning and the same search without pruning.

    python benchmarks/pruning.py --data-dir DATA --data sst2 --rows 3000 --trials 20

Both searches have the same data, seed and search space, and the same first trials. Later proposals depend on
the finished trials. The table shows the optimizer steps of all trials, the best score in the search, and the
score of the best settings on rows that were not used for selection. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs_page import format_table
from harness import OUT_HELP, format_report, publish

COLUMNS = ["steps", "pruned trials", "s", "best score in the search", "held-out score"]
VARIANTS = ("with pruning", "without pruning")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--data", default="sst2")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--run", nargs=2, metavar=("VARIANT", "OUTPUT"), help=argparse.SUPPRESS)
    return parser.parse_args()


def run_study(args: argparse.Namespace) -> None:
    """Run a study, and print its search and its held-out score."""
    import optuna

    import bertkit

    variant, output = args.run
    if variant == VARIANTS[1]:
        optuna.pruners.MedianPruner = lambda **_: optuna.pruners.NopPruner()  # type: ignore[assignment,misc]
    metrics = bertkit.study(
        "classify", data=args.data, data_dir=args.data_dir, max_train_samples=args.rows, model=args.model,
        trials=args.trials, output_dir=output,
    ).metrics  # fmt: skip
    held_out = metrics["settings"]["best"]["held_out"]["scores"][metrics["metric"]]
    print(json.dumps({"search": metrics["search"], "metric": metrics["metric"], "held_out": held_out}))


def measure(variant: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run a study in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, __file__, "--data", args.data, "--rows", str(args.rows)),
            *("--trials", str(args.trials), "--model", args.model, "--run", variant, f"{folder}/study"),
        ]
        command += ["--data-dir", args.data_dir] if args.data_dir else []
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(printed)
    return result


def main() -> None:
    """Measure both and report."""
    args = parse_args()
    if args.run:
        run_study(args)
        return
    results = {variant: measure(variant, args) for variant in VARIANTS}
    rows = {
        variant: [
            f"{result['search']['steps']:,}", str(result["search"]["pruned"]),
            f"{result['search']['seconds']:.0f}", f"{result['search']['best_score']:.4f}",
            f"{result['held_out']:.4f}",
        ]
        for variant, result in results.items()
    }  # fmt: skip
    pruned, complete = results.values()
    saved = 1 - pruned["search"]["steps"] / complete["search"]["steps"]
    loss = 100 * (complete["search"]["best_score"] - pruned["search"]["best_score"])
    about = f"{args.trials} trials on {args.rows:,} rows of {args.data}; the score is {pruned['metric']}."
    note = f"Pruning saved {saved:.0%} of the steps, and lost {loss:.1f} points of the best score."
    command = f"python benchmarks/pruning.py --data-dir DATA --data {args.data} --rows {args.rows}"
    command += f" --trials {args.trials}"
    lines = [*format_table(COLUMNS, rows), "", note]
    publish(format_report("Pruning", about, lines, [command]), args.out)


if __name__ == "__main__":
    main()

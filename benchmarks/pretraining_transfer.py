"""Compare models that are pre-trained for the same time with the same models with new weights.

    python benchmarks/pretraining_transfer.py --data-dir DATA --minutes 60 --out table.md
    python benchmarks/pretraining_transfer.py --data-dir DATA --text nsmc --probe nsmc \
        --tasks classify:nsmc:6000 classify:korsts classify:klue-sts classify:korean-hate-speech::f1
    python benchmarks/pretraining_transfer.py --data-dir DATA \
        --options='--num-layers 2 --hidden-size 256 --num-heads 4 --batch-size 64'

Each objective pre-trains a model from scratch on the text, with `--time-limit`. A reference has the same
architecture and tokenizer, but new, random weights. `--options` applies to both, and may have all options of
`bertkit pretrain-mlm-nsp`. With `--models-dir`, finished models are kept for the next command.

The pre-trained model and the reference are fine-tuned on each task with each seed. The table has the mean
score over the seeds with its 95 % interval (t distribution), and the paired difference to the reference on
the same seeds. A row for each objective compares its linear probe with that of the reference. Progress goes
to standard error, the table to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs_page import format_table
from few_labels import describe_mean
from harness import OUT_HELP, describe_machine, publish

COLUMNS = ["score", "95 % interval", "minus new weights", "95 % interval"]
OBJECTIVES = ["mlm", "mlm+nsp", "rtd"]
TASKS = ["classify:sst2:6000", "classify:imdb:2000", "ner:wnut17::f1"]
TOKEN_COMMANDS = ("ner", "qa")  # their heads read each token, and have no pooling
SCORES = ("pearson", "accuracy", "f1")  # the score of a task is the first of these that it has


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--text", default="imdb", help="text to pre-train on")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=["mlm", "rtd"])
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="COMMAND:DATA[:ROWS[:SCORE]]")
    parser.add_argument("--probe", default="sst2")
    parser.add_argument("--minutes", type=float, default=60.0, help="time of each pre-training run")
    parser.add_argument("--max-steps", type=int, help="number of steps, instead of --minutes")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument(
        "--options", default="", help="options of bertkit pretrain-mlm-nsp: --options='--num-layers 4'"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of pre-training")
    parser.add_argument("--finetuning-rate", type=float, default=2e-4)
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--pooling", choices=["cls", "mean"], default="cls", help="of classify, nli and swag")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 0, 1, ...")
    parser.add_argument("--models-dir", type=Path, help="keep the models here (default: delete them)")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def build_command(objective: str, folder: Path, args: argparse.Namespace, is_new: bool) -> list[str]:
    """Return the command that pre-trains a model, or one that leaves its weights new."""
    training = ["--max-steps", args.max_steps] if args.max_steps else ["--time-limit", args.minutes]
    training += ["--learning-rate", args.learning_rate]
    if is_new:
        training = ["--epochs", 0, "--embedding-init", "random"]
    arguments = [
        *("--data", args.text, "--objective", objective, "--size", args.size, "--dropout", 0),
        *("--vocab-size", args.vocab_size, "--max-length", args.max_length, "--max-eval-samples", 2000),
        *(["--data-dir", args.data_dir] if args.data_dir else []),
        *(*shlex.split(args.options), *training, "--probe", args.probe, "--output-dir", folder),
    ]
    return [sys.executable, "-m", "bertkit", "pretrain-mlm-nsp", *map(str, arguments)]


def pretrain(objective: str, folder: Path, args: argparse.Namespace, is_new: bool) -> dict[str, Any]:
    """Return the metrics of a run that pre-trains a model, or of one that leaves its weights new.

    A finished run in `folder` is not repeated. If it is from another command, the benchmark stops.
    """
    command = build_command(objective, folder, args, is_new)
    command_file = folder / "command.txt"
    if not (folder / "metrics.json").exists():
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(process.stdout, end="", file=sys.stderr, flush=True)
        if process.returncode != 0:
            raise SystemExit(process.returncode)
        command_file.write_text(shlex.join(command), "utf-8")
    elif command_file.read_text("utf-8") != shlex.join(command):
        raise SystemExit(f"{folder}: is from another command; pass another --models-dir")
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text("utf-8"))
    return metrics


def finetune(task: str, model: Path, seed: int, args: argparse.Namespace) -> float:
    """Return the score of a model that is fine-tuned on `COMMAND:DATA[:ROWS[:SCORE]]`."""
    import bertkit

    command, data, rows, score = [*task.split(":"), "", ""][:4]
    settings = {} if command in TOKEN_COMMANDS else {"pooling": args.pooling}
    with tempfile.TemporaryDirectory() as folder:
        run = getattr(bertkit, command)(
            data=data, data_dir=args.data_dir, model=str(model), seed=seed, split_seed=0, epochs=args.epochs,
            max_length=args.max_length, learning_rate=args.finetuning_rate, output_dir=folder,
            max_train_samples=int(rows) if rows else None, overwrite=True, **settings,
        )  # fmt: skip
    scores = run.metrics["validation"]
    return float(scores[score or next(name for name in SCORES if name in scores)])


def measure(objective: str, folder: Path, args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the table rows of an objective."""
    models = [folder / "pretrained", folder / "new"]
    metrics = pretrain(objective, models[0], args, is_new=False)
    new_metrics = pretrain(objective, models[1], args, is_new=True)
    probe, training = metrics["probe"], metrics["training"]
    gain = f"{100 * (probe['after'] - new_metrics['probe']['after']):.1f}"
    steps = f"{objective}, {training['steps']:,} steps of {training['tokens_per_second']:,.0f} tokens/s"
    rows = {f"{steps}: linear probe on {probe['data']}": [f"{100 * probe['after']:.1f}", "", gain, ""]}
    for task in args.tasks:
        pairs = []
        for seed in range(args.seeds):
            pairs.append([finetune(task, model, seed, args) for model in models])
            result = f"{pairs[-1][0]:.3f}, new weights {pairs[-1][1]:.3f}"
            print(f"{objective}, {task}, seed {seed}: {result}", file=sys.stderr, flush=True)
        scores, differences = [pair[0] for pair in pairs], [pair[0] - pair[1] for pair in pairs]
        rows[f"{objective}: {task}"] = [*describe_mean(scores), *describe_mean(differences)]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    rows: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for objective in args.objectives:
            rows |= measure(objective, (args.models_dir or Path(folder)) / objective, args)
    publish("\n".join([*format_table(COLUMNS, rows), "", *describe_machine()]) + "\n", args.out)


if __name__ == "__main__":
    main()

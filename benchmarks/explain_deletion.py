"""Test explanations: deleting the words with the highest attributions must change the score more than others.

    python benchmarks/explain_deletion.py --data-dir DATA --write

A model is trained on SST-2. In each text of the dev set, a fifth of the words is deleted: those with the
highest attributions, or random ones. The score is the log-odds of the predicted label. Its changes are
compared by a paired test over the texts (Wilcoxon). Progress goes to standard error, the table to standard
output; --write puts it into docs/predict.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish

PAGE = ROOT / "docs" / "predict.md"
INTRODUCTION = """`benchmarks/explain_deletion.py` tests whether the words with high attributions matter to
the model. It deletes a fifth of the words of each SST-2 text, and measures how much the log-odds of the
predicted label decrease:
"""
COLUMNS = ["mean change", "median change", "predictions that change"]
DELETED_FRACTION = 0.2


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train-rows", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=200, help="texts to explain")
    parser.add_argument("--random", type=int, default=5, help="random deletions per text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the table to docs/predict.md")
    return parser.parse_args(argv)


def delete_words(words: Sequence[str], deleted: np.ndarray) -> str:
    """Return the text without the words at these indices."""
    return " ".join(word for index, word in enumerate(words) if index not in set(deleted.tolist()))


def make_variants(record: dict[str, Any], rng: np.random.Generator, num_random: int) -> list[str]:
    """Return the text, the text without the most important words, and texts without random words."""
    words = [word["word"] for word in record["explanation"]]
    count = max(1, round(DELETED_FRACTION * len(words)))
    attributions = np.array([word["attribution"] for word in record["explanation"]])
    random = [rng.choice(len(words), count, replace=False) for _ in range(num_random)]
    choices = [np.array([], int), np.argsort(-attributions)[:count], *random]
    return [delete_words(words, deleted) for deleted in choices]


def compute_log_odds(run: Path, texts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Return the log-odds of a label for each text."""
    import bertkit

    records = bertkit.predict(run, data=[{"sentence": text} for text in texts], all_scores=True)
    pairs = zip(records, labels, strict=True)
    probability = np.array([record["probabilities"][label] for record, label in pairs])
    return np.log(probability) - np.log1p(-probability)


def measure(args: argparse.Namespace, run: Path) -> tuple[np.ndarray, list[float]]:
    """Return [texts, variants] the log-odds of all variants, and the completeness errors."""
    import bertkit
    from bertkit.data.sources import load_dataset

    bertkit.classify(
        data="sst2", data_dir=args.data_dir, model=args.model, max_train_samples=args.train_rows,
        epochs=2, max_length=64, seed=args.seed, output_dir=run,
    )  # fmt: skip
    rng = np.random.default_rng(args.seed)
    rows = load_dataset("sst2", "classify", args.data_dir).splits["validation"]
    chosen = rows.select(rng.permutation(len(rows))[: args.rows])
    texts = [text for text in chosen["sentence"] if len(text.split()) > 1]
    records = list(bertkit.predict(run, data=[{"sentence": text} for text in texts], explain=True))
    variants = [make_variants(record, rng, args.random) for record in records]
    labels = [record["predicted"] for record in records for _ in range(args.random + 2)]
    scores = compute_log_odds(run, [text for part in variants for text in part], labels)
    return scores.reshape(len(records), -1), [record["completeness_error"] for record in records]


def report(scores: np.ndarray, errors: list[float], args: argparse.Namespace) -> str:
    """Return the table, the test, and the command."""
    from scipy.stats import wilcoxon

    changes = scores[:, :1] - scores[:, 1:]
    top, random = changes[:, 0], changes[:, 1:].mean(1)
    flips = scores[:, 1:] < 0
    rows = {
        "highest attributions": [f"{top.mean():.2f}", f"{np.median(top):.2f}", f"{flips[:, 0].mean():.1%}"],
        "random words": [f"{random.mean():.2f}", f"{np.median(random):.2f}", f"{flips[:, 1:].mean():.1%}"],
    }
    p = wilcoxon(top, random, alternative="greater").pvalue
    command = (
        f"python benchmarks/explain_deletion.py --data-dir DATA --train-rows {args.train_rows} "
        f"--rows {args.rows} --seed {args.seed}"
    )
    lines = [
        INTRODUCTION, *format_table(COLUMNS, rows), "",
        f"{len(scores)} texts; paired Wilcoxon test, one-sided: p = {p:.1e}. The completeness error is "
        f"{np.mean(errors):.2%} on average and {max(errors):.2%} at most.", "",
        *describe_machine(), "", "```sh", command, "```",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        text = report(*measure(args, Path(folder) / "run"), args)
    print("measured", file=sys.stderr)
    publish(text, args.out)
    if args.write:
        replace_section("deletion", text, PAGE)


if __name__ == "__main__":
    main()

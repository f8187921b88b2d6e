"""How often `evaluate --compare` is wrong if two models are equally good, and how often it finds a gain.

The predictions of two runs for the same rows are resampled. For the first question, each row goes to one
model or the other at random, so that neither is better. For the second one, rows on which only one model is
right are sampled so often that the second model is better by `--gain`. The rows may be those of AG News:

    options="--data DATA/ag_news/test.csv --label-column 0 --text-column 1 --text-pair-column 2"
    bertkit classify $options --validation-fraction 0.6 --max-steps 60 -o first
    bertkit classify $options --validation-fraction 0.6 --method linear-probe -o second
    python benchmarks/verdicts.py first second
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np

from bertkit.stats.judgement import judge
from bertkit.stats.significance import Scorer, compute_wilson_interval


def read_correct(folder: Path) -> np.ndarray:
    """Return [rows] bool, whether the run predicts each row correctly."""
    lines = (folder / "predictions.jsonl").read_text("utf-8").split("\n")
    records = [json.loads(line) for line in lines if line]
    return np.array([record["gold"] == record["predicted"] for record in records])


def make_scorer(is_correct: np.ndarray) -> Scorer:
    return Scorer(lambda rows: {"accuracy": float(is_correct[rows].mean())}, len(is_correct), is_correct)


def count_verdicts(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Counter[str]:
    """Return how often the second of two models has each verdict."""
    verdicts: Counter[str] = Counter()
    for number, (first, second) in enumerate(pairs):
        judgement = judge(
            make_scorer(second), {"first": make_scorer(first)}, "accuracy", True, rows="rows", seed=number
        )
        assert judgement is not None
        verdicts[judgement.verdict] += 1
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--rows", type=int, default=2500)
    parser.add_argument("--gain", type=float, default=0.02)
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--power-comparisons", type=int, default=200)
    options = parser.parse_args()
    first, second = read_correct(options.first), read_correct(options.second)
    rng, size = np.random.default_rng(0), options.rows
    is_discordant = first != second
    fraction = float(is_discordant.mean())
    print(f"{len(first):,} rows: accuracy {first.mean():.3f} and {second.mean():.3f}, {fraction:.1%} differ")

    null = []
    for _ in range(options.comparisons):
        rows = rng.integers(0, len(first), size)
        is_swapped = rng.random(size) < 0.5
        pair = (
            np.where(is_swapped, second[rows], first[rows]),
            np.where(is_swapped, first[rows], second[rows]),
        )
        null.append(pair)
    verdicts = count_verdicts(null)
    low, high = compute_wilson_interval(verdicts["better"], options.comparisons)
    print(
        f"equally good: {verdicts['better']} of {options.comparisons} comparisons on {size:,} rows say "
        f"better ({low:.3f} to {high:.3f}), {verdicts['worse']} worse"
    )

    groups = [
        np.flatnonzero(~is_discordant),
        np.flatnonzero(second & ~first),
        np.flatnonzero(first & ~second),
    ]
    odds = [1 - fraction, (fraction + options.gain) / 2, (fraction - options.gain) / 2]
    better = []
    for _ in range(options.power_comparisons):
        counts = rng.multinomial(size, odds)
        rows = np.concatenate([rng.choice(group, count) for group, count in zip(groups, counts, strict=True)])
        better.append((first[rows], second[rows]))
    verdicts = count_verdicts(better)
    low, high = compute_wilson_interval(verdicts["better"], options.power_comparisons)
    print(
        f"better by {options.gain:.3f}: found in {verdicts['better']} of {options.power_comparisons} "
        f"comparisons on {size:,} rows ({low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()

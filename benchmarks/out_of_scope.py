"""Compare scores that find texts of no class, on texts that nothing was fitted on.

    python benchmarks/out_of_scope.py --data-dir DATA --work-dir WORK --write

For each dataset and seed, a model is trained, and its outputs are stored in WORK, so that an interrupted
benchmark continues. The scores are fitted on held-out rows and on 200 texts of no class. Recall is the
fraction of other texts of no class that are found if 95 % of the test rows are accepted. Intervals are those
of the paired bootstrap over texts, and differences those to the maximum probability. For the coverage, the
held-out rows and the test rows are divided 20 times at random: two thirds fit `--out-of-scope`, and the
accepted fraction of the others has an interval (Wilson), which should contain 95 %. Progress goes to standard
error, the tables to standard output; --write puts them into docs/out-of-scope.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish

PAGE = ROOT / "docs" / "out-of-scope.md"
Pairs = list[tuple[str, str]]  # texts with their labels
Arrays = Mapping[str, np.ndarray]
NUM_FIT_TEXTS = 200  # of no class
NUM_RESAMPLES, NUM_RESPLITS = 1000, 20
COVERAGE = 0.95
OUT_OF_SCOPE = "oos"
OWN = "like the fitted ones"
NAMED = "-named"  # suffix of an experiment with a class of texts out of scope


@dataclass(frozen=True)
class Splits:
    """Rows of one experiment.

    Attributes:
        train: Rows to train on.
        held_out: Rows that select the checkpoint and fit the detectors.
        test: Rows of the classes that nothing is fitted on.
        known: Texts of no class to fit detectors on.
        unknown: Texts of no class that nothing is fitted on, by their source.
    """

    train: Pairs
    held_out: Pairs
    test: Pairs
    known: list[str]
    unknown: dict[str, list[str]]


def read_clinc150(data: Path) -> dict[str, Pairs]:
    splits = json.loads((data / "clinc150" / "data_full.json").read_text("utf-8"))
    return {name: [(text, label) for text, label in rows] for name, rows in splits.items()}


def read_ag_news(data: Path) -> Pairs:
    with (data / "ag_news" / "test.csv").open(encoding="utf-8", newline="") as file:
        return [(f"{row[1]} {row[2]}", row[0]) for row in csv.reader(file)]


def read_sst2(data: Path) -> dict[str, Pairs]:
    parts: dict[str, Pairs] = {}
    for name in ("train", "dev"):
        lines = (data / "SST-2" / f"{name}.tsv").read_text("utf-8").split("\n")[1:-1]
        parts[name] = [(text, label) for text, label in (line.split("\t") for line in lines)]
    return parts


def read_banking77(data: Path) -> dict[str, Pairs]:
    parts = {}
    for name in ("train", "test"):
        with (data / "banking77" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            parts[name] = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    return parts


def get_texts(rows: Pairs) -> list[str]:
    return [text for text, _ in rows]


def shuffle(rows: Sequence[Any], seed: int) -> list[Any]:
    return [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]


def limit_per_class(rows: Pairs, limit: int) -> Pairs:
    counts: dict[str, int] = {}
    kept = []
    for text, label in rows:
        counts[label] = counts.get(label, 0) + 1
        if counts[label] <= limit:
            kept.append((text, label))
    return kept


def split_clinc150(data: Path, seed: int, per_class: int) -> Splits:
    parts = read_clinc150(data)
    return Splits(
        limit_per_class(shuffle(parts["train"], seed), per_class),
        parts["val"],
        parts["test"],
        get_texts(parts["oos_train"] + parts["oos_val"]),
        {
            OWN: get_texts(parts["oos_test"]),
            "SST-2": get_texts(read_sst2(data)["dev"]),
            "AG News": get_texts(shuffle(read_ag_news(data), 0)[:1000]),
        },
    )


def split_banking77(data: Path, seed: int) -> Splits:
    """Return the classes, a quarter of which is out of scope."""
    parts = read_banking77(data)
    labels = shuffle(sorted({label for _, label in parts["train"]}), seed)
    outside = set(labels[: len(labels) // 4])
    train = shuffle([row for row in parts["train"] if row[1] not in outside], seed)
    known = shuffle([text for text, label in parts["train"] if label in outside], seed)[:NUM_FIT_TEXTS]
    clinc = get_texts(shuffle(read_clinc150(data)["test"], 0)[:1000])
    return Splits(
        train[:4000],
        train[4000:6000],
        [row for row in parts["test"] if row[1] not in outside],
        known,
        {OWN: [text for text, label in parts["test"] if label in outside], "CLINC150": clinc},
    )


def split_sst2(data: Path, seed: int) -> Splits:
    parts, news = read_sst2(data), shuffle(get_texts(read_ag_news(data)), 0)
    train = shuffle(parts["train"], seed)
    clinc = get_texts(shuffle(read_clinc150(data)["test"], 0)[:1000])
    return Splits(
        train[:3000],
        train[3000:5000],
        parts["dev"],
        news[:NUM_FIT_TEXTS],
        {"AG News": news[1000:2000], "CLINC150": clinc},
    )


def split_ag_news(data: Path, seed: int) -> Splits:
    rows = shuffle(read_ag_news(data), seed)
    films = shuffle(get_texts(read_sst2(data)["train"]), 0)
    clinc = get_texts(shuffle(read_clinc150(data)["test"], 0)[:1000])
    return Splits(
        rows[:3000],
        rows[3000:5000],
        rows[5000:7600],
        films[:NUM_FIT_TEXTS],
        {"SST-2": get_texts(read_sst2(data)["dev"]), "CLINC150": clinc},
    )


@dataclass(frozen=True)
class Experiment:
    title: str
    split: Callable[[Path, int], Splits]
    settings: Mapping[str, Any]
    has_named_class: bool = False


EXPERIMENTS = {
    "clinc150": Experiment(
        "CLINC150, 20 rows per class",
        lambda data, seed: split_clinc150(data, seed, 20),
        {"epochs": 5, "learning_rate": 3e-4, "max_length": 40, "batch_size": 32},
    ),
    "clinc150-named": Experiment(
        "CLINC150, 20 rows per class, named class",
        lambda data, seed: split_clinc150(data, seed, 20),
        {"epochs": 5, "learning_rate": 3e-4, "max_length": 40, "batch_size": 32},
        True,
    ),
    "banking77": Experiment(
        "Banking77, 58 classes",
        split_banking77,
        {"epochs": 5, "learning_rate": 3e-4, "max_length": 64, "batch_size": 32},
    ),
    "sst2": Experiment("SST-2", split_sst2, {"epochs": 2, "max_length": 48, "batch_size": 32}),
    "ag_news": Experiment("AG News", split_ag_news, {"epochs": 1, "max_length": 64, "batch_size": 32}),
}


def compute_outputs(run: Path, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the logits [n, classes] of a run, and the vectors [n, size] that its output layer reads."""
    from bertkit.data.table import Rows
    from bertkit.models.heads import append_layer_inputs
    from bertkit.tasks.trained_model import load_trained_model

    trained = load_trained_model(run)
    rows, _ = trained.task.parse_rows(Rows.from_dicts([{"text": text} for text in texts], "texts"))
    with append_layer_inputs(trained.model) as size:
        outputs = trained.compute_outputs(rows).logits
    return {"logits": outputs[:, :-size], "vectors": outputs[:, -size:]}


def load_shipped_texts() -> list[str]:
    from bertkit.data.sources import _load_sample_texts

    return list(dict.fromkeys(_load_sample_texts(["text"])["text"]))


def prepare(name: str, seed: int, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Train a run and store its outputs, unless the file exists; return its content."""
    import bertkit

    path = args.work_dir / f"{name}-{seed}.npz"
    if not path.exists():
        experiment = EXPERIMENTS[name]
        splits = experiment.split(args.data_dir, seed)
        named = [(text, OUT_OF_SCOPE) for text in splits.known] if experiment.has_named_class else []

        def to_rows(rows: Pairs) -> list[dict[str, str]]:  # a class that is a number would not be a name
            return [{"text": text, "label": f"c_{label}"} for text, label in rows]

        run = args.work_dir / f"{name}-{seed}"
        bertkit.classify(
            data=to_rows(splits.train + named), validation=to_rows(splits.held_out), model="minilm",
            output_dir=run, seed=seed, keep_overlap=True, overwrite=True, **experiment.settings,
        )  # fmt: skip
        id2label = json.loads((run / "config.json").read_text("utf-8"))["id2label"]
        labels = list(id2label.values())
        texts = {
            **{part: get_texts(getattr(splits, part)) for part in ("train", "held_out", "test")},
            "known": splits.known,
            "shipped": load_shipped_texts(),
            **{f"unknown/{source}": found for source, found in splits.unknown.items()},
        }
        arrays = {"labels": np.array(labels)}
        for part, part_texts in texts.items():
            outputs = compute_outputs(run, part_texts)
            arrays |= {f"{part}/{name}": values for name, values in outputs.items()}
        for part in ("train", "held_out", "test"):
            gold = [labels.index(f"c_{label}") for _, label in getattr(splits, part)]
            arrays[f"{part}/gold"] = np.array(gold)
        contents: dict[str, Any] = arrays
        np.savez(path, **contents)
    print(f"{name}, seed {seed}: ready", file=sys.stderr, flush=True)
    return dict(np.load(path))


# ---- scores; a higher score means that a text is in scope

Score = Callable[[Arrays, str], np.ndarray]  # of the texts of a part


def compute_max_probability(arrays: Arrays, part: str) -> np.ndarray:
    from scipy.special import softmax

    from bertkit.stats.calibration import Decisions, fit_temperature

    decisions = Decisions.from_classes(arrays["held_out/logits"], arrays["held_out/gold"])
    return softmax(arrays[f"{part}/logits"] / fit_temperature(decisions), axis=1).max(1)


def compute_energy(arrays: Arrays, part: str) -> np.ndarray:
    from scipy.special import logsumexp

    return logsumexp(arrays[f"{part}/logits"], axis=1)


def compute_mahalanobis(arrays: Arrays, part: str) -> np.ndarray:
    """Return minus the squared distance to the nearest class mean, with one covariance (Lee et al. 2018)."""
    vectors, gold = arrays["train/vectors"].astype(np.float64), arrays["train/gold"]
    classes, index = np.unique(gold, return_inverse=True)
    means = np.stack([vectors[gold == label].mean(0) for label in classes])
    covariance = np.cov((vectors - means[index]).T, bias=True)
    ridge = 1e-3 * np.trace(covariance) / len(covariance)
    whiten = np.linalg.cholesky(np.linalg.inv(covariance + ridge * np.eye(len(covariance))))
    found, means = arrays[f"{part}/vectors"] @ whiten, means @ whiten
    return -np.stack([((found - mean) ** 2).sum(1) for mean in means]).min(0)


def make_features(arrays: Arrays, part: str) -> np.ndarray:
    from bertkit.stats.scope_score import compute_scope_features

    return compute_scope_features(arrays[f"{part}/logits"], arrays[f"{part}/vectors"])


def compute_linear(arrays: Arrays, part: str) -> np.ndarray:
    """Return the score of a logistic regression on the vectors alone, without shipped texts."""
    from bertkit.stats.scope_score import compute_scope_score, fit_scope_weights

    parts = [np.pad(arrays[f"{name}/vectors"], ((0, 0), (0, 1))) for name in ("held_out", "known", part)]
    return compute_scope_score(parts[2], fit_scope_weights(*parts[:2]))


def make_scope_score(*outside: str) -> Score:
    """Return the score of `--out-of-scope`, fitted on these parts."""
    from bertkit.stats.scope_score import compute_scope_score, fit_scope_weights

    def compute(arrays: Arrays, part: str) -> np.ndarray:
        texts = np.concatenate([make_features(arrays, name) for name in outside])
        weights = fit_scope_weights(make_features(arrays, "held_out"), texts)
        return compute_scope_score(make_features(arrays, part), weights)

    return compute


def compute_named_class(arrays: Arrays, part: str) -> np.ndarray:
    """Return the probability of all classes but the one of texts out of scope."""
    from scipy.special import softmax

    label = arrays["labels"].tolist().index(f"c_{OUT_OF_SCOPE}")
    return 1 - softmax(arrays[f"{part}/logits"].astype(np.float64), axis=1)[:, label]


REFERENCE, SHIPPED = "maximum probability", "`--out-of-scope FILE`"
SCORES: dict[str, Score] = {
    REFERENCE: compute_max_probability,
    "energy": compute_energy,
    "Mahalanobis": compute_mahalanobis,
    "linear": compute_linear,
    "linear and energy": make_scope_score("known"),
    SHIPPED: make_scope_score("known", "shipped"),
    "`sample`": make_scope_score("shipped"),
}


# ---- measurements


def measure_recall(inside: np.ndarray, outside: np.ndarray) -> float:
    """Return the fraction of the texts out of scope below the scores of 95 % of those in scope."""
    return float((outside < np.quantile(inside, 1 - COVERAGE)).mean())


def measure_aurc(inside: np.ndarray, is_correct: np.ndarray, outside: np.ndarray) -> float:
    """Return the area under the risk-coverage curve if each answer to a text out of scope is wrong."""
    from bertkit.stats.calibration import SelectiveScorer

    score = np.concatenate([inside, outside])
    correct = np.concatenate([is_correct, np.zeros(len(outside), bool)])
    return SelectiveScorer(score, correct, 0.0).score(np.arange(len(score)))["aurc"]


def bootstrap(runs: Sequence[Sequence[np.ndarray]], measure: Callable[..., Any]) -> list[np.ndarray]:
    """Return the mean measurement over the runs for each sample of the texts; runs share the samples.

    A run has groups of arrays; those of a group belong to the same texts.
    """
    samples = []
    for seed in range(NUM_RESAMPLES):
        values = []
        for groups in runs:
            rng = np.random.default_rng(seed)
            picked = []
            for group in groups:
                index = rng.integers(0, group.shape[-1], group.shape[-1])
                picked.append(group[..., index])
            values.append(measure(*picked))
        samples.append(np.mean(values, axis=0))
    return samples


def format_interval(samples: Sequence[Any], scale: float = 100, digits: int = 1) -> str:
    low, high = scale * np.percentile(samples, [2.5, 97.5])
    return f"{low:.{digits}f} to {high:.{digits}f}"


def compare_recall(runs: Sequence[Arrays], named: Sequence[Arrays], source: str) -> list[str]:
    """Return the cells of a row: the recall by each score, and the difference of the shipped score."""
    part = f"unknown/{source}"
    scored = [[(f(arrays, "test"), f(arrays, part)) for f in SCORES.values()] for arrays in runs]
    recall = np.mean([[measure_recall(*pair) for pair in run] for run in scored], axis=0)
    cells = [f"{100 * value:.1f}" for value in recall]
    if named:
        pairs = [(compute_named_class(arrays, "test"), compute_named_class(arrays, part)) for arrays in named]
        cells.append(f"{100 * np.mean([measure_recall(*pair) for pair in pairs]):.1f}")
    else:
        cells.append("")
    names = list(SCORES)
    first, second = names.index(REFERENCE), names.index(SHIPPED)
    groups = [[np.stack([run[first][side], run[second][side]]) for side in (0, 1)] for run in scored]

    def measure(inside: np.ndarray, outside: np.ndarray) -> float:
        return measure_recall(inside[1], outside[1]) - measure_recall(inside[0], outside[0])

    difference = 100 * (recall[second] - recall[first])
    return [*cells, f"{difference:+.1f} ({format_interval(bootstrap(groups, measure))})"]


def compare_aurc(runs: Sequence[Arrays]) -> list[str]:
    """Return the AURC with intervals, for the test rows with texts out of scope.

    Rows are ordered by the maximum probability; in the second cell, those out of scope are the last ones.
    """
    groups = []
    for arrays in runs:
        lowest = np.quantile(SCORES[SHIPPED](arrays, "held_out"), 1 - COVERAGE)
        is_correct = arrays["test/logits"].argmax(1) == arrays["test/gold"]
        ranks = []
        # Those of the first source are the most similar to the fitted ones.
        nearest = next(key.split("/")[1] for key in arrays if key.startswith("unknown/"))
        for part in ("test", f"unknown/{nearest}"):
            probability = compute_max_probability(arrays, part)
            ranks.append(np.stack([probability, probability - (SCORES[SHIPPED](arrays, part) < lowest)]))
        groups.append([np.concatenate([ranks[0], is_correct[None]]), ranks[1]])

    def measure(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        correct = inside[2].astype(bool)
        return np.array([measure_aurc(inside[order], correct, outside[order]) for order in (0, 1)])

    values = np.mean([measure(*group) for group in groups], axis=0)
    samples = np.array(bootstrap(groups, measure))
    return [
        f"{value:.3f} ({format_interval(column, 1, 3)})"
        for value, column in zip(values, samples.T, strict=True)
    ]


def count_kept_promises(arrays: Arrays) -> tuple[int, float]:
    """Return in how many resplits the interval contains the coverage, and the mean accepted fraction."""
    from bertkit.stats.scope_score import compute_scope_score, fit_scope
    from bertkit.stats.significance import compute_wilson_interval

    inside = np.concatenate([make_features(arrays, part) for part in ("held_out", "test")])
    outside, shipped = make_features(arrays, "known"), make_features(arrays, "shipped")
    num_kept, fractions = 0, []
    for seed in range(NUM_RESPLITS):
        rng = np.random.default_rng(seed)
        fit, test = np.split(rng.permutation(len(inside)), [2 * len(inside) // 3])
        folds = rng.integers(0, 5, len(fit)), rng.permutation(len(outside)) % 5
        found = fit_scope([inside[fit], outside, shipped], np.ones(len(fit), bool), folds, COVERAGE)
        is_accepted = compute_scope_score(inside[test], found["weights"]) >= found["min_score"]
        low, high = compute_wilson_interval(int(is_accepted.sum()), len(test))
        num_kept += low <= COVERAGE <= high
        fractions.append(is_accepted.mean())
    return num_kept, float(np.mean(fractions))


def main(argv: Sequence[str] | None = None) -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work-dir", type=Path, required=True, help="folder for runs and their outputs")
    parser.add_argument("--work", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 1, 2, ...")
    parser.add_argument("--only-prepare", action="store_true", help="train and store the outputs, no report")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the tables to docs/out-of-scope.md")
    args = parser.parse_args(argv)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    seeds = range(1, args.seeds + 1)
    found = {name: [prepare(name, seed, args) for seed in seeds] for name in args.work}
    if args.only_prepare:
        return
    recall, curves = {}, {}
    for name, runs in found.items():
        title, named = EXPERIMENTS[name].title, found.get(f"{name}{NAMED}", [])
        if name.endswith(NAMED):
            continue
        for source in (key.split("/")[1] for key in runs[0] if key.startswith("unknown") and "logits" in key):
            print(f"{name}, {source}", file=sys.stderr, flush=True)
            recall[f"{title}: {source}"] = compare_recall(runs, named, source)
        accuracy = np.mean([(run["test/logits"].argmax(1) == run["test/gold"]).mean() for run in runs])
        promises = [count_kept_promises(run) for run in runs]
        kept = ", ".join(str(count) for count, _ in promises)
        mean = 100 * np.mean([fraction for _, fraction in promises])
        curves[title] = [f"{100 * accuracy:.1f}", *compare_aurc(runs), f"{mean:.1f}", kept]
    columns = [*SCORES, "named class", "difference (95 % interval)"]
    report = [
        *format_table(columns, recall),
        "",
        *format_table(
            ["accuracy", f"AURC, {REFERENCE}", f"AURC, {SHIPPED}", "accepted, %", "of 20 resplits"], curves
        ),
        "",
        *describe_machine(),
        "",
        "```sh",
        "python benchmarks/out_of_scope.py --data-dir DATA --work-dir WORK "
        f"--work {' '.join(args.work)} --seeds {args.seeds}",
        "```",
    ]
    text = "\n".join(report) + "\n"
    publish(text, args.out)
    if args.write:
        replace_section("out of scope", text, PAGE)


if __name__ == "__main__":
    main()

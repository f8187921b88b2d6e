"""Compare the models of bertkit's ladder with what users would train instead, on the same rows and cores.

    python benchmarks/classifiers.py --data-dir DATA --rows 1000
    python benchmarks/classifiers.py --data-dir DATA --datasets "AG News" --shots 8 --draws 10 --systems \
        contrastive setfit

Each system trains on the same random rows of a dataset, and predicts the same other rows; everything runs
in one process with the threads of OMP_NUM_THREADS. The seconds of the training begin with texts in memory
and include loading the encoder, those of bertkit also the baselines and the run directory. Peers are
scikit-learn (TF-IDF of words and word pairs, logistic regression), model2vec and sentence-transformers
(vectors, logistic regression), SetFit (with its defaults, or stopped after --setfit-steps), and a script
with Trainer and the settings of Devlin et al. 2018 (3 epochs, 32 rows, 5e-5). A peer that is not installed is
left out.

The first table has the means over the datasets. The second one compares, for each budget of training
seconds, the best system of bertkit and the best peer, by the mean over the datasets, of those whose training
takes no longer in the mean. The third one has the paired differences on each dataset, over all draws and
rows, with p-values after Holm's correction. Results are kept in --work. Progress goes to standard error, the
tables to standard output, or with --write, with a chart, to docs/comparison.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.models.loading import find_model
from bertkit.stats.baseline_models import WORD_PATTERN
from bertkit.stats.significance import mcnemar_test
from bertkit.stats.slices import correct_by_holm
from bertkit.utils.reporting import silence_libraries, silence_reports
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish
from text_datasets import DATASETS, Pairs, draw_rows

BUDGETS = (10, 30, 100, 300)  # seconds of training
PAGE = ROOT / "docs" / "comparison.md"
CHART = ROOT / "docs" / "images" / "classifiers.png"
Predict = Callable[[list[str]], Sequence[str]]


@dataclass(frozen=True)
class Rows:
    """Training rows, and what a system may need to train on them."""

    texts: list[str]
    labels: list[str]
    seed: int
    folder: Path
    model: str
    max_length: int
    setfit_steps: int | None


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", type=Path, default=Path("classifiers_benchmark"), help="finished runs")
    english = [name for name in DATASETS if name != "NSMC"]
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=english)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list_available_systems())
    parser.add_argument("--rows", type=int, default=1_000, help="training rows")
    parser.add_argument("--shots", type=int, help="training rows per class, instead of --rows")
    parser.add_argument("--test-rows", type=int, default=1_000)
    parser.add_argument("--draws", type=int, default=3, help="number of seeds: 0, 1, ...")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--setfit-steps", type=int, help="of the contrastive training of SetFit, at most")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the report to docs/comparison.md")
    return parser.parse_args(argv)


# ---- systems: each trains on rows, and returns a function that predicts labels


def make_records(rows: Rows) -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in zip(rows.texts, rows.labels, strict=True)]


def train_bertkit(*settings_of_rows: str, **settings: Any) -> Callable[..., Predict]:
    """Return a system that runs `bertkit.classify` with these settings, and those of the rows."""

    def train(rows: Rows) -> Predict:
        bertkit.classify(
            data=make_records(rows), seed=rows.seed, output_dir=str(rows.folder / "run"), **settings,
            **{name: getattr(rows, name) for name in settings_of_rows},
        )  # fmt: skip
        predictor = bertkit.load(rows.folder / "run")

        def predict(texts: list[str]) -> list[str]:
            return [record["predicted"] for record in predictor.predict([{"text": text} for text in texts])]

        return predict

    return train


def train_sklearn(rows: Rows) -> Predict:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORD_PATTERN, sublinear_tf=True)
    model = make_pipeline(vectorizer, LogisticRegression(C=10.0, max_iter=1000))
    return model.fit(rows.texts, rows.labels).predict


def fit_head(encode: Callable[[list[str]], np.ndarray], rows: Rows) -> Predict:
    """Fit a logistic regression to vectors of texts."""
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(max_iter=1000).fit(encode(rows.texts), rows.labels)
    return lambda texts: head.predict(encode(texts))


def train_model2vec(rows: Rows) -> Predict:
    """Distill static vectors from the encoder, as model2vec does, and fit a logistic regression."""
    from model2vec.distill import distill

    vectors = distill(rows.model, pca_dims=256)
    return fit_head(vectors.encode, rows)


def train_sentence_transformers(rows: Rows) -> Predict:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(rows.model, device="cpu")
    encoder.max_seq_length = rows.max_length
    return fit_head(lambda texts: encoder.encode(texts, show_progress_bar=False), rows)


def train_setfit(rows: Rows) -> Predict:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(rows.model)
    model.model_body.max_seq_length = rows.max_length
    arguments = TrainingArguments(
        output_dir=str(rows.folder), seed=rows.seed, report_to="none", save_strategy="no",
        max_steps=rows.setfit_steps or -1,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(make_records(rows))).train()
    return lambda texts: list(model.predict(texts))


def train_with_trainer(rows: Rows) -> Predict:
    """Fine-tune with `transformers.Trainer`, and the settings of Devlin et al. 2018, A.3."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(rows.seed)
    path, classes = rows.model, sorted(set(rows.labels))
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=len(classes))

    def tokenize(texts: list[str], labels: Sequence[str] | None = None) -> list[dict[str, Any]]:
        ids = tokenizer(texts, truncation=True, max_length=rows.max_length)["input_ids"]
        return [
            {"input_ids": row} | ({} if labels is None else {"labels": classes.index(labels[number])})
            for number, row in enumerate(ids)
        ]

    arguments = TrainingArguments(
        output_dir=str(rows.folder), num_train_epochs=3, per_device_train_batch_size=32, learning_rate=5e-5,
        warmup_steps=0.1, per_device_eval_batch_size=64, seed=rows.seed, report_to="none", save_strategy="no",
        disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    collator = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model, arguments, collator, tokenize(rows.texts, rows.labels))
    trainer.train()

    def predict(texts: list[str]) -> list[str]:
        return [classes[index] for index in trainer.predict(tokenize(texts)).predictions.argmax(1)]

    return predict


ENCODER_SETTINGS = ("model", "max_length")
OURS: dict[str, Callable[..., Predict]] = {
    "tfidf-chars": train_bertkit(method="tfidf-chars"),
    "hybrid": train_bertkit("model", method="hybrid"),
    "linear-probe": train_bertkit(*ENCODER_SETTINGS, method="linear-probe"),
    "finetune": train_bertkit(*ENCODER_SETTINGS),
    "contrastive": train_bertkit(*ENCODER_SETTINGS, method="contrastive"),
}
PEERS: dict[str, Callable[..., Predict]] = {
    "scikit-learn": train_sklearn,
    "model2vec": train_model2vec,
    "sentence-transformers": train_sentence_transformers,
    "setfit": train_setfit,
    "Trainer": train_with_trainer,
}
SYSTEMS = OURS | PEERS


def list_available_systems() -> list[str]:
    """Return the systems whose libraries are installed."""
    packages = {
        "model2vec": "model2vec",
        "sentence-transformers": "sentence_transformers",
        "setfit": "setfit",
    }
    missing = {name for name, package in packages.items() if importlib.util.find_spec(package) is None}
    return [name for name in SYSTEMS if name not in missing]


# ---- results


def draw(dataset: str, seed: int, args: argparse.Namespace) -> tuple[Pairs, Pairs]:
    """Return training rows, and test rows."""
    if not args.shots:
        return draw_rows(dataset, args.data_dir, seed, args.rows, args.test_rows)
    pool, _ = draw_rows(dataset, args.data_dir, seed, 10**7, 0)
    labels = np.array([label for _, label in pool])
    chosen = np.concatenate([np.flatnonzero(labels == name)[: args.shots] for name in sorted(set(labels))])
    others = np.setdiff1d(np.arange(len(pool)), chosen)[: args.test_rows]
    return [pool[row] for row in chosen], [pool[row] for row in others]


def measure(dataset: str, system: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train and predict, or read stored results: right answers [test rows], seconds, rows per second."""
    size = f"{args.shots} shots" if args.shots else f"{args.rows} rows"
    limit = f" {args.setfit_steps} steps" if system == "setfit" and args.setfit_steps else ""
    name = f"{dataset}, {size}, seed {seed}, {system}{limit}"
    about = "" if (args.model, args.max_length) == ("minilm", 128) else f", {args.model}, {args.max_length}"
    path = args.work / f"{name}, {args.test_rows} test rows{about}.json".replace("/", "-")
    if not path.exists():
        train, test = draw(dataset, seed, args)
        folder, model = Path(tempfile.mkdtemp()), str(find_model(args.model).folder)
        texts, labels = map(list, zip(*train, strict=True))
        rows = Rows(texts, labels, seed, folder, model, args.max_length, args.setfit_steps)
        with silence_libraries(), silence_reports():
            started = time.perf_counter()
            predict = SYSTEMS[system](rows)
            trained = time.perf_counter()
            predicted = predict([text for text, _ in test])
            ended = time.perf_counter()
        shutil.rmtree(folder)
        right = [str(label) == gold for label, (_, gold) in zip(predicted, test, strict=True)]
        record = {
            "right": right, "seconds": trained - started, "rows_per_second": len(test) / (ended - trained),
        }  # fmt: skip
        print(f"{name}: {np.mean(right):.3f} in {trained - started:.1f} s", file=sys.stderr, flush=True)
        path.write_text(json.dumps(record), "utf-8")
    record = json.loads(path.read_text("utf-8"))
    return record | {"right": np.array(record["right"])}


Results = dict[str, dict[str, list[dict[str, Any]]]]  # of each system, by dataset, the records of the draws


def average(results: Results, system: str, key: str) -> float:
    """Return the mean over the datasets."""
    return float(np.mean([np.mean([np.mean(r[key]) for r in part]) for part in results[system].values()]))


def compute_speed(results: Results, system: str) -> float:
    """Return the predicted rows of all datasets and draws per second."""
    records = [record for part in results[system].values() for record in part]
    num_rows = [len(record["right"]) for record in records]
    seconds = [rows / record["rows_per_second"] for rows, record in zip(num_rows, records, strict=True)]
    return sum(num_rows) / sum(seconds)


def format_means(results: Results, args: argparse.Namespace) -> list[str]:
    rows = {}
    for system, parts in results.items():
        scores = [np.mean([record["right"].mean() for record in part]) for part in parts.values()]
        rows[name_system(system)] = [
            *(f"{score:.3f}" for score in scores), f"{np.mean(scores):.3f}",
            f"{average(results, system, 'seconds'):.1f}",
            f"{compute_speed(results, system):,.0f}",
        ]  # fmt: skip
    return format_table([*args.datasets, "mean", "training, s", "rows/s"], rows)


def name_system(system: str) -> str:
    return f"bertkit: {system}" if system in OURS else system


def format_budgets(results: Results) -> list[str]:
    rows = {}
    for budget in BUDGETS:
        cells = []
        for group in (OURS, PEERS):
            fitting = [n for n in group if n in results and average(results, n, "seconds") <= budget]
            best = max(fitting, key=lambda name: average(results, name, "right"), default=None)
            cells += ["none", ""] if best is None else [best, f"{average(results, best, 'right'):.3f}"]
        rows[f"{budget} s"] = cells
    return format_table(["bertkit", "accuracy", "peer", "accuracy"], rows)


def format_differences(results: Results, args: argparse.Namespace) -> list[str]:
    """Return the table of the best system of bertkit in the mean, minus each peer, on each dataset."""
    ours = max((name for name in results if name in OURS), key=lambda name: average(results, name, "right"))
    peers = [name for name in results if name in PEERS]

    def join(system: str, dataset: str) -> np.ndarray:
        return np.concatenate([record["right"] for record in results[system][dataset]])

    pairs = [(join(ours, dataset), join(peer, dataset)) for peer in peers for dataset in args.datasets]
    p_values = correct_by_holm([mcnemar_test(*pair) for pair in pairs])
    cells = [
        f"{100 * (first.mean() - second.mean()):+.1f} (p {p:.2g})"
        for (first, second), p in zip(pairs, p_values, strict=True)
    ]
    count = len(args.datasets)
    rows = {peer: cells[count * n : count * (n + 1)] for n, peer in enumerate(peers)}
    return [f"Accuracy of `{ours}` minus that of a peer, in points:", "", *format_table(args.datasets, rows)]


def plot(results: Results) -> None:
    """Write a chart of the mean scores against the seconds of the training, and against the speed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels: dict[str, Callable[[str], float]] = {
        "seconds of training, mean of the datasets": lambda system: average(results, system, "seconds"),
        "predicted rows per second": lambda system: compute_speed(results, system),
    }
    groups = {"bertkit": ("o", "tab:blue", OURS), "other libraries": ("s", "dimgray", PEERS)}
    ordered = sorted(results, key=lambda system: -average(results, system, "right"))
    for axes, (label, compute) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.margins(x=0.3, y=0.1)
        points = {system: (compute(system), average(results, system, "right")) for system in ordered}
        for group, (marker, color, systems) in groups.items():
            shown = [point for system, point in points.items() if system in systems]
            axes.plot([x for x, _ in shown], [y for _, y in shown], marker, color=color, label=group)
        axes.autoscale_view()
        placed: list[np.ndarray] = []  # in pixels
        for system, point in points.items():
            place = axes.transData.transform(point)
            is_near = any(np.all(np.abs(place - other) < (80, 20)) for other in placed)
            placed.append(place)
            axes.annotate(
                system, point, (5, -10 if is_near else 4), fontsize=8, textcoords="offset points",
                color=groups["bertkit" if system in OURS else "other libraries"][1],
            )  # fmt: skip
    figure.axes[1].legend(frameon=False)
    figure.axes[0].set_ylabel("accuracy, mean of the datasets")
    figure.savefig(CHART, dpi=100)


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    if args.write and (args.shots or args.rows != 1_000):
        raise SystemExit("--write: the page is about 1,000 rows; omit --shots and --rows")
    args.work.mkdir(parents=True, exist_ok=True)
    results: Results = {
        system: {
            dataset: [measure(dataset, system, seed, args) for seed in range(args.draws)]
            for dataset in args.datasets
        }
        for system in args.systems
    }
    size = f"{args.shots} rows per class" if args.shots else f"{args.rows:,} rows"
    draws = f"mean of {args.draws} draws" if args.draws > 1 else "one draw"
    lines = [f"Accuracy with {size}, {draws}:", "", *format_means(results, args), ""]
    if any(name in OURS for name in results) and any(name in PEERS for name in results):
        lines += ["By the seconds of the training:", "", *format_budgets(results), ""]
        lines += [*format_differences(results, args), ""]
    text = "\n".join([*lines, *describe_machine()]) + "\n"
    publish(text, args.out)
    if args.write:
        replace_section("classifiers.py", text, PAGE)
        plot(results)


if __name__ == "__main__":
    main()

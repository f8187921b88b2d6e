"""Compare linear models of texts with each other, with scikit-learn, and with models that have an encoder.

    python benchmarks/linear_text.py --data-dir DATA --out linear_text.md
    python benchmarks/linear_text.py --data-dir DATA --systems "all three (hybrid)" finetune --out methods.md
    python benchmarks/linear_text.py --data-dir DATA --datasets SST-2 "AG News" Banking77 --test-rows 1000 \
        --draws 1 --systems teacher "hybrid, distilled" "all three (hybrid)"

Each system is fitted to the same training rows of a dataset, and scored on the same other rows, for several
draws. `scikit-learn` is logistic regression (C = 10) on TF-IDF vectors of words and word pairs, and
of character n-grams (2 to 5, within words). The other linear models differ in their inputs, and `hybrid` is
`--method hybrid`. `teacher` is fine-tuned on the training rows, of which it holds out a tenth. `hybrid,
distilled` is its student (`bertkit distill --student hybrid`), which also learns its predictions of up to
--unlabeled-rows other rows. Results are kept in --work, so that the script can be interrupted. Progress goes
to standard error, the tables to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import bertkit
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.methods.linear_text import PENALTY, load_static_vectors
from bertkit.models.linear_text import LinearTextModel
from bertkit.models.loading import find_model
from bertkit.stats.baseline_models import WORD_PATTERN
from bertkit.stats.linear_probe import fit_linear_layer, scale_penalty
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish
from text_datasets import DATASETS, Pairs, draw_rows

WORDS, CHARACTERS, VECTORS = "words", "characters", "vectors"
INPUTS = {
    "words": [WORDS],
    "characters": [CHARACTERS],
    "vectors (static)": [VECTORS],
    "words + characters (tfidf-chars)": [WORDS, CHARACTERS],
    "words + vectors": [WORDS, VECTORS],
    "characters + vectors": [CHARACTERS, VECTORS],
    "all three (hybrid)": [WORDS, CHARACTERS, VECTORS],
}
HYBRID, SKLEARN_WORDS, SKLEARN_BOTH = (
    "all three (hybrid)",
    "scikit-learn: words",
    "scikit-learn: words and characters",
)
TEACHER, DISTILLED = "teacher", "hybrid, distilled"
METHODS = ("linear-probe", "contrastive", "finetune", TEACHER, DISTILLED)  # with an encoder
NUM_RESAMPLES = 2_000
COMMAND = "```sh\npython benchmarks/linear_text.py --data-dir DATA\n```"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"), required=False)
    parser.add_argument("--work", type=Path, default=Path("linear_text"), help="folder of the results")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    names = [SKLEARN_WORDS, SKLEARN_BOTH, *INPUTS, *METHODS]
    parser.add_argument(
        "--systems", nargs="+", choices=names, default=[name for name in names if name not in METHODS]
    )
    parser.add_argument("--rows", type=int, default=1_000, help="training rows")
    parser.add_argument("--test-rows", type=int, default=3_000, help="most scored rows")
    parser.add_argument(
        "--unlabeled-rows", type=int, default=10_000, help="most rows that the teacher predicts"
    )
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the tables to docs/linear-models.md")
    return parser.parse_args(argv)


# ---- systems: they return [test rows] the predicted labels


def predict_sklearn(train: Pairs, test: Pairs, with_characters: bool) -> list[str]:
    options: list[dict[str, Any]] = [{"ngram_range": (1, 2), "token_pattern": WORD_PATTERN}]
    if with_characters:
        options.append({"analyzer": "char_wb", "ngram_range": (2, 5)})
    vectorizers = [TfidfVectorizer(sublinear_tf=True, **option) for option in options]
    vectors = hstack([vectorizer.fit_transform([text for text, _ in train]) for vectorizer in vectorizers])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(vectors.tocsr(), [label for _, label in train])
    new = hstack([vectorizer.transform([text for text, _ in test]) for vectorizer in vectorizers])
    return list(model.predict(new.tocsr()))


def predict_linear_text(train: Pairs, test: Pairs, inputs: Sequence[Any], model: str) -> list[str]:
    texts, labels = ([pair[part] for pair in train] for part in (0, 1))
    names = sorted(set(labels))
    vectors = load_static_vectors(find_model(model)) if VECTORS in inputs else None
    fitted = LinearTextModel.fit_inputs(None, inputs, [texts], vectors)
    targets = TrainingLabels(np.array(list(map(names.index, labels))))
    layer = fit_linear_layer(
        fitted.compute_features([texts]), targets, len(names), scale_penalty(PENALTY, targets, len(names))
    )
    fitted.weight, fitted.bias = layer
    return [names[index] for index in fitted.compute_logits([[text for text, _ in test]]).argmax(1)]


def predict_with_encoder(train: Pairs, test: Pairs, method: str, model: str, folder: Path) -> list[str]:
    parts = [[{"text": text, "label": label} for text, label in part] for part in (train, test)]
    bertkit.classify(
        data=parts[0], validation=parts[1], method=method, model=model, output_dir=str(folder), overwrite=True
    )
    lines = (folder / "predictions.jsonl").read_text("utf-8").split("\n")[:-1]
    return [json.loads(line)["predicted"] for line in lines]


def predict_as_teacher(train: Pairs, test: Pairs, model: str, run: Path) -> list[str]:
    """Return the predictions of a fine-tuned run, which is trained if it has not finished."""
    if not (run / "metrics.json").exists():
        bertkit.classify(
            data=write_rows(train, run, ["text", "label"]), model=model, output_dir=str(run), overwrite=True
        )
    return predict_run(run, test)


def predict_as_student(unlabeled: Pairs, test: Pairs, teacher: Path, run: Path) -> list[str]:
    bertkit.distill(
        teacher, student="hybrid", data=write_rows(unlabeled, run, ["text"]), output_dir=str(run),
        overwrite=True,
    )  # fmt: skip
    return predict_run(run, test)


def write_rows(rows: Pairs, run: Path, columns: Sequence[str]) -> str:
    """Write a file beside a run, and return its path."""
    path = run.with_suffix(".jsonl")
    lines = (json.dumps(dict(zip(columns, row, strict=False))) + "\n" for row in rows)
    path.write_text("".join(lines), "utf-8")
    return str(path)


def predict_run(run: Path, rows: Pairs) -> list[str]:
    return [record["predicted"] for record in bertkit.predict(run, data=[{"text": text} for text, _ in rows])]


def run_system(system: str, dataset: str, seed: int, args: argparse.Namespace) -> tuple[list[str], Pairs]:
    """Return the predictions, and the rows."""
    num_others = args.test_rows + (args.unlabeled_rows if system == DISTILLED else 0)
    train, others = draw_rows(dataset, args.data_dir, seed, args.rows, num_others)
    test, unlabeled = others[: args.test_rows], others[args.test_rows :]
    model = "" if args.model == "minilm" else "-" + args.model.replace("/", "-")
    teacher = args.work / f"teacher-{dataset}-{args.rows}-{seed}{model}".replace(" ", "-")
    if system in (SKLEARN_WORDS, SKLEARN_BOTH):
        predicted = predict_sklearn(train, test, system == SKLEARN_BOTH)
    elif system in INPUTS:
        predicted = predict_linear_text(train, test, INPUTS[system], args.model)
    elif system == TEACHER:
        predicted = predict_as_teacher(train, test, args.model, teacher)
    elif system == DISTILLED:
        predict_as_teacher(train, test[:1], args.model, teacher)
        predicted = predict_as_student(unlabeled, test, teacher, args.work / "student")
    else:
        predicted = predict_with_encoder(train, test, system, args.model, args.work / "run")
    return predicted, test


def score_all(args: argparse.Namespace) -> dict[str, dict[str, np.ndarray]]:
    """Return [draws, test rows] whether each prediction is right, by dataset and system."""
    results: dict[str, dict[str, np.ndarray]] = {}
    for dataset in args.datasets:
        results[dataset] = {}
        for system in args.systems:
            draws = []
            for seed in range(args.draws):
                name = f"{dataset} {system} {args.rows} {args.test_rows} {seed}".replace(":", "").replace(
                    "/", "-"
                )
                path = args.work / f"{name}.npy"
                if not path.exists():
                    started = time.perf_counter()
                    predicted, test = run_system(system, dataset, seed, args)
                    right = np.array(
                        [label == gold for label, (_, gold) in zip(predicted, test, strict=True)]
                    )
                    np.save(path, right)
                    seconds = time.perf_counter() - started
                    print(f"{name}: {right.mean():.3f}, {seconds:.0f} s", file=sys.stderr, flush=True)
                draws.append(np.load(path))
            results[dataset][system] = np.stack(draws)
    return results


# ---- tables


def compute_interval(difference: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of differences [draws, rows] in points, and its 95 % bootstrap interval over rows."""
    rng, num_rows = np.random.default_rng(0), difference.shape[1]
    means = [
        np.mean([draw[rng.integers(num_rows, size=num_rows)].mean() for draw in difference])
        for _ in range(NUM_RESAMPLES)
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * float(difference.mean()), 100 * float(low), 100 * float(high)


def format_results(results: Mapping[str, Mapping[str, np.ndarray]], args: argparse.Namespace) -> list[str]:
    columns = [*results, "mean"]
    rows: dict[str, list[str]] = {}
    for system in args.systems:
        means = [results[dataset][system].mean() for dataset in results]
        rows[system] = [f"{value:.3f}" for value in (*means, np.mean(means))]
    lines = format_table(columns, rows)
    if HYBRID not in args.systems:
        return lines
    differences = {}
    for system in args.systems:
        if system not in (SKLEARN_WORDS, SKLEARN_BOTH, *METHODS):
            continue
        parts = [results[name][HYBRID].astype(float) - results[name][system] for name in results]
        cells = [compute_interval(part) for part in parts]
        mean = float(np.mean([value for value, _, _ in cells]))
        differences[system] = [
            *(f"{value:+.1f} ({low:+.1f} to {high:+.1f})" for value, low, high in cells),
            f"{mean:+.1f}",
        ]
    return [
        *lines,
        "",
        "Accuracy of `hybrid` minus that of the others, in points, with 95 % intervals:",
        "",
        *format_table(columns, differences),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    lines = [*format_results(score_all(args), args), "", *describe_machine(), "", COMMAND]
    publish("\n".join(lines) + "\n", args.out)
    if args.write:
        replace_section("linear models", "\n".join(lines), ROOT / "docs" / "linear-models.md")


if __name__ == "__main__":
    main()

"""Compare calibrations by their calibration error and log-loss on rows that nothing was fitted on.

    python benchmarks/calibration.py --data-dir DATA --seeds 3 --runs RUNS --write

For each seed, the rows of a dataset are shuffled. A model is trained on the first rows, calibrated on the
next rows, and evaluated on other rows. The first table has the mean scores of `bertkit calibrate` and of
other calibrations over the seeds; the second one those of the model before and after `bertkit calibrate`.
The column "predict, pipeline, ONNX differ by" is the largest difference between the probabilities of
`bertkit predict`, of `transformers.pipeline` and of an exported ONNX model. If `bertkit calibrate` refuses,
because the probabilities would not become better, the model stays as it is. With `--fold-models N`, N
models for each seed and dataset are trained on the same labeled rows, those to calibrate on included, each
without one of N folds; a temperature is fitted to their predictions of the folds, and the mean of their
probabilities is scored. Models and outputs in the directory --runs are used again. Progress goes to
standard error, the tables to standard output; --write puts them into docs/calibrate.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import UserError
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish

PAGE = ROOT / "docs" / "calibrate.md"
COLUMNS = [
    "accuracy before", "accuracy after", "ECE before", "ECE after", "highest ECE after", "nll before",
    "nll after", "90 % sets contain the label", "predict, pipeline, ONNX differ by",
]  # fmt: skip
NUM_FOLDS = 5
PENALTIES = np.logspace(-4, 2, 7)
COMPARED_ROWS = 100
NO_GAIN = "calibration does not make the probabilities better"  # as `bertkit calibrate` says
SHIPPED, TEMPERATURE = "**`bertkit calibrate`**", "temperature"


@dataclass(frozen=True)
class Dataset:
    """A dataset, its task, the columns of its texts, and the maximum sequence length."""

    title: str
    task: str
    columns: tuple[str, ...]
    max_length: int


DATASETS = {
    "sst2": Dataset("SST-2", "classify", ("sentence",), 64),
    "rotten_tomatoes": Dataset("Rotten Tomatoes", "classify", ("text",), 64),
    "imdb": Dataset("IMDB, 128 tokens", "classify", ("text",), 128),
    "mnli": Dataset("MNLI", "nli", ("premise", "hypothesis"), 96),
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 1, 2, ...")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train-rows", type=int, default=2000)
    parser.add_argument("--fit-rows", type=int, default=1000, help="rows to calibrate on")
    parser.add_argument("--test-rows", type=int, default=5000)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--fold-models", type=int, default=0, help="models of the ensemble; 0: no ensemble")
    parser.add_argument("--runs", type=Path, help="directory of the models, to continue or to repeat")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the tables to docs/calibrate.md")
    return parser.parse_args(argv)


# ---- models and their outputs


@dataclass(frozen=True)
class Part:
    """The outputs of a model on some rows: logits [rows, classes], vectors [rows, hidden_size], gold classes.

    The vectors are what the output layer reads.
    """

    logits: np.ndarray
    vectors: np.ndarray
    gold: np.ndarray


@dataclass(frozen=True)
class Measured:
    """A trained model on the rows to calibrate on and the rows to evaluate, and what calibrate made of it."""

    fit: Part
    test: Part
    calibrated: np.ndarray  # logits of the test rows after `bertkit calibrate`
    set_margin: float | None  # None if `bertkit calibrate` refused, because it would not help
    difference: float
    ensemble: np.ndarray | None  # [rows, classes] log-probabilities of the test rows by the fold models


def sample_rows(name: str, seed: int, args: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Return disjoint rows to train, calibrate and evaluate on, from the training split of a dataset."""
    from bertkit.data.sources import load_dataset

    rows = load_dataset(name, DATASETS[name].task, args.data_dir).splits["train"]
    sizes = [args.train_rows, args.fit_rows, args.test_rows]
    chosen = np.random.default_rng(seed).permutation(len(rows))[: sum(sizes)]
    return [list(rows.select(part)) for part in np.split(chosen, np.cumsum(sizes)[:-1])]


def measure(name: str, seed: int, args: argparse.Namespace, folder: Path) -> Measured:
    """Train, unless the run is there, and calibrate."""
    import bertkit

    dataset, run = DATASETS[name], folder / f"{name}-{seed}"
    train, fit_rows, test_rows = sample_rows(name, seed, args)
    validation, test_rows = test_rows[:200], test_rows[200:]
    if not (run / "metrics.json").exists():
        getattr(bertkit, dataset.task)(
            data=train, validation=validation, model=args.model, output_dir=run, seed=seed,
            epochs=args.epochs, max_length=dataset.max_length, overwrite=True,
        )  # fmt: skip
    stored = folder / f"{name}-{seed}.npz"
    if not stored.exists():
        arrays: dict[str, np.ndarray] = {}
        for part, rows in (("fit", fit_rows), ("test", test_rows)):
            arrays |= {f"{part}_{key}": value for key, value in vars(compute_part(run, rows)).items()}
        np.savez(stored, **arrays)  # type: ignore[arg-type]
    stored_arrays = np.load(stored)
    fit, test = (
        Part(*(stored_arrays[f"{part}_{key}"] for key in ("logits", "vectors", "gold")))
        for part in ("fit", "test")
    )
    copy = folder / f"{name}-{seed}-calibrated"
    try:
        calibration = bertkit.calibrate(run, data=fit_rows, output_dir=copy, overwrite=True).calibration
    except UserError as error:
        if NO_GAIN not in str(error):
            raise
        print(error, file=sys.stderr)
        calibrated, set_margin, difference = test.logits, None, 0.0
    else:
        print(f"{name}, seed {seed}: {calibration['method']}", file=sys.stderr)
        exported = folder / f"{name}-{seed}-onnx"
        difference = measure_difference(dataset, copy, test_rows[:COMPARED_ROWS], exported)
        calibrated = apply_output_layer(copy, test.vectors)
        set_margin = calibration["prediction_sets"]["margin"]
    ensemble = None
    if args.fold_models:
        ensemble = measure_fold_models(dataset, [*train, *fit_rows], validation, test_rows, run, args)
    return Measured(fit, test, calibrated, set_margin, difference, ensemble)


def measure_fold_models(
    dataset: Dataset,
    rows: list[dict[str, Any]],
    validation: list[dict[str, Any]],
    test_rows: list[dict[str, Any]],
    run: Path,
    args: argparse.Namespace,
) -> np.ndarray:
    """Train a model without each fold, and return the mean of their probabilities, as logarithms.

    They share the temperature with the lowest log-loss on the predictions of the folds.
    """
    from scipy.special import log_softmax, logsumexp

    import bertkit

    stored = run.with_name(f"{run.name}-{args.fold_models}-fold-models.npz")
    if not stored.exists():
        folds = np.arange(len(rows)) % args.fold_models
        held_out, tests = [], []
        for fold in range(args.fold_models):
            folder = run.with_name(f"{run.name}-fold-{fold}")
            known = [row for row, number in zip(rows, folds, strict=True) if number != fold]
            getattr(bertkit, dataset.task)(
                data=known, validation=validation, model=args.model, output_dir=folder, seed=fold,
                epochs=args.epochs, max_length=dataset.max_length, overwrite=True,
            )  # fmt: skip
            others = [row for row, number in zip(rows, folds, strict=True) if number == fold]
            held_out.append(compute_part(folder, others))
            tests.append(compute_part(folder, test_rows))
        np.savez(
            stored, logits=np.concatenate([part.logits for part in held_out]),
            gold=np.concatenate([part.gold for part in held_out]),
            test=np.stack([part.logits for part in tests]),
        )  # fmt: skip
    arrays = np.load(stored)
    temperature = find_temperature(Part(arrays["logits"], arrays["logits"], arrays["gold"]))
    return logsumexp(log_softmax(arrays["test"] / temperature, axis=2), axis=0) - np.log(args.fold_models)


def compute_part(run: Path, rows: list[dict[str, Any]]) -> Part:
    """Compute the outputs of a model on rows."""
    import bertkit
    from bertkit.data.table import Rows
    from bertkit.models.heads import append_layer_inputs

    predictor = bertkit.load(run)
    parsed, _ = predictor.task.parse_rows(Rows.from_dicts(rows, "rows"))
    with append_layer_inputs(predictor.model) as size:
        outputs = predictor.compute_outputs(parsed)
    values = outputs.logits.astype(float)
    return Part(values[:, :-size], values[:, -size:], outputs.labels)


def apply_output_layer(run: Path, vectors: np.ndarray) -> np.ndarray:
    """Return the logits of vectors by the output layer of a run."""
    import bertkit
    from bertkit.models.heads import find_output_layer

    _, layer = find_output_layer(bertkit.load(run).model)
    weight, bias = (value.detach().double().numpy() for value in (layer.weight, layer.bias))
    return vectors @ weight.T + bias


def measure_difference(dataset: Dataset, run: Path, rows: list[dict[str, Any]], exported: Path) -> float:
    """Return the largest difference of a probability in the pipeline or the exported model."""
    from transformers import pipeline

    import bertkit

    bertkit.export(run, output_dir=exported, overwrite=True)
    inputs = [{column: row[column] for column in dataset.columns} for row in rows]
    predictions = [bertkit.predict(folder, data=inputs, all_scores=True) for folder in (run, exported)]
    ours, onnx = ([record["probabilities"] for record in records] for records in predictions)
    stock = pipeline("text-classification", str(run), top_k=None)
    texts = [dict(zip(("text", "text_pair"), row.values(), strict=False)) for row in inputs]
    answers = [stock(text, truncation=True, max_length=dataset.max_length) for text in texts]
    theirs = [{answer["label"]: answer["score"] for answer in labels} for labels in answers]
    return max(
        abs(expected[label] - other[label])
        for others in (onnx, theirs)
        for expected, other in zip(ours, others, strict=True)
        for label in expected
    )


# ---- calibrations: functions from the outputs of both parts to the logits of the test rows


def compute_loss(logits: np.ndarray, gold: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean log-loss, and its gradient with respect to the logits."""
    from scipy.special import log_softmax

    log_probabilities, index = log_softmax(logits, axis=1), np.arange(len(gold))
    errors = np.exp(log_probabilities)
    errors[index, gold] -= 1
    return float(-log_probabilities[index, gold].mean()), errors / len(gold)


def find_temperature(part: Part) -> float:
    """Return the temperature of `bertkit calibrate`."""
    from bertkit.stats.calibration import Decisions, fit_temperature

    return fit_temperature(Decisions.from_classes(part.logits, part.gold))


def divide(fit: Part, test: Part) -> np.ndarray:
    return test.logits / find_temperature(fit)


def divide_by_margin(fit: Part, test: Part) -> np.ndarray:
    """Divide the logits of each row by its own temperature, which depends on the margin."""
    from bertkit.stats.calibration import Decisions, compute_margins, fit_adaptive_temperature

    intercept, slope = fit_adaptive_temperature(Decisions.from_classes(fit.logits, fit.gold))
    return test.logits * (intercept + slope * compute_margins(test.logits).max(1, keepdims=True))


def scale_classes(is_shared: bool, fit: Part, test: Part) -> np.ndarray:
    """Multiply the logits by one factor, or one for each class, and add a bias for each class.

    The second one is vector scaling (Guo et al. 2017, section 4.2).
    """
    from scipy.optimize import minimize

    num_classes = fit.logits.shape[1]

    def scale(logits: np.ndarray, values: np.ndarray) -> np.ndarray:
        return logits * (values[0] if is_shared else values[:num_classes]) + values[num_classes:]

    def compute(values: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = compute_loss(scale(fit.logits, values), fit.gold)
        slopes = (gradient * fit.logits).sum(0)
        if is_shared:
            slopes = np.concatenate([[slopes.sum()], np.zeros(num_classes - 1)])
        return loss, np.concatenate([slopes, gradient.sum(0)])

    start = np.concatenate([np.full(num_classes, 1 / find_temperature(fit)), np.zeros(num_classes)])
    return scale(test.logits, minimize(compute, start, jac=True, method="L-BFGS-B").x)


def refit_layer(fit: Part, test: Part) -> np.ndarray:
    """Fit a change of the output layer to the labels, with an L2 penalty chosen by cross-validation."""
    from scipy.optimize import minimize
    from sklearn.model_selection import StratifiedKFold

    def fit_change(part: Part, penalty: float) -> Callable[[Part], np.ndarray]:
        temperature, num_classes = find_temperature(part), part.logits.shape[1]
        center = part.vectors.mean(0)

        def apply(other: Part, values: np.ndarray) -> np.ndarray:
            change = values.reshape(num_classes, -1)
            return other.logits / temperature + (other.vectors - center) @ change[:, 1:].T + change[:, 0]

        def compute(values: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient = compute_loss(apply(part, values), part.gold)
            weights = values.reshape(num_classes, -1).copy()
            weights[:, 0] = 0
            slopes = np.concatenate(
                [gradient.sum(0)[:, None], gradient.T @ (part.vectors - center) + penalty * weights[:, 1:]], 1
            )
            return loss + penalty / 2 * (weights**2).sum(), slopes.ravel()

        start = np.zeros(num_classes * (len(center) + 1))
        found = minimize(compute, start, jac=True, method="L-BFGS-B").x
        return lambda other: apply(other, found)

    def select(rows: np.ndarray) -> Part:
        return Part(fit.logits[rows], fit.vectors[rows], fit.gold[rows])

    splits = list(StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=0).split(fit.logits, fit.gold))
    losses = [
        sum(
            compute_loss(fit_change(select(used), penalty)(select(held_out)), fit.gold[held_out])[0]
            for used, held_out in splits
        )
        for penalty in PENALTIES
    ]
    return fit_change(fit, PENALTIES[int(np.argmin(losses))])(test)


def fit_isotonic(num_folds: int, fit: Part, test: Part) -> np.ndarray | None:
    """Fit isotonic regression to the difference of the logits of two classes; None for more classes.

    With several folds, the probability is the mean of regressions that are fitted without one of the folds.
    """
    from sklearn.isotonic import IsotonicRegression

    if fit.logits.shape[1] != 2:
        return None
    known, new = (part.logits[:, 1] - part.logits[:, 0] for part in (fit, test))
    folds = np.random.default_rng(0).permutation(len(known)) % max(num_folds, 1)
    probability = np.mean(
        [
            IsotonicRegression(out_of_bounds="clip").fit(known[used], fit.gold[used]).predict(new)
            for used in ([folds != fold for fold in range(num_folds)] or [folds == 0])
        ],
        axis=0,
    )
    probability = probability.clip(1 / len(known), 1 - 1 / len(known))  # 0 and 1 have no logarithm
    return np.log(np.stack([1 - probability, probability], axis=1))


METHODS: dict[str, Callable[[Part, Part], np.ndarray | None]] = {
    "none": lambda _, test: test.logits,
    TEMPERATURE: divide,
    "temperature and bias": lambda fit, test: scale_classes(True, fit, test),
    "vector scaling": lambda fit, test: scale_classes(False, fit, test),
    "output layer, refitted to the labels": refit_layer,
    "temperature by margin, for each row": divide_by_margin,
    "isotonic regression": lambda fit, test: fit_isotonic(0, fit, test),
    "isotonic regression, mean of 5 folds": lambda fit, test: fit_isotonic(NUM_FOLDS, fit, test),
}


# ---- scores and tables


def make_scorer(logits: list[np.ndarray], measured: list[Measured]) -> Any:
    """Return a scorer of the means over the seeds, with as many rows as the evaluated rows of a seed."""
    from bertkit.stats.calibration import Decisions, ProbabilityScorer
    from bertkit.stats.significance import Scorer

    golds = [one.test.gold for one in measured]
    scorers = [
        ProbabilityScorer(Decisions.from_classes(part, gold))
        for part, gold in zip(logits, golds, strict=True)
    ]
    is_correct = [part.argmax(1) == gold for part, gold in zip(logits, golds, strict=True)]

    def score(rows: np.ndarray) -> dict[str, float]:
        scores = [
            {**scorer.score(rows), "accuracy": float(part[rows].mean())}
            for scorer, part in zip(scorers, is_correct, strict=True)
        ]
        return {name: statistics.mean(part[name] for part in scores) for name in scores[0]}

    return Scorer(score, len(golds[0]))


def format_differences(before: Any, after: Any) -> str:
    """Describe the difference of two scorers in ECE, log-loss and accuracy, with paired intervals."""
    from bertkit.stats.significance import compare_scorers

    found, cells = compare_scorers(before, after), []
    for key, name in (("ece", "ECE"), ("nll", "nll"), ("accuracy", "accuracy")):
        low, high = found[key].interval
        cells.append(f"{name} {found[key].difference:+.4f} ({low:+.4f} to {high:+.4f})")
    return ", ".join(cells)


def format_cells(measured: list[Measured]) -> list[str]:
    """Return the cells of the second table."""
    from bertkit.stats.calibration import find_members, score_sets

    before = make_scorer([one.test.logits for one in measured], measured).score_all()
    after = make_scorer([one.calibrated for one in measured], measured).score_all()
    highest = max(make_scorer([one.calibrated], [one]).score_all()["ece"] for one in measured)
    coverage = statistics.mean(
        score_sets(find_members(one.calibrated, one.set_margin), one.test.gold)["set_coverage"]
        for one in measured
        if one.set_margin is not None
    )
    return [
        *(f"{scores[name]:.3f}" for name in ("accuracy", "ece") for scores in (before, after)),
        f"{highest:.3f}",
        *(f"{scores['nll']:.3f}" for scores in (before, after)),
        f"{100 * coverage:.1f} %",
        f"{max(one.difference for one in measured):.0e}",
    ]


def write_report(results: dict[str, list[Measured]], args: argparse.Namespace) -> str:
    """Return both tables as Markdown."""
    ensemble = [f"mean of {args.fold_models} models, each without a fold"] if args.fold_models else []
    methods: dict[str, list[str]] = {name: [] for name in (*METHODS, *ensemble, SHIPPED)}
    cells, differences = {}, []
    for name, measured in results.items():
        title = DATASETS[name].title
        logits: dict[str, list[Any]] = {
            method: [calibrate(one.fit, one.test) for one in measured]
            for method, calibrate in METHODS.items()
        }
        if args.fold_models:
            logits[ensemble[0]] = [one.ensemble for one in measured]
        logits[SHIPPED] = [one.calibrated for one in measured]
        scorers = {}
        for method, parts in logits.items():
            if any(part is None for part in parts):
                methods[method] += ["", ""]
                continue
            scorers[method] = make_scorer(parts, measured)
            scores = scorers[method].score_all()
            methods[method] += [f"{scores['ece']:.3f}", f"{scores['nll']:.3f}"]
        cells[title] = format_cells(measured)
        differences.append(f"* {title}: {format_differences(scorers[TEMPERATURE], scorers[SHIPPED])}")
    titles = [DATASETS[name].title for name in results]
    seeds = "of one seed" if args.seeds == 1 else f"means over {args.seeds} seeds"
    command = f"python benchmarks/calibration.py --data-dir DATA --work {' '.join(args.work)}"
    command += f" --seeds {args.seeds} --train-rows {args.train_rows} --fit-rows {args.fit_rows}"
    command += f" --test-rows {args.test_rows} --epochs {args.epochs:g}"
    command += f" --fold-models {args.fold_models}" if args.fold_models else ""
    return "\n".join(
        [
            "## Measured",
            "",
            f"`benchmarks/calibration.py` trains on {args.train_rows:,} rows of a dataset, calibrates on "
            f"{args.fit_rows:,} other rows, and",
            f"evaluates on {args.test_rows - 200:,} rows of a third part. The scores are {seeds}.",
            "A perfectly calibrated model would have an ECE of 0.01: the evaluated rows are a sample.",
            "",
            *format_table([f"{title}, {score}" for title in titles for score in ("ECE", "nll")], methods),
            "",
            "`bertkit calibrate` minus a temperature, with paired 95 % intervals of the bootstrap:",
            "",
            *differences,
            "",
            "Before and after `bertkit calibrate`:",
            "",
            *format_table(COLUMNS, cells),
            "",
            *describe_machine(),
            "",
            "```sh",
            command,
            "```",
        ]
    )


def run_benchmark(args: argparse.Namespace, folder: Path) -> str:
    """Measure all datasets and seeds, and return the report."""
    results: dict[str, list[Measured]] = {}
    for name in args.work:
        results[name] = [measure(name, seed, args, folder) for seed in range(1, args.seeds + 1)]
        print(f"{name}: {format_cells(results[name])}", file=sys.stderr, flush=True)
    return write_report(results, args) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(list(argv) if argv is not None else None)
    if args.runs:
        args.runs.mkdir(parents=True, exist_ok=True)
        text = run_benchmark(args, args.runs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            text = run_benchmark(args, Path(folder))
    publish(text, args.out)
    if args.write:
        replace_section("calibration", text, PAGE)


if __name__ == "__main__":
    main()

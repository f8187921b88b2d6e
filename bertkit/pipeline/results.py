"""What scored splits say: the part of `metrics.json` that is about scores, and the files of predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Rows, Splits, combine_fingerprints
from bertkit.tasks.base import Task
from bertkit.tasks.evaluation import Evaluation, Outputs, iter_prediction_records
from bertkit.utils.files import write_chunks, write_jsonl


def summarize_data(found: LoadedDataset, prints: Mapping[str, str], splits: Splits) -> dict[str, Any]:
    """Where the rows are from, what they are known by, and how many there are."""
    sizes = {split: len(rows) for split, rows in splits.items()}
    return {"name": found.name, "source": found.source, "fingerprint": combine_fingerprints(prints), **sizes}


def evaluate_splits(task: Task, outputs: Mapping[str, Outputs]) -> dict[str, Evaluation]:
    """Fit the decision on the validation split, and evaluate every split with it.

    The validation split is evaluated before the fit, so that its predictions are computed only once;
    until the fit, a task decides as the fitted parameters of the same split will.
    """
    validation = task.evaluate(outputs["validation"])
    task.fit_decision(validation)
    return {
        split: validation if split == "validation" else task.evaluate(split_outputs)
        for split, split_outputs in outputs.items()
    }


def compute_scores(task: Task, evaluations: Mapping[str, Evaluation], train: Rows | None) -> dict[str, Any]:
    """The scores of each split, with the intervals and baselines of the validation split and all details.

    Args:
        train: what baselines are fitted on; None: there are none.
    """
    labeled = {split: evaluation for split, evaluation in evaluations.items() if evaluation.has_gold}
    scores = {split: evaluation.scores for split, evaluation in labeled.items()}
    validation = evaluations["validation"]
    summary: dict[str, Any] = {
        "validation": {}, "test": {}, **scores,
        "intervals": validation.intervals(task.config.seed),
        "baselines": {} if train is None else task.baselines(train, validation.outputs.rows),
    }  # fmt: skip
    details = {split: parts for split, evaluation in labeled.items() if (parts := evaluation.details())}
    return summary | ({"details": details} if details else {})


def write_predictions(folder: Path, task: Task, evaluations: Mapping[str, Evaluation]) -> None:
    """The files of predictions of each split; those of the validation split have no name of it in theirs."""
    for split, evaluation in evaluations.items():
        suffix = "" if split == "validation" else f"-{split}"
        name = f"{task.spec.predictions_name}{suffix}.jsonl"
        write_jsonl(folder / name, iter_prediction_records(task, evaluation))
        for name, lines in evaluation.files().items():
            stem, dot, ending = name.partition(".")
            write_chunks(folder / f"{stem}{suffix}{dot}{ending}", lines)

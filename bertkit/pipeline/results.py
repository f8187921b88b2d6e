"""What scored splits say: the part of `metrics.json` that is about scores, and the files of predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Rows, Splits, combine_fingerprints
from bertkit.tasks.base import Outputs, Task
from bertkit.tasks.records import iter_prediction_records
from bertkit.utils.files import write_chunks, write_jsonl


def summarize_data(found: LoadedDataset, prints: Mapping[str, str], splits: Splits) -> dict[str, Any]:
    """Where the rows are from, what they are known by, and how many there are."""
    sizes = {split: len(rows) for split, rows in splits.items()}
    return {"name": found.name, "source": found.source, "fingerprint": combine_fingerprints(prints), **sizes}


def compute_scores(task: Task, outputs: Mapping[str, Outputs], train: Rows | None) -> dict[str, Any]:
    """The scores of each split, with the intervals and baselines of the validation split and all details.

    Args:
        train: what baselines are fitted on; None: there are none.
    """
    found = {
        name: task.compute_metrics(some) for name, some in outputs.items() if some.features.labels is not None
    }
    judged = outputs["validation"]
    told = {
        "validation": {}, "test": {}, **found,
        "intervals": task.compute_intervals(judged),
        "baselines": {} if train is None else task.baselines(train, judged.rows),
    }  # fmt: skip
    details = {split: parts for split in found if (parts := task.compute_details(outputs[split]))}
    return told | ({"details": details} if details else {})


def write_predictions(folder: Path, task: Task, outputs: Mapping[str, Outputs]) -> None:
    """The files of predictions of each split; those of the validation split have no name of it in theirs."""
    for split, found in outputs.items():
        suffix = "" if split == "validation" else f"-{split}"
        write_jsonl(folder / f"{task.predictions_name}{suffix}.jsonl", iter_prediction_records(task, found))
        for name, lines in task.prediction_files(found).items():
            stem, dot, ending = name.partition(".")
            write_chunks(folder / f"{stem}{suffix}{dot}{ending}", lines)

"""Results of evaluated splits: the scores in `metrics.json`, and the prediction files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Rows, Splits, combine_fingerprints
from bertkit.tasks.base import Outputs, Task
from bertkit.tasks.records import iter_prediction_records
from bertkit.utils.files import write_chunks, write_jsonl


def summarize_data(dataset: LoadedDataset, fingerprints: Mapping[str, str], splits: Splits) -> dict[str, Any]:
    """Return the name, source and fingerprint of the data, and the number of rows of each split."""
    sizes = {split: len(rows) for split, rows in splits.items()}
    fingerprint = combine_fingerprints(fingerprints)
    return {"name": dataset.name, "source": dataset.source, "fingerprint": fingerprint, **sizes}


def compute_scores(task: Task, outputs: Mapping[str, Outputs], train: Rows | None) -> dict[str, Any]:
    """Return the scores and details of each split with labels, and intervals and baselines for validation.

    Args:
        task: The task.
        outputs: Split -> model outputs; "validation" is required.
        train: Rows to fit the baselines on. None: no baselines.
    """
    scores = {
        split: task.compute_metrics(output)
        for split, output in outputs.items()
        if output.features.labels is not None
    }
    validation = outputs["validation"]
    results: dict[str, Any] = {
        "validation": {},
        "test": {},
        **scores,
        "intervals": task.compute_intervals(validation),
        "baselines": {} if train is None else task.baselines(train, validation.rows),
    }
    details = {split: task.compute_details(outputs[split]) for split in scores}
    details = {split: parts for split, parts in details.items() if parts}
    return results | ({"details": details} if details else {})


def write_predictions(folder: Path, task: Task, outputs: Mapping[str, Outputs]) -> None:
    """Write the prediction files of each split. Their names end in the split, except for validation."""
    for split, output in outputs.items():
        suffix = "" if split == "validation" else f"-{split}"
        records = iter_prediction_records(task, output)
        write_jsonl(folder / f"{task.predictions_name}{suffix}.jsonl", records)
        for name, lines in task.prediction_files(output).items():
            stem, dot, extension = name.partition(".")
            write_chunks(folder / f"{stem}{suffix}{dot}{extension}", lines)

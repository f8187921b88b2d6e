"""The files that the GLUE leaderboard takes: `index` and `prediction`, TAB-separated, a file a test set."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.data.registry import load_dataset_specs
from bertkit.suites.glue_tasks import GLUE_TASKS, GlueTask
from bertkit.utils.files import write_text

SUBMISSION_DIR, SUBMISSION_ARCHIVE = "submission", "submission.zip"


def write_submission(folder: Path, runs: Sequence[tuple[GlueTask, Path]]) -> list[str]:
    """Write `submission/FILE.tsv` for each test set that a run predicted, and the archive when all are there.

    Returns:
        The names of the files, in the leaderboard's order.
    """
    written = []
    for task, run in runs:
        for split, name in task.submission_files.items():
            predictions = run / f"predictions-{split}.jsonl"
            if predictions.exists():
                (folder / SUBMISSION_DIR).mkdir(exist_ok=True)
                records = [json.loads(line) for line in predictions.read_text("utf-8").splitlines()]
                write_text(folder / SUBMISSION_DIR / name, format_submission(task, records))
                written.append(name)
    if set(written) == {name for task in GLUE_TASKS for name in task.submission_files.values()}:
        with zipfile.ZipFile(folder / SUBMISSION_ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in written:
                archive.write(folder / SUBMISSION_DIR / name, name)
    return written


def format_submission(task: GlueTask, records: list[dict[str, Any]]) -> str:
    """One file. The index is the test file's own where it has one, else the row's number from 0."""
    lines = ["index\tprediction"]
    for record in records:
        index = record.get("index", record["id"])
        lines.append(f"{index}\t{format_label(task, record['predicted'])}")
    return "\n".join(lines) + "\n"


def format_label(task: GlueTask, predicted: Any) -> str:
    """A label by name or number, a score within 0 to 5."""
    if task.label_format == "score":
        return f"{min(5.0, max(0.0, predicted)):.3f}"
    if task.label_format == "number":
        return str(load_dataset_specs()[task.name].labels.index(predicted))
    return str(predicted)

"""The files that the GLUE leaderboard takes: `index` and `prediction`, TAB-separated, a file a test set."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.data.known import known_sets
from bertkit.files import write_text
from bertkit.suite.glue import GLUE, GlueTask

FOLDER, ARCHIVE = "submission", "submission.zip"


def write_submission(folder: Path, runs: Sequence[tuple[GlueTask, Path]]) -> list[str]:
    """Write `submission/FILE.tsv` for each test set that a run predicted, and the archive when all are there.

    Returns:
        The names of the files, in the leaderboard's order.
    """
    written = []
    for task, run in runs:
        for split, name in task.files.items():
            predictions = run / f"predictions-{split}.jsonl"
            if predictions.exists():
                (folder / FOLDER).mkdir(exist_ok=True)
                records = [json.loads(line) for line in predictions.read_text("utf-8").splitlines()]
                write_text(folder / FOLDER / name, submission_file(task, records))
                written.append(name)
    if set(written) == {name for task in GLUE for name in task.files.values()}:
        with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in written:
                archive.write(folder / FOLDER / name, name)
    return written


def submission_file(task: GlueTask, records: list[dict[str, Any]]) -> str:
    """One file. The index is the test file's own where it has one, else the row's number from 0."""
    lines = ["index\tprediction"]
    for record in records:
        index = record.get("index", record["id"])
        lines.append(f"{index}\t{spelled(task, record['predicted'])}")
    return "\n".join(lines) + "\n"


def spelled(task: GlueTask, predicted: Any) -> str:
    """A label by name or number, a score within 0 to 5."""
    if task.spelling == "score":
        return f"{min(5.0, max(0.0, predicted)):.3f}"
    if task.spelling == "number":
        return str(known_sets()[task.name].labels.index(predicted))
    return str(predicted)

"""`label-issues`: find training rows whose labels the out-of-fold predictions of a study contradict."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.checks.issue_finders import LabelIssue, OutOfFold, find_issues, get_record_schema
from bertkit.checks.label_issues_config import LabelIssuesConfig
from bertkit.data.label_fixes import get_row_name, hash_inputs
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count
from bertkit.pipeline.loaded_data import parse_all_rows
from bertkit.pipeline.settings import require_data_objects
from bertkit.recipes import read_recipe, read_recipe_file
from bertkit.reports.label_review import render_review_page
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.utils.files import write_jsonl, write_text
from bertkit.utils.paths import expand_home
from bertkit.utils.reporting import Reporter, silence_libraries, use_reporter
from bertkit.utils.serialization import validate
from bertkit.validation import validate_settings

PREDICTIONS_FILE = "out_of_fold.jsonl"
ISSUES_FILE, PAGE_FILE = "label_issues.jsonl", "label_issues.html"


@dataclass(frozen=True)
class LabelIssues:
    """The issues of a study, the most probable one first.

    Attributes:
        study: Directory of the study, which also has the files `label_issues.jsonl` and `label_issues.html`.
        task: Name of the task.
        num_rows: Number of rows with out-of-fold predictions.
        records: The issues, as in `label_issues.jsonl`.
    """

    study: Path
    task: str
    num_rows: int
    records: list[dict[str, Any]]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The JSON object that `--json` prints."""
        rows = {(record["file"], record["row"]) for record in self.records}
        return {
            "study": str(self.study),
            "task": self.task,
            "rows": self.num_rows,
            "rows_with_issues": len(rows),
            "issues": self.records,
            "page": str(self.study / PAGE_FILE),
        }


def find_label_issues(settings: Mapping[str, Any], reporter: Reporter | None = None) -> LabelIssues:
    """Find label issues, and write them and the page to review them into the directory of the study.

    Raises:
        UserError: The directory is not a study with folds, or its training rows have changed.
    """
    config = LabelIssuesConfig(**validate_settings(LabelIssuesConfig, settings, "label_issues()"))
    study, reporter = expand_home(config.study), reporter or Reporter()
    records = _read_predictions(study)
    with silence_libraries(), use_reporter(reporter):
        task = _load_task(study)
        rows = _load_rows(task, study, records)
        _check_predictions(task, study / PREDICTIONS_FILE, records)
        issues = find_issues(OutOfFold(task, rows, records))
        labeled = _describe_issues(task, rows, issues)
    result = LabelIssues(study, task.spec.name, len(rows), labeled)
    write_jsonl(study / ISSUES_FILE, result.records)
    page = render_review_page(study.name, task.spec.name, len(rows), result.records, _list_choices(task))
    write_text(study / PAGE_FILE, page)
    return result


# ---- the study


def _read_predictions(study: Path) -> list[dict[str, Any]]:
    path = study / PREDICTIONS_FILE
    if not path.is_file():
        raise UserError(
            f"{study}: does not contain {PREDICTIONS_FILE}; pass the directory of a study with --folds"
        )
    try:
        lines = path.read_text("utf-8").split("\n")
        records = [json.loads(line, parse_constant=_refuse_constant) for line in lines if line]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot parse it as JSON ({error}); run the study again") from error
    if not records or not all(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: has no predictions; run the study again")
    if (metrics := run_directory.read_metrics(study)) and metrics.get("predicted_rows") != len(records):
        raise UserError(
            f"{path}: has {format_count(len(records), 'line')}, and the study predicted "
            f"{format_count(metrics.get('predicted_rows', 0), 'row')}; run the study again"
        )
    return records


def _refuse_constant(name: str) -> None:
    """Raise a `ValueError` for NaN and infinity, which are not JSON."""
    raise ValueError(f"{name} is not a number")


def _check_predictions(task: Task, path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Raise a `UserError` if a record lacks the prediction that `find_issues` reads."""
    schema = get_record_schema(task)
    for number, record in enumerate(records, 1):
        validate(record, schema, f"{path}: line {number}", "run the study again")


def _load_task(study: Path) -> Task:
    """Return the task with the settings of a fold run, which has the same data as the study."""
    for folder in (study / "ensemble", *sorted((study / "folds").glob("*")), study):
        path = folder / run_directory.SETTINGS_FILE
        if path.is_file() and (name := read_recipe_file(path).get("task")) in TASKS:
            task_type = task_class(name)
            task = task_type(
                task_type.spec.config(**read_recipe(str(path), name, task_type.spec.config).settings)
            )
            call = run_directory.format_python_call("study", {"output_dir": str(study)}, ["data"])
            require_data_objects(task.config, call)
            return task
    raise UserError(
        f"{study}: does not contain fold runs; pass the output directory of bertkit study --folds"
    )


def _load_rows(task: Task, study: Path, records: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the training rows that were predicted, in the order of the records.

    Both have the order of the data, but the study may have left out rows. Of copies with different labels,
    that with the gold label of the record is meant. If labels were changed since, the inputs decide.
    """
    rows = parse_all_rows(task, task.load_data(Reporter())).splits["train"]
    columns = task.input_schema.text_columns
    values = list(zip(*(rows[column] for column in columns), strict=True))
    labels = task.get_labels(rows)

    def has_inputs(record: Mapping[str, Any], index: int) -> bool:
        return _has_inputs(record, columns, values[index])

    def has_inputs_and_label(record: Mapping[str, Any], index: int) -> bool:
        return record.get("gold") == labels[index] and has_inputs(record, index)

    for is_match in (has_inputs_and_label, has_inputs):
        indices = _match_in_order(records, len(rows), is_match)
        if len(indices) == len(records):
            return rows.select(indices)
    raise UserError(
        f"{study}: line {len(indices) + 1} of {PREDICTIONS_FILE} is not among the training rows; restore the "
        "data, or run the study again"
    )


def _match_in_order(
    records: Sequence[Mapping[str, Any]], num_rows: int, is_match: Callable[[Mapping[str, Any], int], bool]
) -> list[int]:
    """Return the index of the next matching row for each record, up to the first record without one."""
    indices: list[int] = []
    remaining = iter(range(num_rows))  # each record continues after the row of the previous one
    for record in records:
        index = next((index for index in remaining if is_match(record, index)), None)
        if index is None:
            break
        indices.append(index)
    return indices


def _has_inputs(record: Mapping[str, Any], columns: Sequence[str], inputs: Sequence[Any]) -> bool:
    """Return whether a prediction has these inputs; a column with the name of another key is renamed."""
    return all(
        value in (record.get(column), record.get(f"input_{column}"))
        for column, value in zip(columns, inputs, strict=True)
    )


# ---- records


def _describe_issues(task: Task, rows: Rows, issues: Sequence[LabelIssue]) -> list[dict[str, Any]]:
    """Return the records of `label_issues.jsonl`."""
    columns = task.input_schema.text_columns
    found = rows.select([issue.index for issue in issues])
    digests = hash_inputs(found, columns) if issues else []
    inputs = zip(*(found[column] for column in columns), strict=True)
    described = []
    for position, (issue, digest, values) in enumerate(zip(issues, digests, inputs, strict=True)):
        file, number = get_row_name(found, position)
        described.append({
            "file": file, "row": number, "text": digest, **issue.part,
            "given": issue.given, "suggested": issue.suggested, "score": issue.score,
            "reason": "; ".join(issue.reasons), "inputs": dict(zip(columns, values, strict=True)),
        })  # fmt: skip
    return described


def _list_choices(task: Task) -> list[Any]:
    """Return the labels that a reviewer can choose from; empty if any value or only one is possible."""
    label_type = getattr(task, "label_type", None)
    if label_type is not None:
        return [] if label_type.problem_type == "multi_label_classification" else list(label_type.labels)
    if types := getattr(task, "types", None):
        from bertkit.data.ner.tags import build_iob2_labels

        return build_iob2_labels(types)
    return []


def describe_counts(result: LabelIssues) -> str:
    """Return one line with the numbers of issues and rows."""
    rows = format_count(result.summary["rows_with_issues"], "row")
    return f"{format_count(len(result.records), 'label issue')} in {rows} of {result.num_rows:,}"

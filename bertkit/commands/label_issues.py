"""`label-issues`: find labels that are probably wrong, from the out-of-fold predictions of a study.

Classes are judged by confident learning (Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty
in Dataset Labels", Journal of Artificial Intelligence Research 70).
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
from jinja2.utils import htmlsafe_json_dumps

from bertkit.commands.configs import LabelIssuesConfig
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count
from bertkit.reports.page import render_template
from bertkit.run.load_data import get_row_name, hash_inputs, parse_all_rows
from bertkit.run.resolve_settings import require_data_objects
from bertkit.run_directory import RunDir, format_python_call
from bertkit.settings.recipes import read_recipe, read_recipe_file
from bertkit.settings.validation import validate_settings
from bertkit.tasks import list_tasks, task_class
from bertkit.tasks.base import Task
from bertkit.tasks.ner.tags import build_iob2_labels
from bertkit.tasks.text.label_types import MultiLabel, Regression
from bertkit.tasks.view import MAX_BYTES, MAX_EXAMPLES, TEXT_LENGTHS, dump_compact_json
from bertkit.utils.console import out_console, print_json, print_records
from bertkit.utils.files import expand_home, write_jsonl, write_text
from bertkit.utils.reporting import silence_libraries, silence_reports
from bertkit.utils.text import validate

PREDICTIONS_FILE = "out_of_fold.jsonl"
ISSUES_FILE, PAGE_FILE = "label_issues.jsonl", "label_issues.html"
WORD = re.compile(r"\w+")
TOLERANCE = 1e-6  # a probability that is less than this below the threshold of its class reaches it
MIN_RESIDUAL = 3.5  # Iglewicz and Hoaglin 1993, section 3
NORMAL_MAD = 0.6745  # median absolute deviation of the standard normal distribution
Part = Mapping[str, Any]
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class LabelIssue:
    """A label that is probably wrong."""

    index: int  # of the row
    given: Any
    suggested: Any  # the label that is probably right
    score: float  # probability of the given label, or the measure that `reasons` name
    reasons: list[str]
    part: Part = field(default_factory=dict)  # key `word` or `label` of a label fix, for rows with several


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


def find_label_issues(settings: Mapping[str, Any]) -> LabelIssues:
    """Find label issues, and write them and the page to review them into the directory of the study."""
    config = LabelIssuesConfig(**validate_settings(LabelIssuesConfig, settings, "label_issues()"))
    study = expand_home(config.study)
    records = _read_predictions(study)
    with silence_libraries():
        task = _load_task(study)
        rows = _load_rows(task, study, records)
        schema = get_record_schema(task)
        for number, record in enumerate(records, 1):
            validate(record, schema, f"{study / PREDICTIONS_FILE}: line {number}", "run the study again")
        labeled = _describe_issues(task, rows, find_issues(task, rows, records))
    choices: Sequence[Any] = []  # labels that a reviewer can choose from; none if any value is possible
    if task.definition.labeled_unit == "word":
        choices = build_iob2_labels(task.state.labels)
    elif task.input_schema.label_key is None:
        choices = task.state.labels
    result = LabelIssues(study, task.definition.name, len(rows), labeled)
    write_jsonl(study / ISSUES_FILE, labeled)
    write_text(
        study / PAGE_FILE, render_review_page(study.name, task.definition.name, len(rows), labeled, choices)
    )
    return result


# ---- the study


def _read_predictions(study: Path) -> list[dict[str, Any]]:
    path = study / PREDICTIONS_FILE
    if not path.is_file():
        raise UserError(
            f"{study}: does not contain {PREDICTIONS_FILE}; pass the directory of a study with --folds"
        )

    def refuse_constant(name: str) -> NoReturn:  # NaN and infinity are not JSON
        raise ValueError(f"{name} is not a number")

    try:
        lines = path.read_text("utf-8").split("\n")
        records = [json.loads(line, parse_constant=refuse_constant) for line in lines if line]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot parse it as JSON ({error}); run the study again") from error
    if not records or not all(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: has no predictions; run the study again")
    if (metrics := RunDir(study).read_metrics()) and metrics.get("predicted_rows") != len(records):
        raise UserError(
            f"{path}: has {format_count(len(records), 'line')}, and the study predicted "
            f"{format_count(metrics.get('predicted_rows', 0), 'row')}; run the study again"
        )
    return records


def _load_task(study: Path) -> Task:
    """Return the task with the settings of a fold run, which has the same data as the study."""
    runs = [*sorted((study / "folds").glob("*")), *sorted((study / "candidates").glob("*"))]
    for folder in (study / "ensemble", *runs, study):
        path = folder / RunDir.SETTINGS_FILE
        RunDir(folder).require_plugins()
        if path.is_file() and (name := read_recipe_file(path).get("task")) in list_tasks():
            task_type = task_class(name)
            task = task_type(
                task_type.definition.config(
                    **read_recipe(str(path), name, task_type.definition.config).settings
                )
            )
            call = format_python_call("study", {"output_dir": str(study)}, ["data"])
            require_data_objects(task.config, call)
            return task
    raise UserError(
        f"{study}: does not contain fold runs; pass the output directory of bertkit study --folds"
    )


def _load_rows(task: Task, study: Path, records: Records) -> Rows:
    """Return the training rows that were predicted, in the order of the records.

    Both have the order of the data, but the study may have left out rows. Of copies with different labels,
    that with the gold label of the record is meant. If labels were changed since, the inputs decide.
    """
    with silence_reports():
        rows = parse_all_rows(task, task.load_data()).splits["train"]
    columns = task.input_schema.text_columns
    values = list(zip(*(rows[column] for column in columns), strict=True))
    labels = task.get_labels(rows)

    def is_match(record: Mapping[str, Any], index: int, with_label: bool) -> bool:
        if with_label and record.get("gold") != labels[index]:
            return False
        return all(  # a column with the name of another key is renamed
            value in (record.get(column), record.get(f"input_{column}"))
            for column, value in zip(columns, values[index], strict=True)
        )

    for with_label in (True, False):
        indices: list[int] = []
        remaining = iter(range(len(rows)))  # each record continues after the row of the previous one
        for record in records:
            index = next((index for index in remaining if is_match(record, index, with_label)), None)
            if index is None:
                break
            indices.append(index)
        if len(indices) == len(records):
            return rows.select(indices)
    raise UserError(
        f"{study}: line {len(indices) + 1} of {PREDICTIONS_FILE} is not among the training rows; restore the "
        "data, or run the study again"
    )


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


# ---- issues


def get_record_schema(task: Task) -> Any:
    """Return the schema of the keys of a prediction that `find_issues` reads."""
    keys: dict[str, dict[str, Any]] = {
        "text": {"probabilities": dict[str, float]},
        "word": {"probabilities": list[dict[str, float]]},
        "ending": {"probabilities": list[float]},
        "answer": {"answer": str, "null_odds": float},
        "number": {"predicted": float},
    }
    unit: str = task.definition.labeled_unit or "text"
    if unit == "text" and not task.state.labels:
        unit = "number"
    return msgspec.defstruct("Prediction", keys[unit].items())


def find_issues(task: Task, rows: Rows, records: Records) -> list[LabelIssue]:
    """Return the label issues, the most probable one first.

    `records` has a prediction for each row, as in `predictions.jsonl`, by a model that was not trained on it.
    """
    labels = task.get_labels(rows)
    label_type = task.state.label_type
    if isinstance(label_type, Regression):
        return _find_in_numbers(labels, records)
    if task.definition.labeled_unit == "answer":
        return _find_in_answers(labels, records)
    groups: dict[Any, list[int]] = defaultdict(list)
    text_columns = [rows[column] for column in task.input_schema.text_columns]
    for index, values in enumerate(zip(*text_columns, strict=True)):
        groups[tuple(map(_normalize_text, values))].append(index)
    near_duplicates = [group for group in groups.values() if len(group) > 1]
    if task.definition.labeled_unit == "word":
        return _find_in_tags(labels, records, near_duplicates)
    if task.definition.labeled_unit == "ending":  # the numbers of endings may differ
        size = max(len(record["probabilities"]) for record in records)
        probabilities = np.zeros((len(records), size))
        for row, record in enumerate(records):
            probabilities[row, : len(record["probabilities"])] = record["probabilities"]
        return _find_in_decisions(range(size), np.array(labels), probabilities, near_duplicates)
    names = label_type.labels  # type: ignore[union-attr]
    probabilities = _read_probabilities([record["probabilities"] for record in records], names)
    if not isinstance(label_type, MultiLabel):
        given = np.array([names.index(label) for label in labels])
        return _find_in_decisions(names, given, probabilities, near_duplicates)
    issues = []
    for name, probability in zip(names, probabilities.T, strict=True):  # decide whether a row has the label
        is_present = np.array([int(name in row_labels) for row_labels in labels])
        both = np.stack([1 - probability, probability], axis=1)
        parts = [(index, {"label": name}) for index in range(len(labels))]
        issues += _find_in_decisions((False, True), is_present, both, near_duplicates, parts)
    return sorted(issues, key=lambda issue: issue.score)


def _normalize_text(value: Any) -> Any:
    """Return the words of a text in lowercase; a text without words as it is; a list as a tuple."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_normalize_text, value))
    return " ".join(WORD.findall(value.casefold())) or value if isinstance(value, str) else value


def _read_probabilities(records: Sequence[Mapping[str, float]], names: Sequence[str]) -> np.ndarray:
    return np.array([[record.get(name, 0.0) for name in names] for record in records])


def _find_in_tags(
    labels: Sequence[Sequence[str]], records: Records, near_duplicates: Sequence[Sequence[int]]
) -> list[LabelIssue]:
    """Decide for each word which tag it has."""
    by_word = [word for sentence in records for word in sentence["probabilities"]]
    parts = [(index, {"word": word}) for index, tags in enumerate(labels) for word in range(len(tags))]
    flat = [tag for tags in labels for tag in tags]
    names = sorted({*flat, *(tag for word in by_word for tag in word)})
    first_word = np.cumsum([0, *map(len, labels)])
    groups = [
        [int(first_word[sentence]) + word for sentence in group]
        for group in near_duplicates
        if len({len(labels[sentence]) for sentence in group}) == 1
        for word in range(len(labels[group[0]]))
    ]
    given = np.array([names.index(tag) for tag in flat])
    return _find_in_decisions(names, given, _read_probabilities(by_word, names), groups, parts)


def _find_in_decisions(
    names: Sequence[Any],
    labels: np.ndarray,
    probabilities: np.ndarray,
    near_duplicates: Sequence[Sequence[int]],
    parts: Sequence[tuple[int, Part]] = (),
) -> list[LabelIssue]:
    """Return the issues by confident learning, and those of near-duplicates with other labels.

    Args:
        names: The classes.
        labels: [n] given class.
        probabilities: [n, classes] out-of-fold probabilities.
        near_duplicates: Groups of decisions whose inputs have the same words.
        parts: [n] index of the row, and `LabelIssue.part`; empty if each row has one decision.
    """

    def format_name(number: int) -> str:
        name = names[number]
        return ("absent", "present")[number] if isinstance(name, bool) else str(name)

    scores = compute_self_confidence(labels, probabilities)
    reasons: dict[int, list[str]] = defaultdict(list)
    suggested = suggest_classes(labels, probabilities)
    for item in find_off_diagonal(labels, probabilities).tolist():
        probability = probabilities[item, suggested[item]]
        reasons[item].append(f"predicted {format_name(suggested[item])} ({probability:.2f})")
    for group in near_duplicates:
        counts = Counter(labels[group].tolist())
        highest = max(counts.values())
        is_tied = list(counts.values()).count(highest) > 1
        for item in group if len(counts) > 1 else ():
            label = int(labels[item])
            if counts[label] < highest or is_tied:  # not the only most frequent label
                others = [other for other in counts if other != label]
                suggested[item] = max(others, key=lambda other: counts[other])
                reasons[item].append(f"near-duplicates have {format_name(suggested[item])}")
    issues = []
    for item in sorted(reasons, key=lambda item: (scores[item], item)):
        index, part = parts[item] if parts else (item, {})
        given, other, score = names[labels[item]], names[suggested[item]], round(float(scores[item]), 4)
        issues.append(LabelIssue(int(index), given, other, score, reasons[item], part))
    return issues


def _find_in_numbers(labels: Sequence[Any], records: Records) -> list[LabelIssue]:
    """Find numbers that are far from the predicted ones, in units of the usual residual."""
    given = np.array(labels, dtype=float)
    predicted = np.array([record["predicted"] for record in records])
    scores = compute_robust_scores(given - predicted)
    order = np.argsort(-np.abs(scores), kind="stable")
    return [
        LabelIssue(
            index, float(given[index]), round(float(predicted[index]), 4), round(float(scores[index]), 4),
            [f"{given[index] - predicted[index]:+.3g} from the prediction (robust z-score)"],
        )
        for index in order.tolist()
        if abs(scores[index]) > MIN_RESIDUAL
    ]  # fmt: skip


def _find_in_answers(labels: Sequence[Any], records: Records) -> list[LabelIssue]:
    """Find questions whose predicted answer has no word in common with a gold answer.

    Answers have no probability, so they are ranked by their odds: those of the answer against no answer, or
    the reverse if no answer is predicted.
    """
    issues = []
    for index, (gold, record) in enumerate(zip(labels, records, strict=True)):
        words = set(WORD.findall(record["answer"].casefold()))
        gold_words = {word for text in gold for word in WORD.findall(text.casefold())}
        if bool(gold) == bool(record["answer"]) and (words & gold_words or not words | gold_words):
            continue
        odds = record["null_odds"] if not record["answer"] else -record["null_odds"]
        reason = "no word in common with a gold answer" if record["answer"] else "no answer predicted"
        issues.append(LabelIssue(index, gold, record["answer"], round(float(odds), 4), [f"{reason} (odds)"]))
    return sorted(issues, key=lambda issue: -issue.score)


# ---- confident learning and robust scores


def compute_class_thresholds(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [classes] the mean of the [n, classes] probabilities of each class over its rows.

    `labels` has the [n] given classes.
    """
    thresholds = np.full(probabilities.shape[1], np.inf)  # a class without rows can never be confident
    for label in np.unique(labels):
        thresholds[label] = probabilities[labels == label, label].mean()
    return thresholds


def find_off_diagonal(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the ascending indices of the rows whose confident class differs from the given class.

    A class is confident if it reaches its threshold; of several, it is the most probable class of the row
    (Northcutt et al. 2021, section 3.1). A row whose given class is the most probable one is left out.
    """
    is_confident = probabilities >= compute_class_thresholds(labels, probabilities) - TOLERANCE
    num_confident, most_probable = is_confident.sum(1), probabilities.argmax(1)
    confident = np.where(num_confident > 1, most_probable, is_confident.argmax(1))
    return np.flatnonzero((num_confident > 0) & (confident != labels) & (most_probable != labels))


def compute_self_confidence(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [n] the probability of the given class."""
    return probabilities[np.arange(len(labels)), labels]


def suggest_classes(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [n] the most probable class other than the given one."""
    others = probabilities.astype(float)
    others[np.arange(len(labels)), labels] = -np.inf
    return others.argmax(1)


def compute_robust_scores(residuals: np.ndarray) -> np.ndarray:
    """Return [n] modified z-scores of residuals: distances from the median in units of the scaled MAD.

    If more than half of the residuals are equal, the mean absolute deviation replaces the MAD (Iglewicz and
    Hoaglin 1993, section 3).
    """
    deviations = np.abs(residuals - np.median(residuals))
    scale = np.median(deviations) / NORMAL_MAD
    if scale == 0:
        scale = deviations.mean() * np.sqrt(np.pi / 2)
    return (residuals - np.median(residuals)) / (scale or 1.0)


# ---- the page to review the issues

ELLIPSIS = " …"


def render_review_page(
    study: str, task: str, num_rows: int, issues: Sequence[Mapping[str, Any]], choices: Sequence[Any]
) -> str:
    """Render the page of all issues; if it would be too large, shorten texts and leave out the last issues.

    `choices` are the labels that the reviewer can choose from; empty if there is only the suggested one.
    """
    shown = list(issues[:MAX_EXAMPLES])
    digest = blake2b(dump_compact_json(list(issues)).encode(errors="replace"), digest_size=8)
    # The browser stores the decisions under this key.
    settings = {"task": task, "choices": list(choices), "key": digest.hexdigest()}

    def dump(length: int | None) -> Any:
        packed = [_pack(issue, length) for issue in shown]
        return htmlsafe_json_dumps({**settings, "issues": packed}, dump_compact_json)

    for length in TEXT_LENGTHS:
        data = dump(length)
        if len(data) <= MAX_BYTES:
            break
    while len(data) > MAX_BYTES:
        shown = shown[: len(shown) // 2]
        data = dump(length)
    return render_template(
        "label_review.html", "review.js", title=f"Label issues of {study}", task=task, num_rows=num_rows,
        num_issues=len(issues), num_shown=len(shown), text_length=length, data=data,
    )  # fmt: skip


def _pack(issue: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """Return an issue with its inputs as pairs of a name and a list: text before, marked word, text after.

    Only a sentence has three parts. Each has at most `length` characters, and the first one keeps its end.
    """
    fields, word = [], issue.get("word")
    for name, value in issue["inputs"].items():
        if not isinstance(value, (list, tuple)):
            parts = ["" if value is None else str(value)]
        elif word is None:  # endings, which labels name by their index
            parts = [" · ".join(f"{index}: {text}" for index, text in enumerate(value))]
        else:
            words = list(map(str, value))
            parts = [" ".join(words[:word]), words[word], " ".join(words[word + 1 :])]
        for index, part in enumerate(parts):
            if length is not None and len(part) > length:
                from_end = index == 0 and len(parts) > 1
                parts[index] = ELLIPSIS.strip() + part[-length:] if from_end else part[:length] + ELLIPSIS
        fields.append([name, parts])
    return {key: value for key, value in issue.items() if key != "inputs"} | {"fields": fields}


# ---- command line


MAX_PRINTED = 20
MAX_TEXT_CHARS = 60


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = find_label_issues(settings)
    if as_json:
        print_json(result.summary)
        return
    if result.records:
        print_records([_format_issue(record) for record in result.records[:MAX_PRINTED]])
    issues = format_count(len(result.records), "label issue")
    rows = format_count(result.summary["rows_with_issues"], "row")
    out_console.print(f"{issues} in {rows} of {result.num_rows:,}", markup=False, soft_wrap=True)
    out_console.print(f"review: {result.summary['page']}", markup=False, soft_wrap=True)


def _format_issue(record: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of an issue."""
    values = (
        " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for value in record["inputs"].values()
    )
    text = " ".join(" | ".join(values).split())
    part: dict[str, Any] = {name: record[name] for name in ("word", "label") if name in record}
    if "word" in record:
        part["word"] = record["inputs"]["tokens"][record["word"]]
    # the label of a label set is whether the row has it
    given, suggested = (
        ("absent", "present")[label] if isinstance(label, bool) else label
        for label in (record["given"], record["suggested"])
    )
    return {
        "row": f"{record['file']}: {record['row']}", **part,
        "text": text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 3]}...",
        "given": given, "suggested": suggested, "reason": record["reason"], "score": float(record["score"]),
    }  # fmt: skip

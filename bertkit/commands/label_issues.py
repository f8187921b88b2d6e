"""Confident learning: find labels that out-of-fold probabilities contradict (Northcutt et al. 2021).

The paper is "Confident Learning: Estimating Uncertainty in Dataset Labels", Journal of Artificial
Intelligence Research 70. Every row needs probabilities of a model that was not trained on the row.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bertkit import run_directory
from bertkit.commands.configs import LabelIssuesConfig
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count
from bertkit.report.label_review import render_review_page
from bertkit.run.load_data import get_row_name, hash_inputs, parse_all_rows
from bertkit.run.settings import require_data_objects
from bertkit.settings.recipes import read_recipe, read_recipe_file
from bertkit.settings.validation import validate_settings
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.tasks.ner.tags import build_iob2_labels
from bertkit.tasks.text.labels import MultiLabel, Regression
from bertkit.utils.files import expand_home, write_jsonl, write_text
from bertkit.utils.reporting import silence_libraries, silence_reports
from bertkit.utils.text import validate

TOLERANCE = 1e-6  # a probability that is less than this below the threshold of its class reaches it
MIN_RESIDUAL = 3.5  # Iglewicz and Hoaglin 1993, section 3
NORMAL_MAD = 0.6745  # median absolute deviation of the standard normal distribution


def compute_class_thresholds(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return [classes] the mean probability of each class over the rows with this label.

    Args:
        labels: [n] int, given class.
        probabilities: [n, classes] probabilities.
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


WORD = re.compile(r"\w+")
Part = Mapping[str, Any]


@dataclass(frozen=True)
class OutOfFold:
    """Training rows with the predictions of models that were not trained on them.

    Attributes:
        task: The task, whose labels are known.
        rows: The parsed rows.
        records: The prediction for each row, as in `predictions.jsonl`.
    """

    task: Task
    rows: Rows
    records: Sequence[Mapping[str, Any]]

    @cached_property
    def labels(self) -> list[Any]:
        """The given label of each row; see `Task.get_labels`."""
        return self.task.get_labels(self.rows)

    @cached_property
    def near_duplicates(self) -> list[list[int]]:
        """Indices of rows whose texts have the same words, ignoring case and punctuation."""
        columns = self.task.input_schema.text_columns
        groups: dict[Any, list[int]] = defaultdict(list)
        for index, values in enumerate(zip(*(self.rows[column] for column in columns), strict=True)):
            groups[tuple(map(_normalize_text, values))].append(index)
        return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True)
class LabelIssue:
    """A label that is probably wrong.

    Attributes:
        index: Index of the row.
        given: The given label.
        suggested: The label that is probably right.
        score: Probability of the given label, or the measure that `reasons` name.
        reasons: Why the label is probably wrong.
        part: The key `word` or `label` of a label fix, if the row has several labels.
    """

    index: int
    given: Any
    suggested: Any
    score: float
    reasons: list[str]
    part: Part = field(default_factory=dict)


class _Number(TypedDict):
    predicted: float


class _Answer(TypedDict):
    answer: str
    null_odds: float


class _ClassProbabilities(TypedDict):
    probabilities: dict[str, float]


class _Words(TypedDict):
    probabilities: list[dict[str, float]]


class _Endings(TypedDict):
    probabilities: list[float]


def get_record_schema(task: Task) -> Any:
    """Return the schema of the keys of a prediction that `find_issues` reads."""
    label_type = task.state.label_type
    if isinstance(label_type, Regression):
        return _Number
    schemas: dict[str, Any] = {"ner": _Words, "qa": _Answer, "swag": _Endings}
    return schemas.get(task.definition.name, _ClassProbabilities)


def find_issues(data: OutOfFold) -> list[LabelIssue]:
    """Return the label issues, the most probable one first."""
    label_type = data.task.state.label_type
    if isinstance(label_type, MultiLabel):
        return _find_in_label_sets(data, label_type.labels)
    if isinstance(label_type, Regression):
        return _find_in_numbers(data)
    finders: Mapping[str, Callable[[OutOfFold], list[LabelIssue]]] = {
        "ner": _find_in_tags, "qa": _find_in_answers, "swag": _find_in_endings,
    }  # fmt: skip
    return finders.get(data.task.definition.name, _find_in_classes)(data)


def _normalize_text(value: Any) -> Any:
    """Return the words of a text in lowercase; a text without words as it is; a list as a tuple."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_normalize_text, value))
    return " ".join(WORD.findall(value.casefold())) or value if isinstance(value, str) else value


# ---- classes


@dataclass(frozen=True)
class _ClassDecisions:
    """Decisions between classes, and where they belong.

    Attributes:
        names: The classes.
        labels: [n] given class.
        probabilities: [n, classes] out-of-fold probabilities.
        index: [n] index of the row.
        parts: [n] see `LabelIssue.part`.
        near_duplicates: Groups of decisions whose inputs have the same words.
    """

    names: Sequence[Any]
    labels: np.ndarray
    probabilities: np.ndarray
    index: Sequence[int]
    parts: Sequence[Part]
    near_duplicates: Sequence[Sequence[int]]

    def find(self) -> list[LabelIssue]:
        """Return the issues by confident learning, and those of near-duplicates with other labels."""
        scores = compute_self_confidence(self.labels, self.probabilities)
        reasons: dict[int, list[str]] = defaultdict(list)
        suggested = suggest_classes(self.labels, self.probabilities)
        for item in find_off_diagonal(self.labels, self.probabilities).tolist():
            probability = self.probabilities[item, suggested[item]]
            reasons[item].append(f"predicted {self._format_name(suggested[item])} ({probability:.2f})")
        for group in self.near_duplicates:
            for item, usual in _find_conflicts(group, self.labels).items():
                suggested[item] = usual
                reasons[item].append(f"near-duplicates have {self._format_name(usual)}")
        order = sorted(reasons, key=lambda item: (scores[item], item))
        return [
            LabelIssue(
                int(self.index[item]), self.names[self.labels[item]], self.names[suggested[item]],
                round(float(scores[item]), 4), reasons[item], self.parts[item],
            )
            for item in order
        ]  # fmt: skip

    def _format_name(self, number: int) -> str:
        name = self.names[number]
        return ("absent", "present")[number] if isinstance(name, bool) else str(name)


def _find_conflicts(group: Sequence[int], labels: np.ndarray) -> dict[int, int]:
    """Return another label for those members of a group whose label is not its only most frequent one.

    Args:
        group: Indices of near-duplicates.
        labels: [n] label of each row.

    Returns:
        The most frequent other label of the group, by member.
    """
    counts = Counter(labels[group].tolist())
    if len(counts) == 1:
        return {}
    highest = max(counts.values())
    is_tied = list(counts.values()).count(highest) > 1
    conflicts = {}
    for item in group:
        label = int(labels[item])
        if counts[label] < highest or is_tied:
            others = [other for other in counts if other != label]
            conflicts[item] = max(others, key=lambda other: counts[other])
    return conflicts


def _read_probabilities(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> np.ndarray:
    """Return [n, classes] the probabilities of the records."""
    return np.array([[record["probabilities"].get(name, 0.0) for name in names] for record in records])


def _find_in_classes(data: OutOfFold) -> list[LabelIssue]:
    names = data.task.labels  # type: ignore[attr-defined]
    labels = np.array([names.index(label) for label in data.labels])
    probabilities = _read_probabilities(data.records, names)
    num_rows = len(labels)
    return _ClassDecisions(
        names, labels, probabilities, range(num_rows), [{}] * num_rows, data.near_duplicates
    ).find()


def _find_in_label_sets(data: OutOfFold, names: Sequence[str]) -> list[LabelIssue]:
    """Decide for each label whether a row has it."""
    probabilities = _read_probabilities(data.records, names)
    issues = []
    for column, name in enumerate(names):
        present = np.array([int(name in row_labels) for row_labels in data.labels])
        both = np.stack([1 - probabilities[:, column], probabilities[:, column]], axis=1)
        parts = [{"label": name}] * len(present)
        issues += _ClassDecisions(
            (False, True), present, both, range(len(present)), parts, data.near_duplicates
        ).find()
    return sorted(issues, key=lambda issue: issue.score)


def _find_in_tags(data: OutOfFold) -> list[LabelIssue]:
    """Decide for each word which tag it has."""
    records = [record for sentence in data.records for record in sentence["probabilities"]]
    words = [(index, word) for index, tags in enumerate(data.labels) for word in range(len(tags))]
    flat = [tag for tags in data.labels for tag in tags]
    names = sorted({*flat, *(tag for record in records for tag in record)})
    labels = np.array([names.index(tag) for tag in flat])
    probabilities = _read_probabilities([{"probabilities": record} for record in records], names)
    first_word = np.cumsum([0, *map(len, data.labels)])
    groups = [
        [int(first_word[sentence]) + word for sentence in group]
        for group in data.near_duplicates
        if len({len(data.labels[sentence]) for sentence in group}) == 1
        for word in range(len(data.labels[group[0]]))
    ]
    return _ClassDecisions(
        names, labels, probabilities, [index for index, _ in words], [{"word": word} for _, word in words],
        groups,
    ).find()  # fmt: skip


def _find_in_endings(data: OutOfFold) -> list[LabelIssue]:
    """Decide which ending is correct; the numbers of endings may differ."""
    size = max(len(record["probabilities"]) for record in data.records)
    probabilities = np.zeros((len(data.records), size))
    for row, record in enumerate(data.records):
        probabilities[row, : len(record["probabilities"])] = record["probabilities"]
    labels, num_rows = np.array(data.labels), len(data.records)
    return _ClassDecisions(
        range(size), labels, probabilities, range(num_rows), [{}] * num_rows, data.near_duplicates
    ).find()


# ---- numbers and answers


def _find_in_numbers(data: OutOfFold) -> list[LabelIssue]:
    """Find numbers that are far from the predicted ones, in units of the usual residual."""
    given = np.array(data.labels, dtype=float)
    predicted = np.array([record["predicted"] for record in data.records])
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


def _find_in_answers(data: OutOfFold) -> list[LabelIssue]:
    """Find questions whose predicted answer has no word in common with a gold answer.

    Answers have no probability, so they are ranked by their odds: those of the answer against no answer, or
    the reverse if no answer is predicted.
    """
    issues = []
    for index, (gold, record) in enumerate(zip(data.labels, data.records, strict=True)):
        words = set(WORD.findall(record["answer"].casefold()))
        gold_words = {word for text in gold for word in WORD.findall(text.casefold())}
        if bool(gold) == bool(record["answer"]) and (words & gold_words or not words | gold_words):
            continue
        odds = record["null_odds"] if not record["answer"] else -record["null_odds"]
        reason = "no word in common with a gold answer" if record["answer"] else "no answer predicted"
        issues.append(LabelIssue(index, gold, record["answer"], round(float(odds), 4), [f"{reason} (odds)"]))
    return sorted(issues, key=lambda issue: -issue.score)


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


def find_label_issues(settings: Mapping[str, Any]) -> LabelIssues:
    """Find label issues, and write them and the page to review them into the directory of the study.

    Raises:
        UserError: The directory is not a study with folds, or its training rows have changed.
    """
    config = LabelIssuesConfig(**validate_settings(LabelIssuesConfig, settings, "label_issues()"))
    study = expand_home(config.study)
    records = _read_predictions(study)
    with silence_libraries():
        task = _load_task(study)
        rows = _load_rows(task, study, records)
        _check_predictions(task, study / PREDICTIONS_FILE, records)
        issues = find_issues(OutOfFold(task, rows, records))
        labeled = _describe_issues(task, rows, issues)
    result = LabelIssues(study, task.definition.name, len(rows), labeled)
    write_jsonl(study / ISSUES_FILE, result.records)
    page = render_review_page(
        study.name, task.definition.name, len(rows), result.records, _list_choices(task)
    )
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
                task_type.definition.config(
                    **read_recipe(str(path), name, task_type.definition.config).settings
                )
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
    with silence_reports():
        rows = parse_all_rows(task, task.load_data()).splits["train"]
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
    label_type = task.state.label_type
    if label_type is not None:
        return [] if label_type.problem_type == "multi_label_classification" else list(label_type.labels)
    if types := getattr(task, "types", None):
        return build_iob2_labels(types)
    return []


def describe_counts(result: LabelIssues) -> str:
    """Return one line with the numbers of issues and rows."""
    rows = format_count(result.summary["rows_with_issues"], "row")
    return f"{format_count(len(result.records), 'label issue')} in {rows} of {result.num_rows:,}"

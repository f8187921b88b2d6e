"""Find label issues in out-of-fold predictions, for each kind of labels."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from bertkit.data.rows import Rows
from bertkit.metrics.label_issues import (
    MIN_RESIDUAL,
    compute_robust_scores,
    compute_self_confidence,
    find_off_diagonal,
    suggest_classes,
)
from bertkit.tasks.base import Task
from bertkit.tasks.label_types import MultiLabel, Regression

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
    if isinstance(getattr(task, "label_type", None), Regression):
        return _Number
    schemas: dict[str, Any] = {"ner": _Words, "qa": _Answer, "swag": _Endings}
    return schemas.get(task.spec.name, _ClassProbabilities)


def find_issues(data: OutOfFold) -> list[LabelIssue]:
    """Return the label issues, the most probable one first."""
    label_type = getattr(data.task, "label_type", None)
    if isinstance(label_type, MultiLabel):
        return _find_in_label_sets(data, label_type.labels)
    if isinstance(label_type, Regression):
        return _find_in_numbers(data)
    finders: Mapping[str, Callable[[OutOfFold], list[LabelIssue]]] = {
        "ner": _find_in_tags, "qa": _find_in_answers, "swag": _find_in_endings,
    }  # fmt: skip
    return finders.get(data.task.spec.name, _find_in_classes)(data)


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
    names = data.task.label_type.labels  # type: ignore[attr-defined]
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

"""Slices: the scores of rows that have something in common, and a test against the other rows.

A slice is an array of row indices, so that the scorer of any task scores it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np

from bertkit.data.groups_and_times import TimeColumn, parse_times
from bertkit.errors import format_count, shorten
from bertkit.stats.judgement import SIGNIFICANCE_LEVEL
from bertkit.stats.scores import Scores
from bertkit.stats.significance import (
    ScoreDifference,
    Scorer,
    compute_central_interval,
    compute_wilson_interval,
)
from bertkit.utils.text import format_signed

MAX_VALUES = 20  # slices of a column; more numbers become quartiles
MIN_SLICE_ROWS = 30  # for a bootstrap interval and for the test, in the slice and in the other rows
NUM_SLICE_RESAMPLES = 200  # enough for a standard error and a 95 % interval, but not for small p-values
EMPTY = "(empty)"


@dataclass(frozen=True)
class Slice:
    """Rows that have something in common.

    Attributes:
        value: What they have in common, such as a value of a column.
        rows: [n] indices of the rows, ascending.
        is_rest: Whether they only have in common that they are in no other slice; they are not tested.
    """

    value: str
    rows: np.ndarray
    is_rest: bool = False


# ---- rows into slices


def slice_by_value(values: Sequence[Any]) -> list[Slice]:
    """Return the rows of each value, the most frequent value first.

    More than 20 numbers or ISO 8601 dates become quartiles. Of more than 20 other values, the less frequent
    ones are one slice. A row whose value is a list belongs to the slice of each element.
    """
    slices = _group_rows(values)
    if len(slices) <= MAX_VALUES:
        return sorted(slices, key=lambda part: -len(part.rows))
    numbers = [_parse_number(value) for value in values]
    if all(number is not None for number in numbers):
        return slice_by_number(np.array(numbers))
    if dates := _slice_by_date(values):
        return dates
    slices.sort(key=lambda part: -len(part.rows))
    kept, others = slices[: MAX_VALUES - 1], slices[MAX_VALUES - 1 :]
    rows = np.unique(np.concatenate([part.rows for part in others]))
    return [*kept, Slice(f"({len(others):,} other values)", rows, is_rest=True)]


def slice_by_number(numbers: np.ndarray, unit: str = "") -> list[Slice]:
    """Return the rows in each quarter of the numbers [n], ascending; NaN is an empty value."""
    is_empty = np.isnan(numbers)
    # Equal numbers are in the same slice. Some quarters are then larger or missing.
    edges = np.quantile(numbers[~is_empty], [0.25, 0.5, 0.75])
    quarters = np.where(is_empty, 4, np.searchsorted(edges, numbers))
    slices = []
    for quarter in np.unique(quarters):
        rows = np.flatnonzero(quarters == quarter)
        low, high = (_format_number(bound) for bound in (numbers[rows].min(), numbers[rows].max()))
        value = low if low == high else f"{low} to {high}"
        slices.append(Slice(EMPTY if quarter == 4 else f"{value} {unit}".strip(), rows))
    return slices


def _slice_by_date(values: Sequence[Any]) -> list[Slice]:
    """Return the rows in each quarter of the dates, ascending; [] if a value is no date."""
    kind = "object" if any(isinstance(value, date) for value in values) else "ISO8601"
    is_empty = np.array([_name_value(value) == EMPTY for value in values])
    filled = np.flatnonzero(~is_empty)
    times, is_valid = parse_times([values[row] for row in filled.tolist()], kind)
    if not is_valid.all():
        return []
    column, slices = TimeColumn("", kind), []
    quarters = np.searchsorted(np.quantile(times, [0.25, 0.5, 0.75]), times)
    for quarter in np.unique(quarters):
        part = times[quarters == quarter]
        low, high = column.format(part.min()), column.format(part.max())
        slices.append(Slice(low if low == high else f"{low} to {high}", filled[quarters == quarter]))
    return [*slices, *([Slice(EMPTY, np.flatnonzero(is_empty))] if is_empty.any() else [])]


def slice_by_label(labels: Sequence[Any]) -> list[Slice]:
    """Return the rows of each label, the rarest label first; a label set belongs to the slice of each label.

    More than 20 labels become four slices of rare to frequent labels.
    """
    slices = sorted(_group_rows(labels), key=lambda part: len(part.rows))
    if len(slices) <= MAX_VALUES:
        return slices
    quarters = []
    for part in np.array_split(np.arange(len(slices)), 4):
        members = [slices[index] for index in part]
        low, high = len(members[0].rows), len(members[-1].rows)
        value = f"{len(members):,} labels with {low:,}" + ("" if low == high else f" to {high:,}")
        rows = np.unique(np.concatenate([member.rows for member in members]))
        quarters.append(Slice(f"{value} {'row' if high == 1 else 'rows'}", rows))
    return quarters


def slice_by_agreement(agreement: np.ndarray) -> list[Slice]:
    """Return the rows by the probability of their label, [n]; the most doubtful ones first."""
    bounds = [0.0, 0.6, 0.8, 1.0]
    names = ["below 0.6", "0.6 to 0.8", "0.8 to 1", "1 (certain)"]
    part = np.searchsorted(bounds, agreement + 1e-6, side="right") - 1
    return [Slice(names[index], np.flatnonzero(part == index)) for index in np.unique(part)]


def slice_by_length(texts: Sequence[Sequence[Any]]) -> list[Slice]:
    """Return the rows in each quarter of the number of characters, over several columns of texts.

    A column may also hold lists of texts, such as the words of a sentence; None counts as an empty text.
    """
    lengths = np.zeros(len(texts[0]))
    for column in texts:
        for row, value in enumerate(column):
            parts = [value] if isinstance(value, str) else value or ()
            lengths[row] += sum(len(part) for part in parts if isinstance(part, str))
    return slice_by_number(lengths, "characters")


def _group_rows(values: Sequence[Any]) -> list[Slice]:
    """Return the rows of each value, in the order of first occurrence."""
    members: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        elements = value if isinstance(value, (list, tuple)) and value else [value]
        for name in dict.fromkeys(map(_name_value, elements)):
            members.setdefault(name, []).append(row)
    return [Slice(value, np.array(rows)) for value, rows in members.items()]


def _name_value(value: Any) -> str:
    if value is None or value in ("", [], (), {}) or (isinstance(value, float) and math.isnan(value)):
        return EMPTY
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(str(value).split()) or EMPTY


def _parse_number(value: Any) -> float | None:
    """Return a number, or NaN for an empty value; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        return None
    if _name_value(value) == EMPTY:
        return math.nan
    try:
        number = float(value)  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _format_number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:.4g}"


# ---- scores and tests


@dataclass(frozen=True)
class SliceScores:
    """The scores of one slice.

    Attributes:
        rows: Number of rows.
        metric: Name of the score that is tested.
        intervals: 95 % interval of the tested score: Wilson's for accuracy, otherwise the bootstrap; empty if
            a bootstrap would have too few rows.
        difference: The tested score of the slice minus that of the other rows, with a p-value after Holm's
            correction for all tested slices; None if there are too few rows.
    """

    value: str
    rows: int
    metric: str
    scores: Scores
    intervals: dict[str, list[float]]
    difference: ScoreDifference | None


@dataclass(frozen=True)
class WorstSlice:
    """The slice whose score is furthest behind that of the other rows.

    Attributes:
        is_worse: Whether the test shows that it is worse than the other rows.
        text: A sentence with its numbers.
    """

    column: str
    value: str
    rows: int
    metric: str
    score: float
    difference: float
    interval: list[float]
    p: float
    is_worse: bool
    text: str


def score_slices(
    scorer: Scorer,
    columns: Mapping[str, Sequence[Slice]],
    choose_metric: Callable[[str], tuple[str, int]],
    is_correct: np.ndarray,
    unit: str = "row",
    seed: int = 0,
) -> tuple[dict[str, list[SliceScores]], WorstSlice | None]:
    """Score each slice, and test it against the other rows.

    Args:
        columns: The slices by the name of a column.
        choose_metric: Returns the score that is tested in a column, and +1 if higher is better, else -1.
        is_correct: [n] bool, whether the whole prediction of each row is correct. A slice without errors is
            not the worst. If accuracy is the fraction of these rows, its test is exact.
        unit: What the task calls a row.

    Returns:
        The scores by column, and the worst slice; None if no slice is tested.
    """
    accuracy = scorer.score_all().get("accuracy")
    if accuracy is not None and math.isclose(accuracy, is_correct.mean()):
        scorer = replace(scorer, is_correct=is_correct)
    tested: list[tuple[str, int, ScoreDifference]] = []
    found: dict[str, list[SliceScores]] = {}
    for column, slices in columns.items():
        metric, _ = choose_metric(column)
        found[column] = []
        for part in slices:
            scores = scorer.score(part.rows)
            intervals, difference = _compare_with_others(scorer, part.rows, metric, seed)
            if part.is_rest:
                difference = None
            if difference:
                tested.append((column, len(found[column]), difference))
            score = SliceScores(part.value, len(part.rows), metric, scores, intervals, difference)
            found[column].append(score)
    worst: WorstSlice | None = None
    p_values = correct_by_holm([difference.p for _, _, difference in tested])
    for (column, index, difference), p in zip(tested, p_values, strict=True):
        score = replace(found[column][index], difference=replace(difference, p=p))
        found[column][index], sign = score, choose_metric(column)[1]
        gain = sign * difference.difference
        if gain >= 0 or is_correct[columns[column][index].rows].all():
            continue
        is_worse = p < SIGNIFICANCE_LEVEL
        if worst is None or (is_worse, -gain) > (worst.is_worse, abs(worst.difference)):
            worst = _describe_worst(column, score, is_worse, sign, unit)
    return found, worst


def _compare_with_others(
    scorer: Scorer, rows: np.ndarray, metric: str, seed: int
) -> tuple[dict[str, list[float]], ScoreDifference | None]:
    """Return the interval of a score of some rows, and its difference from the score of the other rows.

    For accuracy, the test is Fisher's exact test, and the interval is that of Newcombe (1998, method 10). For
    other scores, both groups of rows are resampled independently (Efron and Tibshirani 1993, chapter 8). The
    p-value is that of the difference divided by its bootstrap standard error, in a normal distribution.
    """
    from scipy.stats import fisher_exact, norm

    others = np.setdiff1d(np.arange(scorer.size), rows)
    is_tested = min(len(rows), len(others)) >= MIN_SLICE_ROWS
    if metric == "accuracy" and scorer.is_correct is not None:
        counts = [(int(scorer.is_correct[group].sum()), len(group)) for group in (rows, others)]
        interval = compute_wilson_interval(*counts[0])
        if not is_tested:
            return {metric: interval}, None
        (low, high), (other_low, other_high) = interval, compute_wilson_interval(*counts[1])
        score, other = (correct / size for correct, size in counts)
        difference = score - other
        bounds = [
            difference - math.hypot(score - low, other_high - other),
            difference + math.hypot(high - score, other - other_low),
        ]
        p = float(fisher_exact([[correct, size - correct] for correct, size in counts])[1])
        return {metric: interval}, ScoreDifference(difference, bounds, p, "fisher")
    if len(rows) < MIN_SLICE_ROWS or metric not in scorer.score(rows):
        return {}, None
    values = _resample(scorer, rows, metric, seed)
    intervals = {metric: compute_central_interval(values[np.isfinite(values)])}
    if not is_tested or metric not in scorer.score(others):
        return intervals, None
    difference = scorer.score(rows)[metric] - scorer.score(others)[metric]
    differences = values - _resample(scorer, others, metric, seed + 1)
    differences = differences[np.isfinite(differences)]
    error = float(differences.std(ddof=1))
    p = float(2 * norm.sf(abs(difference) / error)) if error else float(difference == 0)
    return intervals, ScoreDifference(difference, compute_central_interval(differences), p, "bootstrap")


def _resample(scorer: Scorer, rows: np.ndarray, metric: str, seed: int) -> np.ndarray:
    """Return the score of each bootstrap sample of some rows; NaN for a sample without this score."""
    part = Scorer(lambda index: scorer.score(rows[index]), len(rows), num_resamples=NUM_SLICE_RESAMPLES)
    return np.array([scores.get(metric, math.nan) for scores in part.score_samples(seed)])


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after the correction of Holm (1979) for several tests, in the same order."""
    order = np.argsort(p_values)
    corrected = np.empty(len(order))
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.maximum.accumulate(factors * np.asarray(p_values, float)[order]).clip(max=1)
    return [float(p) for p in corrected]


def format_p_value(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "< 0.0001"


def _describe_worst(column: str, part: SliceScores, is_worse: bool, sign: int, unit: str) -> WorstSlice:
    assert part.difference is not None
    score, found = part.scores[part.metric], part.difference
    low, high = (format_signed(bound, "+.3f") for bound in found.interval)
    name = f"{column} = {shorten(part.value)} ({format_count(part.rows, unit)})"
    numbers = (
        f"{part.metric} {score:.3f}, {abs(found.difference):.3f} {'below' if sign > 0 else 'above'} the "
        f"other {unit}s (95 % interval {low} to {high}, p {format_p_value(found.p)} after Holm's "
        "correction)"
    )
    start = (
        "Worst slice: " if is_worse else f"No slice is shown to be worse than the other {unit}s. The worst: "
    )
    return WorstSlice(
        column, part.value, part.rows, part.metric, score, found.difference, found.interval, found.p,
        is_worse, f"{start}{name}, {numbers}.",
    )  # fmt: skip

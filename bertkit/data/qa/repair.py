"""Correct answer offsets: a wrong offset is fixed if the answer occurs exactly once in its context."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bertkit.data.computed_columns import ComputedColumn
from bertkit.data.qa.answers import ANSWER_START, Answer, describe_location
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list, shorten_repr


def fix_offsets(rows: Rows, split: str) -> tuple[Rows, list[str]]:
    """Return the rows with correct answer offsets, and notes on the corrections.

    The offset of an answer is wrong or missing if the text at the offset is not the answer. The offset is
    corrected if the answer occurs exactly once in its context. Otherwise, the training split drops the
    answer, and also drops the question if it has no other answer. The other splits keep the answer with the
    offset None, because scores depend only on the texts of answers.

    Raises:
        UserError: An answer exceeds its context, or no training question has an answer that occurs at its
            offset.
    """
    if "answers" not in rows.columns:
        return rows, []
    resolved = resolve_offsets(rows)
    notes = _describe_corrections(rows, split, resolved)
    rows = rows.with_column("answers", resolved.answers)
    return _drop_unresolved(rows, split, sorted(set(resolved.unresolved_rows))), notes


@dataclass
class ResolvedOffsets:
    """Answers with correct offsets, and what was corrected.

    A list of rows contains a row index once for each answer of the row that it applies to.

    Attributes:
        answers: [n] answers of each question; the offset of unresolved answers is None.
        moved_rows: Row indices of answers whose wrong offset was corrected.
        filled_rows: Row indices of answers whose missing offset was filled in.
        unresolved_rows: Row indices of answers that are not at their offset, and occur never or several
            times in their context.
    """

    answers: Sequence[list[Answer]]
    moved_rows: list[int] = field(default_factory=list)
    filled_rows: list[int] = field(default_factory=list)
    unresolved_rows: list[int] = field(default_factory=list)


def resolve_offsets(rows: Rows) -> ResolvedOffsets:
    """Find the correct offset of each answer.

    Raises:
        UserError: An answer exceeds its context.
    """
    resolved = ResolvedOffsets(rows["answers"])
    for index, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True)):
        if all(_is_at_offset(context, answer) for answer in answers):
            continue
        for before in answers:
            _require_inside(rows, index, context, before)
            after = _relocate(context, before)
            if after[ANSWER_START] is None:
                resolved.unresolved_rows.append(index)
            elif before[ANSWER_START] is None:
                resolved.filled_rows.append(index)
            elif before[ANSWER_START] != after[ANSWER_START]:
                resolved.moved_rows.append(index)
    if resolved.unresolved_rows or resolved.filled_rows or resolved.moved_rows:
        resolved.answers = ComputedColumn(_relocate_answers, [rows["context"], rows["answers"]])
    return resolved


def _is_at_offset(context: str, answer: Answer) -> bool:
    start = answer[ANSWER_START]
    return start is not None and start >= 0 and context.startswith(answer["text"], start)


def _relocate_answers(context: str, answers: Sequence[Answer]) -> list[Answer]:
    return [_relocate(context, answer) for answer in answers]


def _relocate(context: str, answer: Answer) -> Answer:
    """Return the answer with its correct offset; None if the text does not occur exactly once."""
    if _is_at_offset(context, answer):
        return answer
    text = answer["text"]
    return {"text": text, ANSWER_START: context.find(text) if _occurs_once(context, text) else None}


def _occurs_once(context: str, text: str) -> bool:
    first = context.find(text)
    return first >= 0 and context.find(text, first + 1) < 0


def _require_inside(rows: Rows, index: int, context: str, answer: Answer) -> None:
    """Raise a `UserError` if the answer exceeds its context.

    If the text occurs once, any offset inside the context can be corrected. Otherwise, the whole answer must
    fit after its offset.
    """
    text, start = answer["text"], answer[ANSWER_START]
    if start is None or _is_at_offset(context, answer):
        return
    max_offset = len(context) - (1 if _occurs_once(context, text) else len(text))
    if not 0 <= start <= max_offset:
        raise UserError(
            f"{describe_location(rows, index)}: the answer at offset {start} with {len(text)} characters "
            f"exceeds its context of {len(context)} characters; count offsets in characters from 0, "
            "not in bytes or words"
        )


def _describe_corrections(rows: Rows, split: str, resolved: ResolvedOffsets) -> list[str]:
    notes = []
    if resolved.filled_rows:
        problem = _count_answers(len(resolved.filled_rows), split, "has no offset", "have no offset")
        notes.append(f"{problem}: the offset of the text is used")
    if resolved.moved_rows:
        problem = _count_answers(
            len(resolved.moved_rows), split,
            "is not at its offset but elsewhere in its context",
            "are not at their offset but elsewhere in their context",
        )  # fmt: skip
        notes.append(f"{problem}: fixed ({_format_ids(rows, resolved.moved_rows)})")
    if resolved.unresolved_rows:
        problem = _count_answers(
            len(resolved.unresolved_rows), split,
            "is not at its offset, and its text occurs nowhere or several times in its context",
            "are not at their offset, and their text occurs nowhere or several times in their context",
        )  # fmt: skip
        action = "removed" if split == "train" else "kept for scoring, which needs no offset"
        notes.append(f"{problem}: {action} ({_format_ids(rows, resolved.unresolved_rows)})")
    return notes


def _count_answers(count: int, split: str, singular: str, plural: str) -> str:
    """Return a text such as `1 answer of the train split is ...`."""
    return format_count(
        count, f"answer of the {split} split {singular}", f"answers of the {split} split {plural}"
    )


def _format_ids(rows: Rows, indices: Iterable[int]) -> str:
    return f"ids {format_list(dict.fromkeys(rows['id'][index] for index in indices))}"


def _drop_unresolved(rows: Rows, split: str, unresolved_rows: list[int]) -> Rows:
    """Drop training answers without an offset, and questions whose answers are all dropped."""
    if split != "train" or not unresolved_rows:
        return rows
    answers = ComputedColumn(_keep_located, [rows["answers"]])
    if not any(answers):
        text = rows["answers"][unresolved_rows[0]][0]["text"]
        raise UserError(
            f"{describe_location(rows, unresolved_rows[0])}: {shorten_repr(text)} is not at its offset "
            "in the context, and no other training question has an answer that is; copy answers from their "
            f"context letter for letter ({_format_ids(rows, unresolved_rows)})"
        )
    unresolved = np.array(unresolved_rows)
    is_dropped = np.array([not remaining for remaining in answers.select(unresolved)])
    rows = rows.with_column("answers", answers)
    return rows.select(np.setdiff1d(np.arange(len(rows)), unresolved[is_dropped]))


def _keep_located(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer[ANSWER_START] is not None]

"""Correction of answer offsets: a wrong one is fixed if the text occurs exactly once in the context."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bertkit.data.qa.answers import ANSWER_START, Answer, describe_location
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list, shorten_repr


def fix_offsets(rows: Rows, split: str) -> tuple[Rows, list[str]]:
    """Return the rows with correct answer offsets, and notes on the corrections.

    An answer that has a wrong offset, or none, gets the offset of its text if the text occurs exactly once
    in the context. Otherwise the training split drops the answer, and a question that has no other one. In
    other splits, where texts alone determine the scores, the answer remains with the offset None.

    Raises:
        UserError: An answer exceeds its context, or no training question with an answer remains.
    """
    if "answers" not in rows.columns:
        return rows, []
    resolved = resolve_offsets(rows)
    notes = _describe_corrections(rows, split, resolved)
    rows = rows.with_column("answers", resolved.answers)
    return _drop_unresolved(rows, split, sorted(set(resolved.unresolved_rows))), notes


@dataclass
class ResolvedOffsets:
    """Answers with correct offsets, or None, and the row of each corrected answer.

    Attributes:
        answers: [n] the answers of each question.
        moved_rows: Rows of answers that had a wrong offset.
        filled_rows: Rows of answers that had no offset.
        unresolved_rows: Rows of answers whose text occurs nowhere, or several times.
    """

    answers: list[list[Answer]]
    moved_rows: list[int] = field(default_factory=list)
    filled_rows: list[int] = field(default_factory=list)
    unresolved_rows: list[int] = field(default_factory=list)


def resolve_offsets(rows: Rows) -> ResolvedOffsets:
    """Find the correct offset of each answer. Raises `UserError` if an answer exceeds its context."""
    resolved = ResolvedOffsets(list(rows["answers"]))
    for index in _find_misplaced(rows):
        resolved.answers[index] = [_relocate(rows, index, answer) for answer in resolved.answers[index]]
        for before, after in zip(rows["answers"][index], resolved.answers[index], strict=True):
            if after[ANSWER_START] is None:
                resolved.unresolved_rows.append(index)
            elif before[ANSWER_START] is None:
                resolved.filled_rows.append(index)
            elif before[ANSWER_START] != after[ANSWER_START]:
                resolved.moved_rows.append(index)
    return resolved


def _find_misplaced(rows: Rows) -> list[int]:
    """Return the rows with an answer that is not at its offset."""
    return [
        index
        for index, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True))
        if not all(_is_at_offset(context, answer) for answer in answers)
    ]


def _is_at_offset(context: str, answer: Answer) -> bool:
    start = answer[ANSWER_START]
    return start is not None and start >= 0 and context.startswith(answer["text"], start)


def _relocate(rows: Rows, index: int, answer: Answer) -> Answer:
    """Return the answer with the offset of its only occurrence, or None if it does not occur exactly once."""
    context, text, start = rows["context"][index], answer["text"], answer[ANSWER_START]
    if _is_at_offset(context, answer):
        return answer
    first = context.find(text)
    occurs_once = first >= 0 and context.find(text, first + 1) < 0
    # An offset inside the context is fixed even if the answer would exceed the context there.
    last_offset = len(context) - (1 if occurs_once else len(text))
    if start is not None and not 0 <= start <= last_offset:
        raise UserError(
            f"{describe_location(rows, index)}: the answer at offset {start} with {len(text)} characters "
            f"exceeds its context, which has {len(context)}; count offsets in characters from 0, "
            "not in bytes or words"
        )
    return {"text": text, ANSWER_START: first if occurs_once else None}


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


def _count_answers(count: int, split: str, one: str, plural: str) -> str:
    """Return a text such as `1 answer of the train split is ...`."""
    return format_count(count, f"answer of the {split} split {one}", f"answers of the {split} split {plural}")


def _format_ids(rows: Rows, indices: Iterable[int]) -> str:
    return f"ids {format_list(dict.fromkeys(rows['id'][index] for index in indices))}"


def _drop_unresolved(rows: Rows, split: str, unresolved: list[int]) -> Rows:
    """Drop training answers without an offset, and questions that have no other answer."""
    if split != "train" or not unresolved:
        return rows
    answers = list(rows["answers"])
    for index in unresolved:
        answers[index] = [answer for answer in answers[index] if answer[ANSWER_START] is not None]
    if not any(answers):
        text = rows["answers"][unresolved[0]][0]["text"]
        raise UserError(
            f"{describe_location(rows, unresolved[0])}: {shorten_repr(text)} is not at its offset "
            "in the context, and no other training question has an answer that is; copy answers from their "
            f"context letter for letter ({_format_ids(rows, unresolved)})"
        )
    dropped = {index for index in unresolved if not answers[index]}
    rows = rows.with_column("answers", answers)
    return rows.select(index for index in range(len(rows)) if index not in dropped) if dropped else rows

"""Correct answer offsets: a wrong offset is fixed if the answer occurs exactly once in its context."""

from collections.abc import Iterable
from dataclasses import dataclass, field

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

    answers: list[list[Answer]]
    moved_rows: list[int] = field(default_factory=list)
    filled_rows: list[int] = field(default_factory=list)
    unresolved_rows: list[int] = field(default_factory=list)


def resolve_offsets(rows: Rows) -> ResolvedOffsets:
    """Find the correct offset of each answer.

    Raises:
        UserError: An answer exceeds its context.
    """
    resolved = ResolvedOffsets(list(rows["answers"]))
    for index in _find_misplaced_rows(rows):
        resolved.answers[index] = [_relocate(rows, index, answer) for answer in resolved.answers[index]]
        for before, after in zip(rows["answers"][index], resolved.answers[index], strict=True):
            if after[ANSWER_START] is None:
                resolved.unresolved_rows.append(index)
            elif before[ANSWER_START] is None:
                resolved.filled_rows.append(index)
            elif before[ANSWER_START] != after[ANSWER_START]:
                resolved.moved_rows.append(index)
    return resolved


def _find_misplaced_rows(rows: Rows) -> list[int]:
    """Return the indices of the rows with an answer that is not at its offset."""
    return [
        index
        for index, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True))
        if not all(_is_at_offset(context, answer) for answer in answers)
    ]


def _is_at_offset(context: str, answer: Answer) -> bool:
    start = answer[ANSWER_START]
    return start is not None and start >= 0 and context.startswith(answer["text"], start)


def _relocate(rows: Rows, index: int, answer: Answer) -> Answer:
    """Return the answer with its correct offset; None if the text does not occur exactly once."""
    context, text, start = rows["context"][index], answer["text"], answer[ANSWER_START]
    if _is_at_offset(context, answer):
        return answer
    first = context.find(text)
    occurs_once = first >= 0 and context.find(text, first + 1) < 0
    # If the text occurs once, any offset inside the context can be corrected. Otherwise, the whole answer
    # must fit after its offset.
    max_offset = len(context) - (1 if occurs_once else len(text))
    if start is not None and not 0 <= start <= max_offset:
        raise UserError(
            f"{describe_location(rows, index)}: the answer at offset {start} with {len(text)} characters "
            f"exceeds its context of {len(context)} characters; count offsets in characters from 0, "
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
    answers = list(rows["answers"])
    for index in unresolved_rows:
        answers[index] = [answer for answer in answers[index] if answer[ANSWER_START] is not None]
    if not any(answers):
        text = rows["answers"][unresolved_rows[0]][0]["text"]
        raise UserError(
            f"{describe_location(rows, unresolved_rows[0])}: {shorten_repr(text)} is not at its offset "
            "in the context, and no other training question has an answer that is; copy answers from their "
            f"context letter for letter ({_format_ids(rows, unresolved_rows)})"
        )
    dropped_rows = {index for index in unresolved_rows if not answers[index]}
    rows = rows.with_column("answers", answers)
    if not dropped_rows:
        return rows
    return rows.select(index for index in range(len(rows)) if index not in dropped_rows)

"""Answers that do not stand where they say: put right where there is one place, else left out, and told."""

from collections.abc import Iterable

from bertkit.data.answers import START, Answer, where
from bertkit.data.rows import Rows
from bertkit.errors import UserError, listed


def repaired(rows: Rows, split: str) -> tuple[Rows, list[str]]:
    """The rows with every answer where it says that it stands, and notes of what that took.

    An answer that is not at its offset, or has none, is taken where its text stands if that is one
    place. Otherwise the training split does without it, and without a question left with none; in other
    splits, where the texts alone give the scores, it stays with None for its offset.

    Raises:
        UserError: an answer beyond the end of its paragraph, or no training question left.
    """
    if "answers" not in rows.columns:
        return rows, []
    answers = list(rows["answers"])
    moved, found, lost = [], 0, []
    for index in _misplaced(rows):
        answers[index] = [_placed(rows, index, answer) for answer in answers[index]]
        for before, after in zip(rows["answers"][index], answers[index], strict=True):
            if after[START] is None:
                lost.append(index)
            elif before[START] is None:
                found += 1
            elif before[START] != after[START]:
                moved.append(index)
    notes = _notes(rows, split, moved, found, lost)
    return _without(rows.with_column("answers", answers), split, sorted(set(lost))), notes


def _misplaced(rows: Rows) -> list[int]:
    """The rows with an answer that is not at its offset."""
    return [
        index
        for index, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True))
        if not all(_stands(context, answer) for answer in answers)
    ]


def _stands(context: str, answer: Answer) -> bool:
    start = answer[START]
    return start is not None and start >= 0 and context.startswith(answer["text"], start)


def _placed(rows: Rows, index: int, answer: Answer) -> Answer:
    """The answer where its text stands, or with None where that is no place or several."""
    context, text, start = rows["context"][index], answer["text"], answer[START]
    if _stands(context, answer):
        return answer
    first = context.find(text)
    if first >= 0 and context.find(text, first + 1) < 0:
        return {"text": text, START: first}
    if start is not None and not 0 <= start <= len(context) - len(text):
        raise UserError(
            f"{where(rows, index)}: the answer at {start} with {len(text)} characters lies beyond its "
            f"paragraph, which has {len(context)}; offsets count characters from 0, not bytes or words"
        )
    return {"text": text, START: None}


def _notes(rows: Rows, split: str, moved: list[int], found: int, lost: list[int]) -> list[str]:
    notes = []
    if found:
        notes.append(f"{found:,} answers of the {split} split have no offset; it is that of their text")
    if moved:
        notes.append(
            f"{len(moved):,} answers of the {split} split were not at their offset and stand elsewhere in "
            f"their paragraph: put right ({_named(rows, moved)})"
        )
    if lost:
        then = "left out" if split == "train" else "kept for the scores, which need no offset"
        notes.append(
            f"{len(lost):,} answers of the {split} split are not at their offset, and their text stands "
            f"nowhere or several times in their paragraph: {then} ({_named(rows, lost)})"
        )
    return notes


def _named(rows: Rows, indices: Iterable[int]) -> str:
    return f"ids {listed(dict.fromkeys(rows['id'][index] for index in indices))}"


def _without(rows: Rows, split: str, indices: list[int]) -> Rows:
    """The training split without the answers that have no place, and without questions left with none."""
    if split != "train" or not indices:
        return rows
    answers = list(rows["answers"])
    for index in indices:
        answers[index] = [answer for answer in answers[index] if answer[START] is not None]
    gone = {index for index in indices if not answers[index]}
    if len(gone) == len(rows):
        raise UserError(
            f"{rows.files[0]}: no training question is left, for no answer stands in its paragraph where it "
            "says; an answer is cut from its paragraph, letter for letter"
        )
    rows = rows.with_column("answers", answers)
    return rows.select(index for index in range(len(rows)) if index not in gone) if gone else rows

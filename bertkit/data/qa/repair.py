"""Answers that do not stand where they say: put right where there is one place, else left out, and told."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from bertkit.data.qa.answers import ANSWER_START, Answer, describe_location
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list, shorten_repr


def fix_offsets(rows: Rows, split: str) -> tuple[Rows, list[str]]:
    """The rows with every answer where it says that it stands, and notes of what that took.

    An answer that is not at its offset, or has none, is taken where its text stands if that is one
    place. Otherwise the training split does without it, and without a question left with none; in other
    splits, where the texts alone give the scores, it stays with None for its offset.

    Raises:
        UserError: an answer beyond its paragraph, or no training question left that has one.
    """
    if "answers" not in rows.columns:
        return rows, []
    looked = resolve_offsets(rows)
    notes = _notes(rows, split, looked.moved_rows, len(looked.filled_rows), looked.unresolved_rows)
    return _without(
        rows.with_column("answers", looked.answers), split, sorted(set(looked.unresolved_rows))
    ), notes


@dataclass
class ResolvedOffsets:
    """The answers where they stand (None: no place is theirs), and the row of each that stood elsewhere.

    Attributes:
        moved: at another offset than they said.
        found: they said none.
        lost: their text stands nowhere, or several times.
    """

    answers: list[list[Answer]]
    moved_rows: list[int] = field(default_factory=list)
    filled_rows: list[int] = field(default_factory=list)
    unresolved_rows: list[int] = field(default_factory=list)


def resolve_offsets(rows: Rows) -> ResolvedOffsets:
    """Look for each answer that is not where it says. Raises `UserError` at one beyond its paragraph."""
    looked = ResolvedOffsets(list(rows["answers"]))
    for index in _misplaced(rows):
        looked.answers[index] = [_placed(rows, index, answer) for answer in looked.answers[index]]
        for before, after in zip(rows["answers"][index], looked.answers[index], strict=True):
            if after[ANSWER_START] is None:
                looked.unresolved_rows.append(index)
            elif before[ANSWER_START] is None:
                looked.filled_rows.append(index)
            elif before[ANSWER_START] != after[ANSWER_START]:
                looked.moved_rows.append(index)
    return looked


def _misplaced(rows: Rows) -> list[int]:
    """The rows with an answer that is not at its offset."""
    return [
        index
        for index, (context, answers) in enumerate(zip(rows["context"], rows["answers"], strict=True))
        if not all(_stands(context, answer) for answer in answers)
    ]


def _stands(context: str, answer: Answer) -> bool:
    start = answer[ANSWER_START]
    return start is not None and start >= 0 and context.startswith(answer["text"], start)


def _placed(rows: Rows, index: int, answer: Answer) -> Answer:
    """The answer where its text stands, or with None where that is no place or several."""
    context, text, start = rows["context"][index], answer["text"], answer[ANSWER_START]
    if _stands(context, answer):
        return answer
    first = context.find(text)
    once = first >= 0 and context.find(text, first + 1) < 0
    last = len(context) - (1 if once else len(text))  # by what sticks out it may be put right
    if start is not None and not 0 <= start <= last:
        raise UserError(
            f"{describe_location(rows, index)}: the answer at {start} with {len(text)} characters lies beyond its "
            f"paragraph, which has {len(context)}; offsets count characters from 0, not bytes or words"
        )
    return {"text": text, ANSWER_START: first if once else None}


def _notes(rows: Rows, split: str, moved: list[int], found: int, lost: list[int]) -> list[str]:
    notes = []
    if found:
        said = "has no offset; it is that of its text", "have no offset; it is that of their text"
        notes.append(_answers(found, split, *said))
    if moved:
        said = (
            "was not at its offset and stands elsewhere in its paragraph",
            "were not at their offset and stand elsewhere in their paragraph",
        )
        notes.append(f"{_answers(len(moved), split, *said)}: put right ({_named(rows, moved)})")
    if lost:
        said = (
            "is not at its offset, and its text stands nowhere or several times in its paragraph",
            "are not at their offset, and their text stands nowhere or several times in their paragraph",
        )
        then = "left out" if split == "train" else "kept for the scores, which need no offset"
        notes.append(f"{_answers(len(lost), split, *said)}: {then} ({_named(rows, lost)})")
    return notes


def _answers(number: int, split: str, one: str, several: str) -> str:
    """`1 answer of the train split is ...`."""
    return format_count(
        number, f"answer of the {split} split {one}", f"answers of the {split} split {several}"
    )


def _named(rows: Rows, indices: Iterable[int]) -> str:
    return f"ids {format_list(dict.fromkeys(rows['id'][index] for index in indices))}"


def _without(rows: Rows, split: str, indices: list[int]) -> Rows:
    """The training split without the answers that have no place, and without questions left with none."""
    if split != "train" or not indices:
        return rows
    answers = list(rows["answers"])
    for index in indices:
        answers[index] = [answer for answer in answers[index] if answer[ANSWER_START] is not None]
    if not any(answers):
        text = rows["answers"][indices[0]][0]["text"]
        raise UserError(
            f"{describe_location(rows, indices[0])}: {shorten_repr(text)} does not stand where it says in its paragraph, nor "
            "does any other: no training question with an answer is left; answers are cut from paragraphs, "
            f"letter for letter ({_named(rows, indices)})"
        )
    gone = {index for index in indices if not answers[index]}
    rows = rows.with_column("answers", answers)
    return rows.select(index for index in range(len(rows)) if index not in gone) if gone else rows

"""What can be wrong with questions and their answers, beyond what training refuses."""

from collections.abc import Iterator

import numpy as np

from bertkit.checks.findings import Finding, format_fraction, locate_rows
from bertkit.data.qa.features import QuestionFeatures
from bertkit.data.qa.repair import resolve_offsets
from bertkit.data.qa.rows import QuestionRows
from bertkit.data.rows import Rows

MANY_LOST_ANSWERS = (
    0.01  # share of the answered questions: above it, answers that no window holds are a warning
)


def find_misplaced_answers(split: str, rows: QuestionRows) -> Iterator[Finding]:
    """Answers that do not stand where they say, as they came; and questions that contradict themselves."""
    for note in rows.notes:
        yield Finding("warning", "contradicted", note, "correct the mark, or take the answers away")
    if "answers" not in rows.columns:
        return
    found = resolve_offsets(rows)
    then = "left out" if split == "train" else "kept for the scores, which need no offset"
    kinds = [
        ("warning", "offset", found.moved_rows, "are not at their offset and stand elsewhere in their paragraph",
         "training puts them right; offsets count characters from 0, not bytes or words"),
        ("warning", "nowhere", found.unresolved_rows,
         f"are not at their offset, and their text stands nowhere or several times in the paragraph: {then}",
         "copy answers from their paragraph letter for letter, with their offset"),
        ("note", "no-offset", found.filled_rows, "have no offset; it is that of their text", ""),
    ]  # fmt: skip
    for level, name, indices, message, fix in kinds:
        if indices:
            said = f"{len(indices):,} answers of the {split} split {message}"
            yield Finding(level, name, said, fix, len(indices), locate_rows(rows, indices))  # type: ignore[arg-type]


def find_shared_paragraphs(split: str, train: Rows, rows: Rows) -> Iterator[Finding]:
    """Questions of another split about paragraphs that are learned from."""
    known = set(train["context"])
    shared = [index for index, context in enumerate(rows["context"]) if context in known]
    if shared:
        yield Finding(
            "warning", "same-paragraph",
            f"{format_fraction(len(shared), len(rows))} {split} questions are about paragraphs of training questions",
            "give whole paragraphs, better articles, to one split: the scores would be too high", len(shared),
            locate_rows(rows, shared),
        )  # fmt: skip


def find_lost_answers(split: str, rows: Rows, features: QuestionFeatures) -> Iterator[Finding]:
    """Questions that are cut, and answers that no window holds or that are too long to be predicted."""
    cut = (features.question_lengths < features.question_ids.lengths).nonzero()[0]
    if len(cut):
        yield Finding(
            "note", "question-cut",
            f"{format_fraction(len(cut), len(rows))} {split} questions are over {features.question_lengths.max()} pieces and cut",
            f"--max-query-length {features.question_ids.lengths.max()} keeps all of them",
            len(cut), locate_rows(rows, cut),
        )  # fmt: skip
    if features.labels is None:
        return
    labels, windows = features.labels, np.arange(len(features))
    inside = labels[:, 0] != features.get_null_positions(windows)
    starts = features.window_offsets[:-1]
    held = np.logical_or.reduceat(inside, starts)
    sizes = np.maximum.reduceat(np.where(inside, labels[:, 1] - labels[:, 0] + 1, 0), starts)
    answered = np.array([bool(some) and some[0]["answer_start"] is not None for some in rows["answers"]])
    gone, limits = (answered & ~held).nonzero()[0], features.limits
    if len(gone):
        yield Finding(
            "warning" if len(gone) > MANY_LOST_ANSWERS * answered.sum() else "note", "answer-lost",
            f"{format_fraction(len(gone), int(answered.sum()))} {split} answers stand whole in no window of "
            f"{limits.max_length} pieces every {limits.doc_stride}: they are learned as if there were none",
            "a larger --max-length, or a smaller --doc-stride", len(gone), locate_rows(rows, gone),
        )  # fmt: skip
    long = (sizes > limits.max_answer_length).nonzero()[0]
    if len(long):
        yield Finding(
            "note", "answer-long",
            f"{format_fraction(len(long), int(answered.sum()))} {split} answers are over {limits.max_answer_length} "
            f"pieces and cannot be predicted (the longest {sizes.max()})",
            f"--max-answer-length {sizes.max()}, where such answers are meant",
            len(long), locate_rows(rows, long),
        )  # fmt: skip

"""The data checks of `qa`."""

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import Rows
from bertkit.data.tokens import TokenCounts
from bertkit.tasks.base import UNREAD_NOTE
from bertkit.tasks.checks import Finding, TaskChecks, format_fraction, locate_rows, report_rows
from bertkit.tasks.qa.rows import (
    QuestionRows,
    flatten_articles,
    is_nested,
    normalize_questions,
    resolve_offsets,
)

MAX_LOST_FRACTION = 0.01  # a larger fraction of answers that no window contains is a warning, else a note


class QaChecks(TaskChecks):
    """The checks of `qa`."""

    def load_examples(self) -> LoadedDataset:
        dataset = self.task.load_data()
        splits = {
            name: flatten_articles(rows) if is_nested(rows) else rows for name, rows in dataset.splits.items()
        }
        return dataclasses.replace(dataset, splits=splits)

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        config = self.task.config
        columns = (config.question_column, config.context_column, config.answers_column)
        for split, rows in dataset.splits.items():
            yield from find_misplaced_answers(split, normalize_questions(rows, columns))
        train_contexts = set(parsed.splits["train"]["context"])
        for split, rows in parsed.splits.items():
            if split == "train":
                continue
            contexts = enumerate(rows["context"])
            yield from report_rows(
                "warning", "same-paragraph", rows,
                [index for index, context in contexts if context in train_contexts],
                f"{split} questions are about paragraphs of training questions",
                "assign whole paragraphs, or better articles, to one split; otherwise the scores are too "
                "high",
            )  # fmt: skip
        notes = [note for note in notes if UNREAD_NOTE in note]  # the findings above replace the others
        yield from super().check_rows(dataset, parsed, notes)

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        if "answers" not in rows.columns:
            return None
        return ["answered" if answers else "no answer" for answers in rows["answers"]]

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Count questions with and without answer; empty with SQuAD v1."""
        return super().count_labels(rows) if self.task.config.squad == "v2" else {}

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        return TokenCounts.from_questions(rows["question"], rows["context"], tokenizer)

    def check_tokens(self, split: str, rows: Rows, tokenizer: Any) -> Iterator[Finding]:
        """Find truncated questions, answers that no window contains, and answers too long to predict."""
        features = self.task.featurize(rows, tokenizer)
        truncated = np.flatnonzero(features.question_lengths < features.question_ids.lengths)
        yield from report_rows(
            "note", "question-truncated", rows, truncated,
            f"{split} questions are longer than {features.question_lengths.max()} tokens and are truncated",
            f"--max-query-length {features.question_ids.lengths.max()} avoids truncation",
        )  # fmt: skip
        if features.labels is None:
            return
        labels, limits = features.labels, features.limits
        # A window without the answer has the null position as its label.
        window_has_answer = labels[:, 0] != features.get_null_positions(np.arange(len(features)))
        first_windows = features.window_offsets[:-1]  # of each question
        is_contained = np.logical_or.reduceat(window_has_answer, first_windows)
        lengths = np.where(window_has_answer, labels[:, 1] - labels[:, 0] + 1, 0)
        answer_lengths = np.maximum.reduceat(lengths, first_windows)
        has_answer = np.array(
            [bool(answers) and answers[0]["answer_start"] is not None for answers in rows["answers"]]
        )
        num_answers = int(has_answer.sum())
        lost = np.flatnonzero(has_answer & ~is_contained)
        if len(lost):
            yield Finding(
                "warning" if len(lost) > MAX_LOST_FRACTION * num_answers else "note", "answer-lost",
                f"{format_fraction(len(lost), num_answers)} {split} answers are not complete in any window "
                f"of {limits.max_length} tokens every {limits.doc_stride}; training treats them as "
                "unanswerable",
                "use a larger --max-length, or a smaller --doc-stride", len(lost), locate_rows(rows, lost),
            )  # fmt: skip
        long = np.flatnonzero(answer_lengths > limits.max_answer_length)
        if len(long):
            yield Finding(
                "note", "answer-long",
                f"{format_fraction(len(long), num_answers)} {split} answers are longer than "
                f"{limits.max_answer_length} tokens and cannot be predicted (the longest "
                f"{answer_lengths.max()})",
                f"use --max-answer-length {answer_lengths.max()} if such answers are intended",
                len(long), locate_rows(rows, long),
            )  # fmt: skip


def find_misplaced_answers(split: str, rows: QuestionRows) -> Iterator[Finding]:
    """Find answers with wrong or missing offsets, and questions whose answer fields contradict each other."""
    for note in rows.notes:
        yield Finding("warning", "contradicted", note, "correct the mark, or remove the answers")
    if "answers" not in rows.columns:
        return
    offsets = resolve_offsets(rows)
    effect = "left out" if split == "train" else "kept for the scores, which need no offset"
    problems = [
        ("warning", "offset", offsets.moved_rows, "are not at their offset but elsewhere in their paragraph",
         "training corrects them; offsets count characters from 0, not bytes or words"),
        ("warning", "nowhere", offsets.unresolved_rows,
         f"are not at their offset, and their text occurs never or repeatedly in the paragraph: {effect}",
         "copy answers from their paragraph character by character, with their offset"),
        ("note", "no-offset", offsets.filled_rows, "have no offset; the offset of their text is used", ""),
    ]  # fmt: skip
    for level, name, indices, problem, fix in problems:
        if indices:
            message = f"{len(indices):,} answers of the {split} split {problem}"
            yield Finding(level, name, message, fix, len(indices), locate_rows(rows, indices))  # type: ignore[arg-type]

"""Features of extractive question answering: a question and one window of its context."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.data.table import Rows, as_column, iter_chunks, number_groups, select_values
from bertkit.data.tokens import (
    SequenceTemplate,
    TokenizedTexts,
    compute_unk_fraction,
    encode,
    encode_with_offsets,
    widen_to_graphemes,
)
from bertkit.errors import UserError, format_count, format_list
from bertkit.tasks.qa.rows import Answer
from bertkit.tasks.qa.spans import RollingHash, build_rolling_hash, find_distinct_spans
from bertkit.utils.arrays import Ragged, compute_offsets, slide_windows

# Slots of the two texts of a pair in `SequenceTemplate.slots`.
QUESTION_SLOT, CONTEXT_SLOT = ~0, ~1


@dataclass(frozen=True)
class Limits:
    """Limits on the inputs and answers of extractive question answering.

    Attributes:
        max_length: Maximum length of a sequence in tokens, including special tokens.
        max_query_length: Maximum length of a question in tokens; longer questions are truncated.
        doc_stride: Tokens between the starts of two consecutive windows of a context.
        max_answer_length: Maximum length of an answer in tokens.
        n_best: Number of answers kept for each window and for each question.
    """

    max_length: int
    max_query_length: int
    doc_stride: int
    max_answer_length: int
    n_best: int


@dataclass(frozen=True, kw_only=True)
class QuestionFeatures(Features):
    """Features of extractive question answering: `n` sequences, each a question and a window of its context.

    A sequence is built when it is requested, since many windows share a question or a context. Each
    distinct context is stored once. A token index refers to the concatenated tokens of all contexts.

    Attributes:
        template: Special tokens around a question and a context.
        null_token_id: Id of the token whose position represents "no answer", usually [CLS].
        limits: Limits that the features were built with.
        question_ids: Token ids of each question.
        question_lengths: [questions] number of tokens of each question after truncation.
        contexts: Tokens of the distinct contexts.
        context_texts: Texts of the distinct contexts.
        window_offsets: [questions + 1] index of each question's first window.
        question_index: [n] index of the question of each window.
        start: [n] index of the first token of each window.
        stop: [n] index after the last token of each window.
        labels: [n, 2] positions of the answer's first and last token in the sequence. Both are the position
            of the null token if the window does not contain the whole answer.
        answers_without_tokens: Indices of the questions whose answer has no tokens, because the tokenizer's
            normalization removes all characters of the answer.
    """

    template: SequenceTemplate
    null_token_id: int
    limits: Limits
    question_ids: Ragged
    question_lengths: np.ndarray
    contexts: TokenizedTexts
    context_texts: Sequence[str]
    window_offsets: np.ndarray
    question_index: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    answers_without_tokens: Sequence[int] = ()

    def get_sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        question = self.question_index[index]
        question_ids = self.question_ids[question][: self.question_lengths[question]]
        context_ids = self.contexts.ids.values[self.start[index] : self.stop[index]]
        return self.template.fill([question_ids, context_ids])

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n] number of tokens of each sequence, including special tokens."""
        question_lengths = self.question_lengths[self.question_index]
        return question_lengths + self.stop - self.start + self.template.num_special_tokens

    @property
    def windowed_fraction(self) -> float:
        return float((np.diff(self.window_offsets) > 1).mean())

    def describe_issues(self, rows: Rows) -> list[str]:
        notes = []
        truncated_fraction = float((self.question_lengths < self.question_ids.lengths).mean())
        if truncated_fraction:
            max_question_length = self.question_lengths.max()
            notes.append(
                f"{truncated_fraction:.1%} of the training questions are longer than {max_question_length} "
                "tokens and truncated"
            )
        if self.answers_without_tokens:
            answers = format_count(
                len(self.answers_without_tokens), "answer has no tokens", "answers have no tokens"
            )
            ids = format_list(rows["id"][question] for question in self.answers_without_tokens)
            notes.append(f"{answers} after normalization: trained as unanswerable (ids {ids})")
        return notes

    @cached_property
    def has_characters(self) -> np.ndarray:
        """[tokens] bool, whether a token covers any characters of its context."""
        return self.contexts.stop > self.contexts.start

    @cached_property
    def rolling_hash(self) -> RollingHash:
        """Hashes of the contexts, with which the texts of answers are compared."""
        return build_rolling_hash(self.context_texts, self.contexts)

    def get_context_positions(self, windows: np.ndarray) -> np.ndarray:
        """Return the position of the context's first token in each sequence [windows]."""
        question_lengths = self.question_lengths[self.question_index[windows]]
        return self.template.count_special_tokens_before(CONTEXT_SLOT) + question_lengths

    def get_null_positions(self, windows: np.ndarray) -> np.ndarray:
        """Return the position of the null token in each sequence [windows]."""
        slots_before = self.template.slots[: self.template.slots.index(self.null_token_id)]
        question_lengths = self.question_lengths[self.question_index[windows]]
        window_lengths = self.stop[windows] - self.start[windows]
        return (
            self.template.count_special_tokens_before(self.null_token_id)
            + question_lengths * (QUESTION_SLOT in slots_before)
            + window_lengths * (CONTEXT_SLOT in slots_before)
        )

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Reduce logits [windows, 2, seq_len] to the best answer spans with different texts.

        Returns:
            [windows, 2 + 4 n_best] fp32. The first two columns are the start and the end logit of the null
            token. Then follow the start logits, end logits, first tokens and last tokens of the answers.
            The tokens are counted from the start of the window.
        """
        num_windows = len(examples)
        context_positions = self.get_context_positions(examples)
        start, stop = self.start[examples], self.stop[examples]
        shift = (start - context_positions)[:, None]  # position + shift = token index
        tokens = np.arange(logits.shape[-1]) + shift
        is_in_window = (tokens >= start[:, None]) & (tokens < stop[:, None])
        allowed = is_in_window & self.has_characters.take(tokens, mode="clip")
        # The search consists of many small steps, which would be slower on an accelerator.
        logits_array = logits.cpu().numpy()

        def hash_spans(positions: np.ndarray) -> np.ndarray:
            return self.rolling_hash.hash_spans(positions[:, 0] + shift, positions[:, 1] + shift)

        positions, span_logits = find_distinct_spans(
            logits_array, allowed, self.limits.n_best, self.limits.max_answer_length, hash_spans
        )
        null_logits = logits_array[np.arange(num_windows), :, self.get_null_positions(examples)]
        positions -= context_positions[:, None, None]
        reduced = [null_logits, span_logits.reshape(num_windows, -1), positions.reshape(num_windows, -1)]
        return torch.from_numpy(np.concatenate(reduced, 1, dtype=np.float32))


def build_question_features(
    questions: Sequence[str], contexts: Sequence[str], answers: Sequence[Sequence[Answer]] | None,
    tokenizer: Any, limits: Limits, cache: bool = True,
) -> QuestionFeatures:  # fmt: skip
    """Tokenize questions and contexts, and split long contexts into windows.

    As in Google's `run_squad.py`, each window starts `doc_stride` tokens after the previous one. Every
    window but the last takes all the tokens that the question and the special tokens leave. A question is
    truncated to `max_query_length` tokens, and to half of the sequence without special tokens.

    Args:
        questions: [n] texts of the questions.
        contexts: [n] texts of the contexts.
        answers: [n] gold answers of each question, or None for unlabeled questions. The model learns the
            first answer of a question.
        cache: Whether to cache the tokens.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=True)
    special_ids = [slot for slot in template.slots if slot >= 0]  # the slots of texts are negative
    if not special_ids:
        raise UserError(
            "--model: its tokenizer adds no special token to a pair, and one must represent no answer; "
            "use another model"
        )
    null_token_id = tokenizer.cls_token_id if tokenizer.cls_token_id in special_ids else special_ids[0]
    question_ids = encode(questions, tokenizer, cache)
    context_index, first_questions = number_groups(as_column(contexts).hashes)
    context_texts = select_values(contexts, first_questions)
    tokenized = encode_with_offsets(context_texts, tokenizer, cache)
    tokenized = _widen_tokens(tokenized, context_texts)
    if not len(tokenized.start):  # token 0 of a missing answer is read even if no text has tokens
        span = np.zeros(1, tokenized.start.dtype)
        tokenized = dataclasses.replace(tokenized, start=span, stop=span)
    max_text_tokens = limits.max_length - template.num_special_tokens
    max_question_length = min(limits.max_query_length, max_text_tokens // 2)
    question_lengths = np.minimum(question_ids.lengths, max_question_length)
    window_sizes = max_text_tokens - question_lengths
    offsets = tokenized.ids.offsets
    counts, start, stop = slide_windows(
        offsets[context_index], offsets[context_index + 1], window_sizes, limits.doc_stride, align_last=False
    )
    question_index = np.repeat(np.arange(len(questions)), counts)
    longest = int((question_lengths + np.diff(offsets)[context_index]).max(initial=0))
    features = QuestionFeatures(
        template=template, null_token_id=null_token_id, limits=limits,
        question_ids=question_ids, question_lengths=question_lengths, contexts=tokenized,
        context_texts=context_texts,
        window_offsets=compute_offsets(counts), question_index=question_index, start=start, stop=stop,
        sequence_offsets=np.arange(len(question_index) + 1), labels=None,
        max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=compute_unk_fraction([question_ids, tokenized.ids], tokenizer),
    )  # fmt: skip
    return features if answers is None else _add_labels(features, context_index, answers)


def _add_labels(
    features: QuestionFeatures, context_index: np.ndarray, answers: Sequence[Sequence[Answer]]
) -> QuestionFeatures:
    """Add the labels of each window: the positions of the first answer to its question."""
    start, lengths = np.zeros((2, len(answers)), np.int64)  # a question without a known answer has length 0
    for question, gold_answers in enumerate(answers):
        if gold_answers and gold_answers[0]["answer_start"] is not None:
            start[question] = gold_answers[0]["answer_start"]
            lengths[question] = len(gold_answers[0]["text"])
    # The first token is -1 if there is no answer, or if the answer has no tokens.
    first, last = features.contexts.find_token_ranges(context_index, start, start + lengths)
    without_tokens = np.flatnonzero((lengths > 0) & (first < 0)).tolist()
    first, last = first[features.question_index], last[features.question_index]
    is_in_window = (first >= features.start) & (last < features.stop) & (first >= 0)
    windows = np.arange(len(features))
    shift = features.get_context_positions(windows) - features.start  # token index + shift = position
    positions = np.stack([first, last], 1) + shift[:, None]
    labels = np.where(is_in_window[:, None], positions, features.get_null_positions(windows)[:, None])
    return dataclasses.replace(features, labels=labels, answers_without_tokens=without_tokens)


def _widen_tokens(tokenized: TokenizedTexts, texts: Sequence[str]) -> TokenizedTexts:
    """Widen the character spans of tokens to whole graphemes, so that no answer ends inside a letter."""
    start, stop, first_text = tokenized.start, tokenized.stop, 0
    for part_texts in iter_chunks(texts):
        part = tokenized.slice_texts(first_text, first_text + len(part_texts))
        part_start, part_stop = widen_to_graphemes(part.start, part.stop, part.ids.lengths, part_texts)
        if (part_start != part.start).any() or (part_stop != part.stop).any():
            if start is tokenized.start:  # memory-mapped, so it is copied only if a span changes
                start, stop = np.array(start), np.array(stop)
            first_token = tokenized.ids.offsets[first_text]
            tokens = slice(first_token, first_token + len(part_start))
            start[tokens], stop[tokens] = part_start, part_stop
        first_text += len(part_texts)
    return dataclasses.replace(tokenized, start=start, stop=stop)

"""Features of questions: one window of the context each, with the best answer spans in it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.data.qa.answers import Answer
from bertkit.data.qa.spans import RollingHash, build_rolling_hash, find_distinct_spans
from bertkit.data.rows import Rows
from bertkit.data.tokenization import SequenceTemplate, TokenizedTexts, encode, encode_with_offsets
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.ragged import Ragged, offsets_from_lengths, slide_windows


@dataclass(frozen=True)
class Limits:
    """Maximum lengths in tokens, and `n_best`, the number of answers kept per window."""

    max_length: int
    max_query_length: int
    doc_stride: int
    max_answer_length: int
    n_best: int


@dataclass(frozen=True, kw_only=True)
class QuestionFeatures(Features):
    """Features of questions; each is a question and a window of its context, assembled on access.

    Each distinct context is stored once. Token indices count the tokens of all contexts.

    Attributes:
        template: the special tokens around a pair.
        null_token_id: the token that represents no answer, usually [CLS].
        limits: maximum lengths.
        question_ids: the tokens of each question.
        question_lengths: [questions] tokens of each question after truncation.
        contexts: the distinct contexts, tokenized.
        context_texts: the distinct contexts.
        window_offsets: [questions + 1] index of each question's first window.
        question_index: [n] the question of each window.
        start: [n] first token of each window.
        stop: [n] end of each window.
        labels: [n, 2] first and last position of the answer in the sequence; both are the null position if
            the window does not contain the answer.
        answers_without_tokens: questions whose answer has no tokens, because normalization removes all its
            characters.
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

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the question and the window with special tokens."""
        question = self.question_index[number]
        question_ids = self.question_ids[question][: self.question_lengths[question]]
        context_ids = self.contexts.ids.values[self.start[number] : self.stop[number]]
        return self.template.fill([question_ids, context_ids])

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n] tokens of each sequence."""
        question_lengths = self.question_lengths[self.question_index]
        return question_lengths + self.stop - self.start + self.template.num_special_tokens

    @property
    def windowed_fraction(self) -> float:
        """Fraction of the questions whose context is split into several windows."""
        return float((np.diff(self.window_offsets) > 1).mean())

    def describe_issues(self, rows: Rows) -> list[str]:
        """Return notes on truncated questions, and on answers that cannot be learned."""
        notes = []
        truncated_fraction = float((self.question_lengths < self.question_ids.lengths).mean())
        if truncated_fraction:
            max_length = self.question_lengths.max()
            notes.append(
                f"{truncated_fraction:.1%} of the training questions are longer than {max_length} tokens "
                "and truncated"
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
        """[tokens] bool, whether a token of a context covers any characters."""
        return self.contexts.stop > self.contexts.start

    @cached_property
    def rolling_hash(self) -> RollingHash:
        """Hashes of the contexts, to compare the texts of answers."""
        return build_rolling_hash(self.context_texts, self.contexts)

    def get_context_positions(self, windows: np.ndarray) -> np.ndarray:
        """Return [windows] the position in the sequence at which the context begins."""
        question_lengths = self.question_lengths[self.question_index[windows]]
        return self.template.count_special_tokens_before(~1) + question_lengths

    def get_null_positions(self, windows: np.ndarray) -> np.ndarray:
        """Return [windows] the position in the sequence of the null token, [CLS]."""
        slots_before = self.template.slots[: self.template.slots.index(self.null_token_id)]
        question_lengths = self.question_lengths[self.question_index[windows]]
        window_lengths = self.stop[windows] - self.start[windows]
        return (
            self.template.count_special_tokens_before(self.null_token_id)
            + question_lengths * (~0 in slots_before)
            + window_lengths * (~1 in slots_before)
        )

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Reduce logits to the best answer spans, no two with the same text.

        Returns:
            [windows, 2 + 4 n_best]: start and end logit of the null token, start logits, end logits, first
            tokens and last tokens of the answers. Token indices are relative to the window.
        """
        context_position, start, stop = (
            self.get_context_positions(examples),
            self.start[examples],
            self.stop[examples],
        )
        shift = (start - context_position)[:, None]  # from positions to token indices
        tokens = np.arange(logits.shape[-1]) + shift
        inside = (tokens >= start[:, None]) & (tokens < stop[:, None])
        allowed = inside & self.has_characters.take(tokens, mode="clip")
        scores = logits.cpu().numpy()  # many small steps, which an accelerator does not speed up

        def hash_spans(positions: np.ndarray) -> np.ndarray:
            return self.rolling_hash.hash_spans(positions[:, 0] + shift, positions[:, 1] + shift)

        positions, span_logits = find_distinct_spans(
            scores, allowed, self.limits.n_best, self.limits.max_answer_length, hash_spans
        )
        null_logits = scores[np.arange(len(examples)), :, self.get_null_positions(examples)]
        positions -= context_position[:, None, None]
        num_windows = len(examples)
        reduced = [null_logits, span_logits.reshape(num_windows, -1), positions.reshape(num_windows, -1)]
        return torch.from_numpy(np.concatenate(reduced, 1, dtype=np.float32))


def build_question_features(
    questions: Sequence[str], contexts: Sequence[str], answers: Sequence[Sequence[Answer]] | None,
    tokenizer: Any, limits: Limits, cache: bool = True,
) -> QuestionFeatures:  # fmt: skip
    """Tokenize questions and contexts and split long contexts into windows.

    As in google's `run_squad.py`, each window begins `doc_stride` tokens after the one before, and all but
    the last fill the free length. A question is truncated to `max_query_length` tokens, and to half of the
    free length.

    Args:
        questions: [n] texts.
        contexts: [n] texts.
        answers: [n] the answers with `text` and `answer_start`, of which the first is learned; or None.
        tokenizer: a fast tokenizer.
        limits: maximum lengths.
        cache: whether to cache the tokens.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=True)
    question_ids = encode(questions, tokenizer, cache)
    index_by_context = {text: index for index, text in enumerate(dict.fromkeys(contexts))}
    distinct = list(index_by_context)
    tokenized = strip_token_whitespace(encode_with_offsets(distinct, tokenizer, cache), distinct)
    context_index = np.fromiter(map(index_by_context.__getitem__, contexts), np.int64, len(contexts))
    free = limits.max_length - template.num_special_tokens
    question_lengths = np.minimum(question_ids.lengths, min(limits.max_query_length, free // 2))
    budget = free - question_lengths
    offsets = tokenized.ids.offsets
    counts, start, stop = slide_windows(
        offsets[context_index], offsets[context_index + 1], budget, limits.doc_stride, align_last=False
    )
    question_index = np.repeat(np.arange(len(questions)), counts)
    longest = int((question_lengths + np.diff(offsets)[context_index]).max(initial=0))
    features = QuestionFeatures(
        template=template, null_token_id=_find_null_token(template, tokenizer), limits=limits,
        question_ids=question_ids, question_lengths=question_lengths, contexts=tokenized,
        context_texts=distinct,
        window_offsets=offsets_from_lengths(counts), question_index=question_index, start=start, stop=stop,
        sequence_offsets=np.arange(len(question_index) + 1), labels=None,
        max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=_compute_unk_fraction(tokenizer, question_ids, tokenized.ids),
    )  # fmt: skip
    return features if answers is None else _add_labels(features, context_index, answers)


def _find_null_token(template: SequenceTemplate, tokenizer: Any) -> int:
    """Return the id of [CLS], or of the first special token that the tokenizer adds to a pair.

    Raises:
        UserError: the tokenizer adds none.
    """
    special = [slot for slot in template.slots if slot >= 0]
    if not special:
        raise UserError(
            "--model: its tokenizer adds no special token to a pair, and one must represent no answer; "
            "use another model"
        )
    return tokenizer.cls_token_id if tokenizer.cls_token_id in special else special[0]


def _add_labels(
    features: QuestionFeatures, context_index: np.ndarray, answers: Sequence[Sequence[Answer]]
) -> QuestionFeatures:
    """Add the position of each question's first answer in each of its windows."""
    known = [some[0] if some and some[0]["answer_start"] is not None else None for some in answers]
    start = np.array([answer["answer_start"] if answer else 0 for answer in known], np.int64)
    lengths = np.array([len(answer["text"]) if answer else 0 for answer in known], np.int64)
    first, last = features.contexts.find_token_ranges(context_index, start, start + lengths)
    without_tokens = np.flatnonzero((lengths > 0) & (first < 0)).tolist()
    first, last = first[features.question_index], last[features.question_index]
    inside = (first >= features.start) & (last < features.stop) & (first >= 0)
    windows = np.arange(len(features))
    shift = features.get_context_positions(windows) - features.start
    positions = np.stack([first, last], 1) + shift[:, None]
    labels = np.where(inside[:, None], positions, features.get_null_positions(windows)[:, None])
    return dataclasses.replace(features, labels=labels, answers_without_tokens=without_tokens)


def strip_token_whitespace(tokenized: TokenizedTexts, texts: Sequence[str]) -> TokenizedTexts:
    """Strip white space from the character spans of tokens, so that no answer contains it at its ends.

    Some tokenizers count a space as part of the word after it.
    """
    characters = np.frombuffer("\0".join(texts).encode("utf-32-le", "surrogatepass") + bytes(4), np.uint32)
    is_space = np.isin(characters, [code for code in range(0x3001) if chr(code).isspace()])
    shift = np.repeat(tokenized.text_offsets, tokenized.ids.lengths)
    start, stop = tokenized.start + shift, tokenized.stop + shift
    while (leading := is_space[start] & (start < stop)).any():
        start = start + leading
    while (trailing := is_space[stop - 1] & (start < stop)).any():
        stop = stop - trailing
    return dataclasses.replace(tokenized, start=start - shift, stop=stop - shift)


def _compute_unk_fraction(tokenizer: Any, *texts: Ragged) -> float:
    num_unknown = sum(int((ids.values == tokenizer.unk_token_id).sum()) for ids in texts)
    return num_unknown / max(1, sum(len(ids.values) for ids in texts))

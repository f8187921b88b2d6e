"""Features of extractive question answering, a question and a window of its context, and their best answers.

Of several answers with the same text, only the best is kept. Texts are compared by their rolling hashes,
which are computed without slicing the texts.
"""

import dataclasses
from collections.abc import Callable, Sequence
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
from bertkit.utils.arrays import Ragged, compute_offsets, compute_positions_in_groups, slide_windows

# ---- the best spans of each window


def find_distinct_spans(
    logits: np.ndarray,
    allowed: np.ndarray,
    n: int,
    max_answer_length: int,
    hash_spans: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best spans with different texts, in the same form as `find_best_spans`.

    The search begins with n + n // 2 spans, since windows often contain a text twice. This number is doubled
    until each window has `n` distinct texts or no more spans.

    Args:
        logits: [windows, 2, seq_len] fp32, start and end logits.
        allowed: [windows, seq_len] bool, whether an answer may begin or end at a position.
        n: Number of spans to return for each window.
        hash_spans: Maps first and last positions [windows, 2, m] to hashes of the texts [windows, m].
    """
    num_candidates = n + n // 2
    while True:
        positions, span_logits = find_best_spans(logits, allowed, num_candidates, max_answer_length)
        chosen = _find_first_occurrences(hash_spans(positions))[:, :n]
        is_missing = chosen == num_candidates
        has_no_more_spans = np.isneginf(span_logits[:, 0, -1])
        if (~is_missing[:, -1] | has_no_more_spans).all():
            break
        num_candidates *= 2
    chosen = np.where(is_missing, 0, chosen)[:, None]
    chosen_logits = np.take_along_axis(span_logits, chosen, 2)
    span_logits = np.where(is_missing[:, None], np.float32(-np.inf), chosen_logits)
    return np.take_along_axis(positions, chosen, 2), span_logits


def _find_first_occurrences(keys: np.ndarray) -> np.ndarray:
    """Return the columns in which a key occurs for the first time in its row [rows, m].

    The columns of a row are ascending. A row with fewer than `m` distinct keys is padded with `m`.
    """
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, 1)
    order[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = keys.shape[1]
    return np.sort(order, axis=1)


def find_best_spans(
    logits: np.ndarray, allowed: np.ndarray, n: int, max_answer_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `n` spans with the highest S·T_i + E·T_j, j >= i (Devlin et al. 2018, 4.2), best first.

    The search is exact and cheap. The best span of each start is found first. The n-th highest score among
    these spans is a lower bound of the score of the n-th best span. Only spans that reach the bound are
    sorted, and these are few.

    Args:
        logits: [windows, 2, seq_len] fp32, start and end logits.
        allowed: [windows, seq_len] bool, whether an answer may begin or end at a position.
        n: Number of spans to return for each window.

    Returns:
        The first and last positions of the spans [windows, 2, n] int, and their start and end logits
        [windows, 2, n]. The logits are -inf if a window has fewer than `n` spans.
    """
    num_windows, seq_len = allowed.shape
    max_answer_length = min(max_answer_length, seq_len)
    start_logits = np.where(allowed, logits[:, 0], np.float32(-np.inf))
    # Padded with -inf, so that every start has `max_answer_length` possible ends.
    end_logits = np.full((num_windows, seq_len + max_answer_length - 1), -np.inf, np.float32)
    np.copyto(end_logits[:, :seq_len], logits[:, 1], where=allowed)
    best_scores = start_logits + _compute_sliding_max(end_logits, max_answer_length)
    bound = np.full((num_windows, 1), np.finfo(np.float32).min)  # excludes scores of -inf: no valid span
    if n <= seq_len:
        bound = np.maximum(bound, np.partition(best_scores, -n, axis=1)[:, -n, None])
    # Candidates are the starts whose best span reaches the bound.
    candidates = np.flatnonzero(best_scores >= bound)
    candidate_window, candidate_position = np.divmod(candidates, seq_len)
    # A view [windows, seq_len, max_answer_length] of the logits of all ends that each start may have.
    end_logits_by_start = np.ndarray(
        (num_windows, seq_len, max_answer_length), end_logits.dtype, end_logits,
        strides=(*end_logits.strides, end_logits.strides[1]),
    )  # fmt: skip
    candidate_start_logits = start_logits.ravel()[candidates]
    candidate_end_logits = end_logits_by_start[candidate_window, candidate_position]
    scores = candidate_start_logits[:, None] + candidate_end_logits
    # Spans are indices into the flattened scores.
    spans = np.flatnonzero(scores >= bound[candidate_window])
    span_window = candidate_window[spans // max_answer_length]
    order, output_index = _rank_spans(span_window, scores.ravel()[spans], num_windows, n)
    spans = spans[order]
    span_candidate, num_further_tokens = np.divmod(spans, max_answer_length)
    positions = np.zeros((2, num_windows * n), np.int64)
    span_logits = np.full((2, num_windows * n), -np.inf, np.float32)
    positions[0, output_index] = candidate_position[span_candidate]
    positions[1, output_index] = candidate_position[span_candidate] + num_further_tokens
    span_logits[0, output_index] = candidate_start_logits[span_candidate]
    span_logits[1, output_index] = candidate_end_logits.ravel()[spans]
    shape = 2, num_windows, n
    return positions.reshape(shape).swapaxes(0, 1), span_logits.reshape(shape).swapaxes(0, 1)


def _rank_spans(
    window: np.ndarray, score: np.ndarray, num_windows: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rank the spans of each window by score.

    Args:
        window: [spans] index of each span's window, ascending.
        score: [spans] fp32 score of each span.
        num_windows: Number of windows.
        n: Number of spans to keep for each window.

    Returns:
        The indices of the best spans of each window, best first, and where they belong in a flattened array
        [num_windows, n].
    """
    order = np.argsort((window << 32) + compute_descending_keys(score))
    rank = compute_positions_in_groups(np.bincount(window, minlength=num_windows))
    is_kept = rank < n
    return order[is_kept], (window * n + rank)[is_kept]


def compute_descending_keys(scores: np.ndarray) -> np.ndarray:
    """Return int64 keys from 0 to 2**32 that sort fp32 scores in descending order.

    Read as integers, the bit patterns of positive floats sort like the floats. Those of negative floats sort
    in reverse.
    """
    patterns = scores.view(np.int32).astype(np.int64)
    return 2**31 - np.where(patterns < 0, -(patterns & 0x7FFFFFFF), patterns)


def _compute_sliding_max(values: np.ndarray, size: int) -> np.ndarray:
    """Return the maximum of each `size` consecutive values: [windows, n] from [windows, n + size - 1].

    The number of values in a maximum doubles at each step, so about log2(size) operations suffice.
    """
    width = 1  # number of values in a maximum
    while 2 * width <= size:
        values = np.maximum(values[:, :-width], values[:, width:])
        width *= 2
    rest = size - width
    return np.maximum(values[:, :-rest], values[:, rest:]) if rest else values


# ---- rolling hashes

BASE = 0x9E3779B97F4A7C15  # base of the rolling hash: an arbitrary large odd number
BASE_INVERSE = pow(BASE, -1, 2**64)
TEXTS_PER_BLOCK = 256  # number of texts hashed at a time, which limits the memory for arrays of characters


@dataclass(frozen=True)
class RollingHash:
    """Prefix hashes of texts at token boundaries (Karp and Rabin 1987).

    The hash of a prefix is the sum of c_i * BASE**i over its characters c_i, modulo 2**64.

    Attributes:
        start_hash: [tokens] hash of the prefix before each token.
        end_hash: [tokens] hash of the prefix that ends with each token.
        start_scale: [tokens] BASE**-i, where i is the index of each token's first character.
    """

    start_hash: np.ndarray
    end_hash: np.ndarray
    start_scale: np.ndarray

    def hash_spans(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the hashes of the texts from a first to a last token, independent of the texts' positions.

        The hashes of different texts are equal with a probability of about 2**-64. The hash for token
        indices out of range is arbitrary.
        """
        start_hash = self.start_hash.take(first, mode="clip")
        start_scale = self.start_scale.take(first, mode="clip")
        return (self.end_hash.take(last, mode="clip") - start_hash) * start_scale


def build_rolling_hash(texts: Sequence[str], tokenized: TokenizedTexts) -> RollingHash:
    """Compute the prefix hashes of texts at the boundaries of their tokens."""
    token_offsets, text_offsets = tokenized.ids.offsets, tokenized.text_offsets
    hashes = np.zeros((3, len(tokenized.start)), np.uint64)
    for first in range(0, len(texts), TEXTS_PER_BLOCK):
        block = texts[first : first + TEXTS_PER_BLOCK]
        characters = np.frombuffer("\0".join(block).encode("utf-32-le", "surrogatepass"), np.uint32)
        prefix_hash = np.zeros(len(characters) + 1, np.uint64)
        np.cumsum(characters * _compute_powers(BASE, len(characters)), out=prefix_hash[1:])
        bounds = token_offsets[first : first + len(block) + 1]
        tokens = slice(bounds[0], bounds[-1])
        # Added to an index into a text, the shift gives an index into the characters of the block.
        shift = np.repeat(text_offsets[first : first + len(block)] - text_offsets[first], np.diff(bounds))
        start, stop = tokenized.start[tokens] + shift, tokenized.stop[tokens] + shift
        scale = _compute_powers(BASE_INVERSE, len(characters) + 1)
        hashes[:, tokens] = prefix_hash[start], prefix_hash[stop], scale[start]
    return RollingHash(*hashes)


def _compute_powers(base: int, size: int) -> np.ndarray:
    """Return the powers base**0 ... base**(size - 1), modulo 2**64 [size]."""
    factors = np.full(size, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


# ---- features

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
    def row_index(self) -> np.ndarray:
        return self.question_index

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

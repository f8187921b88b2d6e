"""Examples of pre-training: sentences are packed into chunks, chunks become pairs or single texts.

The plan of an epoch is computed for all documents at once. Features read the tokens of its examples on
demand.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from bertkit.data.corpus.store import Corpus
from bertkit.data.features import Features
from bertkit.data.table import Rows
from bertkit.data.tokens import SequenceTemplate
from bertkit.errors import UserError

# The chunks of one span are filled one after the other, and all spans in parallel. To get enough spans, a
# long document is divided into several.
MAX_SPAN_SENTENCES = 1024

Spans = tuple[np.ndarray, np.ndarray]  # [n] starts, [n] stops


@dataclass(frozen=True)
class SelectedDocuments:
    """The `n` selected documents that have tokens.

    Attributes:
        sentence_offsets: `sentence_offsets` of the whole corpus.
        start: [n] int64 first sentence of each document.
        stop: [n] int64 sentence after the last one of each document.
        parent_ids: [n] index of the original document.
        cumulative_sentences: [n + 1] number of sentences in the preceding documents of the selection; at the
            end, in all of them.
    """

    sentence_offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    parent_ids: np.ndarray
    cumulative_sentences: np.ndarray

    @classmethod
    def from_corpus(cls, corpus: Corpus, document_ids: np.ndarray) -> "SelectedDocuments":
        """Select documents of a corpus by their sorted indices."""
        offsets = np.asarray(corpus.sentence_offsets)
        start = corpus.document_offsets[document_ids].astype(np.int64)
        stop = corpus.document_offsets[document_ids + 1].astype(np.int64)
        parent_ids = document_ids if corpus.parent_ids is None else corpus.parent_ids[document_ids]
        has_tokens = offsets[stop] > offsets[start]
        start, stop, parent_ids = start[has_tokens], stop[has_tokens], parent_ids[has_tokens]
        return cls(offsets, start, stop, parent_ids, np.concatenate([[0], np.cumsum(stop - start)]))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_single_document(self) -> bool:
        """Whether all selected documents are parts of one original document."""
        return len(self) > 0 and bool(self.parent_ids[0] == self.parent_ids[-1])

    def count_tokens(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the number of tokens in spans of sentences."""
        return self.find_token_starts(stop) - self.find_token_starts(start)

    def find_token_starts(self, sentence: np.ndarray) -> np.ndarray:
        """Return the index of the first token of each given sentence."""
        # int64, because the sum of uint64 and int64 is a float
        return self.sentence_offsets[sentence].astype(np.int64)

    def find_sentence_stops(self, start: np.ndarray, min_tokens: np.ndarray) -> np.ndarray:
        """Return the ends of the shortest spans of whole sentences with at least `min_tokens` tokens.

        Spans start at the sentences `start` and end at the end of the corpus at the latest.
        """
        stop = self._search_offsets(self.find_token_starts(start) + min_tokens, "left")
        return np.maximum(stop, start + 1)

    def find_token_stops(self, start: np.ndarray, max_tokens: np.ndarray) -> np.ndarray:
        """Return the ends of the longest spans with at most `max_tokens` tokens that end with a sentence.

        Spans start at the tokens `start`. If the first sentence is longer, the span ends within it.
        """
        stop = self.find_token_starts(self._search_offsets(start + max_tokens, "right") - 1)
        return np.where(stop > start, stop, start + max_tokens)

    def split_into_spans(self) -> Spans:
        """Divide each document into spans of similar sizes, of at most `MAX_SPAN_SENTENCES` sentences."""
        num_sentences = self.stop - self.start
        num_spans = -(-num_sentences // MAX_SPAN_SENTENCES)  # rounded up
        first_spans = np.cumsum(num_spans) - num_spans
        index = np.arange(num_spans.sum()) - np.repeat(first_spans, num_spans)  # index in the document
        start, size, count = (
            np.repeat(values, num_spans) for values in (self.start, num_sentences, num_spans)
        )
        return start + index * size // count, start + (index + 1) * size // count

    def _search_offsets(self, tokens: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """Search the sentence offsets for token indices."""
        # A search for values of another dtype would copy all offsets.
        values = np.minimum(tokens, int(self.sentence_offsets[-1])).astype(self.sentence_offsets.dtype)
        return np.searchsorted(self.sentence_offsets, values, side)


@dataclass(frozen=True)
class TargetLengths:
    """Distribution of the target lengths of chunks in tokens.

    A target length is `max_num_tokens`, or, with probability `short_seq_prob`, uniform between 2 and that.
    """

    max_num_tokens: int
    short_seq_prob: float

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return [count] target lengths."""
        is_short = rng.random(count) < self.short_seq_prob
        short = rng.integers(2, self.max_num_tokens, count, endpoint=True)
        return np.where(is_short, short, self.max_num_tokens)


def fill_chunks(
    spans: Spans,
    find_stops: Callable[[np.ndarray, np.ndarray], np.ndarray],
    targets: TargetLengths,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide spans into chunks. Each round takes the next chunk of every unfinished span.

    Args:
        find_stops: Returns the ends of chunks with the given starts and target lengths. A chunk ends with its
            span at the latest.

    Returns:
        Starts, stops and target lengths of the chunks, all in corpus order.
    """
    start, span_stop = spans
    rounds = [(start[:0], start[:0], start[:0])]
    while len(start):
        target = targets.sample(len(start), rng)
        stop = np.minimum(find_stops(start, target), span_stop)
        rounds.append((start, stop, target))
        is_unfinished = stop < span_stop
        start, span_stop = stop[is_unfinished], span_stop[is_unfinished]
    start, stop, target = (np.concatenate(values) for values in zip(*rounds, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], stop[order], target[order]


@dataclass(frozen=True)
class Segments:
    """The `n` consecutive spans of sentences from which pairs are built; they cover the selected documents.

    Attributes:
        start: [n] first sentence of each segment.
        stop: [n] sentence after the last one of each segment.
        target_length: [n] target length of a pair with this segment, in tokens.
        chunk_ids: [n] id of the chunk; both segments of a chunk have the same id.
        document_ids: [n] index of the document in the selection.
    """

    start: np.ndarray
    stop: np.ndarray
    target_length: np.ndarray
    chunk_ids: np.ndarray
    document_ids: np.ndarray


def split_into_segments(
    documents: SelectedDocuments, targets: TargetLengths, rng: np.random.Generator
) -> Segments:
    """Split each chunk at a random sentence into two segments; a chunk of one sentence is one segment."""
    start, stop, target = fill_chunks(
        documents.split_into_spans(), documents.find_sentence_stops, targets, rng
    )
    middle = start + rng.integers(1, np.maximum(stop - start, 2))
    starts, stops = np.stack([start, middle], 1).ravel(), np.stack([middle, stop], 1).ravel()
    non_empty = np.flatnonzero(documents.count_tokens(starts, stops))
    starts, chunk = starts[non_empty], non_empty // 2
    document = np.searchsorted(documents.start, starts, "right") - 1
    return Segments(starts, stops[non_empty], target[chunk], chunk, document)


IS_NEXT, NOT_NEXT = 0, 1  # as in transformers
MAX_SINGLE_SENTENCE_FRACTION = 0.1  # a note is printed if more of the documents have a single sentence


@dataclass(frozen=True)
class EpochPlan:
    """The `n` examples of an epoch, in corpus order.

    Attributes:
        a_start, b_start: [n] int64 index of the first token of each text in `Corpus.token_ids`.
        a_length, b_length: [n] int32 number of tokens. `b_length` is 0 without a second text.
        labels: [n] int8 `next_sentence_label` as in transformers. 0: B follows A (IsNext), or there is no B.
            1: B starts at a random sentence (NotNext), or A and B are swapped.
    """

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: np.ndarray) -> "EpochPlan":
        return EpochPlan(*(getattr(self, field.name)[index] for field in fields(self)))


# ---- objectives

# A function that plans the examples of an epoch.
Planner = Callable[[SelectedDocuments, TargetLengths, np.random.Generator], EpochPlan]


def plan_epoch(
    planner: Planner, corpus: Corpus, document_ids: np.ndarray, max_num_tokens: int, seed: int, epoch: int,
    short_seq_prob: float,
) -> EpochPlan:  # fmt: skip
    """Plan the examples of an epoch, which `seed` and `epoch` together determine.

    Args:
        planner: `build_nsp_pairs`, `build_sop_pairs` or `build_segments`.
        document_ids: Sorted indices of the documents to use.
        max_num_tokens: Maximum number of tokens of an example without special tokens; at least 2.
        short_seq_prob: Probability that a chunk has a random target length below `max_num_tokens`.
    """
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    return planner(
        documents, TargetLengths(max_num_tokens, short_seq_prob), np.random.default_rng([seed, epoch])
    )


def build_nsp_pairs(
    documents: SelectedDocuments, targets: TargetLengths, rng: np.random.Generator
) -> EpochPlan:
    """Plan pairs for next sentence prediction: half of the pairs, to within one, are IsNext.

    Documents are packed into chunks, and each chunk is split at a random sentence into two segments. The two
    segments form an IsNext pair, or each of them becomes the A of a NotNext pair. The B of a NotNext pair
    starts at a random sentence of another document. B fills the pair up to the target length of the chunk.
    Thus each sentence is used exactly once, apart from its uses in a random B. A pair of more than
    `max_num_tokens` tokens loses tokens at the start and the end of the longer text.

    Nothing follows the sentence of a single-sentence document. If there are many such documents, fewer than
    half of the pairs are IsNext. If all text is from one document, a random B starts elsewhere in it: neither
    in A nor in the continuation of A. If the document is too short for that, all pairs are IsNext.
    """
    segments = split_into_segments(documents, targets, rng)
    excluded = find_excluded_ranges(documents, segments)
    num_sentences = documents.cumulative_sentences[-1]
    if (excluded[:, 1] - excluded[:, 0] >= num_sentences).any():
        max_pairs = len(segments.start) // 2  # asking for that many pairs uses as many segments as possible
        return _pair_consecutive(documents, segments, targets.max_num_tokens, max_pairs, rng)
    # The B of an IsNext pair is the segment after its A. Every other segment is the A of a NotNext pair. Half
    # of the pairs are therefore IsNext if a third of the segments (rounded) are the A of an IsNext pair.
    num_positive = (len(segments.start) + 1) // 3
    candidates = np.flatnonzero(find_pairable_segments(segments, num_positive, rng))
    is_positive_a = np.zeros(len(segments.start), bool)
    is_positive_a[rng.choice(candidates, min(num_positive, len(candidates)), replace=False)] = True
    is_positive_b = np.roll(is_positive_a, 1)  # no pair begins with the last segment
    a_index = np.flatnonzero(~is_positive_b)
    is_negative = ~is_positive_a[a_index]
    b_start, b_stop = np.roll(segments.start, -1)[a_index], np.roll(segments.stop, -1)[a_index]
    negative_index = a_index[is_negative]
    a_tokens = documents.count_tokens(segments.start[negative_index], segments.stop[negative_index])
    b_tokens = segments.target_length[negative_index] - a_tokens
    b_start[is_negative], b_stop[is_negative] = sample_negative_spans(
        documents, excluded[negative_index], b_tokens, rng
    )
    a_spans = (segments.start[a_index], segments.stop[a_index])
    plan = _truncate_pairs(documents, a_spans, (b_start, b_stop), targets.max_num_tokens, rng)
    plan.labels[is_negative] = NOT_NEXT
    return plan[plan.b_length > 0]  # a random B is empty if only empty sentences follow in its document


def build_sop_pairs(
    documents: SelectedDocuments, targets: TargetLengths, rng: np.random.Generator
) -> EpochPlan:
    """Plan pairs for sentence order prediction (Lan et al. 2019); half of the pairs are swapped.

    The two segments of a chunk form a pair. Chunks are those of `build_nsp_pairs`. A chunk of one sentence
    has no second segment, so this sentence is not used. If this concerns more than a third of the segments,
    consecutive chunks of some documents are paired; see `find_pairable_segments`.
    """
    segments = split_into_segments(documents, targets, rng)
    min_pairs = len(segments.start) // 3  # pairs of two segments: at most a third of the segments is unused
    plan = _pair_consecutive(documents, segments, targets.max_num_tokens, min_pairs, rng)
    is_swapped = rng.permutation(np.arange(len(plan)) % 2 == 1)
    return EpochPlan(
        np.where(is_swapped, plan.b_start, plan.a_start), np.where(is_swapped, plan.b_length, plan.a_length),
        np.where(is_swapped, plan.a_start, plan.b_start), np.where(is_swapped, plan.a_length, plan.b_length),
        is_swapped.astype(np.int8),
    )  # fmt: skip


def build_segments(
    documents: SelectedDocuments, targets: TargetLengths, rng: np.random.Generator
) -> EpochPlan:
    """Plan examples of one text each: as many whole sentences of a document as fit into the target length.

    Each token is used exactly once. A sentence longer than the target length gives several examples.
    """
    span_start, span_stop = (documents.find_token_starts(bound) for bound in documents.split_into_spans())
    has_tokens = span_stop > span_start
    spans = (span_start[has_tokens], span_stop[has_tokens])
    start, stop, _ = fill_chunks(spans, documents.find_token_stops, targets, rng)
    zeros = np.zeros(len(start), np.int32)
    return EpochPlan(start, (stop - start).astype(np.int32), stop, zeros, zeros.astype(np.int8))


def resize_plan(plan: EpochPlan, n: int, rng: np.random.Generator) -> EpochPlan:
    """Drop or repeat random examples, so that exactly `n` remain; their corpus order is kept."""
    if len(plan) == n:
        return plan
    if not len(plan):
        raise ValueError("a plan without examples cannot be extended")
    repeats, num_extra = divmod(n, len(plan))
    order = rng.permutation(len(plan))
    order = order[np.argsort(plan.labels[order], kind="stable")]
    # The extra examples are evenly spaced in an order sorted by label, to keep the fraction of each label.
    extra_examples = order[np.arange(num_extra) * len(plan) // max(num_extra, 1)]
    repeats_by_example = np.full(len(plan), repeats)
    repeats_by_example[extra_examples] += 1
    return plan[np.repeat(np.arange(len(plan)), repeats_by_example)]


# ---- pairs


def _pair_consecutive(
    documents: SelectedDocuments,
    segments: Segments,
    max_num_tokens: int,
    min_pairs: int,
    rng: np.random.Generator,
) -> EpochPlan:
    """Pair segments with the segments that follow them; return at least `min_pairs` pairs if possible."""
    a_index = np.flatnonzero(find_pairable_segments(segments, min_pairs, rng))
    a_spans, b_spans = ((segments.start[index], segments.stop[index]) for index in (a_index, a_index + 1))
    return _truncate_pairs(documents, a_spans, b_spans, max_num_tokens, rng)


def _truncate_pairs(
    documents: SelectedDocuments, a: Spans, b: Spans, max_num_tokens: int, rng: np.random.Generator
) -> EpochPlan:
    """Return a plan of pairs, all labeled IsNext, truncated to `max_num_tokens` tokens.

    As in Google's code, a long pair loses tokens one by one from the longer text, at its start or its end
    with equal probability. As a result, the longer text gets the tokens that the shorter one leaves, or both
    texts get half.
    """
    a_tokens, b_tokens = documents.count_tokens(*a), documents.count_tokens(*b)
    a_length = np.minimum(a_tokens, np.maximum(max_num_tokens - b_tokens, (max_num_tokens + 1) // 2))
    b_length = np.minimum(b_tokens, max_num_tokens - a_length)
    a_start = documents.find_token_starts(a[0]) + rng.binomial(a_tokens - a_length, 0.5)
    b_start = documents.find_token_starts(b[0]) + rng.binomial(b_tokens - b_length, 0.5)
    return EpochPlan(
        a_start, a_length.astype(np.int32), b_start, b_length.astype(np.int32),
        np.full(len(a_start), IS_NEXT, np.int8),
    )  # fmt: skip


def find_pairable_segments(segments: Segments, min_pairs: int, rng: np.random.Generator) -> np.ndarray:
    """Return [segments] bool: whether a segment can be paired with the next one; no two pairs overlap.

    The two segments of a chunk can form a pair. Long sentences are chunks by themselves and have no second
    segment, so there may be fewer than `min_pairs` such pairs. In that case randomly chosen documents are
    paired differently, until there are enough pairs: segment 1 with 2, segment 3 with 4, and so on.
    """
    starts_chunk_pair = np.append(segments.chunk_ids[1:] == segments.chunk_ids[:-1], False)
    num_missing = min_pairs - starts_chunk_pair.sum()
    if num_missing <= 0:
        return starts_chunk_pair
    precedes_same_document = np.append(segments.document_ids[1:] == segments.document_ids[:-1], False)
    first_segments = np.searchsorted(segments.document_ids, segments.document_ids)  # of each document
    index_in_document = np.arange(len(first_segments)) - first_segments
    starts_consecutive_pair = precedes_same_document & (index_in_document % 2 == 0)
    num_documents = int(segments.document_ids[-1]) + 1
    gains = np.bincount(segments.document_ids[starts_consecutive_pair], minlength=num_documents)
    gains -= np.bincount(segments.document_ids[starts_chunk_pair], minlength=num_documents)
    order = rng.permutation(np.flatnonzero(gains))
    num_changed = 1 + np.searchsorted(np.cumsum(gains[order]), num_missing)
    is_changed = np.zeros(num_documents, bool)
    is_changed[order[:num_changed]] = True
    return np.where(is_changed[segments.document_ids], starts_consecutive_pair, starts_chunk_pair)


def find_excluded_ranges(documents: SelectedDocuments, segments: Segments) -> np.ndarray:
    """Return [segments, 2] ranges of sentences in which the random B of a segment may not start.

    Sentences are numbered consecutively over the selected documents. The range is the whole document of the
    segment. If there is only one document, the range is the segment with its continuation.
    """
    if not documents.is_single_document:
        parent_ids = documents.parent_ids[segments.document_ids]
        bounds = (np.searchsorted(documents.parent_ids, parent_ids, side) for side in ("left", "right"))
        return np.stack([documents.cumulative_sentences[bound] for bound in bounds], 1)
    num_tokens = documents.count_tokens(segments.start, segments.stop)
    b_tokens = np.maximum(1, segments.target_length - num_tokens)
    continuation_stop = documents.find_sentence_stops(segments.stop, b_tokens)
    sentences_before = []
    for sentence in (segments.start, continuation_stop):
        document = np.searchsorted(documents.start, sentence, "right") - 1
        num_in_document = np.minimum(sentence, documents.stop[document]) - documents.start[document]
        sentences_before.append(documents.cumulative_sentences[document] + num_in_document)
    return np.stack(sentences_before, 1)


def sample_negative_spans(
    documents: SelectedDocuments, excluded: np.ndarray, num_tokens: np.ndarray, rng: np.random.Generator
) -> Spans:
    """Return a random span of sentences for each excluded range.

    A span starts at any sentence outside of the range, with equal probability. It has at least `num_tokens`
    tokens, unless its document ends or the excluded range starts before that.

    Args:
        excluded: [n, 2] ranges from `find_excluded_ranges`.
        num_tokens: [n] number of tokens to reach.
    """
    excluded_start, excluded_stop = excluded.T
    num_excluded = excluded_stop - excluded_start
    sentence = rng.integers(0, documents.cumulative_sentences[-1] - num_excluded)
    is_after = sentence >= excluded_start
    sentence = np.where(is_after, sentence + num_excluded, sentence)
    document = np.searchsorted(documents.cumulative_sentences, sentence, "right") - 1
    # `shift` converts numbers over the selected documents to sentence indices of the whole corpus.
    shift = documents.start[document] - documents.cumulative_sentences[document]
    start, document_stop = sentence + shift, documents.stop[document]
    max_stop = np.where(is_after, document_stop, np.minimum(document_stop, excluded_start + shift))
    return start, np.minimum(documents.find_sentence_stops(start, np.maximum(1, num_tokens)), max_stop)


# ---- notes


def describe_pairs(corpus: Corpus, document_ids: np.ndarray, plan: EpochPlan | None = None) -> list[str]:
    """Return notes on limitations of the sentence pairs of these documents, and of a plan for NSP."""
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    num_single = int((documents.stop - documents.start == 1).sum())
    notes = []
    if documents.is_single_document:
        notes.append(
            "the text is one document: random second texts are taken from elsewhere in it; text that is "
            "separated into documents gives better pairs"
        )
    elif num_single > MAX_SINGLE_SENTENCE_FRACTION * len(documents):
        notes.append(
            f"{num_single:,} of {len(documents):,} documents ({num_single / len(documents):.0%}) have one "
            "sentence, which nothing follows: they are paired only with texts of other documents"
        )
    fraction = float((plan.labels == IS_NEXT).mean()) if plan is not None and len(plan) else 0.5
    if abs(fraction - 0.5) > 0.01:
        notes.append(f"{fraction:.1%} of the pairs are IsNext instead of half")
    return notes


# ---- features

PHASE_EPOCH_OFFSET = 2**32  # the epochs of phase p are numbered from p * PHASE_EPOCH_OFFSET, for unique keys
MIN_LENGTH = 8  # minimum sequence length of a phase, in tokens

ReduceLogits = Callable[[Any, dict[str, torch.Tensor], int], torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusFeatures(Features):
    """Examples that consist of spans of a corpus; each epoch has the same number `n` of examples.

    The key of an example is `epoch * n + index`. The key determines the example in every worker, rank and
    resumed run.

    Attributes:
        seed: Seed for the choice of examples that are dropped or repeated to obtain `n` examples.
        pair_notes: Notes on the sentence pairs, for the console.
        plan_cache: The plan of the most recent epoch, by epoch.
    """

    corpus: Corpus
    build_plan: Callable[[int], EpochPlan]
    template: SequenceTemplate
    seed: int
    reduce_example_logits: ReduceLogits
    pair_notes: list[str] = field(default_factory=list)
    plan_cache: dict[int, EpochPlan] = field(default_factory=dict)

    @classmethod
    def from_corpus(
        cls, corpus: Corpus, build_plan: Callable[[int], EpochPlan], template: SequenceTemplate, seed: int,
        reduce_example_logits: ReduceLogits,
    ) -> "CorpusFeatures":  # fmt: skip
        """Return features with as many examples in each epoch as in the first."""
        plan = build_plan(0)
        unk_fraction = corpus.counts.get("unknown", 0) / max(1, len(corpus.token_ids))
        max_length = int((plan.a_length + plan.b_length).max(initial=0)) + template.num_special_tokens
        return cls(
            sequence_offsets=np.arange(len(plan) + 1), labels=plan.labels, max_untruncated_length=max_length,
            unk_fraction=unk_fraction, corpus=corpus, build_plan=build_plan, template=template, seed=seed,
            reduce_example_logits=reduce_example_logits, plan_cache={0: plan},
        )  # fmt: skip

    def describe_issues(self, rows: Rows) -> list[str]:
        return self.pair_notes

    def get_plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch, which has `n` examples."""
        if epoch not in self.plan_cache:
            self.plan_cache.clear()
            rng = np.random.default_rng([self.seed, epoch, 1])
            self.plan_cache[epoch] = resize_plan(self.build_plan(epoch), len(self), rng)
        return self.plan_cache[epoch]

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self.template.fill(self._get_texts(number, self.corpus.token_ids))

    def _get_texts(self, number: int, values: np.ndarray) -> list[np.ndarray]:
        """Return the values of the tokens [tokens] of the one or two texts of an example."""
        epoch, index = divmod(number, len(self))
        plan = self.get_plan(epoch)
        texts = [values[plan.a_start[index] :][: plan.a_length[index]]]
        if plan.b_length[index]:
            texts.append(values[plan.b_start[index] :][: plan.b_length[index]])
        return texts

    @property
    def sequence_lengths(self) -> np.ndarray:
        return self.length_keys_for_epoch(0)

    def length_keys_for_epoch(self, epoch: int) -> np.ndarray:
        plan = self.get_plan(epoch)
        return plan.a_length + plan.b_length + self.template.num_special_tokens

    def example_keys_for_epoch(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        return epoch * len(self) + examples

    def count_words_for_epoch(self, epoch: int) -> np.ndarray:
        """Return the number of words of each example of an epoch, [n] float64."""
        plan = self.get_plan(epoch)
        a = self.corpus.measure(plan.a_start, plan.a_start + plan.a_length)
        b = self.corpus.measure(plan.b_start, plan.b_start + plan.b_length)
        words: np.ndarray = a[:, 0] + b[:, 0]
        return words

    def __getitem__(self, index: int) -> dict[str, Any]:
        input_ids, token_type_ids = self.get_sequence(index)
        epoch, index_in_epoch = divmod(index, len(self))
        label = self.get_plan(epoch).labels[index_in_epoch]
        item = {
            "input_ids": [input_ids], "token_type_ids": [token_type_ids], "key": index,
            "next_sentence_label": label,
        }  # fmt: skip
        if self.corpus.is_continuation is not None:
            item["is_continuation"] = self.template.mark(self._get_texts(index, self.corpus.is_continuation))
        return item

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the sums of each example, `[batch, columns]`; the objective defines the columns.

        They are `[batch, 6]` for MLM and NSP, see `reduce_pretraining_logits`, and `[batch, 9]` for rtd, see
        `reduce_replaced_token_logits`.
        """
        return self.reduce_example_logits(logits, batch, len(examples))


# ---- phases


@dataclass(frozen=True)
class Phase:
    """A phase of pre-training with one sequence length (Devlin et al. 2018, A.2)."""

    length: int  # maximum, in tokens
    fraction: float  # of the optimizer steps

    def __str__(self) -> str:
        return f"{self.length}:{self.fraction:g}"


def parse_phases(text: str) -> list[Phase]:
    """Parse phases such as `128:0.9,512:0.1`."""
    phases = []
    for part in text.split(","):
        length, _, fraction = part.partition(":")
        try:
            phase = Phase(int(length), float(fraction))
        except ValueError:
            phase = Phase(0, 0.0)  # gives the error below
        if not 0 < phase.fraction <= 1:
            raise UserError(
                f"--phases {text}: cannot parse {part.strip()!r}; write LENGTH:FRACTION, such as 512:0.1 "
                "(quote the value in a recipe)"
            )
        if phase.length < MIN_LENGTH:
            raise UserError(
                f"--phases {text}: length {phase.length} is too short; use a length of at least {MIN_LENGTH}"
            )
        phases.append(phase)
    total = math.fsum(phase.fraction for phase in phases)
    if abs(total - 1) > 1e-6:
        raise UserError(f"--phases {text}: the fractions sum to {total:g}; change them so that they sum to 1")
    return phases


@dataclass(frozen=True, kw_only=True, eq=False)
class PhasedFeatures(Features):
    """Training examples of a run in phases; all epochs of all phases have the same number of examples.

    In the first phase, an epoch is one pass over the text. In a later phase, longer sequences give fewer
    examples per pass, so an epoch takes several passes.
    """

    phases: list[Phase]
    phase_features: list[CorpusFeatures]

    @classmethod
    def from_phases(cls, phases: list[Phase], phase_features: list[CorpusFeatures]) -> "PhasedFeatures":
        """Combine the features of the phases, in each of which an epoch is still one pass over the text."""
        first, *others = phase_features
        extended = [first]
        for features in others:
            num_passes = -(-len(first) // len(features))  # rounded up
            build_plan = partial(_plan_passes, features.build_plan, num_passes)
            offsets = first.sequence_offsets
            extended.append(
                replace(features, sequence_offsets=offsets, labels=None, build_plan=build_plan, plan_cache={})
            )
        return cls(
            sequence_offsets=first.sequence_offsets, labels=first.labels, unk_fraction=first.unk_fraction,
            max_untruncated_length=max(features.max_untruncated_length for features in phase_features),
            phases=phases, phase_features=extended,
        )  # fmt: skip

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the example with this key, with its `phase`."""
        phase = self._phase_of(index)
        return self.phase_features[phase][index] | {"phase": phase}

    def _phase_of(self, key: int) -> int:
        return key // (PHASE_EPOCH_OFFSET * len(self))

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self.phase_features[self._phase_of(number)].get_sequence(number)

    @property
    def sequence_lengths(self) -> np.ndarray:
        return self.phase_features[0].sequence_lengths

    def batch_size_for(self, tokens: int) -> int:
        # All phases use the batch size of the phase with the longest sequences.
        return tokens // max(phase.length for phase in self.phases)

    def describe_issues(self, rows: Rows) -> list[str]:
        notes = self.phase_features[0].describe_issues(rows)
        if len(self.phases) == 1:
            return notes
        steps = ", ".join(f"{phase.fraction:.0%} at {phase.length} tokens" for phase in self.phases)
        if any(following.length <= phase.length for phase, following in pairwise(self.phases)):
            steps += " (usually each phase is longer than the previous one)"
        last = self.phases[-1].length
        return [f"steps: {steps}; validation and test use {last} tokens, previews the first phase", *notes]


def _plan_passes(build_plan: Callable[[int], EpochPlan], num_passes: int, epoch: int) -> EpochPlan:
    """Return the concatenated plans of all passes of an epoch."""
    plans = [build_plan(epoch * num_passes + index) for index in range(num_passes)]
    names = [field.name for field in fields(EpochPlan)]
    return EpochPlan(*(np.concatenate([getattr(plan, name) for plan in plans]) for name in names))


@dataclass(frozen=True)
class PhasedCollator:
    """Collator with one collator for each phase; all examples of a batch have the same phase.

    Examples of the evaluation have no phase.
    """

    phase_collators: Sequence[Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]]
    eval_collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        collate = self.phase_collators[items[0]["phase"]] if "phase" in items[0] else self.eval_collator
        return collate(items)

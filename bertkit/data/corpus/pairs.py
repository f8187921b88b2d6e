"""Plan the examples of a pre-training epoch: sentence pairs or single segments (Devlin et al. 2018, A.2)."""

from dataclasses import dataclass, fields

import numpy as np

from bertkit.data.corpus.segments import (
    CorpusLike,
    Segments,
    SelectedDocuments,
    Spans,
    TargetLengths,
    fill_chunks,
    split_into_segments,
)

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


def build_nsp_pairs(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
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

    Args:
        corpus: See `bertkit.data.corpus.store.Corpus`.
        document_ids: Sorted indices of the documents to use.
        max_num_tokens: Maximum number of tokens of a pair without special tokens; at least 2.
        seed: Seed; `seed` and `epoch` together determine the plan.
        epoch: Index of the epoch.
        short_seq_prob: Probability that a chunk has a random target length below `max_num_tokens`.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    segments = split_into_segments(documents, TargetLengths(max_num_tokens, short_seq_prob), rng)
    excluded = find_excluded_ranges(documents, segments)
    num_sentences = documents.cumulative_sentences[-1]
    if (excluded[:, 1] - excluded[:, 0] >= num_sentences).any():
        max_pairs = len(segments.start) // 2  # asking for that many pairs uses as many segments as possible
        return _pair_consecutive(documents, segments, max_num_tokens, max_pairs, rng)
    is_positive_a = sample_positive_segments(segments, rng)
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
    plan = _truncate_pairs(documents, a_spans, (b_start, b_stop), max_num_tokens, rng)
    plan.labels[is_negative] = NOT_NEXT
    return plan[plan.b_length > 0]  # a random B is empty if only empty sentences follow in its document


def build_sop_pairs(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
) -> EpochPlan:
    """Plan pairs for sentence order prediction (Lan et al. 2019); half of the pairs are swapped.

    The two segments of a chunk form a pair. Chunks and arguments are those of `build_nsp_pairs`. A chunk of
    one sentence has no second segment, so this sentence is not used. If this concerns more than a third of
    the segments, consecutive chunks of some documents are paired; see `find_pairable_segments`.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    segments = split_into_segments(documents, TargetLengths(max_num_tokens, short_seq_prob), rng)
    min_pairs = len(segments.start) // 3  # pairs of two segments: at most a third of the segments is unused
    plan = _pair_consecutive(documents, segments, max_num_tokens, min_pairs, rng)
    is_swapped = rng.permutation(np.arange(len(plan)) % 2 == 1)
    return EpochPlan(
        np.where(is_swapped, plan.b_start, plan.a_start), np.where(is_swapped, plan.b_length, plan.a_length),
        np.where(is_swapped, plan.a_start, plan.b_start), np.where(is_swapped, plan.a_length, plan.b_length),
        is_swapped.astype(np.int8),
    )  # fmt: skip


def build_segments(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
) -> EpochPlan:
    """Plan examples of one text each: as many whole sentences of a document as fit into the target length.

    Each token is used exactly once. A sentence longer than the target length gives several examples. The
    arguments are those of `build_nsp_pairs`.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    span_start, span_stop = (documents.find_token_starts(bound) for bound in documents.split_into_spans())
    has_tokens = span_stop > span_start
    targets = TargetLengths(max_num_tokens, short_seq_prob)
    spans = (span_start[has_tokens], span_stop[has_tokens])
    start, stop, _ = fill_chunks(spans, documents.find_token_stops, targets, rng)
    zeros = np.zeros(len(start), np.int32)
    return EpochPlan(start, (stop - start).astype(np.int32), stop, zeros, zeros.astype(np.int8))


def resize_plan(plan: EpochPlan, n: int, rng: np.random.Generator) -> EpochPlan:
    """Drop or repeat random examples, so that exactly `n` remain; their corpus order is kept.

    Raises:
        ValueError: The plan is empty, but `n` is not 0.
    """
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


def sample_positive_segments(segments: Segments, rng: np.random.Generator) -> np.ndarray:
    """Return [segments] bool: whether a segment is the A of an IsNext pair, whose B is the next segment.

    Every other segment, unless it is such a B, is the A of a NotNext pair. Half of the pairs are therefore
    IsNext if a third of the segments are the A of an IsNext pair.
    """
    num_pairs = (len(segments.start) + 1) // 3  # a third, rounded
    candidates = np.flatnonzero(find_pairable_segments(segments, num_pairs, rng))
    is_positive_a = np.zeros(len(segments.start), bool)
    is_positive_a[rng.choice(candidates, min(num_pairs, len(candidates)), replace=False)] = True
    return is_positive_a


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
    bounds = (documents.count_sentences_before(index) for index in (segments.start, continuation_stop))
    return np.stack(list(bounds), 1)


def sample_negative_spans(
    documents: SelectedDocuments, excluded: np.ndarray, num_tokens: np.ndarray, rng: np.random.Generator
) -> Spans:
    """Return a random span of sentences for each excluded range.

    A span starts at any sentence outside of the range, with equal probability. It has at least `num_tokens`
    tokens, unless its document ends or the excluded range starts before that.

    Args:
        documents: The documents to sample from.
        excluded: [n, 2] ranges from `find_excluded_ranges`.
        num_tokens: [n] number of tokens to reach.
        rng: Source of randomness.
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


def describe_pairs(corpus: CorpusLike, document_ids: np.ndarray, plan: EpochPlan | None = None) -> list[str]:
    """Return notes on limitations of the sentence pairs that these documents allow.

    Args:
        corpus: See `bertkit.data.corpus.store.Corpus`.
        document_ids: Sorted indices of the documents.
        plan: Result of `build_nsp_pairs`. If less or more than half of its pairs are IsNext, a note is added.
    """
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

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
MAX_SINGLE_SENTENCE_FRACTION = 0.1  # with more documents of one sentence, a note is printed


@dataclass(frozen=True)
class EpochPlan:
    """The `n` examples of an epoch, in corpus order.

    Attributes:
        a_start, b_start: [n] int64 first token of each text in `Corpus.token_ids`.
        a_length, b_length: [n] int32 number of tokens; `b_length` is 0 without a second text.
        labels: [n] int8 `next_sentence_label` as in transformers. 0: B follows A (IsNext). 1: B is from
            another document (NotNext), or A and B are swapped.
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
    """Plan pairs for next sentence prediction; half of them, up to one example, are IsNext.

    Documents are packed into chunks, and each chunk is split at a random sentence. Either its two segments
    form a pair (IsNext), or each segment becomes an A (NotNext). The B of such a pair starts at a random
    sentence of another document. It fills the pair up to the target length of the chunk. Thus each
    sentence is used exactly once, apart from its uses in a random B. In pairs that are too long, the longer
    text loses tokens at its ends.

    Fewer pairs are IsNext only if documents have a single sentence, which nothing follows. If all text is
    from one document, a random B comes from elsewhere in it, never from A or its continuation. If the
    document is too short for that, all pairs are IsNext.

    Args:
        corpus: See `bertkit.data.corpus.store.Corpus`.
        document_ids: Sorted indices of the documents to use.
        max_num_tokens: Maximum number of tokens of a pair without special tokens; at least 2.
        seed: With `epoch`, determines the plan.
        epoch: Number of the epoch.
        short_seq_prob: Probability that the target length of a chunk is a random shorter one.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    segments = split_into_segments(documents, TargetLengths(max_num_tokens, short_seq_prob), rng)
    excluded = find_excluded_ranges(documents, segments)
    if (excluded[:, 1] - excluded[:, 0] >= documents.cumulative_sentences[-1]).any():
        return _pair_consecutive(documents, segments, max_num_tokens, len(segments.start) // 2, rng)
    is_first = sample_positive_pairs(segments, rng)
    a = np.flatnonzero(~np.append(False, is_first)[: len(is_first)])
    is_random = ~is_first[a]
    b_start, b_stop = np.roll(segments.start, -1)[a], np.roll(segments.stop, -1)[a]
    lone = a[is_random]
    lone_tokens = documents.count_tokens(segments.start[lone], segments.stop[lone])
    room = segments.target_length[lone] - lone_tokens
    b_start[is_random], b_stop[is_random] = sample_negative(documents, excluded[lone], room, rng)
    a_spans = (segments.start[a], segments.stop[a])
    plan = _truncate_pairs(documents, a_spans, (b_start, b_stop), max_num_tokens, rng)
    plan.labels[is_random] = NOT_NEXT
    return plan[plan.b_length > 0]  # the document of B may end with empty sentences


def build_sop_pairs(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
) -> EpochPlan:
    """Plan pairs for sentence order prediction (Lan et al. 2019): B follows A, or, in half of them, A B.

    Chunks and arguments are those of `build_nsp_pairs`. A chunk of one sentence gives no example, unless
    there are many of them; then such a chunk is paired with the next one.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    segments = split_into_segments(documents, TargetLengths(max_num_tokens, short_seq_prob), rng)
    plan = _pair_consecutive(documents, segments, max_num_tokens, len(segments.start) // 3, rng)
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
    """Plan single texts: as many whole sentences of a document as fit; each token is used exactly once.

    A sentence longer than `max_num_tokens` gives several examples. Arguments are those of `build_nsp_pairs`.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    start, end = (documents.find_token_starts(bound) for bound in documents.split_into_spans())
    has_tokens = end > start
    targets = TargetLengths(max_num_tokens, short_seq_prob)
    spans = (start[has_tokens], end[has_tokens])
    start, stop, _ = fill_chunks(spans, documents.find_stop_fitting, targets, rng)
    zeros = np.zeros(len(start), np.int32)
    return EpochPlan(start, (stop - start).astype(np.int32), stop, zeros, zeros.astype(np.int8))


def resize_plan(plan: EpochPlan, n: int, rng: np.random.Generator) -> EpochPlan:
    """Return exactly `n` examples in corpus order, by dropping or repeating random ones.

    Raises:
        ValueError: The plan is empty, but `n` is not 0.
    """
    if len(plan) == n:
        return plan
    if not len(plan):
        raise ValueError("a plan without examples cannot be extended")
    repeats, rest = divmod(n, len(plan))
    order = rng.permutation(len(plan))
    order = order[np.argsort(plan.labels[order], kind="stable")]
    times = np.full(len(plan), repeats)
    times[order[np.arange(rest) * len(plan) // max(rest, 1)]] += 1  # evenly, to keep the fraction of labels
    return plan[np.repeat(np.arange(len(plan)), times)]


# ---- pairs


def _pair_consecutive(
    documents: SelectedDocuments, segments: Segments, capacity: int, count: int, rng: np.random.Generator
) -> EpochPlan:
    """Pair segments with the next ones; see `find_positive_pairs` for `count`."""
    a = np.flatnonzero(find_positive_pairs(segments, count, rng))
    a_spans, b_spans = ((segments.start[index], segments.stop[index]) for index in (a, a + 1))
    return _truncate_pairs(documents, a_spans, b_spans, capacity, rng)


def _truncate_pairs(
    documents: SelectedDocuments, a: Spans, b: Spans, capacity: int, rng: np.random.Generator
) -> EpochPlan:
    """Return a plan of pairs, all labeled IsNext, truncated to `capacity` tokens.

    As in Google's code, a long pair loses tokens one by one from the longer text, at its start or its end
    with equal probability. So the longer text gets what the shorter one leaves, or both get half.
    """
    a_tokens, b_tokens = documents.count_tokens(*a), documents.count_tokens(*b)
    a_length = np.minimum(a_tokens, np.maximum(capacity - b_tokens, (capacity + 1) // 2))
    b_length = np.minimum(b_tokens, capacity - a_length)
    a_start = documents.find_token_starts(a[0]) + rng.binomial(a_tokens - a_length, 0.5)
    b_start = documents.find_token_starts(b[0]) + rng.binomial(b_tokens - b_length, 0.5)
    return EpochPlan(
        a_start, a_length.astype(np.int32), b_start, b_length.astype(np.int32),
        np.full(len(a_start), IS_NEXT, np.int8),
    )  # fmt: skip


def sample_positive_pairs(segments: Segments, rng: np.random.Generator) -> np.ndarray:
    """Return [segments] bool: whether a segment is an A whose B is the next segment.

    A segment outside of these pairs is an A with a random B. So if a third of the segments are such an A,
    half of the pairs are IsNext.
    """
    count = (len(segments.start) + 1) // 3
    candidates = np.flatnonzero(find_positive_pairs(segments, count, rng))
    is_first = np.zeros(len(segments.start), bool)
    is_first[rng.choice(candidates, min(count, len(candidates)), replace=False)] = True
    return is_first


def find_positive_pairs(segments: Segments, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return [segments] bool: whether a segment can be paired with the next; at least `count` if possible.

    The two segments of a chunk form a pair. If these are too few, because long sentences are chunks by
    themselves, consecutive segments are paired in as many randomly chosen documents as needed.
    """
    in_chunk = np.append(segments.chunk_ids[1:] == segments.chunk_ids[:-1], False)
    missing = count - in_chunk.sum()
    if missing <= 0:
        return in_chunk
    same_document = np.append(segments.document_ids[1:] == segments.document_ids[:-1], False)
    document_starts = np.searchsorted(segments.document_ids, segments.document_ids)
    is_even = (np.arange(len(document_starts)) - document_starts) % 2 == 0
    consecutive = same_document & is_even
    num_documents = int(segments.document_ids[-1]) + 1
    gain = np.bincount(segments.document_ids[consecutive], minlength=num_documents)
    gain -= np.bincount(segments.document_ids[in_chunk], minlength=num_documents)
    order = rng.permutation(np.flatnonzero(gain))
    is_changed = np.zeros(num_documents, bool)
    is_changed[order[: 1 + np.searchsorted(np.cumsum(gain[order]), missing)]] = True
    return np.where(is_changed[segments.document_ids], consecutive, in_chunk)


def find_excluded_ranges(documents: SelectedDocuments, segments: Segments) -> np.ndarray:
    """Return [segments, 2] ranges of sentences in which a random B of the segment may not start.

    Sentences are counted over the selected documents. The range is the whole document of the segment. If
    there is only one document, it is the segment and its continuation.
    """
    if not documents.is_single_document:
        own = documents.parent_ids[segments.document_ids]
        bounds = (np.searchsorted(documents.parent_ids, own, side) for side in ("left", "right"))
        return np.stack([documents.cumulative_sentences[bound] for bound in bounds], 1)
    num_tokens = documents.count_tokens(segments.start, segments.stop)
    room = np.maximum(1, segments.target_length - num_tokens)
    stop = documents.find_stop_reaching(segments.stop, room)
    bounds = (documents.count_sentences_before(sentence) for sentence in (segments.start, stop))
    return np.stack(list(bounds), 1)


def sample_negative(
    documents: SelectedDocuments, excluded: np.ndarray, num_tokens: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and stops of random sentences outside of the excluded ranges.

    All sentences outside of the range are equally likely to be the first. A span has about `num_tokens`
    tokens and stops at the latest where its document ends or the excluded range starts.
    """
    begin, end = excluded.T
    first = rng.integers(0, documents.cumulative_sentences[-1] - (end - begin))
    is_after = first >= begin
    first = np.where(is_after, first + end - begin, first)
    document = np.searchsorted(documents.cumulative_sentences, first, "right") - 1
    shift = documents.start[document] - documents.cumulative_sentences[document]
    last = documents.stop[document]
    last = np.where(is_after, last, np.minimum(last, begin + shift))
    first = first + shift
    return first, np.minimum(documents.find_stop_reaching(first, np.maximum(1, num_tokens)), last)


# ---- notes


def describe_pairs(corpus: CorpusLike, document_ids: np.ndarray, plan: EpochPlan | None = None) -> list[str]:
    """Return notes on pairs from these documents, one per line.

    Args:
        corpus: See `bertkit.data.corpus.store.Corpus`.
        document_ids: Sorted indices of the documents.
        plan: Plan of `build_nsp_pairs`; adds a note if its fraction of IsNext is not one half.
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

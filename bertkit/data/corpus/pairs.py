"""Which stretches of a corpus make the examples of an epoch of pre-training (Devlin et al. 2018, A.2)."""

from dataclasses import dataclass, fields

import numpy as np

from bertkit.data.corpus.continuations import (
    excluded_range,
    positive_pairs,
    sample_negative,
    sample_positive_pairs,
)
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
MAX_SINGLE_SENTENCE_FRACTION = 0.1  # of the documents have one sentence: worth a word


@dataclass(frozen=True)
class EpochPlan:
    """The `n` examples of an epoch, in the order of the corpus.

    Attributes:
        a_start, b_start: [n] int64 the first piece of each text in `corpus.pieces`.
        a_length, b_length: [n] int32 their pieces; b_length is 0 where there is no second text.
        label: [n] int8 `next_sentence_label` in transformers' order: 0 = B follows A (IsNext), 1 = B is
            from another document (NotNext), or A and B are swapped.
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


def build_nsp_pairs(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
) -> EpochPlan:
    """Pairs of texts for next sentence prediction, half of them IsNext, within one example.

    Each document is filled into chunks, and each chunk is split at a random sentence. Either its parts
    are a pair (IsNext), or each is an A with a B from a random sentence of the other documents on
    (NotNext), which fills the pair up to the chunk's target. So each sentence is used exactly once beside
    its uses as a random B. Of pairs that are too long, the longer text loses pieces at its ends.

    Fewer are IsNext only where documents have one sentence, which nothing follows. Where one document is
    chosen, a random B is from elsewhere in it, never from A or its continuation; where it is too short for
    that, all pairs are IsNext.

    Args:
        corpus: see `bertkit.data.corpus.store.Corpus`.
        chosen: sorted numbers of documents.
        capacity: the most pieces of a pair, special ones not counted; at least 2.
        seed, epoch: alone decide what is drawn.
        short_seq_prob: how often a chunk's target is a random length instead.
    """
    rng, documents, made = _start(
        corpus, document_ids, TargetLengths(max_num_tokens, short_seq_prob), [seed, epoch]
    )
    around = excluded_range(documents, made)
    if (around[:, 1] - around[:, 0] >= documents.cumulative_sentences[-1]).any():
        return _in_order(documents, made, max_num_tokens, len(made.start) // 2, rng)
    lead = sample_positive_pairs(made, rng)
    a = np.flatnonzero(~np.append(False, lead)[: len(lead)])
    alone = ~lead[a]
    other = a[alone]
    begin, stop = np.roll(made.start, -1)[a], np.roll(made.stop, -1)[a]
    room = made.target_length[other] - documents.count_tokens(made.start[other], made.stop[other])
    begin[alone], stop[alone] = sample_negative(documents, around[other], room, rng)
    plan = _cut(documents, (made.start[a], made.stop[a]), (begin, stop), max_num_tokens, rng)
    plan.labels[alone] = NOT_NEXT
    return plan[plan.b_length > 0]  # empty sentences at the end of a document


def build_sop_pairs(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
) -> EpochPlan:
    """Pairs for sentence order prediction (Lan et al. 2019): B follows A, or in half of them A B.

    Chunks as for `pairs`, whose arguments these are. A chunk of one sentence makes no example, unless many
    are such; then it goes with the next.
    """
    rng, documents, made = _start(
        corpus, document_ids, TargetLengths(max_num_tokens, short_seq_prob), [seed, epoch]
    )
    plan = _in_order(documents, made, max_num_tokens, len(made.start) // 3, rng)
    swapped = rng.permutation(np.arange(len(plan)) % 2 == 1)
    a, b = (plan.a_start, plan.a_length), (plan.b_start, plan.b_length)
    (a_start, a_length), (b_start, b_length) = (
        [np.where(swapped, theirs, own) for own, theirs in zip(*sides, strict=True)]
        for sides in ((a, b), (b, a))
    )
    return EpochPlan(a_start, a_length, b_start, b_length, swapped.astype(np.int8))


def build_segments(
    corpus: CorpusLike,
    document_ids: np.ndarray,
    max_num_tokens: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
) -> EpochPlan:
    """Single texts: whole sentences of a document, as many as fit; all pieces are used exactly once.

    A sentence longer than `capacity` makes several examples. The arguments are those of `pairs`.
    """
    rng = np.random.default_rng([seed, epoch])
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    begin, end = (documents.find_token_starts(each) for each in documents.split_into_spans())
    full = end > begin
    targets = TargetLengths(max_num_tokens, short_seq_prob)
    start, stop, _ = fill_chunks((begin[full], end[full]), documents.find_stop_fitting, targets, rng)
    none = np.zeros(len(start), np.int32)
    return EpochPlan(start, (stop - start).astype(np.int32), stop, none, none.astype(np.int8))


def resize_plan(plan: EpochPlan, n: int, rng: np.random.Generator) -> EpochPlan:
    """Exactly `n` examples, still in order: without random ones, or with random ones once more.

    Raises:
        ValueError: examples of a plan without any.
    """
    if len(plan) == n:
        return plan
    if not len(plan):
        raise ValueError("a plan without examples cannot be made longer")
    often, rest = divmod(n, len(plan))
    order = rng.permutation(len(plan))
    order = order[np.argsort(plan.labels[order], kind="stable")]
    times = np.full(len(plan), often)
    times[order[np.arange(rest) * len(plan) // max(rest, 1)]] += 1  # evenly: labels keep their shares
    return plan[np.repeat(np.arange(len(plan)), times)]


def describe_pairs(corpus: CorpusLike, document_ids: np.ndarray, plan: EpochPlan | None = None) -> list[str]:
    """What the user should be told of pairs from these documents, one line each.

    Args:
        plan: what `pairs` made; then also how far it is from half.
    """
    documents = SelectedDocuments.from_corpus(corpus, document_ids)
    single = int((documents.stop - documents.start == 1).sum())
    lines = []
    if documents.is_single_document:
        lines.append(
            "the text is one document: a second text that does not follow is taken from elsewhere in it; "
            "documents that are told apart make better pairs"
        )
    elif single > MAX_SINGLE_SENTENCE_FRACTION * len(documents):
        lines.append(
            f"{single:,} of {len(documents):,} documents ({single / len(documents):.0%}) have one sentence, "
            "so nothing follows it: they are only paired with texts of other documents"
        )
    if plan is not None and len(plan) and abs(share := (plan.labels == IS_NEXT).mean() - 0.5) > 0.01:
        lines.append(f"{share + 0.5:.1%} of the pairs are IsNext, not half")
    return lines


def _start(
    corpus: CorpusLike, chosen: np.ndarray, targets: TargetLengths, seed: list[int]
) -> tuple[np.random.Generator, SelectedDocuments, Segments]:
    rng = np.random.default_rng(seed)
    documents = SelectedDocuments.from_corpus(corpus, chosen)
    return rng, documents, split_into_segments(documents, targets, rng)


def _in_order(
    documents: SelectedDocuments, made: Segments, capacity: int, count: int, rng: np.random.Generator
) -> EpochPlan:
    """Parts and their continuations, as many as chunks have, or `count` if possible."""
    a = np.flatnonzero(positive_pairs(made, count, rng))
    a_, b = ((made.start[part], made.stop[part]) for part in (a, a + 1))
    return _cut(documents, a_, b, capacity, rng)


def _cut(
    documents: SelectedDocuments, a: Spans, b: Spans, capacity: int, rng: np.random.Generator
) -> EpochPlan:
    """As IsNext. A pair too long loses single pieces of whichever text is longer, in front or behind.

    Hence the longer text is cut down to what the shorter leaves, or both to half of the capacity.
    """
    a_pieces, b_pieces = documents.count_tokens(*a), documents.count_tokens(*b)
    a_length = np.minimum(a_pieces, np.maximum(capacity - b_pieces, (capacity + 1) // 2))
    b_length = np.minimum(b_pieces, capacity - a_length)
    a_start = documents.find_token_starts(a[0]) + rng.binomial(a_pieces - a_length, 0.5)
    b_start = documents.find_token_starts(b[0]) + rng.binomial(b_pieces - b_length, 0.5)
    return EpochPlan(
        a_start, a_length.astype(np.int32), b_start, b_length.astype(np.int32),
        np.full(len(a_start), IS_NEXT, np.int8),
    )  # fmt: skip

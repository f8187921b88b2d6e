"""Vectors of tokens from their co-occurrence in a text: PPMI, factorized by a truncated SVD.

Positive pointwise mutual information (PPMI) says how much more often two tokens occur near each other than if
they were independent. Its factorization gives vectors like those of word2vec (Levy and Goldberg 2014), in
seconds instead of an hour of masked language modeling.
"""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertkit.data.corpus.store import Corpus
from bertkit.errors import UserError
from bertkit.utils.cache import get_or_create
from bertkit.utils.ragged import concat_ranges, slide_windows

if TYPE_CHECKING:
    from scipy import sparse

CACHE_VERSION = 1  # must be increased if a code change leads to other vectors
VECTORS_FILE = "vectors.npy"
WINDOW = 64  # tokens; of 8 to 256 tokens, this length had the best linear probe on film reviews
MAX_TOKENS = 10_000_000  # of a longer text, evenly spaced documents are read
BLOCK_TOKENS = 1 << 20  # tokens that are counted at once


def load_token_vectors(
    corpus: Corpus, documents: np.ndarray, vocab_size: int, size: int, seed: int
) -> np.ndarray:
    """Return the result of `compute_token_vectors`, from the cache if it was computed before."""
    digest = blake2b(repr((CACHE_VERSION, WINDOW, vocab_size, size, seed)).encode(), digest_size=16)
    for starts, stops in _iter_window_blocks(corpus, documents):
        digest.update((stops - starts).tobytes())
        digest.update(corpus.token_ids[concat_ranges(starts, stops)].tobytes())
    vectors: np.ndarray | None = None

    def write(folder: Path) -> None:
        nonlocal vectors
        vectors = compute_token_vectors(corpus, documents, vocab_size, size, seed)
        np.save(folder / VECTORS_FILE, vectors)

    folder = get_or_create("token-vectors", digest.hexdigest(), write)
    if vectors is not None:
        return vectors
    if folder is None:
        return compute_token_vectors(corpus, documents, vocab_size, size, seed)
    cached: np.ndarray = np.load(folder / VECTORS_FILE)
    return cached


def compute_token_vectors(
    corpus: Corpus, documents: np.ndarray, vocab_size: int, size: int, seed: int
) -> np.ndarray:
    """Return a vector of each token, `[vocab_size, size]`; zeros for a token without neighbors.

    The vectors are the right singular vectors of the PPMI matrix, each multiplied by the square root of its
    singular value (Levy et al. 2015, 3.3).

    Args:
        corpus: The tokenized text.
        documents: Indices of the documents that are read.
        vocab_size: Size of the vocabulary.
        size: Size of the vectors; at most `vocab_size`.
        seed: Seed of the randomized SVD.

    Raises:
        UserError: No token has a neighbor other than itself.
    """
    from sklearn.decomposition import TruncatedSVD

    counts = count_cooccurrences(corpus, documents, vocab_size)
    if not counts.nnz:
        raise UserError(
            "--embedding-init ppmi: each text repeats one token; add text, or pass --embedding-init random"
        )
    ppmi = compute_ppmi(counts)
    svd = TruncatedSVD(size, random_state=seed).fit(ppmi)
    vectors = (svd.components_.T * np.sqrt(svd.singular_values_)).astype(np.float32)
    vectors[np.diff(ppmi.indptr) == 0] = 0  # rounding errors of the SVD
    return vectors


def count_cooccurrences(corpus: Corpus, documents: np.ndarray, vocab_size: int) -> "sparse.csr_matrix":
    """Return the number of windows that contain two tokens, `[vocab_size, vocab_size]`.

    Windows do not overlap, and do not cross the boundaries of documents. The diagonal is zero.
    """
    from scipy import sparse

    counts = sparse.csr_matrix((vocab_size, vocab_size), dtype=np.float32)
    for starts, stops in _iter_window_blocks(corpus, documents):
        token_ids = corpus.token_ids[concat_ranges(starts, stops)].astype(np.int32)
        offsets = np.append(0, np.cumsum(stops - starts))
        shape = (len(starts), vocab_size)
        windows = sparse.csr_matrix((np.ones(len(token_ids), np.float32), token_ids, offsets), shape=shape)
        windows.sum_duplicates()
        windows.data[:] = 1  # repetitions in a window do not count
        counts = counts + windows.T @ windows
    pairs = counts.tocoo()
    differ = pairs.row != pairs.col
    return sparse.csr_matrix((pairs.data[differ], (pairs.row[differ], pairs.col[differ])), shape=counts.shape)


def compute_ppmi(counts: "sparse.csr_matrix") -> "sparse.csr_matrix":
    """Return max(0, log(p(x, y) / (p(x) p(y)))) of symmetric counts `[vocab_size, vocab_size]`."""
    from scipy import sparse

    pairs, totals = counts.tocoo(), np.asarray(counts.sum(1), np.float64).ravel()
    rows, columns = pairs.row, pairs.col
    pmi = np.log(pairs.data * totals.sum() / (totals[rows] * totals[columns]))
    is_positive = pmi > 0
    values = pmi[is_positive].astype(np.float32)
    return sparse.csr_matrix((values, (rows[is_positive], columns[is_positive])), shape=counts.shape)


def _iter_window_blocks(corpus: Corpus, documents: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the starts and stops of windows in blocks of about `BLOCK_TOKENS` tokens."""
    token_offsets = corpus.sentence_offsets[corpus.document_offsets].astype(np.int64)
    sizes = token_offsets[documents + 1] - token_offsets[documents]
    step = -(-int(sizes.sum()) // MAX_TOKENS)  # rounded up
    documents = documents[:: max(1, step)]
    _, starts, stops = slide_windows(
        token_offsets[documents], token_offsets[documents + 1], WINDOW, WINDOW, align_last=False
    )
    num_blocks = max(1, len(starts) * WINDOW // BLOCK_TOKENS)
    yield from zip(np.array_split(starts, num_blocks), np.array_split(stops, num_blocks), strict=True)

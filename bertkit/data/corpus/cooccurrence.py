"""Vectors of tokens from their co-occurrence in a text: PPMI, factorized by a truncated SVD.

Positive pointwise mutual information (PPMI) compares how often two tokens co-occur with the frequency that is
expected if they are independent. Its factorization gives vectors like those of word2vec (Levy and Goldberg
2014).
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
WINDOW = 64  # tokens; had the best linear probe on SST-2's dev set among windows of 8 to 256 tokens
MAX_TOKENS = 10_000_000  # if the text is longer, evenly spaced windows are used
BLOCK_TOKENS = 1 << 20  # tokens that are counted at once


def load_token_vectors(
    corpus: Corpus, documents: np.ndarray, vocab_size: int, size: int, seed: int
) -> np.ndarray:
    """Return the result of `compute_token_vectors`, from the cache if it was computed before.

    The arguments and errors are those of `compute_token_vectors`.
    """
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
    """Return a vector for each token, `[vocab_size, size]`; zeros for tokens without neighbors.

    The vectors are the right singular vectors of the PPMI matrix, each multiplied by the square root of its
    singular value (Levy et al. 2015, 3.3).

    Args:
        corpus: The tokenized text.
        documents: [n] indices of the documents that are read.
        vocab_size: Size of the vocabulary.
        size: Size of the vectors; at most `vocab_size`.
        seed: Seed of the randomized SVD.

    Raises:
        UserError: No window has two different tokens.
    """
    from sklearn.decomposition import TruncatedSVD

    counts = count_cooccurrences(corpus, documents, vocab_size)
    if not counts.nnz:
        raise UserError(
            "--embedding-init ppmi: no document has two different tokens; add text, or pass --embedding-init "
            "random"
        )
    ppmi = compute_ppmi(counts)
    svd = TruncatedSVD(size, random_state=seed).fit(ppmi)
    vectors = (svd.components_.T * np.sqrt(svd.singular_values_)).astype(np.float32)
    vectors[np.diff(ppmi.indptr) == 0] = 0  # the SVD leaves rounding errors there
    return vectors


def count_cooccurrences(corpus: Corpus, documents: np.ndarray, vocab_size: int) -> "sparse.csr_matrix":
    """Return, for each pair of tokens, the number of windows that contain both: `[vocab_size, vocab_size]`.

    Windows do not overlap, and do not cross the boundaries of documents.

    Args:
        corpus: The tokenized text.
        documents: [n] indices of the documents that are read.
        vocab_size: Size of the vocabulary.
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
    return _remove_entries(counts, _get_rows(counts) == counts.indices)  # a token is not its own neighbor


def compute_ppmi(counts: "sparse.csr_matrix") -> "sparse.csr_matrix":
    """Return max(0, log(p(x, y) / (p(x) p(y)))) of symmetric counts `[vocab_size, vocab_size]`."""
    pmi, totals = counts.copy(), np.asarray(counts.sum(1, dtype=np.float64)).ravel()
    log_totals = np.log(np.maximum(totals, 1)).astype(np.float32)  # a token without neighbors has no entries
    np.log(pmi.data, out=pmi.data)
    pmi.data += np.float32(np.log(max(1.0, totals.sum())))
    pmi.data -= log_totals[_get_rows(pmi)]
    pmi.data -= log_totals[pmi.indices]
    return _remove_entries(pmi, pmi.data <= 0)


def _get_rows(matrix: "sparse.csr_matrix") -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))


def _remove_entries(matrix: "sparse.csr_matrix", is_removed: np.ndarray) -> "sparse.csr_matrix":
    matrix.data[is_removed] = 0
    matrix.eliminate_zeros()
    return matrix


def _iter_window_blocks(corpus: Corpus, documents: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the starts and stops of windows in blocks of about `BLOCK_TOKENS` tokens."""
    token_offsets = corpus.sentence_offsets[corpus.document_offsets].astype(np.int64)
    _, starts, stops = slide_windows(
        token_offsets[documents], token_offsets[documents + 1], WINDOW, WINDOW, align_last=False
    )
    max_windows = max(1, MAX_TOKENS // WINDOW)
    if len(starts) > max_windows:
        selected = np.linspace(0, len(starts) - 1, max_windows).astype(np.int64)
        starts, stops = starts[selected], stops[selected]
    num_blocks = max(1, len(starts) * WINDOW // BLOCK_TOKENS)
    yield from zip(np.array_split(starts, num_blocks), np.array_split(stops, num_blocks), strict=True)

"""Corpora: text that is tokenized once, in memory-mapped files of the cache; token vectors of a corpus."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.corpus.documents import TextOptions, iter_documents
from bertkit.data.readers.text_files import FileNotes, InputFile, describe_files, digest_path, hash_json
from bertkit.data.tokens import (
    MAX_BATCH_CHARS,
    MAX_BATCH_TEXTS,
    flatten_encodings,
    get_token_dtype,
    tokenize_batches,
)
from bertkit.errors import UserError, format_list
from bertkit.settings.run_settings import WordUnits
from bertkit.utils.arrays import (
    RaggedWriter,
    concat_ranges,
    iter_batches,
    map_array,
    map_ragged_files,
    slide_windows,
)
from bertkit.utils.cache import cache_or_write, get_or_create
from bertkit.utils.reporting import report_info

if TYPE_CHECKING:
    from scipy import sparse


CACHE_VERSION = 6  # to be increased when the code gives a different corpus for the same files
DOCUMENTS_FILE, CONTINUATIONS_FILE, INFO_FILE = "documents.bin", "continuations.bin", "corpus.json"


@dataclass(frozen=True)
class Corpus:
    """Tokenized text, split into sentences and documents; memory-mapped.

    Attributes:
        token_ids: [tokens] uint16 (uint32 if the vocabulary exceeds 65,536), without special tokens.
        sentence_offsets: [n + 1] index of the first token of each sentence; at the end, the number of tokens.
            The dtype is uint32, or uint64 from 2**32 tokens on.
        document_offsets: [m + 1] index of the first sentence of each document; at the end, the number of
            sentences. It has the same dtype.
        parent_ids: [m] index of the original document if the documents are parts of others; else None.
        is_continuation: [tokens] bool, whether a token continues the morpheme of the previous token; None if
            the corpus was not split into morphemes.
        counts: Number of tokens, sentences, documents, [UNK] tokens ("unknown") and characters.
        notes: Notes for the console on how the files were read and what was left out.
    """

    token_ids: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    parent_ids: np.ndarray | None = field(default=None, kw_only=True)
    is_continuation: np.ndarray | None = field(default=None, kw_only=True)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_corpus(
    files: Sequence[InputFile],
    options: TextOptions,
    tokenizer: Any,
    word_units: WordUnits = "words",
) -> Corpus:
    """Return the tokenized corpus of these files; load it from the cache if possible.

    If the cache is not writable, the corpus is kept in a temporary directory until the process ends.
    """

    def write(folder: Path) -> None:
        report_info(f"tokenizing {describe_files(files)}")
        notes = FileNotes()
        documents = iter_documents(files, options, notes)
        write_corpus(documents, tokenizer, folder, notes, format_list(files), word_units)

    parts = [CACHE_VERSION, asdict(options), tokenizer.backend_tokenizer.to_str(), digest_files(files)]
    if word_units == "morphemes":
        from bertkit.data.wordpiece import get_analyzer_version

        parts.append(get_analyzer_version())
    key = hash_json(parts)
    return open_corpus(cache_or_write("corpus", key, write, "the tokenized text"))


def digest_files(files: Sequence[InputFile]) -> list[tuple[str, str]]:
    """Return the name and a digest of each file; the digests of remote files come from their metadata."""
    return [(file.name, digest_path(file) if isinstance(file, Path) else file.digest) for file in files]


# ---- tokenization


@dataclass(frozen=True)
class EncodedSentences:
    """A batch of `n` tokenized sentences.

    Attributes:
        input_ids: [tokens] token ids of all sentences, concatenated.
        lengths: [n] number of tokens of each sentence, at least 1.
        document_index: [n] index of the document of each sentence.
        is_continuation: [tokens] see `Corpus`; None if sentences are not split into morphemes.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    document_index: np.ndarray
    num_unk: int
    num_chars: int
    is_continuation: np.ndarray | None = None


def encode_documents(
    documents: Iterable[Iterable[str]], tokenizer: Any, dtype: np.dtype, word_units: WordUnits = "words"
) -> Iterator[EncodedSentences]:
    """Tokenize the sentences of all documents in batches; sentences without tokens are left out.

    Text that looks like a special token, such as "[SEP]", is tokenized as text.
    """
    unk_id, backend = tokenizer.unk_token_id, tokenizer.backend_tokenizer
    pairs = ((sentence, index) for index, document in enumerate(documents) for sentence in document)
    batches = (
        ([sentence for sentence, _ in batch], [index for _, index in batch])
        for batch in iter_batches(pairs, MAX_BATCH_CHARS, MAX_BATCH_TEXTS, lambda pair: len(pair[0]))
    )
    has_morphemes, previous = word_units == "morphemes", backend.encode_special_tokens
    backend.encode_special_tokens = True  # text such as "[SEP]" does not become a special token
    try:
        for sentences, document_index, encodings in tokenize_batches(batches, tokenizer, has_morphemes):
            batch = flatten_encodings(encodings, dtype, has_morphemes)
            is_continuation = None
            if has_morphemes:
                from bertkit.data.wordpiece import find_continuations

                is_continuation = find_continuations(sentences, batch.spans, batch.lengths)
            yield EncodedSentences(
                batch.input_ids,
                batch.lengths[batch.lengths > 0],
                np.array(document_index, np.int64)[batch.lengths > 0],
                num_unk=0 if unk_id is None else int(np.count_nonzero(batch.input_ids == unk_id)),
                num_chars=sum(map(len, sentences)),
                is_continuation=is_continuation,
            )
    finally:
        backend.encode_special_tokens = previous


# ---- files


def write_corpus(
    documents: Iterable[Iterable[str]],
    tokenizer: Any,
    folder: Path,
    notes: FileNotes | None = None,
    description: str = "the documents",
    word_units: WordUnits = "words",
) -> Corpus:
    """Tokenize documents and write the corpus; sentences and documents without tokens are left out.

    Args:
        folder: An empty directory.
        notes: Notes to store with the corpus; they are complete only after the last document is read.
        word_units: With "morphemes", also store which tokens continue a morpheme.
    """
    dtype = get_token_dtype(tokenizer)
    with CorpusWriter(folder, dtype) as writer:
        for batch in encode_documents(documents, tokenizer, dtype, word_units):
            writer.add(batch)
    if not writer.counts["tokens"]:
        raise UserError(
            f"{description}: no text: the tokenizer gives no tokens, only control characters were found; "
            "pass other files"
        )
    info = {"counts": writer.counts, "notes": notes.format_lines() if notes else []}
    (folder / INFO_FILE).write_text(json.dumps(info), "utf-8")
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """Memory-map a corpus that `write_corpus` has written to this directory."""
    info = json.loads((folder / INFO_FILE).read_text("utf-8"))
    token_ids, sentences = map_ragged_files(folder)
    documents = map_array(folder / DOCUMENTS_FILE, sentences.dtype)
    path = folder / CONTINUATIONS_FILE
    is_continuation = map_array(path, np.dtype(bool)) if path.exists() else None
    return Corpus(token_ids, sentences, documents, is_continuation=is_continuation, **info)


class CorpusWriter:
    """Writer that appends batches of tokens, with the offsets of sentences and documents.

    `counts` are `Corpus.counts` of the batches written so far.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.counts = dict.fromkeys(("tokens", "sentences", "documents", "unknown", "characters"), 0)
        self._folder, self._sentences = folder, RaggedWriter(folder, dtype)
        self._document_starts: list[np.ndarray] = []
        self._last_document = -1

    def __enter__(self) -> "CorpusWriter":
        self._sentences.__enter__()
        return self

    def __exit__(self, error_type: object, *error: object) -> None:
        self._sentences.__exit__(error_type, *error)
        if error_type is None:
            offsets = np.concatenate([*self._document_starts, [self.counts["sentences"]]])
            offsets.astype(self._sentences.offset_dtype).tofile(self._folder / DOCUMENTS_FILE)

    def add(self, batch: EncodedSentences) -> None:
        starts = np.flatnonzero(np.diff(batch.document_index, prepend=self._last_document))
        self._sentences.add(batch.input_ids, batch.lengths)
        self._document_starts.append(self.counts["sentences"] + starts)
        if batch.is_continuation is not None:
            with (self._folder / CONTINUATIONS_FILE).open("ab") as file:
                file.write(batch.is_continuation.tobytes())
        if len(batch.document_index):
            self._last_document = batch.document_index[-1]
        # in the order of `counts`
        new_counts = (len(batch.input_ids), len(batch.lengths), len(starts), batch.num_unk, batch.num_chars)
        for name, count in zip(self.counts, new_counts, strict=True):
            self.counts[name] += count


# ---- token vectors

VECTORS_VERSION = 1  # must be increased if a code change leads to other vectors
VECTORS_FILE = "vectors.npy"
WINDOW = 64  # tokens; had the best linear probe on SST-2's dev set among windows of 8 to 256 tokens
MAX_TOKENS = 10_000_000  # if the text is longer, evenly spaced windows are used
BLOCK_TOKENS = 1 << 20  # tokens that are counted at once


def load_token_vectors(
    corpus: Corpus, documents: np.ndarray, vocab_size: int, size: int, seed: int
) -> np.ndarray:
    """Return the result of `compute_token_vectors`, from the cache if it was computed before."""
    digest = blake2b(repr((VECTORS_VERSION, WINDOW, vocab_size, size, seed)).encode(), digest_size=16)
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
        documents: [n] indices of the documents that are read.
        size: Size of the vectors; at most `vocab_size`.
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

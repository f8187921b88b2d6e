"""Corpora: text that is tokenized once, in memory-mapped files of the cache; token vectors of a corpus."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.corpus.documents import TextOptions, iter_documents
from bertkit.data.readers.text_files import FileNotes, InputFile, describe_files, digest_path, hash_json
from bertkit.data.tokens import (
    MAX_BATCH_CHARS,
    MAX_BATCH_TEXTS,
    EncodedBatch,
    flatten_encodings,
    get_token_dtype,
    tokenize_batches,
)
from bertkit.data.wordpiece import find_continuations, get_analyzer_version
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
from bertkit.utils.cache import cache_or_write
from bertkit.utils.reporting import report_info

CACHE_VERSION = 9  # to be increased when the code gives a different corpus for the same files
DOCUMENTS_FILE, CONTINUATIONS_FILE, INFO_FILE = "documents.bin", "continuations.bin", "corpus.json"
SIZES_FILE = "sizes.bin"
DIGESTS_FILE = "digests.bin"
DIGEST_BYTES = 8


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
        digests: [m, 8] uint8 digest of the tokens of each document; None if documents are parts of others.
        is_continuation: [tokens] bool, whether a token continues the morpheme of the previous token; None if
            the corpus was not split into morphemes.
        sizes: [d + 1, 3] int64 number of tokens, of words (which white space separates) and of bytes in UTF-8
            before each document of the files; at the end, of all. None for a corpus without text.
        counts: Number of tokens, sentences, documents, [UNK] tokens ("unknown") and characters.
        notes: Notes for the console on how the files were read and what was left out.
    """

    token_ids: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    parent_ids: np.ndarray | None = field(default=None, kw_only=True)
    digests: np.ndarray | None = field(default=None, kw_only=True)
    is_continuation: np.ndarray | None = field(default=None, kw_only=True)
    sizes: np.ndarray | None = field(default=None, kw_only=True)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def measure(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Return the number of words and of bytes of spans of tokens, [spans, 2] float64.

        Those of a part of a document are in proportion to its number of tokens.
        """
        assert self.sizes is not None
        tokens, *totals = self.sizes.T
        return np.stack([np.interp(stops, tokens, x) - np.interp(starts, tokens, x) for x in totals], -1)

    def count_tokens_per_byte(self, documents: np.ndarray) -> float:
        """Return the tokens of documents per byte of their text."""
        token_offsets = self.sentence_offsets[self.document_offsets].astype(np.int64)
        starts, stops = token_offsets[documents], token_offsets[documents + 1]
        return float((stops - starts).sum() / self.measure(starts, stops)[:, 1].sum())

    def list_digests(self) -> list[str]:
        """Return the digest of each document in hexadecimal digits."""
        digests = self.digests if self.digests is not None else self.compute_digests()
        text, width = digests.tobytes().hex(), 2 * DIGEST_BYTES
        return [text[start : start + width] for start in range(0, len(text), width)]

    def compute_digests(self) -> np.ndarray:
        """Return the digests of all documents, from their tokens."""
        offsets = self.sentence_offsets[self.document_offsets]
        content = bytearray()
        for start, stop in pairwise(offsets):
            content += blake2b(self.token_ids[start:stop].tobytes(), digest_size=DIGEST_BYTES).digest()
        return np.frombuffer(content, np.uint8).reshape(-1, DIGEST_BYTES)


def load_corpus(
    files: Sequence[InputFile], options: TextOptions, tokenizer: Any, word_units: WordUnits = "words"
) -> Corpus:
    """Return the tokenized corpus of these files; load it from the cache if possible."""

    def write(folder: Path) -> None:
        report_info(f"tokenizing {describe_files(files)}")
        notes = FileNotes()
        documents = iter_documents(files, options, notes)
        write_corpus(documents, tokenizer, folder, notes, format_list(files), word_units)

    parts = [CACHE_VERSION, asdict(options), tokenizer.backend_tokenizer.to_str(), digest_files(files)]
    if word_units == "morphemes":
        parts.append(get_analyzer_version())
    key = hash_json(parts)
    return open_corpus(cache_or_write("corpus", key, write, "the tokenized text"))


def digest_files(files: Sequence[InputFile]) -> list[tuple[str, str]]:
    """Return the name and a digest of each file; the digests of remote files come from their metadata."""
    return [(file.name, digest_path(file) if isinstance(file, Path) else file.digest) for file in files]


# ---- tokenization


def _encode_documents(
    documents: Iterable[Iterable[str]], tokenizer: Any, dtype: np.dtype, has_morphemes: bool
) -> Iterator[tuple[list[str], np.ndarray, EncodedBatch]]:
    """Tokenize the sentences of all documents in batches.

    Text that looks like a special token, such as "[SEP]", is tokenized as text.

    Yields:
        The sentences, [n] index of the document of each sentence, and the tokens. Their spans are computed if
        `has_morphemes`.
    """
    pairs = ((sentence, index) for index, document in enumerate(documents) for sentence in document)
    batches = (
        ([sentence for sentence, _ in batch], np.array([index for _, index in batch], np.int64))
        for batch in iter_batches(pairs, MAX_BATCH_CHARS, MAX_BATCH_TEXTS, lambda pair: len(pair[0]))
    )
    backend = tokenizer.backend_tokenizer
    previous, backend.encode_special_tokens = backend.encode_special_tokens, True
    try:
        for sentences, document_index, encodings in tokenize_batches(batches, tokenizer, has_morphemes):
            yield sentences, document_index, flatten_encodings(encodings, dtype, has_morphemes)
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

    `notes` are stored with the corpus; they are complete only after the last document is read.
    """
    dtype, has_morphemes = get_token_dtype(tokenizer), word_units == "morphemes"
    counts = dict.fromkeys(("tokens", "sentences", "documents", "unknown", "characters"), 0)
    document_starts: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    totals = np.zeros(3, np.int64)
    last_document = -1
    with RaggedWriter(folder, dtype) as writer, ExitStack() as stack:
        if has_morphemes:
            continuations_file = stack.enter_context((folder / CONTINUATIONS_FILE).open("wb"))
        for texts, text_document, batch in _encode_documents(documents, tokenizer, dtype, has_morphemes):
            has_tokens = batch.lengths > 0
            document = text_document[has_tokens]
            starts = np.flatnonzero(np.diff(document, prepend=last_document))
            document_starts.append(counts["sentences"] + starts)
            last_document = document[-1] if len(document) else last_document
            writer.add(batch.input_ids, batch.lengths[has_tokens])
            if has_morphemes:
                continuations_file.write(find_continuations(texts, batch.spans, batch.lengths).tobytes())
            text_sizes = [(len(text.split()), len(text.encode("utf-8", "replace"))) for text in texts]
            measures = np.column_stack([batch.lengths, np.array(text_sizes, np.int64).reshape(-1, 2)])
            before = np.cumsum([totals, *measures[has_tokens]], axis=0)
            sizes.append(before[:-1][starts])
            totals = before[-1]
            counts["tokens"] += len(batch.input_ids)
            counts["sentences"] += len(document)
            counts["documents"] += len(starts)
            counts["unknown"] += int(np.count_nonzero(batch.input_ids == tokenizer.unk_token_id))
            counts["characters"] += sum(map(len, texts))
    offsets = np.concatenate([*document_starts, [counts["sentences"]]])
    offsets.astype(writer.offset_dtype).tofile(folder / DOCUMENTS_FILE)
    np.concatenate([*sizes, [totals]]).astype(np.int64).tofile(folder / SIZES_FILE)
    if not counts["tokens"]:
        raise UserError(
            f"{description}: no text: the tokenizer gives no tokens, only control characters were found; "
            "pass other files"
        )
    info = {"counts": counts, "notes": notes.format_lines() if notes else []}
    (folder / INFO_FILE).write_text(json.dumps(info), "utf-8")
    # so that later runs, and the other ranks, do not read all tokens
    open_corpus(folder).compute_digests().tofile(folder / DIGESTS_FILE)
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """Memory-map a corpus that `write_corpus` has written to this directory."""
    info = json.loads((folder / INFO_FILE).read_text("utf-8"))
    token_ids, sentences = map_ragged_files(folder)
    documents = map_array(folder / DOCUMENTS_FILE, sentences.dtype)
    path = folder / CONTINUATIONS_FILE
    is_continuation = map_array(path, np.dtype(bool)) if path.exists() else None
    sizes = map_array(folder / SIZES_FILE, np.dtype(np.int64)).reshape(-1, 3)
    path = folder / DIGESTS_FILE
    digests = map_array(path, np.dtype(np.uint8)).reshape(-1, DIGEST_BYTES) if path.exists() else None
    return Corpus(
        token_ids, sentences, documents, digests=digests, is_continuation=is_continuation, sizes=sizes, **info
    )


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

    def write(folder: Path) -> None:
        np.save(folder / VECTORS_FILE, compute_token_vectors(corpus, documents, vocab_size, size, seed))

    folder = cache_or_write("token-vectors", digest.hexdigest(), write, "the token vectors")
    vectors: np.ndarray = np.load(folder / VECTORS_FILE)
    return vectors


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


def count_cooccurrences(corpus: Corpus, documents: np.ndarray, vocab_size: int) -> Any:
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


def compute_ppmi(counts: Any) -> Any:
    """Return max(0, log(p(x, y) / (p(x) p(y)))) of symmetric counts `[vocab_size, vocab_size]`."""
    pmi, totals = counts.copy(), np.asarray(counts.sum(1, dtype=np.float64)).ravel()
    log_totals = np.log(np.maximum(totals, 1)).astype(np.float32)  # a token without neighbors has no entries
    np.log(pmi.data, out=pmi.data)
    pmi.data += np.float32(np.log(max(1.0, totals.sum())))
    pmi.data -= log_totals[_get_rows(pmi)]
    pmi.data -= log_totals[pmi.indices]
    return _remove_entries(pmi, pmi.data <= 0)


def _get_rows(matrix: Any) -> np.ndarray:
    """Return the row of each entry."""
    return np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))


def _remove_entries(matrix: Any, is_removed: np.ndarray) -> Any:
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

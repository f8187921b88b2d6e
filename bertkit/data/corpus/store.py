"""Tokenize a corpus once, and cache the tokens in files that are memory-mapped.

Three threads run in parallel: one reads, one tokenizes, and one writes. The tokenizer releases the global
interpreter lock, so it can use all other cores.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from bertkit.data.corpus.documents import TextOptions, iter_documents
from bertkit.data.readers.contents import CHUNK_BYTES
from bertkit.data.readers.text_files import FileNotes, InputFile, describe_files
from bertkit.errors import UserError, format_list
from bertkit.utils.cache import get_or_create
from bertkit.utils.files import create_process_directory
from bertkit.utils.reporting import Reporter

T = TypeVar("T")
CACHE_VERSION = 5  # to be increased when the code gives a different corpus for the same files
TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE = ("token_ids.bin", "sentences.bin", "documents.bin")
FILE_NAMES = (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE)
INFO_FILE = "corpus.json"
# A batch for the tokenizer is complete when it reaches either limit.
MAX_BATCH_SENTENCES = 4096
MAX_BATCH_CHARS = 400_000
SentenceBatch = tuple[list[str], list[int]]  # sentences, and the index of the document of each


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
        counts: Number of tokens, sentences, documents, [UNK] tokens ("unknown") and characters.
        notes: Notes for the console on how the files were read and what was left out.
    """

    token_ids: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    parent_ids: np.ndarray | None = field(default=None, kw_only=True)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_corpus(
    files: Sequence[InputFile], options: TextOptions, tokenizer: Any, reporter: Reporter
) -> Corpus:
    """Return the tokenized corpus of these files; load it from the cache if possible.

    If the cache is not writable, the corpus is kept in a temporary directory until the process ends.

    Raises:
        UserError: A file cannot be read or is not text, there is no text, or the disk is full.
    """

    def write(folder: Path) -> None:
        reporter.info(f"tokenizing {describe_files(files)}")
        notes = FileNotes()
        write_corpus(iter_documents(files, options, notes), tokenizer, folder, notes, format_list(files))

    key = hash_json([
        CACHE_VERSION, asdict(options), tokenizer.backend_tokenizer.to_str(), digest_files(files)
    ])  # fmt: skip
    folder = get_or_create("corpus", key, write)
    return open_corpus(folder or _write_temporary(write))


def _write_temporary(write: Callable[[Path], None]) -> Path:
    folder = create_process_directory()
    try:
        write(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the tokenized text ({error.strerror}); set BERTKIT_CACHE_DIR to a "
            "directory with free space"
        ) from error
    return folder


# ---- cache keys


def hash_json(value: Any) -> str:
    """Return a digest of a value that can be written as JSON."""
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def digest_files(files: Sequence[InputFile]) -> list[tuple[str, str]]:
    """Return the name and a digest of each file; the digests of remote files come from their metadata.

    Raises:
        UserError: A file cannot be read.
    """
    return [(file.name, _digest_path(file) if isinstance(file, Path) else file.digest) for file in files]


def _digest_path(path: Path) -> str:
    try:
        status = path.stat()
        return _digest_content(path.resolve(), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from error


@cache
def _digest_content(path: Path, *size_and_mtime: int) -> str:  # noqa: ARG001 (they invalidate the cache)
    """Return a digest of the bytes of a file. A process reads a file only once, unless the file changes."""
    content = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            content.update(chunk)
    return content.hexdigest()


# ---- tokenization


@dataclass(frozen=True)
class EncodedBatch:
    """A batch of `n` tokenized sentences.

    Attributes:
        input_ids: [tokens] token ids of all sentences, concatenated.
        lengths: [n] number of tokens of each sentence, at least 1.
        document_index: [n] index of the document of each sentence.
        num_unk: Number of [UNK] tokens.
        num_chars: Number of characters in the sentences.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    document_index: np.ndarray
    num_unk: int
    num_chars: int


def encode_documents(
    documents: Iterable[Iterable[str]], tokenizer: Any, dtype: np.dtype
) -> Iterator[EncodedBatch]:
    """Tokenize the sentences of all documents in batches; sentences without tokens are left out.

    Text that looks like a special token, such as "[SEP]", is tokenized as text.
    """
    unk_id = tokenizer.unk_token_id
    batches = prefetch(_encode_batches(documents, tokenizer.backend_tokenizer))
    for (sentences, document_index), encodings in batches:
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        all_ids = chain.from_iterable(encoding.ids for encoding in encodings)
        input_ids = np.fromiter(all_ids, dtype, lengths.sum())
        index = np.array(document_index, np.int64)[lengths > 0]
        num_unk = 0 if unk_id is None else int(np.count_nonzero(input_ids == unk_id))
        yield EncodedBatch(input_ids, lengths[lengths > 0], index, num_unk, sum(map(len, sentences)))


def _encode_batches(
    documents: Iterable[Iterable[str]], backend: Any
) -> Iterator[tuple[SentenceBatch, list[Any]]]:
    previous = backend.encode_special_tokens
    backend.encode_special_tokens = True  # text such as "[SEP]" does not become a special token
    try:
        for batch in prefetch(_batch_sentences(documents)):
            yield batch, backend.encode_batch_fast(batch[0], add_special_tokens=False)
    finally:
        backend.encode_special_tokens = previous


def _batch_sentences(documents: Iterable[Iterable[str]]) -> Iterator[SentenceBatch]:
    sentences: list[str] = []
    document_index: list[int] = []
    size = 0
    for index, document in enumerate(documents):
        for sentence in document:
            sentences.append(sentence)
            document_index.append(index)
            size += len(sentence)
            if size >= MAX_BATCH_CHARS or len(sentences) == MAX_BATCH_SENTENCES:
                yield sentences, document_index
                sentences, document_index, size = [], [], 0
    if sentences:
        yield sentences, document_index


def prefetch(items: Iterable[T], count: int = 2) -> Iterator[T]:
    """Yield the items in order while a thread computes up to `count` further items.

    Errors of the thread are raised here.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(next, source, end) for _ in range(count))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, source, end))
            yield item  # type: ignore[misc]


# ---- files


def write_corpus(
    documents: Iterable[Iterable[str]],
    tokenizer: Any,
    folder: Path,
    notes: FileNotes | None = None,
    description: str = "the documents",
) -> Corpus:
    """Tokenize documents and write the corpus; sentences and documents without tokens are left out.

    Args:
        documents: Sentences of each document.
        tokenizer: A fast tokenizer, as returned by `load_tokenizer`.
        folder: An empty directory.
        notes: Notes to store with the corpus; they are complete only after the last document is read.
        description: Name of the documents in the error.

    Raises:
        UserError: The documents contain no tokens.
    """
    largest_id = max(tokenizer.get_vocab().values())
    dtype = np.dtype(np.uint16 if largest_id < 1 << 16 else np.uint32)
    with CorpusWriter(folder, dtype) as writer:
        for batch in encode_documents(documents, tokenizer, dtype):
            writer.add(batch)
    if not writer.counts["tokens"]:
        raise UserError(
            f"{description}: no text: the tokenizer gives no tokens, only control characters were found; "
            "pass other files"
        )
    info = {"dtypes": writer.dtypes, "counts": writer.counts, "notes": notes.format_lines() if notes else []}
    (folder / INFO_FILE).write_text(json.dumps(info), "utf-8")
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """Memory-map a corpus that `write_corpus` has written to this directory."""
    info = json.loads((folder / INFO_FILE).read_text("utf-8"))
    token_ids, sentences, documents = (
        np.memmap(folder / name, np.dtype(dtype), "r") for name, dtype in info["dtypes"].items()
    )
    return Corpus(token_ids, sentences, documents, info["counts"], info["notes"])


class CorpusWriter:
    """Writer that appends batches of tokens, with the offsets of sentences and documents.

    Args:
        folder: Directory of the files.
        dtype: Dtype of the token ids.

    Attributes:
        counts: `Corpus.counts` of the batches written so far.
        dtypes: Dtype of each file. The offsets are uint64 at first. On exit they are converted to uint32 if
            there are fewer than 2**32 tokens.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder = folder
        self.counts = dict.fromkeys(("tokens", "sentences", "documents", "unknown", "characters"), 0)
        self.dtypes = dict.fromkeys(FILE_NAMES, "uint64") | {TOKENS_FILE: dtype.name}
        self._last_document = -1
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> "CorpusWriter":
        self._files = {name: (self.folder / name).open("wb") for name in FILE_NAMES}
        return self

    def __exit__(self, error_type: object, *error: object) -> None:
        if error_type is None:
            self._write_offsets(SENTENCES_FILE, np.array([self.counts["tokens"]]))
            self._write_offsets(DOCUMENTS_FILE, np.array([self.counts["sentences"]]))
        for file in self._files.values():
            file.close()
        if error_type is None and self.counts["tokens"] < 1 << 32:
            self._shrink_offsets()

    def add(self, batch: EncodedBatch) -> None:
        """Append the sentences of a batch."""
        starts = np.flatnonzero(np.diff(batch.document_index, prepend=self._last_document))
        self._files[TOKENS_FILE].write(batch.input_ids.data)
        self._write_offsets(SENTENCES_FILE, self.counts["tokens"] + np.cumsum(batch.lengths) - batch.lengths)
        self._write_offsets(DOCUMENTS_FILE, self.counts["sentences"] + starts)
        if len(batch.document_index):
            self._last_document = batch.document_index[-1]
        # in the order of `counts`
        new_counts = (len(batch.input_ids), len(batch.lengths), len(starts), batch.num_unk, batch.num_chars)
        for name, count in zip(self.counts, new_counts, strict=True):
            self.counts[name] += count

    def _write_offsets(self, name: str, offsets: np.ndarray) -> None:
        self._files[name].write(offsets.astype(np.uint64).data)

    def _shrink_offsets(self) -> None:
        for name in (SENTENCES_FILE, DOCUMENTS_FILE):
            np.memmap(self.folder / name, np.uint64, "r").astype(np.uint32).tofile(self.folder / name)
            self.dtypes[name] = "uint32"

"""A text in pieces on disk: made once in a single pass, then memory-mapped."""

import atexit
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.corpus.content_key import digest_files
from bertkit.data.corpus.documents import TextOptions, iter_documents
from bertkit.data.corpus.encoding import encode_documents
from bertkit.data.corpus.files import CorpusWriter
from bertkit.data.readers.text_files import FileNotes, TextFile, describe_files
from bertkit.errors import UserError, format_list
from bertkit.utils.cache import get_or_create
from bertkit.utils.reporting import Reporter

CACHE_VERSION = 4  # to be raised when the same files would give another corpus


@dataclass(frozen=True)
class Corpus:
    """Pieces of a text, cut into sentences and documents; memory-mapped.

    Attributes:
        pieces: [tokens] uint16 (uint32 where the vocabulary is larger than 65,536), no special pieces.
        sentences: [n + 1] the first piece of each sentence (uint32, uint64 from 2**32 pieces on).
        documents: [m + 1] the first sentence of each document (the same).
        origins: [m] where documents are stretches of others, the number of the one that each is of.
        counts: of tokens, sentences, documents, unknown pieces and characters.
        notes: on how the files were read and what was left out, for people.
    """

    token_ids: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    parent_ids: np.ndarray | None = field(default=None, kw_only=True)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_corpus(
    files: Sequence[TextFile], options: TextOptions, tokenizer: Any, reporter: Reporter
) -> Corpus:
    """The corpus of these files, from the cache where they have been cut into pieces before.

    Where the cache cannot be written it lies in a temporary folder until the process ends.

    Raises:
        UserError: a file that cannot be read or is no text; no text at all; no room.
    """

    def write(folder: Path) -> None:
        reporter.info(f"cutting {describe_files(files)} into pieces")
        notes = FileNotes()
        write_corpus(iter_documents(files, options, notes), tokenizer, folder, notes, format_list(files))

    folder = get_or_create("corpus", _key(files, options, tokenizer), write)
    return open_corpus(folder or _temporary(write))


def _temporary(write: Any) -> Path:
    scratch = tempfile.TemporaryDirectory(prefix="bertkit-")
    atexit.register(scratch.cleanup)
    folder = Path(scratch.name)
    try:
        write(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: the pieces cannot be written ({error.strerror}); name a folder with room in "
            "BERTKIT_CACHE_DIR"
        ) from error
    return folder


def _key(files: Sequence[TextFile], options: TextOptions, tokenizer: Any) -> str:
    """A digest of all that a corpus depends on."""
    about = [CACHE_VERSION, asdict(options), tokenizer.backend_tokenizer.to_str(), digest_files(files)]
    return blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


# ---- on disk


def write_corpus(
    documents: Iterable[Iterable[str]],
    tokenizer: Any,
    folder: Path,
    notes: FileNotes | None = None,
    description: str = "the documents",
) -> Corpus:
    """Write the pieces of all sentences, and where sentences and documents begin.

    Sentences that give no piece are left out, and documents without any.

    Args:
        documents: the sentences of each; read once, in order.
        tokenizer: a fast one, as `load_tokenizer` gives it.
        folder: an empty one, which holds the corpus from then on.
        notes: kept with the corpus, as they are when the last document has been read.
        named: what the error calls them.

    Raises:
        UserError: not one piece.
    """
    largest = max(tokenizer.get_vocab().values())
    dtype = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
    with CorpusWriter(folder, dtype) as files:
        for batch in encode_documents(documents, tokenizer, dtype):
            files.add(batch)
    if not files.counts["tokens"]:
        raise UserError(
            f"{description}: no text in there that the tokenizer makes pieces of, only control characters"
        )
    about = {"dtypes": files.dtypes, "counts": files.counts, "notes": notes.format_lines() if notes else []}
    (folder / "corpus.json").write_text(json.dumps(about), "utf-8")
    return open_corpus(folder)


def open_corpus(folder: Path) -> Corpus:
    """A corpus that was built in this folder, memory-mapped."""
    about = json.loads((folder / "corpus.json").read_text("utf-8"))
    pieces, sentences, documents = (
        np.memmap(folder / name, np.dtype(dtype), "r") for name, dtype in about["dtypes"].items()
    )
    return Corpus(pieces, sentences, documents, about["counts"], about["notes"])

"""The files of a corpus while they are written: nothing is held but the batch at hand."""

from pathlib import Path
from typing import IO

import numpy as np

from bertkit.data.corpus.encoding import EncodedBatch

FILE_NAMES = TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE = ("pieces.bin", "sentences.bin", "documents.bin")


class CorpusWriter:
    """Pieces, and the beginnings of sentences and documents, appended batch by batch.

    Args:
        folder: where they go.
        dtype: of the pieces.

    Attributes:
        counts: of what has been written.
        dtypes: of each file, once all is written; beginnings need 32 bits, or 64 from 2**32 pieces on.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder = folder
        self.counts = dict.fromkeys(("tokens", "sentences", "documents", "unknown", "characters"), 0)
        self.dtypes = dict.fromkeys(FILE_NAMES, "uint64") | {TOKENS_FILE: dtype.name}
        self._last = -1  # the number of the document that was written last
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> "CorpusWriter":
        self._files = {name: (self.folder / name).open("wb") for name in FILE_NAMES}
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._begin(SENTENCES_FILE, np.array([self.counts["tokens"]]))
            self._begin(DOCUMENTS_FILE, np.array([self.counts["sentences"]]))
        for file in self._files.values():
            file.close()
        if kind is None and self.counts["tokens"] < 1 << 32:
            self._narrow()

    def add(self, batch: EncodedBatch) -> None:
        """Append the sentences of a batch."""
        new = np.flatnonzero(np.diff(batch.document_index, prepend=self._last))
        self._files[TOKENS_FILE].write(batch.input_ids.data)
        self._begin(SENTENCES_FILE, self.counts["tokens"] + np.cumsum(batch.lengths) - batch.lengths)
        self._begin(DOCUMENTS_FILE, self.counts["sentences"] + new)
        self._last = batch.document_index[-1] if len(batch.document_index) else self._last
        more = (len(batch.input_ids), len(batch.lengths), len(new), batch.num_unk, batch.num_chars)
        for name, count in zip(self.counts, more, strict=True):
            self.counts[name] += count

    def _begin(self, name: str, at: np.ndarray) -> None:
        self._files[name].write(at.astype(np.uint64).data)

    def _narrow(self) -> None:
        for name in (SENTENCES_FILE, DOCUMENTS_FILE):
            np.memmap(self.folder / name, np.uint64, "r").astype(np.uint32).tofile(self.folder / name)
            self.dtypes[name] = "uint32"

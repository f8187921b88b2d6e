"""The files of a corpus while they are written: nothing is held but the batch at hand."""

from pathlib import Path
from typing import IO

import numpy as np

from bertkit.data.encoded import Encoded

NAMES = PIECES, SENTENCES, DOCUMENTS = ("pieces.bin", "sentences.bin", "documents.bin")


class CorpusFiles:
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
        self.dtypes = dict.fromkeys(NAMES, "uint64") | {PIECES: dtype.name}
        self._last = -1  # the number of the document that was written last
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> "CorpusFiles":
        self._files = {name: (self.folder / name).open("wb") for name in NAMES}
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._begin(SENTENCES, np.array([self.counts["tokens"]]))
            self._begin(DOCUMENTS, np.array([self.counts["sentences"]]))
        for file in self._files.values():
            file.close()
        if kind is None and self.counts["tokens"] < 1 << 32:
            self._narrow()

    def add(self, batch: Encoded) -> None:
        """Append the sentences of a batch."""
        new = np.flatnonzero(np.diff(batch.document, prepend=self._last))
        self._files[PIECES].write(batch.pieces.data)
        self._begin(SENTENCES, self.counts["tokens"] + np.cumsum(batch.lengths) - batch.lengths)
        self._begin(DOCUMENTS, self.counts["sentences"] + new)
        self._last = batch.document[-1] if len(batch.document) else self._last
        more = (len(batch.pieces), len(batch.lengths), len(new), batch.unknown, batch.characters)
        for name, count in zip(self.counts, more, strict=True):
            self.counts[name] += count

    def _begin(self, name: str, at: np.ndarray) -> None:
        self._files[name].write(at.astype(np.uint64).data)

    def _narrow(self) -> None:
        for name in (SENTENCES, DOCUMENTS):
            np.memmap(self.folder / name, np.uint64, "r").astype(np.uint32).tofile(self.folder / name)
            self.dtypes[name] = "uint32"

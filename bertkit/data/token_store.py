"""Tokens of texts in memory, so that runs on parts of the same data tokenize each text once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from bertkit.data.column_types import as_column, select_values
from bertkit.utils.ragged import Ragged, compute_offsets, concat_ranges

Texts = Sequence[str]
Spans = np.ndarray  # [tokens, 2] start and stop of each token in its text, in characters


@dataclass
class _Entry:
    """The tokens of all texts that one tokenizer has encoded.

    Attributes:
        hashes: [n] hash of each text, sorted.
        position: [n] index of the text with this hash in `ids`.
        ids: The token ids.
        spans: The characters of the tokens; [0, 2] if they are not computed.
    """

    hashes: np.ndarray
    position: np.ndarray
    ids: Ragged
    spans: Spans

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return [texts] the index of each text in `ids`, or -1."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        index = np.searchsorted(self.hashes, hashes).clip(max=len(self.hashes) - 1)
        return np.where(self.hashes[index] == hashes, self.position[index], -1)

    def add(self, hashes: np.ndarray, ids: Ragged, spans: Spans) -> None:
        """Add texts that `find` does not find."""
        position = np.concatenate([self.position, len(self.ids) + np.arange(len(hashes))])
        all_hashes = np.concatenate([self.hashes, hashes])
        order = np.argsort(all_hashes)
        self.hashes, self.position = all_hashes[order], position[order]
        lengths = np.concatenate([self.ids.lengths, ids.lengths])
        values = np.concatenate([self.ids.values.astype(ids.values.dtype), ids.values])
        self.ids = Ragged(values, compute_offsets(lengths))
        self.spans = np.concatenate([self.spans, spans])

    def select(self, index: np.ndarray) -> tuple[Ragged, Spans]:
        """Return the tokens of the texts at these indices."""
        starts, stops = self.ids.offsets[index], self.ids.offsets[index + 1]
        tokens = concat_ranges(starts, stops)
        spans = self.spans[tokens] if len(self.spans) else self.spans
        return Ragged(self.ids.values[tokens], compute_offsets(stops - starts)), spans


@dataclass
class TokenStore:
    """Tokens by tokenizer and text."""

    _entries: dict[str, _Entry] = field(default_factory=dict)

    def encode(
        self, tokenizer_key: str, texts: Texts, encode: Callable[[Texts], tuple[Ragged, Spans]]
    ) -> tuple[Ragged, Spans]:
        """Return the tokens of texts; `encode` receives only those that the store lacks.

        Args:
            tokenizer_key: Identifies the tokenizer, and whether spans are computed.
            texts: The texts.
            encode: Returns the token ids and the spans of texts.
        """
        hashes = as_column(texts).hashes
        empty = _Entry(
            hashes[:0], np.zeros(0, int), Ragged(np.zeros(0, np.uint16), np.zeros(1, int)),
            np.zeros((0, 2), np.int32),
        )  # fmt: skip
        entry = self._entries.setdefault(tokenizer_key, empty)
        new_hashes, first = np.unique(hashes, return_index=True)
        is_missing = entry.find(new_hashes) < 0
        if is_missing.any():
            order = np.argsort(first[is_missing])  # in the order of the texts
            missing = first[is_missing][order]
            entry.add(new_hashes[is_missing][order], *encode(select_values(texts, missing)))
        return entry.select(entry.find(hashes))


_active_store: ContextVar[TokenStore | None] = ContextVar("token_store", default=None)


@contextmanager
def share_tokens() -> Iterator[None]:
    """Keep the tokens of all texts that are encoded in the block, and use them again for equal texts."""
    token = _active_store.set(TokenStore())
    try:
        yield
    finally:
        _active_store.reset(token)


def get_token_store() -> TokenStore | None:
    """Return the store of `share_tokens`, or None outside of it."""
    return _active_store.get()

"""Cosines: the rows nearest to a query, and how alike the vectors of one word are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex

from bertkit.data.offsets import encode_with_offsets
from bertkit.data.unicode import UNSPACED_SCRIPTS

SEARCH_CHUNK_SIZE = 10_000  # vectors of an index in memory


def l2_normalize(vectors: np.ndarray) -> np.ndarray:
    """[n, d] scaled to length 1; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def find_nearest_rows(
    query: np.ndarray, vectors: np.ndarray, top: int, texts: Sequence[str] | None
) -> list[dict[str, Any]]:
    """The `top` rows of [n, d] by their cosine with a query [d], best first, of equals the earlier first."""
    query = l2_normalize(query)
    parts = [
        l2_normalize(vectors[start : start + SEARCH_CHUNK_SIZE]) @ query
        for start in range(0, len(vectors), SEARCH_CHUNK_SIZE)
    ]
    cosines = np.concatenate(parts)
    return [
        {"rank": rank, "cosine": float(cosines[row]), "row": row}
        | ({"text": texts[row]} if texts is not None else {})
        for rank, row in enumerate(np.argsort(-cosines, kind="stable")[:top].tolist(), start=1)
    ]


@dataclass(frozen=True)
class WordOccurrences:
    """Where a word stands.

    Attributes:
        row, start, stop: [m] the text of each, and its characters in it.
        pieces: [m, 2] its first piece in that text, special ones not counted, and the one behind its last.
        ids: [m] the pieces themselves.
    """

    row: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    token_spans: np.ndarray
    token_ids: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.row)

    def select(self, index: np.ndarray) -> "WordOccurrences":
        """Those at `index`."""
        ids = [self.token_ids[number] for number in index]
        return WordOccurrences(
            self.row[index], self.start[index], self.stop[index], self.token_spans[index], ids
        )


def find_word_occurrences(word: str, texts: Sequence[str], tokenizer: Any) -> WordOccurrences:
    """Every occurrence of a word, or of several, without regard to case.

    It begins and ends where a word does. In Korean, where particles follow without a space, it may go on
    (`배` stands in `배가`); in scripts without spaces it stands anywhere.
    """
    pattern = regex.compile(_pattern(word), regex.IGNORECASE)
    found = [
        (row, match.start(), match.end())
        for row, text in enumerate(texts)
        for match in pattern.finditer(text)
    ]
    rows, start, stop = np.array(found, np.int64).reshape(-1, 3).T
    used, text = np.unique(rows, return_inverse=True)
    located = encode_with_offsets([texts[row] for row in used], tokenizer, cache=False)
    first, last = located.find_token_ranges(text, start, stop)
    kept = np.flatnonzero(first >= 0)  # of some characters no piece is left
    bounds = np.stack([first, last + 1], 1)
    ids = [located.ids.values[begin:end] for begin, end in bounds]
    found_all = WordOccurrences(rows, start, stop, bounds - located.ids.offsets[text][:, None], ids)
    return found_all.select(kept)


def _pattern(word: str) -> str:
    body = regex.escape(word, special_only=True)
    before = r"(?<!\w)" if regex.match(rf"[\w--[{UNSPACED_SCRIPTS}]]", word, regex.V1) else ""
    after = r"(?!\w)" if regex.match(rf"[\w--[{UNSPACED_SCRIPTS}\p{{Hangul}}]]", word[-1], regex.V1) else ""
    return f"{before}{body}{after}"


def compute_cosine_similarities(vectors: np.ndarray) -> list[list[float]]:
    """[m, m] cosines of each vector with each."""
    scaled = l2_normalize(vectors)
    return np.clip(scaled @ scaled.T, -1, 1).round(4).tolist()

"""Which pieces make a word: by the pieces of a tokenizer, and in a batch."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex

SPACE_MARKERS = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write a blank
# Signs, and scripts in which words stand without blanks between them: a blank cannot tell where they begin.
UNSPACED_SCRIPTS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD_START = regex.compile(
    rf"(?!\uFFFD)[\p{{P}}\p{{S}}{UNSPACED_SCRIPTS}]"
)  # U+FFFD: part of a character's bytes


def find_continuation_tokens(tokenizer: Any) -> np.ndarray:
    """[vocabulary] bool: which pieces continue the word of the piece before.

    WordPiece: those with its prefix, "##". Where a piece shows that a blank is before it ("Ġ" of byte-level
    BPE, "▁" of SentencePiece): those without, unless they begin with a sign or in a script without blanks,
    where a sentence would be one word. Special pieces never do. Where pieces show nothing, none does.
    """
    vocabulary = tokenizer.get_vocab()
    found = np.zeros(max(vocabulary.values(), default=-1) + 1, bool)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    prefix = model.get("continuing_subword_prefix")
    some = [piece for piece in vocabulary if piece.startswith(prefix)] if prefix else _unmarked(tokenizer)
    found[[vocabulary[piece] for piece in some]] = True
    found[list(tokenizer.added_tokens_decoder)] = False
    return found


def _unmarked(tokenizer: Any) -> list[str]:
    """The pieces before which is neither a blank nor, by their first character, the end of a word."""
    pieces, decoder = list(tokenizer.get_vocab()), tokenizer.backend_tokenizer.decoder
    marked = {mark: sum(piece.startswith(mark) for piece in pieces) for mark in SPACE_MARKERS}
    mark = max(
        SPACE_MARKERS, key=lambda sign: marked[sign]
    )  # Maltese has a letter like byte-level BPE's blank
    if not marked[mark]:
        return []
    text = "".join if decoder is None else decoder.decode
    return [piece for piece in pieces if not piece.startswith(mark) and not WORD_START.match(text([piece]))]


@dataclass(frozen=True)
class WordSpans:
    """The words of a batch, row by row; places count over all rows, `row * L + position`.

    Attributes:
        start, size: [words] the first piece of each and how many it has.
        counts: [B] the words of each row.
        pieces: [B] the pieces of each row, special ones not counted.
    """

    starts: np.ndarray
    sizes: np.ndarray
    word_counts: np.ndarray
    token_counts: np.ndarray

    @classmethod
    def from_batch(
        cls, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
    ) -> "WordSpans":
        """Find them: a piece and those after it that continue it, up to a special one.

        Args:
            input_ids: [B, L].
            special: [B, L] bool, special pieces and padding.
            continues: [vocabulary] bool; None: each piece is a word.
        """
        real = ~is_special
        begins = real.copy()
        if is_continuation is not None:
            begins[:, 1:] &= ~is_continuation[input_ids[:, 1:]] | is_special[:, :-1]
        edges = np.flatnonzero(begins | is_special)  # each row begins with one
        edge_begins = begins.ravel()[edges]
        size = np.diff(edges, append=is_special.size)
        counts, pieces = np.count_nonzero(begins, axis=1), np.count_nonzero(real, axis=1)
        return cls(edges[edge_begins], size[edge_begins], counts, pieces)

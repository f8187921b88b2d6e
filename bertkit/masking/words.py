"""Find words: which tokens of a vocabulary continue a word, and the words of a batch."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex

from bertkit.data.unicode import UNSPACED_SCRIPTS

SPACE_MARKERS = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write a space
# Punctuation, symbols and unspaced scripts begin a word; U+FFFD is only a part of a character's bytes.
WORD_START = regex.compile(rf"(?!\uFFFD)[\p{{P}}\p{{S}}{UNSPACED_SCRIPTS}]")


def find_continuation_tokens(tokenizer: Any) -> np.ndarray:
    """Return [vocabulary] bool: which tokens continue the word of the previous token.

    In WordPiece, these are the tokens with its prefix, "##". Other vocabularies mark a preceding space
    ("Ġ" in byte-level BPE, "▁" in SentencePiece). There, tokens without the mark continue a word, unless
    they begin with punctuation, a symbol or an unspaced script. Otherwise a sentence in such a script
    would be one word. Special tokens never continue a word. If the vocabulary marks neither, no token does.
    """
    vocabulary = tokenizer.get_vocab()
    is_continuation = np.zeros(max(vocabulary.values(), default=-1) + 1, bool)
    prefix = json.loads(tokenizer.backend_tokenizer.to_str())["model"].get("continuing_subword_prefix")
    if prefix:
        tokens = [token for token in vocabulary if token.startswith(prefix)]
    else:
        tokens = _find_unmarked_tokens(tokenizer)
    is_continuation[[vocabulary[token] for token in tokens]] = True
    is_continuation[list(tokenizer.added_tokens_decoder)] = False
    return is_continuation


def _find_unmarked_tokens(tokenizer: Any) -> list[str]:
    """Return the tokens that have no space marker and do not begin a word by their first character."""
    tokens, decoder = list(tokenizer.get_vocab()), tokenizer.backend_tokenizer.decoder
    counts = {marker: sum(token.startswith(marker) for token in tokens) for marker in SPACE_MARKERS}
    marker = max(counts, key=lambda name: counts[name])  # the more frequent one: Maltese has the letter Ġ
    if not counts[marker]:
        return []
    decode = "".join if decoder is None else decoder.decode
    unmarked = [token for token in tokens if not token.startswith(marker)]
    return [token for token in unmarked if not WORD_START.match(decode([token]))]


@dataclass(frozen=True)
class WordSpans:
    """The words of a batch, row by row; places are indices of the flattened batch.

    Attributes:
        starts: [words] place of the first token.
        sizes: [words] number of tokens.
        word_counts: [batch] words in each row.
        token_counts: [batch] tokens in each row, without special tokens.
    """

    starts: np.ndarray
    sizes: np.ndarray
    word_counts: np.ndarray
    token_counts: np.ndarray

    @classmethod
    def from_batch(
        cls, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
    ) -> "WordSpans":
        """Find the words: a token and the following ones that continue it, up to a special token.

        Args:
            input_ids: [batch, seq_len].
            is_special: [batch, seq_len] bool: special tokens and padding.
            is_continuation: [vocabulary] bool; None: each token is a word.
        """
        is_text = ~is_special
        begins_word = is_text.copy()
        if is_continuation is not None:
            begins_word[:, 1:] &= ~is_continuation[input_ids[:, 1:]] | is_special[:, :-1]
        edges = np.flatnonzero(begins_word | is_special)  # each row begins with one
        is_word = begins_word.ravel()[edges]
        sizes = np.diff(edges, append=is_special.size)
        word_counts, token_counts = np.count_nonzero(begins_word, axis=1), np.count_nonzero(is_text, axis=1)
        return cls(edges[is_word], sizes[is_word], word_counts, token_counts)

"""Find the tokens of a vocabulary that continue a word, and the words of a batch."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex

from bertkit.data.unicode import UNSPACED_SCRIPTS

SPACE_MARKERS = ("Ġ", "▁")  # characters that represent a space in byte-level BPE and in SentencePiece
# Punctuation, symbols and characters of unspaced scripts begin a word. U+FFFD does not: a token decodes to it
# if the token contains only some of a character's bytes.
WORD_START = regex.compile(rf"(?!\uFFFD)[\p{{P}}\p{{S}}{UNSPACED_SCRIPTS}]")


def find_continuation_tokens(tokenizer: Any) -> np.ndarray:
    """Return whether each token continues the word of the previous token [vocabulary].

    In a WordPiece vocabulary, tokens with the prefix "##" continue a word. Other vocabularies mark tokens
    after a space ("Ġ" in byte-level BPE, "▁" in SentencePiece). In these vocabularies, tokens without the
    mark continue a word, unless they begin with punctuation, a symbol or a character of an unspaced script.
    Without this exception, a sentence in an unspaced script would be one word.

    Special tokens never continue a word. In a vocabulary without prefix and marks, no token does.
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
    """Return the tokens without a space marker, except those whose first character begins a word."""
    tokens, decoder = list(tokenizer.get_vocab()), tokenizer.backend_tokenizer.decoder
    counts = {marker: sum(token.startswith(marker) for token in tokens) for marker in SPACE_MARKERS}
    # A vocabulary has one marker, but Ġ is also a letter of Maltese, so the more frequent one is taken.
    marker = max(counts, key=lambda name: counts[name])
    if not counts[marker]:
        return []
    decode = "".join if decoder is None else decoder.decode
    unmarked = [token for token in tokens if not token.startswith(marker)]
    return [token for token in unmarked if not WORD_START.match(decode([token]))]


@dataclass(frozen=True)
class WordSpans:
    """The words of a batch, in the order of the flattened batch.

    Attributes:
        starts: [words] index of each word's first token in the flattened batch.
        sizes: [words] number of tokens of each word.
        word_counts: [batch] number of words in each example.
        token_counts: [batch] number of tokens in each example, without special tokens.
    """

    starts: np.ndarray
    sizes: np.ndarray
    word_counts: np.ndarray
    token_counts: np.ndarray

    @classmethod
    def from_batch(
        cls, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
    ) -> "WordSpans":
        """Find the words of a batch.

        A word is a token together with the tokens after it that continue it. It ends at a special token.

        Args:
            input_ids: [batch, seq_len] token ids.
            is_special: [batch, seq_len] bool, whether a token is special or padding.
            is_continuation: Whether a token continues the word of the previous token, by token id
                [vocabulary] (see `find_continuation_tokens`) or by position [batch, seq_len]. None: each
                token is a word.
        """
        is_text = ~is_special
        begins_word = is_text.copy()
        if is_continuation is not None:
            by_position = is_continuation if is_continuation.ndim == 2 else is_continuation[input_ids]
            begins_word[:, 1:] &= ~by_position[:, 1:] | is_special[:, :-1]
        # Each boundary begins a word or is a special token. Each row begins with a boundary.
        boundaries = np.flatnonzero(begins_word | is_special)
        is_word = begins_word.ravel()[boundaries]
        sizes = np.diff(boundaries, append=is_special.size)
        word_counts, token_counts = np.count_nonzero(begins_word, axis=1), np.count_nonzero(is_text, axis=1)
        return cls(boundaries[is_word], sizes[is_word], word_counts, token_counts)

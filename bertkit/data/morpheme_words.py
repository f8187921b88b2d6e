"""Words of the WordPiece trainer that end at morphemes, as in the vocabulary of KLUE-BERT.

A vocabulary needs two kinds of tokens: those that begin a word, and those with "##" that continue it. The
trainer adds "##" itself, to all characters of a word except the first. A morpheme inside a word is therefore
trained as a word of its own, and its first character is replaced by another one, which represents "##".
"""

import regex

from bertkit.data.morphemes import split_units

BOUNDARY = "\ufdd0"  # before a morpheme that continues a word; a Unicode noncharacter
BMP_SIZE = 1 << 16  # code points of Unicode's Basic Multilingual Plane
REPLACEMENT_OFFSET = 0xF0000  # Supplementary Private Use Area-A, which has a code point for each of the BMP
MORPHEME_START = regex.compile(f"(?<=(.?)){BOUNDARY}+(.?)", regex.DOTALL)


def mark_morphemes(texts: list[str]) -> list[str]:
    """Return the texts with a boundary before each morpheme that continues a word."""
    return [
        "".join(
            f"{BOUNDARY}{unit}" if index and not previous[-1:].isspace() else unit
            for index, (previous, unit) in enumerate(zip(["", *units], units, strict=False))
        )
        for units in split_units([text.replace(BOUNDARY, "") for text in texts])
    ]


def separate_morphemes(text: str, word_characters: set[str]) -> str:
    """Return a marked text with spaces instead of boundaries, and replaced first characters.

    A boundary is removed if a character follows that is a word by itself, or one without a replacement. It is
    also removed after a space, which the normalizer adds after a character that is a word by itself: the
    tokenizer begins a word there.
    """

    def replace(match: regex.Match[str]) -> str:
        previous, character = match.groups()
        if not previous or previous.isspace():
            return character
        is_replaced = character in word_characters and ord(character) < BMP_SIZE
        return f" {get_replacement(character)}" if is_replaced else character

    return MORPHEME_START.sub(replace, text)


def get_replacement(character: str) -> str:
    """Return the character that represents "##" and a character of the BMP."""
    return chr(REPLACEMENT_OFFSET + ord(character))


def list_replacements(characters: list[str]) -> list[str]:
    """Return the replacements of all characters that have one."""
    return [get_replacement(character) for character in characters if ord(character) < BMP_SIZE]


def merge_tokens(vocabulary: dict[str, int], prefix: str, size: int) -> dict[str, int]:
    """Return the first `size` tokens, numbered from 0, with `prefix` for replaced first characters.

    The trainer may find a token twice, with a replaced first character and inside a morpheme.
    """
    tokens = dict.fromkeys(
        _restore(token, prefix) for token in sorted(vocabulary, key=vocabulary.__getitem__)
    )
    return {token: index for index, token in enumerate(list(tokens)[:size])}


def _restore(token: str, prefix: str) -> str:
    code = ord(token[0]) - REPLACEMENT_OFFSET
    return f"{prefix}{chr(code)}{token[1:]}" if 0 <= code < BMP_SIZE else token

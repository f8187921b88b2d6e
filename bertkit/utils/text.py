"""Lone surrogates: characters that JSON allows in a string, but UTF-8 cannot encode."""

import re

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains a lone surrogate."""
    return not text.isascii() and LONE_SURROGATE.search(text) is not None


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate by `?`. The length stays the same, and a tokenizer accepts the text."""
    return text.encode("utf-8", "replace").decode("utf-8")

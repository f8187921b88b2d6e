"""Text that cannot be encoded as UTF-8: lone surrogates, which JSON can hold."""

import re

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains half of a surrogate pair, which UTF-8 cannot encode."""
    return not text.isascii() and LONE_SURROGATE.search(text) is not None


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates with `?`; the text keeps its length, and a tokenizer accepts it."""
    return text.encode("utf-8", "replace").decode("utf-8")

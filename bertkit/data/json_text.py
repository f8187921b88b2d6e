"""JSON as users hand it in: what is none is told in a few words."""

import json
import re

HALF_PAIR = re.compile("[\ud800-\udfff]")  # what JSON can hold and no file in UTF-8
BROKEN = (ValueError, RecursionError)  # what `json.loads` raises; the first also of an endless number


def why_broken(error: Exception) -> str:
    """`broken JSON (Expecting value)`, `JSON nested too deeply`, or of a number its endless digits."""
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg})"
    return "broken JSON (a number of thousands of digits)"


def holds_half_pair(text: str) -> bool:
    """Whether a text has half of a surrogate pair in it, which cannot be written as UTF-8."""
    return not text.isascii() and HALF_PAIR.search(text) is not None

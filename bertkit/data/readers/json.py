"""JSON as users hand it in: what is none is told in a few words."""

import json
import re

SURROGATE = re.compile("[\ud800-\udfff]")  # what JSON can hold and no file in UTF-8
JSON_ERRORS = (ValueError, RecursionError)  # what `json.loads` raises; the first also of an endless number


def describe_json_error(error: Exception) -> str:
    """`broken JSON (Expecting value)`, `JSON nested too deeply`, or of a number its endless digits."""
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"broken JSON ({error.msg})"
    return "broken JSON (a number of thousands of digits)"


def has_lone_surrogate(text: str) -> bool:
    """Whether a text has half of a surrogate pair in it, which cannot be written as UTF-8."""
    return not text.isascii() and SURROGATE.search(text) is not None

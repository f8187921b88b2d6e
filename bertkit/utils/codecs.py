"""Names of text encodings."""


def describe_unknown_encoding(name: str) -> str | None:
    """Return the problem with the name of an encoding, and the fix; None if Python has such an encoding."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):  # ValueError: the codec cannot encode text, such as `undefined`
        return "no such encoding; use utf-8, cp949, latin-1 or another Python codec"
    return None

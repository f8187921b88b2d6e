"""Names of text encodings."""


def describe_unknown_encoding(name: str) -> str | None:
    """Return the problem with the name of an encoding, and the fix; None if Python has such an encoding."""
    try:
        "a".encode(name)
    except (
        LookupError,
        ValueError,
    ):  # a codec that cannot encode text, such as `undefined`, raises the latter
        return "no such encoding; use utf-8, cp949, latin-1 or another Python codec"
    return None

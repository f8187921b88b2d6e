"""Text of the data on its way to a terminal."""

# Control characters by their pictures (U+241B is escape's); those of 8-bit terminals have none.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
CONTROL_PICTURES |= dict.fromkeys(map(ord, "\t\n\v\f\r\x85\u2028\u2029"), ord(" "))


def replace_control_characters(text: str) -> str:
    """The same text, as long, without anything that a terminal obeys: a picture for each control character.

    What JSON, CSV and files hold stays as it is.
    """
    return text.translate(CONTROL_PICTURES)

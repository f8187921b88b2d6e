"""Find the encodings that decode a file, and rank them by plausibility."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bertkit.data.readers.decoding import Decoding, DecodingError, decode_chunks

# The encodings of a group are variants of each other: the first one that decodes the file represents the
# group. The order of the groups breaks ties. The encodings in `WIDE_ENCODINGS` are for files with zero bytes.
NARROW_ENCODINGS = (
    ("utf-8",), ("cp949",), ("shift_jis", "cp932"), ("euc_jp",), ("gb18030",), ("big5", "cp950", "big5hkscs"),
    ("cp1252",), ("cp1251",), ("cp1250",), ("cp1253",), ("cp1254",), ("cp1257",), ("cp1255",), ("cp1256",),
)  # fmt: skip
WIDE_ENCODINGS = (("utf-16-le",), ("utf-16-be",), ("utf-32-le",), ("utf-32-be",))
# First bytes of the frequent characters of an encoding: the punctuation and the syllables, or the first level
# of the Chinese characters, which holds those in daily use.
FREQUENT_LEAD_BYTES = {
    "cp949": (range(0xA1, 0xA4), range(0xB0, 0xC9)),
    "shift_jis": (range(0x81, 0x84), range(0x88, 0x99)),
    "cp932": (range(0x81, 0x84), range(0x88, 0x99)),
    "euc_jp": (range(0xA1, 0xA6), range(0xB0, 0xD0)),
    "gb18030": (range(0xA1, 0xA4), range(0xB0, 0xD8)),
    "big5": (range(0xA1, 0xC7),),
    "cp950": (range(0xA1, 0xC7),),
    "big5hkscs": (range(0xA1, 0xC7),),
}
# The second byte of the frequent characters of these encodings is at least 0xA1.
EUC_ENCODINGS = ("cp949", "euc_jp", "gb18030")
# Text in one of the encodings above has no such character, but binary data or another encoding gives some.
IMPLAUSIBLE_CHARACTER = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f\ue000-\uf8ff]")
# A character within a word of ASCII letters: if Western text is read in an East Asian encoding, a letter and
# the ASCII letter after it become one character.
LONE_CHARACTER = re.compile(r"(?<=[A-Za-z])[^\0-\x7f](?![^\0-\x7f])")
# Superscripts, accents and other symbols, which wrongly decoded letters often become in Windows encodings.
SYMBOL_CATEGORIES = ("No", "Sk", "Sm", "So", "Cf")
MAX_CANDIDATES = 4
MAX_SCORE_DIFFERENCE = 0.5  # from the best candidate; worse ones are not listed
RANKED_CHARS = 20_000  # characters of the lines by which candidates are ranked
SAMPLE_CHARS = 30
CONTEXT_CHARS = 8  # of a sample, before its first character that is not ASCII


@dataclass(frozen=True)
class Candidate:
    """An encoding that decodes all bytes of a file.

    Attributes:
        encoding: Name of the encoding.
        text: The first lines that are not ASCII.
        digest: Hash of the decoded file.
    """

    encoding: str
    text: str
    digest: int

    @property
    def sample(self) -> str:
        """The part of the first line around its first character that is not ASCII, in one line."""
        line = " ".join(self.text.split("\n", 1)[0].split())
        start = next((index for index, char in enumerate(line) if not char.isascii()), 0) - CONTEXT_CHARS
        start = start if start > 1 else 0  # a shorter beginning is not worth an ellipsis
        end = start + SAMPLE_CHARS
        return f"{'…' if start else ''}{line[start:end].strip()}{'…' if end < len(line) else ''}"


def find_encodings(read_chunks: Callable[[], Iterable[bytes]]) -> list[Candidate]:
    """Return the most plausible of the encodings that decode all bytes of a file, best first.

    Of several encodings that give the same text, only the first one is returned.

    Args:
        read_chunks: Opens the file and returns an iterator over its decompressed bytes. It is called once for
            each encoding, because a file may be larger than memory.
    """
    head = next(iter(read_chunks()), b"")
    groups = WIDE_ENCODINGS if b"\0" in head else NARROW_ENCODINGS
    found: dict[int, Candidate] = {}
    for group in groups:
        candidates = (_try_encoding(encoding, read_chunks()) for encoding in group)
        candidate = next(filter(None, candidates), None)
        if candidate:
            found.setdefault(candidate.digest, candidate)
    scores = {candidate: _score(candidate) for candidate in found.values()}
    max_score = min(scores.values(), default=0) + MAX_SCORE_DIFFERENCE
    plausible = [candidate for candidate, score in scores.items() if score <= max_score]
    return sorted(plausible, key=scores.__getitem__)[:MAX_CANDIDATES]


def format_candidates(candidates: Iterable[Candidate]) -> str:
    """Return the encodings with their samples, for a message of one line."""
    return " | ".join(f'{candidate.encoding}: "{candidate.sample}"' for candidate in candidates)


def _try_encoding(encoding: str, chunks: Iterable[bytes]) -> Candidate | None:
    """Return the candidate if the encoding decodes all chunks and the text is plausible, else None."""
    digest, text, rest = 0, "", ""
    try:
        for part in decode_chunks("", chunks, Decoding(encoding)):
            digest = hash((digest, part))  # single-byte encodings give parts of equal size
            if len(text) < RANKED_CHARS:
                *lines, rest = (rest + part).split("\n")
                text += "".join(_iter_foreign_lines(lines))
                rest = rest if len(rest) < RANKED_CHARS else ""
    except DecodingError:
        return None
    text = (text + "".join(_iter_foreign_lines([rest])))[:RANKED_CHARS]
    return None if IMPLAUSIBLE_CHARACTER.search(text) else Candidate(encoding, text, digest)


def _iter_foreign_lines(lines: Iterable[str]) -> Iterator[str]:
    return (line + "\n" for line in lines if not line.isascii())


def _score(candidate: Candidate) -> float:
    """Return a number that is lower for a more plausible text.

    `charset_normalizer` measures how much the text looks like wrongly decoded text, and how well the frequent
    letters match a language. It cannot reliably tell the encodings of Chinese, Japanese and Korean apart, and
    it ignores symbols, so the fraction of rare characters is added.
    """
    from charset_normalizer import from_bytes

    if candidate.encoding == "utf-8":  # text in another encoding is practically never valid UTF-8
        return -1.0
    match = from_bytes(candidate.text.encode("utf-8"), cp_isolation=["utf_8"], threshold=1.0).best()
    score = match.chaos - match.coherence if match else 1.0
    return score + _measure_rare_fraction(candidate.text, candidate.encoding)


def _measure_rare_fraction(text: str, encoding: str) -> float:
    """Return the fraction of unusual characters among those that are not ASCII."""
    characters = [char for char in text if not char.isascii()]
    if not characters:
        return 0.0
    num_rare = sum(_is_rare(char, encoding) for char in characters)
    if encoding in FREQUENT_LEAD_BYTES:
        num_rare += len(LONE_CHARACTER.findall(text))
    return num_rare / len(characters)


def _is_rare(char: str, encoding: str) -> bool:
    if encoding not in FREQUENT_LEAD_BYTES:
        return unicodedata.category(char) in SYMBOL_CATEGORIES
    lead, *trail = char.encode(encoding)
    is_extension = encoding in EUC_ENCODINGS and trail < [0xA1]
    return not trail or is_extension or not any(lead in values for values in FREQUENT_LEAD_BYTES[encoding])

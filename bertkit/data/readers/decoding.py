"""Decode streams of bytes with bounded memory."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from bertkit.data.readers.contents import detect_unsupported_format
from bertkit.errors import UserError
from bertkit.utils.codecs import describe_unknown_encoding

BOM = "\ufeff"
# Encodings by byte order mark. The mark of UTF-32 begins with that of UTF-16, and therefore precedes it. The
# mark of UTF-8 needs no entry, because UTF-8 is the default.
ENCODINGS_BY_BOM = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class DecodingError(UserError):
    """Error for bytes that cannot be decoded in the expected encoding."""


@dataclass(frozen=True)
class Decoding:
    """How the bytes of a file are decoded.

    Attributes:
        encoding: Encoding of the file. None for UTF-8 with or without a byte order mark, or UTF-16 or UTF-32
            with one.
        errors: "stop" raises an error for undecodable bytes; "skip" drops and counts them.
        alternative: Another fix for undecodable bytes than the right encoding, for errors.
    """

    encoding: str | None = None
    errors: Literal["stop", "skip"] = "stop"
    alternative: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None and (problem := describe_unknown_encoding(self.encoding)):
            raise UserError(f"--encoding {self.encoding}: {problem}")


@dataclass
class DecodingStatistics:
    """Statistics on decoded bytes, filled in while a file is read.

    Attributes:
        codec: Name of the Python codec.
        num_dropped: Number of bytes that could not be decoded.
    """

    codec: str = "utf-8"
    num_dropped: int = 0


def decode_chunks(
    name: object, chunks: Iterable[bytes], decoding: Decoding, statistics: DecodingStatistics | None = None
) -> Iterator[str]:
    """Yield the text of a file in parts, one for each chunk of bytes; a byte order mark is removed.

    Args:
        name: Name of the file, for errors.
        chunks: The decompressed bytes of the file.
        decoding: How bytes become text.
        statistics: Receives the codec and the number of dropped bytes.

    Raises:
        DecodingError: The file contains undecodable bytes. The message names the line and the offset in the
            decompressed file.
        UserError: The file is not text.
    """
    head, chunks = _read_head(chunks)
    statistics = statistics or DecodingStatistics()
    statistics.codec = decoding.encoding or detect_codec(head)
    if description := detect_unsupported_format(head):
        raise UserError(f"{name}: not a text file but {description}")
    del head
    decoder = _ChunkDecoder(name, statistics.codec, decoding.errors)
    is_start = True
    for chunk in chain(chunks, [b""]):
        part = decoder.decode(chunk)
        yield part.removeprefix(BOM) if is_start else part
        is_start = is_start and not part
    statistics.num_dropped = decoder.num_dropped


def detect_codec(head: bytes) -> str:
    """Return the codec of the byte order mark with which a file begins; UTF-8 if there is none."""
    return next((codec for bom, codec in ENCODINGS_BY_BOM.items() if head.startswith(bom)), "utf-8")


def _read_head(chunks: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes, and an iterator over the same bytes.

    More chunks are read only while the bytes may be the beginning of a byte order mark: standard input yields
    lines of a few bytes, and a user waits for the result of the first line.
    """
    chunks = iter(chunks)
    head = next(chunks, b"")
    while any(len(head) < len(bom) and bom.startswith(head) for bom in ENCODINGS_BY_BOM):
        chunk = next(chunks, b"")
        if not chunk:
            break
        head += chunk
    return head, chain(iter([head] if head else []), chunks)  # an exhausted iterator releases the first bytes


class _ChunkDecoder:
    """Decoder that counts lines and bytes, to locate errors."""

    def __init__(self, name: object, codec: str, errors: Literal["stop", "skip"]) -> None:
        self.name, self.codec, self.skips_errors = name, codec, errors == "skip"
        self.decoder = codecs.getincrementaldecoder(codec)("ignore" if self.skips_errors else "strict")
        self.encoder = codecs.getincrementalencoder(codec)("replace")
        self.offset = self.line_offset = 0  # bytes and line breaks before the chunk
        self.num_dropped = 0

    def decode(self, chunk: bytes) -> str:
        """Return the text of a chunk; an empty chunk is the end of the file."""
        state = self.decoder.getstate()
        if self.codec == "utf-8" and b"\0" in chunk:
            location = f"a zero byte at offset {self.offset + chunk.index(0)}"
            raise DecodingError(f"{self.name}: not a text file ({location})")
        try:
            text = self.decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise self._describe_error(error, chunk, state) from error
        except UnicodeError as error:  # `utf-16` requires a byte order mark
            raise DecodingError(f"{self.name}: not {self.codec.upper()} ({error})") from error
        if "\0" in text:
            line = self.line_offset + text.count("\n", 0, text.index("\0")) + 1
            raise DecodingError(f"{self.name}: line {line}: not {self.codec.upper()} (a NUL character)")
        if self.skips_errors:
            self.num_dropped += len(chunk) - len(self.encoder.encode(text))
        self.offset += len(chunk)
        self.line_offset += text.count("\n")
        return text

    def _describe_error(
        self, error: UnicodeDecodeError, chunk: bytes, state: tuple[bytes, int]
    ) -> DecodingError:
        # The decoder keeps an incomplete character at the end of a chunk and decodes it with the next chunk.
        num_kept = len(error.object) - len(chunk)
        self.decoder.setstate(state)
        try:
            valid_text = self.decoder.decode(chunk[: max(error.start - num_kept, 0)])
        except UnicodeError as other:  # `utf-16` requires a byte order mark
            return DecodingError(f"{self.name}: not {self.codec.upper()} ({other})")
        line = self.line_offset + valid_text.count("\n") + 1
        bad_byte, bad_offset = error.object[error.start], self.offset - num_kept + error.start
        location = f"byte 0x{bad_byte:02x} at offset {bad_offset}"
        return DecodingError(f"{self.name}: line {line}: not {self.codec.upper()} ({location})")

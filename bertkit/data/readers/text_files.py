"""Text files as streams, on disk or elsewhere: unpacked and decoded by the mebibyte, never held whole."""

import codecs
import glob
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from bertkit.data.readers.contents import (
    GZIP_MAGIC,
    READ_ERRORS,
    ZSTD_MAGIC,
    detect_unsupported_format,
    require_file,
)
from bertkit.data.readers.remote import RemoteFile
from bertkit.errors import UserError, format_list
from bertkit.hub.files import HubFile

TextFile = Path | HubFile | RemoteFile
CHUNK_BYTES = 1 << 20  # bytes read at a time
MAX_LINE_CHARS = 1_000_000  # characters of a line of running text
NON_TEXT_PREFIXES = ("readme", "license", "licence")


@dataclass
class FileNotes:
    """What turned up while files were read: what to say -> the files it is said of."""

    files_by_note: dict[str, dict[TextFile, None]] = field(default_factory=dict)

    def add(self, path: TextFile, note: str) -> None:
        """Something the user should know of a file, once however often it is read."""
        self.files_by_note.setdefault(note, {})[path] = None

    def format_lines(self) -> list[str]:
        """`FILES: what is said of them`, in the order it turned up."""
        return [
            f"{format_list(file.name for file in files)}: {what}"
            for what, files in self.files_by_note.items()
        ]


@dataclass(frozen=True)
class Decoding:
    """How bytes become text.

    Attributes:
        encoding: that of the files; None: UTF-8, with or without its mark.
        on_bad_bytes: "stop" at bytes that are no text in it, or "skip" them and count.
        fix: of bytes that are no text, for people.
    """

    encoding: str | None = None
    errors: Literal["stop", "skip"] = "stop"
    hint: str = "name its --encoding, or leave such bytes out with --encoding-errors skip"

    def __post_init__(self) -> None:
        try:
            "".encode(self.codec)
        except LookupError as error:
            raise UserError(f"--encoding {self.encoding}: no such encoding") from error

    @property
    def codec(self) -> str:
        """The codec."""
        return self.encoding or "utf-8"


def list_files(data: str, flag: str = "--data") -> list[Path]:
    """The files that a flag names: one file, those in a folder and its folders, or those of a pattern.

    Hidden files are left out, in a folder also README and LICENSE.

    Raises:
        UserError: there are none.
    """
    path = Path(data).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        paths = [p for p in path.rglob("*") if _is_text(p.relative_to(path))]
    else:
        paths = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207 (an absolute one)
    files = sorted(p for p in paths if p.is_file())
    if not files and path.exists() and not path.is_dir():
        require_file(path, f"{flag} {data}")
    if not files:
        what = "no files in this folder" if path.is_dir() else "no such file, folder or pattern of files"
        raise UserError(f"{flag} {data}: {what}")
    return files


def describe_files(files: Sequence[TextFile]) -> str:
    """The names of files, and how much of them comes from the Hub."""
    away = sum(file.size for file in files if isinstance(file, HubFile) and not file.cached_path)
    return format_list(file.name for file in files) + (
        f" ({away / 1e6:,.1f} MB streamed from the Hub)" if away else ""
    )


def _is_text(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and not path.name.lower().startswith(NON_TEXT_PREFIXES)


def read_chunks(path: TextFile) -> Iterator[bytes]:
    """The bytes of a file, unpacked where it is gzip or zstd.

    Raises:
        UserError: no such file, or broken.
    """
    try:
        with path.open("rb") as raw:
            magic = raw.peek(4)[:4]  # type: ignore[attr-defined] # of a stream there is no going back
            with _unpacking(raw, magic) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except READ_ERRORS as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def _unpacking(raw: IO[bytes], magic: bytes) -> Any:
    if magic[:2] == GZIP_MAGIC:
        return gzip.open(raw)
    if magic == ZSTD_MAGIC:
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(raw), "zstd")
    return raw


def read_text(path: TextFile, decoding: Decoding, notes: FileNotes | None = None) -> Iterator[str]:
    """The text of a file, in parts of any length; of bytes left out the notes are told.

    Raises:
        UserError: not text, or not in this encoding (the line and the offset in the unpacked file).
    """
    decoder = codecs.getincrementaldecoder(decoding.codec)(
        "ignore" if decoding.errors == "skip" else "strict"
    )
    encoder = codecs.getincrementalencoder(decoding.codec)("replace")
    before = lines = kept = 0
    for chunk in chain(read_chunks(path), [b""]):
        if decoding.encoding is None:
            _require_text(path, chunk, before)
        try:
            part = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _not_decoded(path, decoding, error, before, lines, len(chunk)) from error
        kept += len(encoder.encode(part)) if decoding.errors == "skip" else len(chunk)
        yield part.removeprefix("\ufeff") if before == 0 else part
        before, lines = before + len(chunk), lines + chunk.count(b"\n")
    if notes and kept != before:
        notes.add(path, f"{before - kept:,} bytes that are not {decoding.codec.upper()} were left out")


def _require_text(path: TextFile, chunk: bytes, before: int) -> None:
    if before == 0 and (other := detect_unsupported_format(chunk)):
        raise UserError(f"{path}: not a text file but {other}")
    if b"\0" in chunk:
        raise UserError(f"{path}: not a text file (a zero byte at offset {before + chunk.index(0)})")


def _not_decoded(
    path: TextFile, decoding: Decoding, error: UnicodeDecodeError, before: int, lines: int, size: int
) -> UserError:
    """Where the bytes stand that cannot be decoded; the codec may hold some of the chunk before."""
    held = len(error.object) - size
    offset = before - held + error.start
    line = lines + error.object.count(b"\n", held, max(error.start, held)) + 1
    return UserError(
        f"{path}: line {line}: not {decoding.codec.upper()} (byte 0x{error.object[error.start]:02x} at offset "
        f"{offset}); {decoding.hint}"
    )


def split_lines(parts: Iterable[str], max_chars: int | None = MAX_LINE_CHARS) -> Iterator[str]:
    """The lines of a text that comes in parts, without their ends.

    One longer than `longest` comes as several, cut at a blank; None: every line is whole.
    """
    rest = ""
    for part in parts:
        *whole, rest = (rest + part).split("\n")
        yield from whole
        while max_chars and len(rest) > max_chars:
            at = rest.rfind(" ", 0, max_chars) + 1 or max_chars
            yield rest[:at]
            rest = rest[at:]
    if rest:
        yield rest

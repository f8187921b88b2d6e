"""Text files on disk, on the Hub or at a URL, decoded as streams: no file is held in memory as a whole."""

import codecs
import glob
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal

from bertkit.data.readers.contents import (
    CONVERT_HINT,
    detect_unsupported_format,
    read_chunks,
    require_file,
)
from bertkit.errors import UserError, format_list
from bertkit.hub.files import HubFile

MAX_LINE_CHARS = 1_000_000  # a longer line of running text is split
NON_TEXT_PREFIXES = ("readme", "license", "licence")
BOM = "\ufeff"


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL that fsspec supports: s3://, http://, memory://, ...

    Attributes:
        url: Its full URL.
        digest: Digest of the metadata that the server reports (ETag, size or time), used as a cache key.
    """

    url: str
    digest: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Return the last part of the URL, like `Path.name`."""
        return PurePosixPath(self.url).name

    def open(self, mode: str = "rb", block_size: int = 0) -> IO[bytes]:
        """Open the file as a seekable stream.

        Raises:
            UserError: The file cannot be read.
        """
        system, path = _open_file_system(self.url)
        options = {"block_size": block_size} if block_size else {}
        with _report_url_errors(self.url):
            return io.BufferedReader(system.open(path, "rb", **options))


@dataclass(frozen=True)
class StandardInput:
    """Standard input as a file; it can be read once."""

    stream: BinaryIO

    def __str__(self) -> str:
        return "standard input"

    def read_chunks(self) -> Iterator[bytes]:
        """Yield the bytes as they arrive."""
        read = getattr(self.stream, "read1", self.stream.read)  # `read` would wait until a chunk is full
        while chunk := read(1 << 16):
            yield chunk


TextFile = Path | HubFile | RemoteFile


@dataclass
class FileNotes:
    """Notes on the files that were read, grouped by note.

    Attributes:
        files_by_note: Note -> files that it applies to, in order.
    """

    files_by_note: dict[str, dict[TextFile, None]] = field(default_factory=dict)

    def add(self, path: TextFile, note: str) -> None:
        """Add a note on a file; adding it again has no effect."""
        self.files_by_note.setdefault(note, {})[path] = None

    def format_lines(self) -> list[str]:
        """Return `FILES: NOTE` for each note, in the order of the first occurrence."""
        return [
            f"{format_list(file.name for file in files)}: {note}"
            for note, files in self.files_by_note.items()
        ]


class DecodingError(UserError):
    """A file that contains bytes which are not text in the expected encoding."""


@dataclass(frozen=True)
class Decoding:
    """How the bytes of a file are decoded.

    Attributes:
        encoding: Encoding of the files; None for UTF-8 with or without a byte order mark.
        errors: "stop" raises an error at undecodable bytes, "skip" drops and counts them.
        hint: How to fix undecodable bytes, for the error message.
    """

    encoding: str | None = None
    errors: Literal["stop", "skip"] = "stop"
    hint: str = "pass --encoding, or drop such bytes with --encoding-errors skip"

    def __post_init__(self) -> None:
        try:
            "".encode(self.codec)
        except LookupError as error:
            raise UserError(
                f"--encoding {self.encoding}: no such encoding; use utf-8, latin-1 or another Python codec"
            ) from error

    @property
    def codec(self) -> str:
        """Return the name of the Python codec."""
        return self.encoding or "utf-8"


UTF8_DECODING = Decoding(hint=CONVERT_HINT)


# ---- which files


def is_url(name: str) -> bool:
    """Return whether a name is a URL and not a path."""
    return "://" in name


def list_files(data: str, flag: str = "--data") -> list[Path]:
    """Return the files that a flag names: one file, a folder with its subfolders, or a glob pattern.

    Hidden files are ignored; in a folder README and LICENSE files are ignored too.

    Args:
        data: Value of the flag.
        flag: Its name, for errors.

    Raises:
        UserError: There are no such files.
    """
    path = Path(data).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        paths = [file for file in path.rglob("*") if _is_text_name(file.relative_to(path))]
    else:
        paths = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207 (may be absolute)
    files = sorted(file for file in paths if file.is_file())
    if files:
        return files
    if path.is_dir():
        raise UserError(f"{flag} {data}: no files in this folder; pass a folder with text files")
    if path.exists():
        require_file(path, f"{flag} {data}")
    raise UserError(f"{flag} {data}: no such file, folder or pattern of files")


def list_remote_files(url: str) -> list[Path | RemoteFile]:
    """Return the files at a URL: one file, a folder with its subfolders, or a glob pattern.

    Raises:
        UserError: There are none, or they cannot be read.
    """
    system, path = _open_file_system(url)
    with _report_url_errors(url):
        paths = system.glob(path) if glob.has_magic(path) else system.find(path)
        files = [file for file in sorted(paths) if system.info(file)["type"] == "file"]
    if not files:
        raise UserError(f"--data {url}: no such file, folder or pattern of files at this URL")
    if "file" in system.protocol:
        return [Path(file) for file in files]
    with _report_url_errors(url):
        return [RemoteFile(system.unstrip_protocol(file), f"{system.checksum(file):x}") for file in files]


def describe_files(files: Sequence[TextFile]) -> str:
    """Return the file names, and how many megabytes of them are streamed from the Hub."""
    streamed = sum(file.size for file in files if isinstance(file, HubFile) and not file.cached_path)
    names = format_list(file.name for file in files)
    return f"{names} ({streamed / 1e6:,.1f} MB streamed from the Hub)" if streamed else names


def _is_text_name(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts)
    return not is_hidden and not path.name.lower().startswith(NON_TEXT_PREFIXES)


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    with _report_url_errors(url):
        system, path = fsspec.core.url_to_fs(url)
        return system, path


@contextmanager
def _report_url_errors(url: str) -> Iterator[None]:
    """Raise errors of the file system as a one-line `UserError`."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"--data {url}: cannot be read ({reason})") from error


# ---- their text


def read_text(
    file: TextFile | StandardInput, decoding: Decoding, notes: FileNotes | None = None
) -> Iterator[str]:
    """Yield the text of a file in parts of any length, decompressed and decoded.

    Args:
        file: The file.
        decoding: Its encoding, and what happens to undecodable bytes.
        notes: Receives a note on dropped bytes.

    Raises:
        DecodingError: Undecodable bytes (with the line, and the offset in the decompressed file).
        UserError: The file cannot be read, or is not text.
    """
    errors = "ignore" if decoding.errors == "skip" else "strict"
    decoder = codecs.getincrementaldecoder(decoding.codec)(errors)
    encoder = codecs.getincrementalencoder(decoding.codec)("replace")
    offset = lines = num_decoded = 0
    is_start = True
    chunks = file.read_chunks() if isinstance(file, StandardInput) else read_chunks(file)
    for chunk in chain(chunks, [b""]):
        if decoding.encoding is None:
            _require_text(file, chunk, offset)
        try:
            part = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _make_decoding_error(file, decoding, error, offset, lines, len(chunk)) from error
        num_decoded += len(encoder.encode(part)) if decoding.errors == "skip" else len(chunk)
        yield part.removeprefix(BOM) if is_start else part
        is_start = is_start and not part
        offset, lines = offset + len(chunk), lines + chunk.count(b"\n")
    if notes and num_decoded != offset and not isinstance(file, StandardInput):
        notes.add(file, f"{offset - num_decoded:,} bytes that are not {decoding.codec.upper()} were left out")


def _require_text(file: object, chunk: bytes, offset: int) -> None:
    if offset == 0 and (description := detect_unsupported_format(chunk)):
        raise UserError(f"{file}: not a text file but {description}")
    if b"\0" in chunk:
        raise UserError(f"{file}: not a text file (a zero byte at offset {offset + chunk.index(0)})")


def _make_decoding_error(
    file: object, decoding: Decoding, error: UnicodeDecodeError, offset: int, lines: int, chunk_size: int
) -> DecodingError:
    """Return the error for undecodable bytes; the decoder may hold back bytes of the chunk before."""
    carried = len(error.object) - chunk_size
    bad_offset = offset - carried + error.start
    line = lines + error.object.count(b"\n", carried, max(error.start, carried)) + 1
    bad_byte = error.object[error.start]
    return DecodingError(
        f"{file}: line {line}: not {decoding.codec.upper()} (byte 0x{bad_byte:02x} at offset {bad_offset}); "
        f"{decoding.hint}"
    )


def read_sample(file: TextFile, decoding: Decoding = UTF8_DECODING) -> str:
    """Return the beginning of a file: its text up to the first part that is not blank."""
    parts = read_text(file, decoding)
    sample = ""
    while not sample.strip() and (part := next(parts, None)) is not None:
        sample += part
    return sample


def split_lines(parts: Iterable[str], max_chars: int | None = MAX_LINE_CHARS) -> Iterator[str]:
    """Yield the lines of a text that comes in parts, without line ends.

    Args:
        parts: The text.
        max_chars: A longer line is split at a space; None leaves all lines whole.
    """
    rest = ""
    for part in parts:
        *lines, rest = (rest + part).split("\n")
        yield from lines
        while max_chars and len(rest) > max_chars:
            end = rest.rfind(" ", 0, max_chars) + 1 or max_chars
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest

"""List text files on disk, on the Hub or at a URL, and decode them as streams of bounded memory."""

import glob
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from bertkit.data.readers.contents import read_chunks, require_file
from bertkit.data.readers.decoding import Decoding, DecodingError, DecodingStatistics, decode_chunks
from bertkit.data.readers.encodings import find_encodings, format_candidates
from bertkit.data.rows import Rows, fingerprint_rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.hub.files import HubFile
from bertkit.utils.extras import require_extra
from bertkit.utils.paths import expand_home

MAX_LINE_CHARS = 1_000_000  # a longer line of running text is split
HTTP_PREFIXES = ("http://", "https://")
NON_TEXT_PREFIXES = ("readme", "license", "licence")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL that fsspec supports: s3://, http://, memory://, ...

    Attributes:
        url: The full URL.
        digest: Digest of the metadata that the server reports (ETag, size or time). It is part of cache keys.
    """

    url: str
    digest: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL, like `Path.name`."""
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
    """Standard input as a file that can be read only once."""

    stream: BinaryIO

    def __str__(self) -> str:
        return "standard input"

    def read_chunks(self) -> Iterator[bytes]:
        """Yield chunks of bytes as soon as they arrive."""
        # `read` waits until a chunk is full; `read1` does not, but some streams lack it.
        read = getattr(self.stream, "read1", self.stream.read)
        while chunk := read(1 << 16):
            yield chunk


@dataclass(frozen=True, eq=False)
class RowTable:
    """Rows that are read in place of a file: those of an object, or of a memory-mapped file.

    Attributes:
        rows: The rows.
        name: Name of the file or object, for messages.
    """

    rows: Rows
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def digest(self) -> str:
        """Digest of the rows, which is part of cache keys."""
        return fingerprint_rows(self.rows)


InputFile = Path | HubFile | RemoteFile | RowTable


@dataclass
class FileNotes:
    """Notes on the files that were read. Files with the same note are combined in one line.

    Attributes:
        files_by_note: Files by note, in reading order. A dictionary without values serves as an ordered set.
    """

    files_by_note: dict[str, dict[InputFile, None]] = field(default_factory=dict)

    def add(self, path: InputFile, note: str) -> None:
        """Add a note on a file. Adding the same note twice has no effect."""
        self.files_by_note.setdefault(note, {})[path] = None

    def format_lines(self) -> list[str]:
        """Return a line `FILES: NOTE` for each note, in the order in which the notes were first added."""
        return [
            f"{format_list(file.name for file in files)}: {note}"
            for note, files in self.files_by_note.items()
        ]


UTF8_DECODING = Decoding()


# ---- finding files


def is_url(name: str) -> bool:
    """Return whether a name is a URL; otherwise it is a path or a dataset name."""
    return "://" in name


def list_files(data: str, flag: str = "--data") -> list[Path]:
    """Return the files that a flag names.

    In a folder and its subfolders, hidden files and files named README or LICENSE are ignored.

    Args:
        data: A file, a folder or a glob pattern.
        flag: Name of the flag, for errors.

    Raises:
        UserError: No files were found.
    """
    path = expand_home(data)
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
    """Return the files at a URL, which is that of a file, a folder with subfolders, or a glob pattern.

    Raises:
        UserError: No files were found, or the file system cannot be read.
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


def describe_files(files: Sequence[InputFile]) -> str:
    """Return the file names, and the total size of the files that are streamed from the Hub."""
    streamed_bytes = sum(file.size for file in files if isinstance(file, HubFile) and not file.cached_path)
    names = format_list(file.name for file in files)
    return f"{names} ({streamed_bytes / 1e6:,.1f} MB streamed from the Hub)" if streamed_bytes else names


def _is_text_name(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts)
    return not is_hidden and not path.name.lower().startswith(NON_TEXT_PREFIXES)


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    if url.startswith(HTTP_PREFIXES):
        require_extra("http", ["aiohttp"], f"--data {url}")
    with _report_url_errors(url):
        system, path = fsspec.core.url_to_fs(url)
        return system, path


@contextmanager
def _report_url_errors(url: str) -> Iterator[None]:
    """Convert an error of the file system to a `UserError` of one line."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"--data {url}: cannot be read ({reason})") from error


# ---- reading text


def read_text(
    file: InputFile | StandardInput, decoding: Decoding, notes: FileNotes | None = None
) -> Iterator[str]:
    """Yield the text of a file in parts of any length, decompressed and decoded.

    Args:
        file: The file.
        decoding: How bytes become text.
        notes: Receives a note on the number of dropped bytes.

    Raises:
        DecodingError: The file contains undecodable bytes. The message names the line, the offset in the
            decompressed file, and the encodings that decode the file if it can be read again.
        UserError: The file cannot be read, or is not text.
    """
    chunks = file.read_chunks() if isinstance(file, StandardInput) else read_chunks(file)
    statistics = DecodingStatistics()
    try:
        yield from decode_chunks(file, chunks, decoding, statistics)
    except DecodingError as error:
        raise DecodingError(f"{error}; {_describe_fix(file, decoding)}") from error
    if notes and statistics.num_dropped and not isinstance(file, StandardInput):
        num_dropped = format_count(statistics.num_dropped, "byte")
        notes.add(file, f"{num_dropped} left out: not {statistics.codec.upper()}")


def is_decodable(file: InputFile, decoding: Decoding) -> bool:
    """Return whether a file can be decoded; the whole file is read."""
    try:
        for _ in decode_chunks(file, read_chunks(file), decoding):
            pass
    except DecodingError:
        return False
    return True


def _describe_fix(file: InputFile | StandardInput, decoding: Decoding) -> str:
    """Return the fix for undecodable bytes: the encodings that decode the file, if it is on disk."""
    alternative = f"{decoding.alternative}, or " if decoding.alternative else ""
    if not isinstance(file, Path):  # standard input cannot be read again, and a download can be large
        return f"{alternative}pass --encoding NAME"
    if candidates := find_encodings(lambda: read_chunks(file)):
        return f"{alternative}pass --encoding NAME, with one of these: {format_candidates(candidates)}"
    return f"{alternative}check how it was written: no common encoding decodes all of it"


def read_sample(file: InputFile, decoding: Decoding = UTF8_DECODING) -> str:
    """Return the beginning of a file: the text of its first chunks, up to one that is not blank."""
    parts = read_text(file, decoding)
    sample = ""
    while not sample.strip() and (part := next(parts, None)) is not None:
        sample += part
    return sample


def split_lines(parts: Iterable[str], max_chars: int | None = MAX_LINE_CHARS) -> Iterator[str]:
    """Yield the lines of a text, without line ends.

    Args:
        parts: Consecutive parts of the text, which may end within a line.
        max_chars: Number of characters from which a line is split at a space; None splits no line.
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

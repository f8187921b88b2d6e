"""From files to text: find files, read their bytes, decompress and decode them; list encodings that fit.

Compression and encoding are recognized by content, not by name.
"""

import bz2
import codecs
import glob
import gzip
import io
import json
import lzma
import os
import re
import struct
import time
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal

from charset_normalizer import from_bytes

from bertkit.data.hub import HubFile
from bertkit.data.table import Rows, fingerprint_rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.cache import get_or_create
from bertkit.utils.compat import require_extra
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_position
from bertkit.utils.text import describe_unknown_encoding

CHUNK_BYTES = 1 << 20  # bytes read at a time
GZIP_MAGIC, ZSTD_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
BZIP2_MAGIC, XZ_MAGIC = b"BZh", b"\xfd7zX"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"  # the first message, without a magic number before it
ARROW_MAGIC = (b"ARROW1", ARROW_STREAM_MAGIC)  # Feather files of version 2 are Arrow files
ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # the second one marks an empty archive
SPREADSHEET_ENTRIES = {"[Content_Types].xml", "mimetype"}  # zip entries of Excel and of OpenDocument
UNSUPPORTED_MAGIC = {
    b"PK\x03\x04": "a nested or remote zip archive; unpack it",
    b"FEA1": "a Feather file of version 1; write it as version 2",
    b"%PDF": "a PDF; convert it to text",
    b"version https://git-lfs.": "a git LFS pointer; fetch the file with git lfs pull",
}
EMPTY_FILE = "the file is empty; check how it was written, or pass another file"
NO_ROWS = "the file has no rows; pass a file with rows"
CR_LINE_ENDS = "its lines end in CR only; save it with LF line ends, as tr '\\r' '\\n' does"
# Errors of `json.loads`. A number of too many digits gives a `ValueError` that is not a `JSONDecodeError`.
JSON_ERRORS = (ValueError, RecursionError)
XML_FILE = re.compile(rb"(\xef\xbb\xbf)?\s*<(\?xml|mediawiki)[\s>]", re.IGNORECASE)
HTML_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html[\s>])", re.IGNORECASE)
# `zipfile` raises the last three for a bad name, a bad entry, and a password or an unknown compression.
READ_ERRORS = (
    EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError, struct.error, RuntimeError,
)  # fmt: skip


def require_file(path: Path, display_name: object = None) -> None:
    """Raise a `UserError` that begins with `display_name` (by default the path) if it is not a regular file.

    Pipes and devices are refused because they can be read only once and may never end.
    """
    if path.is_file():
        return
    name = display_name or path
    if path.is_dir():
        raise UserError(f"{name}: is a folder, not a file; pass a file in it")
    kinds = {
        "a pipe": path.is_fifo(), "a socket": path.is_socket(),
        "a device": path.is_char_device() or path.is_block_device(),
    }  # fmt: skip
    for kind, matches in kinds.items():
        if matches:
            raise UserError(f"{name}: is {kind}, not a file; write its content to a file and pass that")
    raise UserError(f"{name}: no such file")


def read_chunks(file: Any) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks, decompressed (gzip, bzip2, xz, zstd, a zip of one file)."""
    try:
        with file.open("rb") as raw:
            magic = raw.peek(4)[:4]  # peek, because a stream cannot be rewound
            stream: Any = raw
            if magic[:2] == GZIP_MAGIC:
                stream = gzip.GzipFile(fileobj=raw)
            elif magic[:3] == BZIP2_MAGIC:
                stream = bz2.BZ2File(raw)
            elif magic == XZ_MAGIC:
                stream = lzma.LZMAFile(raw)  # noqa: SIM115
            elif magic == ZSTD_MAGIC:
                import pyarrow as pa

                stream = pa.CompressedInputStream(pa.PythonFile(raw), "zstd")
            elif magic in ZIP_MAGIC and isinstance(file, Path):  # the directory of an archive is at its end
                stream = _open_only_entry(file, raw)
            with stream:
                while chunk := stream.read(CHUNK_BYTES):
                    report_position(raw.tell())
                    yield chunk
    except READ_ERRORS as error:
        raise UserError(f"{file}: cannot be read ({error})") from error


def _open_only_entry(path: Path, raw: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(raw)
    names = []
    for name in archive.namelist():
        *folders, file_name = name.split("/")
        is_system_entry = folders[:1] == ["__MACOSX"] or file_name.startswith(".")
        if file_name and not is_system_entry:  # folders end in "/"
            names.append(name)
    if SPREADSHEET_ENTRIES & set(names):
        raise UserError(f"{path}: expected a data file, found a spreadsheet; save it as CSV")
    if len(names) != 1:
        content = f"several files ({format_list(names)})" if names else "no file"
        raise UserError(f"{path}: expected a zip archive of one file, found {content}; unpack it")
    return archive.open(names[0])


# ---- digests, for cache keys


def hash_json(value: Any) -> str:
    """Return a digest of a value that can be written as JSON."""
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


LARGE_FILE = 1 << 26  # bytes; the digest of such a file is cached
SETTLED_SECONDS = 10.0  # since the last change: a later one would have another time on any file system


def digest_path(path: Path) -> str:
    """Return a digest of the content of a file.

    The digest of a large file is cached as long as the size, the times and the number (inode) of the file are
    the same. So the other processes of a run, and later runs, do not read the whole file.
    """

    def compute() -> str:
        return _digest_content(path.resolve(), status.st_size, status.st_mtime_ns)

    def write(folder: Path) -> None:
        (folder / "digest").write_bytes(compute().encode())
        if _identify(path.stat()) != _identify(status):
            raise OSError("changed while it was read")  # then, nothing is cached

    try:
        status = path.stat()
        is_settled = max(status.st_mtime, status.st_ctime) < time.time() - SETTLED_SECONDS
        if status.st_size >= LARGE_FILE and is_settled:
            key = hash_json([str(path.resolve()), *_identify(status)])
            if entry := get_or_create("digests", key, write):
                return (entry / "digest").read_text("utf-8")
        return compute()
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from error


def _identify(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


@cache
def _digest_content(path: Path, *size_and_mtime: int) -> str:  # noqa: ARG001 (they invalidate the cache)
    """Return a digest of the bytes of a file. A process reads a file only once, unless the file changes."""
    content = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            content.update(chunk)
    return content.hexdigest()


# ---- decoding

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


def decode_chunks(
    name: object, chunks: Iterable[bytes], decoding: Decoding, add_note: Callable[[str], None] | None = None
) -> Iterator[str]:
    """Yield the text of a file in parts, one for each chunk of bytes; a byte order mark is removed.

    `add_note` receives a note on the number of dropped bytes.
    """
    chunks = iter(chunks)
    head = next(chunks, b"")
    # Only the beginning of a byte order mark needs more chunks: standard input yields lines of a few bytes,
    # and a user waits for the result of the first line.
    while any(len(head) < len(bom) and bom.startswith(head) for bom in ENCODINGS_BY_BOM):
        chunk = next(chunks, b"")
        if not chunk:
            break
        head += chunk
    codec_by_mark = (codec for bom, codec in ENCODINGS_BY_BOM.items() if head.startswith(bom))
    codec = decoding.encoding or next(codec_by_mark, "utf-8")
    if HTML_PAGE.match(head):
        raise UserError(
            f"{name}: not a text file but an HTML page, perhaps from a failed download; download it again"
        )
    if XML_FILE.match(head):
        raise UserError(
            f"{name}: is XML, whose elements bertkit does not know; write the texts to CSV, JSONL or plain "
            "text (for a dump of Wikipedia, WikiExtractor does this)"
        )
    for magic, description in UNSUPPORTED_MAGIC.items():
        if head.startswith(magic):
            raise UserError(f"{name}: not a text file but {description}")
    is_marked = codec == "utf-8" and head.startswith(codecs.BOM_UTF8)
    # An exhausted iterator releases the first bytes.
    all_chunks = chain(iter([head] if head else []), chunks, [b""])
    del head
    skips_errors = decoding.errors == "skip"
    decoder = codecs.getincrementaldecoder(codec)("ignore" if skips_errors else "strict")
    encoder = codecs.getincrementalencoder(codec)("replace")
    offset = line_offset = 0  # bytes and line breaks before the chunk
    num_dropped, is_start = 0, True
    for chunk in all_chunks:
        if codec == "utf-8" and b"\0" in chunk:
            raise DecodingError(f"{name}: not a text file (a zero byte at offset {offset + chunk.index(0)})")
        state = decoder.getstate()
        try:
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                # The decoder keeps an incomplete character at the end of a chunk, for the next chunk.
                num_kept = len(error.object) - len(chunk)
                decoder.setstate(state)
                valid_text = decoder.decode(chunk[: max(error.start - num_kept, 0)])
                line = line_offset + valid_text.count("\n") + 1
                bad_byte, bad_offset = error.object[error.start], offset - num_kept + error.start
                location = f"byte 0x{bad_byte:02x} at offset {bad_offset}"
                if is_marked:  # no other encoding fits
                    raise UserError(
                        f"{name}: line {line}: is damaged ({location}): the file begins with the byte order "
                        "mark of UTF-8, and this is no UTF-8; correct the line"
                    ) from error
                raise DecodingError(f"{name}: line {line}: not {codec.upper()} ({location})") from error
        except UnicodeError as error:  # `utf-16` requires a byte order mark
            raise DecodingError(f"{name}: not {codec.upper()} ({error})") from error
        if "\0" in text:
            line = line_offset + text.count("\n", 0, text.index("\0")) + 1
            raise DecodingError(f"{name}: line {line}: not {codec.upper()} (a NUL character)")
        if skips_errors:
            num_dropped += len(chunk) - len(encoder.encode(text))
        offset += len(chunk)
        line_offset += text.count("\n")
        yield text.removeprefix(BOM) if is_start else text
        is_start = is_start and not text
    if add_note and num_dropped:
        add_note(f"{format_count(num_dropped, 'byte')} left out: not {codec.upper()}")


# ---- encodings that fit

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
    """An encoding that decodes all bytes of a file."""

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

    Of several encodings that give the same text, only the first one is returned. `read_chunks` is called once
    for each encoding, because a file may be larger than memory.
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


def _try_encoding(encoding: str, chunks: Iterable[bytes]) -> Candidate | None:
    """Return the candidate if the encoding decodes all chunks and the text is plausible, else None."""
    digest, text, rest = 0, "", ""
    try:
        for part in decode_chunks("", chunks, Decoding(encoding)):
            digest = hash((digest, part))  # single-byte encodings give parts of equal size
            if len(text) < RANKED_CHARS:
                *lines, rest = (rest + part).split("\n")
                text += "".join(line + "\n" for line in lines if not line.isascii())
                rest = rest if len(rest) < RANKED_CHARS else ""
    except DecodingError:
        return None
    text = (text if rest.isascii() else f"{text}{rest}\n")[:RANKED_CHARS]
    return None if IMPLAUSIBLE_CHARACTER.search(text) else Candidate(encoding, text, digest)


def _score(candidate: Candidate) -> float:
    """Return a number that is lower for a more plausible text.

    `charset_normalizer` measures how much the text looks like wrongly decoded text, and how well the frequent
    letters match a language. It cannot reliably tell the encodings of Chinese, Japanese and Korean apart, and
    it ignores symbols, so the fraction of rare characters among those that are not ASCII is added.
    """
    text, encoding = candidate.text, candidate.encoding
    if encoding == "utf-8":  # text in another encoding is practically never valid UTF-8
        return -1.0
    match = from_bytes(text.encode("utf-8"), cp_isolation=["utf_8"], threshold=1.0).best()
    score = match.chaos - match.coherence if match else 1.0
    foreign = [char for char in text if not char.isascii()]
    if encoding in FREQUENT_LEAD_BYTES:
        num_rare = len(LONE_CHARACTER.findall(text))
        for char in foreign:
            lead, *trail = char.encode(encoding)
            is_extension = encoding in EUC_ENCODINGS and trail < [0xA1]
            is_frequent = any(lead in values for values in FREQUENT_LEAD_BYTES[encoding])
            num_rare += not trail or is_extension or not is_frequent
    else:
        num_rare = sum(unicodedata.category(char) in SYMBOL_CATEGORIES for char in foreign)
    return score + num_rare / max(1, len(foreign))


# ---- kinds of files

MAX_LINE_CHARS = 1_000_000  # a longer line of running text is split
HTTP_PREFIXES = ("http://", "https://")
NON_TEXT_PREFIXES = ("readme", "license", "licence")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL that fsspec supports: s3://, http://, memory://, ...

    Attributes:
        digest: Digest of the metadata that the server reports (ETag, size or time). It is part of cache keys.
    """

    url: str
    digest: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    def open(self, mode: str = "rb", block_size: int = 0) -> IO[bytes]:
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
    """Rows that are read in place of a file: those of an object, or of a memory-mapped file."""

    rows: Rows
    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def digest(self) -> str:
        return fingerprint_rows(self.rows)


InputFile = Path | HubFile | RemoteFile | RowTable


@dataclass
class FileNotes:
    """Notes on the files that were read. Files with the same note are combined in one line."""

    # A dictionary without values serves as an ordered set of files.
    files_by_note: dict[str, dict[InputFile, None]] = field(default_factory=dict)

    def add(self, path: InputFile, note: str) -> None:
        self.files_by_note.setdefault(note, {})[path] = None

    def format_lines(self) -> list[str]:
        """Return a line `FILES: NOTE` for each note, in the order of their first files."""
        return [
            f"{format_list(file.name for file in files)}: {note}"
            for note, files in self.files_by_note.items()
        ]


# ---- finding files


def is_url(name: str) -> bool:
    """Return whether a name is a URL; otherwise it is a path or a dataset name."""
    return "://" in name


def list_files(data: str, flag: str = "--data") -> list[Path]:
    """Return the files that a flag names: a file, a folder with subfolders, or a glob pattern.

    In folders, hidden files and files named README or LICENSE are ignored.
    """
    path = expand_home(data)
    if path.is_file():
        return [path]
    if path.is_dir():
        paths = [
            file
            for file in path.rglob("*")
            if not any(part.startswith(".") for part in file.relative_to(path).parts)
            and not file.name.lower().startswith(NON_TEXT_PREFIXES)
        ]
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
    """Return the files at a URL, which is that of a file, a folder with subfolders, or a glob pattern."""
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

    The error for undecodable bytes names the line, the offset in the decompressed file, and the encodings
    that decode the file if it can be read again. `notes` receives a note on the number of dropped bytes.
    """
    chunks = file.read_chunks() if isinstance(file, StandardInput) else read_chunks(file)
    add_note = partial(notes.add, file) if notes and not isinstance(file, StandardInput) else None
    try:
        yield from decode_chunks(file, chunks, decoding, add_note)
    except DecodingError as error:
        alternative = f"{decoding.alternative}, or " if decoding.alternative else ""
        if not isinstance(file, Path):  # standard input cannot be read again, and a download can be large
            fix = "pass --encoding NAME"
        elif candidates := find_encodings(lambda: read_chunks(file)):
            samples = " | ".join(f'{candidate.encoding}: "{candidate.sample}"' for candidate in candidates)
            fix = f"pass --encoding NAME, with one of these: {samples}"
        else:
            fix = "check how it was written: no common encoding decodes all of it"
        raise DecodingError(f"{error}; {alternative}{fix}") from error


def split_lines(parts: Iterable[str], max_chars: int | None = MAX_LINE_CHARS) -> Iterator[str]:
    """Yield the lines of a text, whose parts may end within a line; split longer lines at spaces."""
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

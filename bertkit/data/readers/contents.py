"""Read and decompress the bytes of files in chunks; formats are recognized by content, not by name."""

import gzip
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from bertkit.errors import UserError, format_list
from bertkit.utils.reporting import report_position

CHUNK_BYTES = 1 << 20  # bytes read at a time
GZIP_MAGIC, ZSTD_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
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
HTML_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html[\s>])", re.IGNORECASE)
# `zipfile` raises the last three for a bad name, a bad entry, and a password or an unknown compression.
READ_ERRORS = (
    EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError, struct.error, RuntimeError,
)  # fmt: skip


def require_file(path: Path, display_name: object = None) -> None:
    """Raise a `UserError` unless the path is a regular file.

    Pipes and devices are refused because they can be read only once and may never end.

    Args:
        path: The path to check.
        display_name: Name of the file in the error; None for the path.

    Raises:
        UserError: The path does not exist, or is a folder, a pipe, a socket or a device.
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
    """Yield the bytes of a file in chunks, decompressed if it is gzip, zstd or a zip archive of one file.

    Args:
        file: A path, or another object with an `open` method like that of `Path`.

    Raises:
        UserError: The file cannot be read, is a spreadsheet, or is a zip archive without exactly one file.
    """
    try:
        with file.open("rb") as raw:
            magic = raw.peek(4)[:4]  # peek, because a stream cannot be rewound
            with _decompress(file, raw, magic) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    report_position(raw.tell())
                    yield chunk
    except READ_ERRORS as error:
        raise UserError(f"{file}: cannot be read ({error})") from error


def _decompress(file: Any, raw: IO[bytes], magic: bytes) -> Any:
    if magic[:2] == GZIP_MAGIC:
        return gzip.open(raw)
    if magic == ZSTD_MAGIC:
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(raw), "zstd")
    if magic in ZIP_MAGIC and isinstance(file, Path):  # the directory of an archive is at its end
        return _open_only_entry(file, raw)
    return raw


@contextmanager
def _open_only_entry(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(raw) as archive:
        names = [name for name in archive.namelist() if not _is_system_entry(name)]
        if SPREADSHEET_ENTRIES & set(names):
            raise UserError(f"{path}: expected a data file, found a spreadsheet; save it as CSV")
        if len(names) != 1:
            content = f"several files ({format_list(names)})" if names else "no file"
            raise UserError(f"{path}: expected a zip archive of one file, found {content}; unpack it")
        with archive.open(names[0]) as entry:
            yield entry


def _is_system_entry(name: str) -> bool:
    """Return whether a zip entry is a folder or system metadata (`__MACOSX/`, `.DS_Store`)."""
    parts = name.split("/")
    return not parts[-1] or parts[0] == "__MACOSX" or parts[-1].startswith(".")


def detect_unsupported_format(head: bytes) -> str | None:
    """Return what an unsupported file is and how to fix it, given its first bytes; None for other files."""
    if HTML_PAGE.match(head):
        return "an HTML page, perhaps from a failed download; download it again"
    return next((name for magic, name in UNSUPPORTED_MAGIC.items() if head.startswith(magic)), None)


# ---- digests, for cache keys


def hash_json(value: Any) -> str:
    """Return a digest of a value that can be written as JSON."""
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def digest_path(path: Path) -> str:
    """Return a digest of the content of a file.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        status = path.stat()
        return _digest_content(path.resolve(), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{path}: cannot read the file ({error.strerror})") from error


@cache
def _digest_content(path: Path, *size_and_mtime: int) -> str:  # noqa: ARG001 (they invalidate the cache)
    """Return a digest of the bytes of a file. A process reads a file only once, unless the file changes."""
    content = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            content.update(chunk)
    return content.hexdigest()

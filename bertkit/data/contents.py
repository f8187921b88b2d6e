"""What a file holds, whatever its name says: its bytes, unpacked where they are compressed, and its text."""

import gzip
import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path

from bertkit.errors import UserError, listed

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the second is an empty archive
SPREADSHEET = {"[Content_Types].xml", "mimetype"}  # in a zip: of Excel, of OpenDocument
OTHER_MAGIC = {
    b"PK\x03\x04": "a zip archive in another one; unpack it",
    b"%PDF": "a PDF",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
CONVERT = "convert it, for example with iconv -f latin1 -t utf-8"
# Of zipfile the last three too: for a name, an entry, and a password or a method that it cannot read.
UNREADABLE = (
    EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError, struct.error, RuntimeError,
)  # fmt: skip


def unpacked(path: Path) -> bytes:
    """The bytes of a file, after gzip, zstd or a zip archive of this one file.

    Raises:
        UserError: broken, or a zip archive that is a spreadsheet or has none or several files in it.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == GZIP:
            return gzip.decompress(raw)
        if raw[:4] == ZSTD:
            import pyarrow as pa

            return pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read()
        return _only_file(path, raw) if raw[:4] in ZIP else raw
    except UNREADABLE as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def decoded(path: Path, raw: bytes, encoding: str | None = None) -> str:
    """The text of a file's bytes: UTF-8 without its mark, or else in `encoding`.

    Raises:
        UserError: another kind of file, or not UTF-8 (the line).
    """
    for magic, what in OTHER_MAGIC.items():
        if raw.startswith(magic):
            raise UserError(f"{path}: not a data file but {what}")
    if b"\0" in raw:
        raise UserError(f"{path}: not a text file (a zero byte at offset {raw.index(0)})")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if encoding:
            return raw.decode(encoding)
        row = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: line {row}: not UTF-8 (byte 0x{raw[error.start]:02x} at offset {error.start}); "
            f"{CONVERT}"
        ) from error


def _only_file(path: Path, raw: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        names = [name for name in archive.namelist() if not _is_beside(name)]
        if SPREADSHEET & set(names):
            raise UserError(f"{path}: not a data file but a spreadsheet; save it as CSV")
        if len(names) != 1:
            there = f"several files ({listed(names)})" if names else "no file"
            raise UserError(f"{path}: a zip archive with {there} in it, where one is wanted; unpack it")
        return archive.read(names[0])


def _is_beside(name: str) -> bool:
    """Whether an entry is a folder or what systems put beside files: `__MACOSX/`, `.DS_Store`."""
    parts = name.split("/")
    return not parts[-1] or parts[0] == "__MACOSX" or parts[-1].startswith(".")

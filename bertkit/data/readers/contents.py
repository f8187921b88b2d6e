"""What a file holds, whatever its name says: its bytes, unpacked where they are compressed, and its text."""

import gzip
import io
import lzma
import re
import struct
import zipfile
import zlib
from pathlib import Path

from bertkit.errors import UserError, format_list

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # the second is an empty archive
SPREADSHEET_ENTRIES = {"[Content_Types].xml", "mimetype"}  # in a zip: of Excel, of OpenDocument
UNSUPPORTED_MAGIC = {
    b"PK\x03\x04": "a zip archive in another one; unpack it",
    b"%PDF": "a PDF",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"version https://git-lfs.": "a pointer of git LFS; fetch the file with git lfs pull",
}
EMPTY_FILE = "the file is empty; look at how it was written, or name another"
HTML_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html[\s>])", re.IGNORECASE)
CONVERT_HINT = "convert it, for example with iconv -f latin1 -t utf-8"
# Of zipfile the last three too: for a name, an entry, and a password or a method that it cannot read.
READ_ERRORS = (
    EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError, struct.error, RuntimeError,
)  # fmt: skip


def require_file(path: Path, display_name: object = None) -> None:
    """Refuse what is no file: also a pipe or a device, which can be read once alone, and perhaps without end.

    Args:
        named: what the error calls it; None: by its path.

    Raises:
        UserError: what it is, and the way out.
    """
    if path.is_file():
        return
    kinds = {
        "a folder": path.is_dir(), "a pipe": path.is_fifo(), "a socket": path.is_socket(),
        "a device": path.is_char_device() or path.is_block_device(),
    }  # fmt: skip
    what = next((kind for kind, right in kinds.items() if right), None)
    fix = "name the file in it" if what == "a folder" else "write what it gives to a file and name that"
    raise UserError(f"{display_name or path}: " + (f"is {what}, no file; {fix}" if what else "no such file"))


def read_decompressed(path: Path) -> bytes:
    """The bytes of a file, after gzip, zstd or a zip archive of this one file.

    Raises:
        UserError: broken, or a zip archive that is a spreadsheet or has none or several files in it.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == GZIP_MAGIC:
            return gzip.decompress(raw)
        if raw[:4] == ZSTD_MAGIC:
            import pyarrow as pa

            return pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read()
        return _only_file(path, raw) if raw[:4] in ZIP_MAGIC else raw
    except READ_ERRORS as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def decode_text(path: Path, raw: bytes, encoding: str | None = None) -> str:
    """The text of a file's bytes: UTF-8 without its mark, or else in `encoding`.

    Raises:
        UserError: another kind of file, or not UTF-8 (the line).
    """
    if other := detect_unsupported_format(raw):
        raise UserError(f"{path}: not a data file but {other}")
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
            f"{CONVERT_HINT}"
        ) from error


def detect_unsupported_format(head: bytes) -> str | None:
    """What a file is that is no data, by how it begins, and the way out; None where that is not seen."""
    if HTML_PAGE.match(head):
        return "an HTML page, perhaps what a failed download left; download it again"
    return next((what for magic, what in UNSUPPORTED_MAGIC.items() if head.startswith(magic)), None)


def _only_file(path: Path, raw: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        names = [name for name in archive.namelist() if not _is_beside(name)]
        if SPREADSHEET_ENTRIES & set(names):
            raise UserError(f"{path}: not a data file but a spreadsheet; save it as CSV")
        if len(names) != 1:
            there = f"several files ({format_list(names)})" if names else "no file"
            raise UserError(f"{path}: a zip archive with {there} in it, where one is wanted; unpack it")
        return archive.read(names[0])


def _is_beside(name: str) -> bool:
    """Whether an entry is a folder or what systems put beside files: `__MACOSX/`, `.DS_Store`."""
    parts = name.split("/")
    return not parts[-1] or parts[0] == "__MACOSX" or parts[-1].startswith(".")

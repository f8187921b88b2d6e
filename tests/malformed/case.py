"""What a case is, and the ways to damage any file."""

import gzip
import io
import zipfile
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Case:
    """A file and the expected result of reading it.

    Attributes:
        content: the bytes of the file.
        message_parts: texts that the error message contains.
        num_rows: number of rows, if the file is valid.
        name: the file name, which most readers ignore.
        sidecar: content of the file NAME.json, if there is one.
    """

    content: bytes
    message_parts: tuple[str, ...] = ()
    num_rows: int | None = None
    name: str = "data.csv"
    sidecar: str | None = None


def expect_error(
    content: bytes | str, *message_parts: str, name: str = "data.csv", sidecar: str | None = None
) -> Case:
    """A file that is refused with these words."""
    return Case(content.encode() if isinstance(content, str) else content, message_parts, None, name, sidecar)


def expect_rows(content: bytes | str, rows: int, name: str = "data.csv") -> Case:
    """A file that looks malformed and is not."""
    return Case(content.encode() if isinstance(content, str) else content, num_rows=rows, name=name)


HTML = """<!DOCTYPE html>
<html lang="en"><head><title>404, not found</title></head>
<body><h1>Not found</h1><p>There is no such file, sorry.</p></body></html>
"""
LFS_POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


def make_zip(files: dict[str, bytes]) -> bytes:
    """A zip archive."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return whole.getvalue()


def compress_zstd(content: bytes) -> bytes:
    """Compressed by zstd."""
    return pa.Codec("zstd").compress(content, asbytes=True)


def replace_byte(content: bytes, at: int, byte: int) -> bytes:
    """With one byte in the place of another."""
    return content[:at] + bytes([byte]) + content[at + 1 :]


def make_damage_cases(good: bytes, rows: int) -> dict[str, Case]:
    """What can happen to any file of text, whatever it holds."""
    packed, archive = gzip.compress(good, mtime=0), make_zip({"a.csv": good})
    return {
        "nothing in it": expect_error(b"", "empty"),
        "only blank lines": expect_error("\n \n\t\n\r\n"),
        "only a byte order mark": expect_error(b"\xef\xbb\xbf", "empty"),
        "a byte order mark": expect_rows(b"\xef\xbb\xbf" + good, rows),
        "lines that end in CR LF": expect_rows(good.replace(b"\n", b"\r\n"), rows),
        "UTF-16": expect_rows(good.decode().encode("utf-16"), rows),
        "UTF-16 cut short": expect_error(good.decode().encode("utf-16")[:-1], "not UTF-16", "byte 0x"),
        "UTF-16 without its mark": expect_error(good.decode().encode("utf-16-be"), "zero byte"),
        "UTF-32": expect_rows(good.decode().encode("utf-32"), rows),
        "Latin-1": expect_error(good + "caf\xe9".encode("latin-1"), "not UTF-8", "0xe9", "line"),
        "half of a letter at the end": expect_error(good + "é".encode()[:1], "not UTF-8"),
        "half of a surrogate pair as UTF-8": expect_error(good + b"\xed\xa0\x80", "not UTF-8"),
        "a zero byte": expect_error(good[:40] + b"\0" + good[40:], "zero byte at offset 40"),
        "zeros alone": expect_error(bytes(4096), "zero byte"),
        "rubbish": expect_error(bytes(range(1, 256)) * 20, "not"),
        "a page in place of the file": expect_error(HTML, "HTML page", "download"),
        "a page after blanks": expect_error("\n  " + HTML.lower(), "HTML page"),
        "a pointer of git LFS": expect_error(LFS_POINTER, "git lfs pull"),
        "a PDF": expect_error(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "a PDF"),
        "a picture": expect_error(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not"),
        "gzip": expect_rows(packed, rows),
        "gzip cut short": expect_error(packed[: len(packed) // 2], "cannot be read"),
        "gzip without its last byte": expect_error(packed[:-1], "cannot be read"),
        "gzip with another sum": expect_error(replace_byte(packed, len(packed) - 6, packed[-6] ^ 255), "cannot be read"),
        "gzip with a valid header only": expect_error(b"\x1f\x8b" + b"\0" * 30, "cannot be read"),
        "gzip of a zero byte": expect_error(gzip.compress(good + b"\0", mtime=0), "zero byte"),
        "gzip of nothing": expect_error(gzip.compress(b"", mtime=0), "empty"),
        "zstd": expect_rows(compress_zstd(good), rows),
        "zstd cut short": expect_error(compress_zstd(good)[:-9], "cannot be read"),
        "zstd with a valid header only": expect_error(b"\x28\xb5\x2f\xfd" + b"\xff" * 30, "cannot be read"),
        "zip cut short": expect_error(archive[:-30]),
        "zip of nothing": expect_error(make_zip({})),
        "zip of two files": expect_error(make_zip({"a.csv": good, "b.csv": good})),
        "Parquet cut short": expect_error(b"PAR1" + b"\x15\x04" * 40, "broken Parquet"),
    }  # fmt: skip

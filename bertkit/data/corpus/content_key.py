"""The content address of a text: what its files hold, and their names, which notes on them tell."""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

from bertkit.data.readers.contents import CHUNK_BYTES
from bertkit.data.readers.text_files import TextFile
from bertkit.errors import UserError


def digest_files(files: Sequence[TextFile]) -> list[tuple[str, str]]:
    """Name and digest of each file; of one elsewhere nothing is read.

    Raises:
        UserError: a file that cannot be read.
    """
    return [(file.name, _digest(file) if isinstance(file, Path) else file.digest) for file in files]


def _digest(path: Path) -> str:
    try:
        about = path.stat()
        return _digest_of(path.resolve(), about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


@cache
def _digest_of(path: Path, *as_it_is: int) -> str:  # noqa: ARG001 (what tells that it was changed)
    """Of a file's bytes, read once in a run as long as it stays as it is."""
    content = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            content.update(chunk)
    return content.hexdigest()

"""Text files elsewhere, streamed: by any address that fsspec knows, s3:// or http:// or memory://."""

import glob
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bertkit.errors import UserError


@dataclass(frozen=True)
class RemoteFile:
    """A file elsewhere.

    Attributes:
        url: its whole address.
        digest: of what the place tells of it, its ETag, size or time: what is made of it is kept under that.
    """

    url: str
    digest: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Without its folders, as that of a path."""
        return PurePosixPath(self.url).name

    def open(self, mode: str = "rb", block_size: int = 0) -> IO[bytes]:
        """To be read as a stream, or anywhere in it. Raises `UserError` where it cannot be had."""
        system, path = _system(self.url)
        with _told(self.url):
            return io.BufferedReader(
                system.open(path, "rb", **({"block_size": block_size} if block_size else {}))
            )


def is_url(name: str) -> bool:
    """Whether a name is an address, not a path."""
    return "://" in name


def list_remote_files(url: str) -> list[Path | RemoteFile]:
    """The files at an address: one, those in a folder and its folders, or those of a pattern.

    Raises:
        UserError: there are none, or they cannot be had.
    """
    system, path = _system(url)
    with _told(url):
        paths = system.glob(path) if glob.has_magic(path) else system.find(path)
        about = {one: system.info(one) for one in sorted(paths)}
    files = [one for one, info in about.items() if info["type"] == "file"]
    if not files:
        raise UserError(f"--data {url}: no such file, folder or pattern of files there")
    if "file" in system.protocol:
        return [Path(one) for one in files]
    with _told(url):
        return [RemoteFile(system.unstrip_protocol(one), f"{system.checksum(one):x}") for one in files]


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    with _told(url):
        system, path = fsspec.core.url_to_fs(url)
        return system, path


@contextmanager
def _told(url: str) -> Iterator[None]:
    """What the place, or the way to it, refuses, as one line."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"--data {url}: cannot be read ({reason})") from error

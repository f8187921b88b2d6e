"""Files of a data set on the Hub: listed once, read from the Hugging Face cache or as streams.

A stream is never put on disk. What is made of it is kept under the address of its content, which the
Hub tells without its being read.
"""

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bertkit.errors import UserError
from bertkit.hub.client import (
    FILE_PATTERNS,
    describe_missing,
    describe_refusal,
    get_connection_error_types,
    require_reachable,
    summarize_error,
)
from bertkit.utils.cache import get_or_create

BLOCK_SIZE = 4 << 20  # bytes of a request, where not all of a file is read from its beginning to its end
DATASET_INFOS = "dataset_infos.json"  # tells of the files beside it
CONNECTION_BROKEN = "the connection to the Hub broke"


@dataclass(frozen=True)
class HubFile:
    """A file of a data set on the Hub.

    Attributes:
        commit: of the repository when it was listed.
        path: in the repository.
        digest: of its content, as the Hub names it: SHA-256 of a large file, git's name of a small one.
        size: in bytes.
    """

    repo: str
    commit: str
    path: str
    digest: str
    size: int

    def __str__(self) -> str:
        return f"hf://datasets/{self.repo}/{self.path}"

    @property
    def name(self) -> str:
        """Without its folders, as that of a path."""
        return PurePosixPath(self.path).name

    @property
    def cached_path(self) -> Path | None:
        """The file in the Hugging Face cache, if it is there."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, self.path, revision=self.commit, repo_type="dataset")
        return Path(found) if isinstance(found, str) else None

    def open(self, mode: str = "rb", block_size: int = 0) -> IO[bytes]:
        """To be read from its beginning to its end; with the size of a block, anywhere in it.

        Raises:
            UserError: now or while it is read: no right to it, or the connection broke.
        """
        here = self.cached_path
        return here.open("rb") if here else io.BufferedReader(_Stream(self, block_size))


def require_available(files: Iterable[Any]) -> None:
    """Raise a `UserError` within seconds where a file must come from the Hub, which cannot be reached."""
    away = next((file for file in files if isinstance(file, HubFile) and not file.cached_path), None)
    if away:
        require_reachable(f"{away}: is not in the Hugging Face cache")


class _Stream(io.RawIOBase):
    """The bytes of a file on the Hub as they are asked for."""

    def __init__(self, file: HubFile, block: int) -> None:
        from huggingface_hub import HfFileSystem

        self._file = file
        path = f"datasets/{file.repo}@{file.commit}/{file.path}"
        with _told(file):
            self._raw: Any = HfFileSystem().open(path, block_size=block, size=file.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._raw.blocksize)

    def readinto(self, buffer: Any) -> int:
        with _told(self._file):
            return int(self._raw.readinto(buffer))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        return int(self._raw.tell())

    def close(self) -> None:
        self.__dict__.pop("_raw", None)  # whose own close() leaves the connection open
        super().close()


@contextmanager
def _told(file: HubFile) -> Iterator[None]:
    """What the Hub or the way to it refuses, as one line."""
    try:
        yield
    except get_connection_error_types() as error:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403, 404):
            raise UserError(f"{file}: {describe_refusal(error, 'dataset', file.repo)}") from error
        raise UserError(f"{file}: {CONNECTION_BROKEN} ({summarize_error(error)}); try again") from error


# ---- which there are


def list_hub_files(
    repo: str, revision: str | None = None, part: str | None = None, *, flag: str, alternative: str = ""
) -> list[HubFile]:
    """The data files of a set, as they were when it was listed first; the list is kept in the cache.

    The arguments are those of `bertkit.hub.client.snapshot`.

    Raises:
        Unreachable: not listed before, and the Hub cannot be reached (within seconds).
        UserError: unknown, private, or without files bertkit reads.
    """
    from huggingface_hub import constants

    which = (repo, revision, part)
    made: list[HubFile] = []

    def write(folder: Path) -> None:
        made.extend(_on_hub(*which, flag=flag, other_way=alternative))
        (folder / "files.json").write_text(json.dumps([asdict(file) for file in made]), "utf-8")

    key = blake2b(json.dumps([constants.ENDPOINT, *which]).encode(), digest_size=16).hexdigest()
    folder = get_or_create("hub", key, write)
    if folder is None:
        return made or _on_hub(*which, flag=flag, other_way=alternative)
    return [HubFile(**about) for about in json.loads((folder / "files.json").read_text("utf-8"))]


def _on_hub(repo: str, revision: str | None, part: str | None, *, flag: str, other_way: str) -> list[HubFile]:
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    require_reachable(f"{flag}: {repo} is not in the Hugging Face cache", other_way)
    try:
        files = _listed(repo, revision, part)
    except HFValidationError as error:
        raise UserError(f"{flag}: {repo!r} is not a Hub name ({error})") from error
    except EntryNotFoundError:
        files = []
    except HfHubHTTPError as error:
        raise UserError(f"{flag}: {describe_refusal(error, 'dataset', repo)}") from error
    except get_connection_error_types() as error:
        raise UserError(f"{flag}: {CONNECTION_BROKEN} ({summarize_error(error)}); try again") from error
    if not files:
        raise UserError(f"{flag}: {describe_missing(repo, 'dataset', revision, part)}")
    return files


def _listed(repo: str, revision: str | None, part: str | None) -> list[HubFile]:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    commit = str(api.repo_info(repo, repo_type="dataset", revision=revision).sha)
    tree = api.list_repo_tree(repo, part or None, recursive=True, revision=commit, repo_type="dataset")
    return [
        HubFile(repo, commit, file.path, file.lfs.sha256 if file.lfs else file.blob_id, file.size)
        for file in tree
        if isinstance(file, RepoFile) and _is_data(PurePosixPath(file.path))
    ]


def _is_data(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return (
        not hidden
        and path.name != DATASET_INFOS
        and any(fnmatch(path.name, each) for each in FILE_PATTERNS["dataset"])
    )

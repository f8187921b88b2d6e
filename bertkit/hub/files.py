"""Files of Hub datasets, which are read from the Hugging Face cache or streamed.

Streamed files are not saved. Content that is computed from a file is cached under the digest of the file,
which the Hub provides without a download.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bertkit.errors import UserError
from bertkit.hub.client import FILE_PATTERNS, describe_missing_content, require_reachable, translate_errors
from bertkit.utils.cache import get_or_create

BLOCK_SIZE = 4 << 20  # bytes per request, for random access
DATASET_INFOS = "dataset_infos.json"  # a JSON file that contains metadata instead of rows


@dataclass(frozen=True)
class HubFile:
    """File of a dataset on the Hub.

    Attributes:
        repo: Repository, `ORG/NAME`.
        commit: Commit of the repository at the time of listing.
        path: Path in the repository.
        digest: Digest of the content: SHA-256 for a large file, the git object id for a small file.
        size: Size in bytes.
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
        """File name without directories, like `Path.name`."""
        return PurePosixPath(self.path).name

    @property
    def cached_path(self) -> Path | None:
        """Path in the Hugging Face cache, or None if the file is not cached."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repo, self.path, revision=self.commit, repo_type="dataset")
        return Path(path) if isinstance(path, str) else None

    def open(self, mode: str = "rb", block_size: int = 0) -> IO[bytes]:
        """Open the file for reading.

        Args:
            mode: Always "rb".
            block_size: Bytes per request, for random access; 0 if the file is read from start to end.

        Raises:
            UserError: The file is not accessible, or the connection is lost. Reads may raise this error, too.
        """
        cached = self.cached_path
        return cached.open("rb") if cached else io.BufferedReader(_HubStream(self, block_size))


def require_available(files: Iterable[Any]) -> None:
    """Check that all files can be read: they are local or cached, or the Hub can be reached.

    Raises:
        HubUnreachable: A file is not cached, and the Hub cannot be reached. Raised within seconds.
    """
    for file in files:
        if isinstance(file, HubFile) and not file.cached_path:
            require_reachable(f"{file}: is not in the Hugging Face cache")
            return


class _HubStream(io.RawIOBase):
    """Raw stream that downloads a file on the Hub while it is read."""

    def __init__(self, file: HubFile, block_size: int) -> None:
        from huggingface_hub import HfFileSystem

        self._file = file
        path = f"datasets/{file.repo}@{file.commit}/{file.path}"
        with translate_errors(str(file), file.repo):
            self._raw: Any = HfFileSystem().open(path, block_size=block_size, size=file.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._raw.blocksize)

    def readinto(self, buffer: Any) -> int:
        with translate_errors(str(self._file), self._file.repo):
            return int(self._raw.readinto(buffer))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        return int(self._raw.tell())

    def close(self) -> None:
        self.__dict__.pop("_raw", None)  # its own close() would leave the connection open
        super().close()


# ---- listing


def list_hub_files(
    repo: str, revision: str | None = None, part: str | None = None, *, flag: str, alternative: str = ""
) -> list[HubFile]:
    """Return the data files of a dataset at the time of the first call, whose result is cached.

    The arguments are those of `bertkit.hub.client.download_snapshot`.

    Raises:
        HubUnreachable: The list is not cached, and the Hub cannot be reached. Raised within seconds.
        UserError: The dataset does not exist, is private, or has no files that bertkit reads.
    """
    from huggingface_hub import constants

    files: list[HubFile] = []

    def write(folder: Path) -> None:
        files.extend(_request_files(repo, revision, part, flag, alternative))
        (folder / "files.json").write_text(json.dumps([asdict(file) for file in files]), "utf-8")

    identity = json.dumps([constants.ENDPOINT, repo, revision, part])
    folder = get_or_create("hub", blake2b(identity.encode(), digest_size=16).hexdigest(), write)
    if folder is None:
        return files or _request_files(repo, revision, part, flag, alternative)
    return [HubFile(**fields) for fields in json.loads((folder / "files.json").read_text("utf-8"))]


def _request_files(
    repo: str, revision: str | None, part: str | None, flag: str, alternative: str
) -> list[HubFile]:
    from huggingface_hub.errors import EntryNotFoundError

    require_reachable(f"{flag}: {repo} is not in the Hugging Face cache", alternative)
    with translate_errors(flag, repo):
        try:
            files = _request_tree(repo, revision, part)
        except EntryNotFoundError:
            files = []
        if not files:
            raise UserError(f"{flag}: {describe_missing_content(repo, 'dataset', revision, part)}")
    return files


def _request_tree(repo: str, revision: str | None, part: str | None) -> list[HubFile]:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    commit = str(api.repo_info(repo, repo_type="dataset", revision=revision).sha)
    tree = api.list_repo_tree(repo, part or None, recursive=True, revision=commit, repo_type="dataset")
    return [
        HubFile(repo, commit, file.path, file.lfs.sha256 if file.lfs else file.blob_id, file.size)
        for file in tree
        if isinstance(file, RepoFile) and _is_data_file(PurePosixPath(file.path))
    ]


def _is_data_file(path: PurePosixPath) -> bool:
    if path.name == DATASET_INFOS or any(part.startswith(".") for part in path.parts):
        return False
    return any(fnmatch(path.name, pattern) for pattern in FILE_PATTERNS["dataset"])

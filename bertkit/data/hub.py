"""Access to the Hugging Face Hub, with cached files first and a quick error if the Hub cannot be reached.

Without a network, huggingface_hub retries a request for up to a minute. A short probe of the Hub avoids this
wait.
"""

import io
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bertkit.data.offline import (
    VARIABLE,
    HubContent,
    describe_missing,
    find_fetched,
    get_offline_directory,
)
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.utils.cache import cache_or_write

PROBE_SECONDS = 3.0
NO_ACCESS_CODES = (401, 403, 404)  # HTTP status; the Hub also returns 404 for private repositories
FILE_PATTERNS = {  # files to download, by kind of repository
    # Weights only as safetensors: unpickling other formats would be unsafe.
    "model": ["*.json", "*.txt", "*.model", "*.safetensors"],
    "tokenizer": ["*.json", "*.txt", "*.model"],  # a model repository without the weights
    "dataset": ["*.parquet", "*.csv", "*.tsv", "*.json", "*.jsonl", "*.txt", "*.gz", "*.zst"],
}


class HubUnreachable(UserError):
    """Error for files that are not cached while the Hub cannot be reached."""


def download_snapshot(
    repo: str, kind: str, revision: str | None = None, part: str | None = None, *, flag: str,
    alternative: str = "",
) -> Path:  # fmt: skip
    """Return the local directory of a Hub repository; download it if it is neither fetched nor cached.

    Args:
        kind: "model", "tokenizer" (of a model) or "dataset".
        part: Directory of the repository to download, such as one of the 15 languages of XNLI. None: all
            files.
        flag: Flag and value that name the repository, such as `--data imdb`, for the error message.

    Raises:
        HubUnreachable: The repository is not cached, and the Hub cannot be reached. Raised within seconds.
    """
    content = HubContent(repo, kind, revision, part)
    if (fetched := find_fetched(content)) is not None:
        return fetched
    with translate_errors(flag, repo, kind):
        cached = find_cached_snapshot(repo, kind, revision, part)
        if cached is not None:
            return cached
        if get_offline_directory() is not None:
            raise HubUnreachable(f"{flag}: {describe_missing(kind, flag.partition(' ')[2] or repo)}")
        require_reachable(f"{flag}: {repo} is not in the Hugging Face cache", alternative)
        return update_snapshot(content, flag)


def update_snapshot(content: HubContent, flag: str) -> Path:
    """Download what the cache lacks of the newest files of a repository, and return their directory."""
    repo, kind, revision, part = content.repo, content.kind, content.revision, content.part
    with translate_errors(flag, repo, kind):
        folder = _download(repo, kind, revision, part)
        if not _is_complete(folder, kind):
            raise UserError(f"{flag}: {describe_missing_content(repo, kind, revision, part)}")
    return folder


def find_cached_snapshot(
    repo: str, kind: str, revision: str | None = None, part: str | None = None
) -> Path | None:
    """Return the cached directory of a repository, or None if it is not cached completely."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _download(repo, kind, revision, part, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return folder if _is_complete(folder, kind) else None


def _download(repo: str, kind: str, revision: str | None, part: str | None, **options: Any) -> Path:
    """Download the files that bertkit reads, and return their directory in the cache."""
    from huggingface_hub import snapshot_download

    patterns = [f"{part}/{pattern}" if part else pattern for pattern in FILE_PATTERNS[kind]]
    repo_type = "model" if kind == "tokenizer" else kind
    folder = snapshot_download(
        repo, repo_type=repo_type, revision=revision, allow_patterns=patterns, **options
    )
    return Path(folder) / (part or "")


def describe_missing_content(repo: str, kind: str, revision: str | None, part: str | None) -> str:
    """Describe what a repository lacks: the configuration `part`, or files that bertkit reads."""
    configurations: list[str] = []
    if part:  # the top-level directories are the configurations of a dataset
        from huggingface_hub import HfApi

        info: Any = HfApi().repo_info(repo, repo_type=kind, revision=revision)
        names = [file.rfilename for file in info.siblings or []]
        configurations = sorted({name.split("/")[0] for name in names if "/" in name})
    if configurations:
        hint = f"{suggest_similar(part, configurations)}; choose one of {format_list(configurations)}"
        return f"{repo} has no configuration {part!r}{hint}"
    missing = "safetensors weights" if kind == "model" else "plain data files (Parquet, CSV, JSON)"
    return f"{repo} has no {missing}; bertkit never runs loading scripts or loads pickles"


def _is_complete(folder: Path, kind: str) -> bool:
    """Return whether a cached snapshot has the required files; the cache may hold only some files."""
    if kind == "model":
        return (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    if kind == "tokenizer":
        return (folder / "config.json").exists() and any(folder.glob("tokenizer*"))
    return any(path for pattern in FILE_PATTERNS[kind] for path in folder.rglob(pattern))


# ---- reachability


def require_reachable(problem: str, alternative: str = "") -> None:
    """Check that the Hub can be reached; raise a `HubUnreachable` within seconds otherwise."""
    if reason := explain_unreachable():
        fix = f"{alternative} or connect once" if alternative else "connect once"
        raise HubUnreachable(f"{problem} and {reason}; {fix}, so that it is cached")


def explain_unreachable() -> str:
    """Return the reason why the Hub cannot be reached, or the empty string if it can be reached."""
    from huggingface_hub import constants

    for is_offline, name in (
        (os.environ.get(VARIABLE), VARIABLE),
        (constants.is_offline_mode(), "HF_HUB_OFFLINE"),
    ):
        if is_offline:
            return f"{name} is set"
    return "" if is_reachable() else f"{constants.ENDPOINT} cannot be reached"


def is_reachable() -> bool:
    """Return whether the Hub responds within `PROBE_SECONDS`.

    The probe runs in a thread, because name resolution has no timeout. The thread is a daemon thread, which
    does not keep the process alive.
    """
    from huggingface_hub import constants, get_session

    # The last two are errors of an invalid address, and of a proxy that needs another package.
    errors: tuple[type[Exception], ...] = (*_get_connection_errors(), ValueError, ImportError)
    has_response = threading.Event()

    def request() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
            has_response.set()  # with any status
        except errors:
            pass

    probe = threading.Thread(target=request, daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return has_response.is_set()


# ---- errors


@contextmanager
def translate_errors(
    subject: str,
    repo: str | None = None,
    kind: str = "dataset",
    hint: str = "try again",
    more_errors: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Turn errors of the Hub, the HTTP client and the connection into a `UserError`.

    Args:
        subject: Start of the message: a flag or a file, or the whole problem if `repo` is None.
        repo: The repository. If it is None, the message is `subject (reason); hint`.
        hint: Fix for the message, except for a wrong name or a missing permission.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    errors: tuple[type[Exception], ...] = (HFValidationError, *_get_connection_errors(), *more_errors)
    try:
        yield
    except errors as error:
        reason = summarize_error(error)
        if repo is None:
            raise UserError(f"{subject} ({reason}); {hint}") from error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, HFValidationError):
            problem = f"{repo!r} is not a valid name on the Hub ({reason}); use NAME or ORG/NAME"
        elif status in NO_ACCESS_CODES:
            problem = (
                f"{kind} {repo} does not exist on the Hub, or is not accessible; check the name, or log in "
                "with: hf auth login"
            )
        elif isinstance(error, HfHubHTTPError) and status is not None:
            problem = f"the Hub refused {repo} ({reason}); {hint}"
        else:
            problem = f"the connection to the Hub was lost ({reason}); {hint}"
        raise UserError(f"{subject}: {problem}") from error


def _get_connection_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of a failed connection.

    Versions of huggingface_hub use different HTTP clients. The base error of the client is a base class of
    `HfHubHTTPError`.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)))


def summarize_error(error: Exception) -> str:
    """Return the first line of the message of an error, or the name of its class if it has no message."""
    return (str(error) or type(error).__name__).splitlines()[0]


# ---- files

BLOCK_SIZE = 4 << 20  # bytes per request, for random access
DATASET_INFOS = "dataset_infos.json"  # a JSON file that contains metadata instead of rows


@dataclass(frozen=True)
class HubFile:
    """File of a dataset on the Hub.

    Attributes:
        commit: Commit of the repository at the time of listing.
        digest: Digest of the content: SHA-256 for a large file, the git object id for a small file.
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
        return PurePosixPath(self.path).name

    @property
    def cached_path(self) -> Path | None:
        """Path in the Hugging Face cache, or None if the file is not cached."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repo, self.path, revision=self.commit, repo_type="dataset")
        return Path(path) if isinstance(path, str) else None

    def open(self, mode: str = "rb", block_size: int = 0) -> IO[bytes]:
        """Open the file. `block_size` bytes are read per request; with 0 it is read from start to end."""
        cached = self.cached_path
        return cached.open("rb") if cached else io.BufferedReader(_HubStream(self, block_size))


def require_available(files: Iterable[Any]) -> None:
    """Raise a `HubUnreachable` within seconds if a file is not cached, and the Hub cannot be reached."""
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

    The arguments are those of `download_snapshot`, and a `HubUnreachable` is raised in the same way.
    """
    from huggingface_hub import constants

    def write(folder: Path) -> None:
        files = _request_files(repo, revision, part, flag, alternative)
        (folder / "files.json").write_text(json.dumps([asdict(file) for file in files]), "utf-8")

    identity = json.dumps([constants.ENDPOINT, repo, revision, part])
    digest = blake2b(identity.encode(), digest_size=16).hexdigest()
    folder = cache_or_write("hub", digest, write, "the list of files")
    return [HubFile(**fields) for fields in json.loads((folder / "files.json").read_text("utf-8"))]


def _request_files(
    repo: str, revision: str | None, part: str | None, flag: str, alternative: str
) -> list[HubFile]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    require_reachable(f"{flag}: {repo} is not in the Hugging Face cache", alternative)
    files: list[HubFile] = []
    with translate_errors(flag, repo):
        try:
            api = HfApi()
            commit = str(api.repo_info(repo, repo_type="dataset", revision=revision).sha)
            tree = api.list_repo_tree(
                repo, part or None, recursive=True, revision=commit, repo_type="dataset"
            )
            for file in tree:
                path = PurePosixPath(file.path)
                is_data_file = path.name != DATASET_INFOS and any(map(path.match, FILE_PATTERNS["dataset"]))
                is_hidden = any(part.startswith(".") for part in path.parts)
                if isinstance(file, RepoFile) and is_data_file and not is_hidden:
                    digest = file.lfs.sha256 if file.lfs else file.blob_id
                    files.append(HubFile(repo, commit, file.path, digest, file.size))
        except EntryNotFoundError:  # there is no directory `part`
            files = []
        if not files:
            raise UserError(f"{flag}: {describe_missing_content(repo, 'dataset', revision, part)}")
    return files

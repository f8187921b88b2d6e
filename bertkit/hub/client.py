"""Access to the Hugging Face Hub: cached files first, and a quick error if the Hub cannot be reached.

Without a network, a look-up by huggingface_hub retries for up to a minute. A short probe avoids this.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, format_list, suggest_similar

PROBE_SECONDS = 3.0
NO_ACCESS_CODES = (401, 403, 404)  # the Hub answers 404 for private repositories, too
FILE_PATTERNS = {
    # Weights as safetensors only, so that nothing downloaded is ever unpickled.
    "model": ["*.json", "*.txt", "*.model", "*.safetensors"],
    "tokenizer": ["*.json", "*.txt", "*.model"],  # of a model, without its weights
    "dataset": ["*.parquet", "*.csv", "*.tsv", "*.json", "*.jsonl", "*.txt", "*.gz", "*.zst"],
}


class HubUnreachable(UserError):
    """A file is not cached, and the Hub cannot be reached."""


def download_snapshot(
    repo: str, kind: str, revision: str | None = None, part: str | None = None, *, flag: str,
    alternative: str = "",
) -> Path:  # fmt: skip
    """Return the local directory of a Hub repository, which is downloaded unless it is cached.

    Args:
        repo: `ORG/NAME`.
        kind: "model", "tokenizer" (of a model) or "dataset".
        revision: Branch, tag or commit.
        part: Directory of the repository to download, such as one of the 15 languages of XNLI.
        flag: What the user typed, for the error message (`--data imdb`).
        alternative: What the user can do instead of downloading, for the error message.

    Raises:
        UserError: The repository does not exist, is private, or has no files that bertkit reads.
        HubUnreachable: It is not cached, and the Hub cannot be reached (within seconds).
    """
    with translate_errors(flag, repo, kind):
        cached = find_cached_snapshot(repo, kind, revision, part)
        if cached is not None:
            return cached
        require_reachable(f"{flag}: {repo} is not in the Hugging Face cache", alternative)
        folder = _download(repo, kind, revision, part)
        if not _is_complete(folder, kind):
            raise UserError(f"{flag}: {describe_missing(repo, kind, revision, part)}")
    return folder


def find_cached_snapshot(
    repo: str, kind: str, revision: str | None = None, part: str | None = None
) -> Path | None:
    """Return the directory of a repository in the Hugging Face cache, or None if it is not complete."""
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


def describe_missing(repo: str, kind: str, revision: str | None, part: str | None) -> str:
    """Return which configuration, or which files, a repository does not have."""
    configurations = _list_directories(repo, kind, revision) if part else []
    if part and configurations:
        hint = f"{suggest_similar(part, configurations)}; it has {format_list(configurations)}"
        return f"{repo} has no configuration {part!r}{hint}"
    missing = "safetensors weights" if kind == "model" else "plain data files (Parquet, CSV, JSON)"
    return f"{repo} has no {missing}; bertkit never runs loading scripts or loads pickles"


def _list_directories(repo: str, kind: str, revision: str | None) -> list[str]:
    """Return the top-level directories of a repository: the configurations of a dataset."""
    from huggingface_hub import HfApi

    info: Any = HfApi().repo_info(repo, repo_type=kind, revision=revision)
    names = [file.rfilename for file in info.siblings or []]
    return sorted({name.split("/")[0] for name in names if "/" in name})


def _is_complete(folder: Path, kind: str) -> bool:
    """Return whether a cached snapshot has all files: the cache may hold a single file of a repository."""
    if kind == "model":
        return (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    if kind == "tokenizer":
        return (folder / "config.json").exists() and any(folder.glob("tokenizer*"))
    return any(path for pattern in FILE_PATTERNS[kind] for path in folder.rglob(pattern))


# ---- reachability


def require_reachable(problem: str, alternative: str = "") -> None:
    """Raise an error within seconds if the Hub cannot be reached.

    Args:
        problem: Why the Hub is needed, for the error message.
        alternative: What the user can do instead.

    Raises:
        HubUnreachable: The Hub cannot be reached.
    """
    if reason := explain_unreachable():
        fix = f"{alternative} or connect once" if alternative else "connect once"
        raise HubUnreachable(f"{problem} and {reason}; {fix}, so that it is cached")


def explain_unreachable() -> str:
    """Return why the Hub cannot be reached, or the empty string if it can."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    return "" if is_reachable() else f"{constants.ENDPOINT} cannot be reached"


def is_reachable() -> bool:
    """Return whether the Hub answers within `PROBE_SECONDS`, including name resolution.

    The probe runs in a daemon thread: name resolution has no timeout and must not keep the process alive.
    """
    answers: list[bool] = []
    probe = threading.Thread(target=lambda: answers.append(_probe()), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return bool(answers and answers[0])


def _probe() -> bool:
    import requests
    from huggingface_hub import constants

    try:
        requests.head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except requests.RequestException:
        return False
    return True


# ---- errors


@contextmanager
def translate_errors(
    subject: str,
    repo: str | None = None,
    kind: str = "dataset",
    hint: str = "try again",
    more_errors: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Turn errors of the Hub, of its client and of the connection into a `UserError` of one line.

    Args:
        subject: Start of the message: a flag, a file, or a whole problem if `repo` is None.
        repo: The repository. None: the message is `subject (reason); hint`.
        kind: Kind of the repository.
        hint: Fix for other problems than a wrong name or a missing permission.
        more_errors: Further exceptions to translate.

    Raises:
        UserError: In place of the original error.
    """
    from huggingface_hub.errors import HFValidationError

    errors: tuple[type[Exception], ...] = (HFValidationError, *_get_connection_errors(), *more_errors)
    try:
        yield
    except errors as error:
        if repo is None:
            raise UserError(f"{subject} ({summarize_error(error)}); {hint}") from error
        raise UserError(f"{subject}: {_describe_error(error, repo, kind, hint)}") from error


def _get_connection_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a failed connection; any other exception is a bug.

    They are the errors of the system and the base classes of the Hub's own error. Among these is the base of
    the HTTP client, which differs between versions of huggingface_hub.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)))


def _describe_error(error: Exception, repo: str, kind: str, hint: str) -> str:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    reason = summarize_error(error)
    if isinstance(error, HFValidationError):
        return f"{repo!r} is not a valid name on the Hub ({reason}); use NAME or ORG/NAME"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in NO_ACCESS_CODES:
        return (
            f"{kind} {repo} does not exist on the Hub, or is not accessible; check the name, or log in with: "
            "hf auth login"
        )
    if isinstance(error, HfHubHTTPError) and status is not None:
        return f"the Hub refused {repo} ({reason}); {hint}"
    return f"the connection to the Hub was lost ({reason}); {hint}"


def summarize_error(error: Exception) -> str:
    """Return the first line of an error's message, or the error's name if it has no message."""
    return (str(error) or type(error).__name__).splitlines()[0]

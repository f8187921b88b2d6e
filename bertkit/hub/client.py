"""The Hugging Face Hub: from the cache first, and when it cannot be reached, said quickly.

Left alone, a look-up without a network retries for up to a minute; here one short probe decides.
"""

import threading
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, format_list, suggest_similar

PROBE_SECONDS = 3.0
FILE_PATTERNS = {
    # Weights as safetensors only: nothing downloaded is ever unpickled.
    "model": ["*.json", "*.txt", "*.model", "*.safetensors"],
    "tokenizer": ["*.json", "*.txt", "*.model"],  # of a model, without its weights
    "dataset": ["*.parquet", "*.csv", "*.tsv", "*.json", "*.jsonl", "*.txt", "*.gz", "*.zst"],
}


class HubUnreachable(UserError):
    """What is wanted is not in the cache, and the Hub cannot be reached."""


def download_snapshot(
    repo: str, kind: str, revision: str | None = None, part: str | None = None, *, flag: str,
    alternative: str = "",
) -> Path:  # fmt: skip
    """The folder of a Hub repository, or a folder in it, downloaded where it is not in the cache.

    Args:
        repo: `ORG/NAME`.
        kind: "model", "tokenizer" (of a model) or "dataset".
        part: the folder in it that is wanted: of XNLI's 15 languages, one.
        flag: what the user typed, for the error (`--data imdb`).
        other_way: what else the user can do, for the error.

    Raises:
        UserError: unknown, private, without files bertkit reads, or neither cached nor reachable
            (within seconds).
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        if (here := find_cached_snapshot(repo, kind, revision, part)) is not None:
            return here
    except HFValidationError as error:
        raise UserError(f"{flag}: {repo!r} is not a Hub name ({error})") from error
    require_reachable(f"{flag}: {repo} is not in the Hugging Face cache", alternative)
    try:
        folder = _fetch(repo, kind, revision, part)
        if not _complete(folder, kind):
            raise UserError(f"{flag}: {describe_missing(repo, kind, revision, part)}")
    except HfHubHTTPError as error:
        raise UserError(f"{flag}: {describe_refusal(error, kind, repo)}") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise UserError(f"{flag}: downloading {repo} failed ({summarize_error(error)}); try again") from error
    return folder


def find_cached_snapshot(
    repo: str, kind: str, revision: str | None = None, part: str | None = None
) -> Path | None:
    """The folder of a repository in the Hugging Face cache; None where it is not there, or not all of it."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _fetch(repo, kind, revision, part, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return folder if _complete(folder, kind) else None


def _fetch(repo: str, kind: str, revision: str | None, part: str | None, **how: Any) -> Path:
    """The folder in the cache, after downloading what bertkit reads of it."""
    from huggingface_hub import snapshot_download

    patterns = [f"{part}/{pattern}" if part else pattern for pattern in FILE_PATTERNS[kind]]
    type = "model" if kind == "tokenizer" else kind
    which: dict[str, Any] = {"repo_id": repo, "repo_type": type, "revision": revision}
    return Path(snapshot_download(**which, allow_patterns=patterns, **how)) / (part or "")


def describe_missing(repo: str, kind: str, revision: str | None, part: str | None) -> str:
    """What a repository does not have that was asked for."""
    there = _folders(repo, kind, revision) if part else []
    if part and there:
        return (
            f"{repo} has no configuration {part!r}{suggest_similar(part, there)}; it has {format_list(there)}"
        )
    missing = "safetensors weights" if kind == "model" else "plain data files (Parquet, CSV, JSON)"
    return f"{repo} has no {missing}; bertkit runs no loading scripts or pickles"


def _folders(repo: str, kind: str, revision: str | None) -> list[str]:
    """The folders at the top of a repository: the configurations of a data set."""
    from huggingface_hub import HfApi

    about: Any = HfApi().repo_info(repo, repo_type=kind, revision=revision)
    names = [file.rfilename for file in about.siblings or []]
    return sorted({name.split("/")[0] for name in names if "/" in name})


def _complete(folder: Path, kind: str) -> bool:
    """Whether a cached snapshot is all of it: a cache may hold a single file of a repository."""
    if kind == "model":
        return (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    if kind == "tokenizer":
        return (folder / "config.json").exists() and any(folder.glob("tokenizer*"))
    return any(path for pattern in FILE_PATTERNS[kind] for path in folder.rglob(pattern))


def require_reachable(what: str, other_way: str = "") -> None:
    """Raise `Unreachable` within seconds where the Hub cannot be reached."""
    if why := explain_unreachable():
        ways = " ".join(filter(None, [other_way, "or connect once, so that it is cached"]))
        raise HubUnreachable(f"{what} and {why}; {ways.removeprefix('or ')}")


def explain_unreachable() -> str:
    """Why the Hub cannot be reached; empty where it can."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    return "" if is_reachable() else f"{constants.ENDPOINT} cannot be reached"


def is_reachable() -> bool:
    """Whether the Hub answers at all within `PROBE_SECONDS`, name resolution included.

    A daemon thread, since resolving a name knows no time limit and must not keep the program alive.
    """
    answers: list[bool] = []
    probe = threading.Thread(target=lambda: answers.append(_answers()), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return bool(answers and answers[0])


def _answers() -> bool:
    import requests
    from huggingface_hub import constants

    try:
        requests.head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except requests.RequestException:
        return False
    return True


def get_connection_error_types() -> tuple[type[Exception], ...]:
    """What is raised where a connection fails or breaks: the system's errors, and the base of those of the
    library's HTTP client, whichever its version has. Others are bugs.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)))


def describe_refusal(error: Exception, kind: str, repo: str) -> str:
    """Why the Hub does not give a repository."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        return f"no such {kind} on the Hub, or no right to it: {repo} (check the spelling, or hf auth login)"
    return f"the Hub refused {repo} ({summarize_error(error)})"


def summarize_error(error: Exception) -> str:
    """An error in a few words: the first line of what it says, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0]

"""`--push-to-hub`: a finished run on the Hugging Face Hub, in one commit.

What may be refused is asked for before training; what fails after it loses nothing, since the run is
finished and `--resume --push-to-hub` uploads it again.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.config import RunConfig
from bertkit.errors import RunInterrupted, UserError
from bertkit.hub.client import (
    HubUnreachable,
    explain_unreachable,
    get_connection_error_types,
    summarize_error,
)
from bertkit.utils import distributed
from bertkit.utils.reporting import Reporter

PUSH_FLAG = "--push-to-hub"
# Beside the card. Predictions tell the rows of the data, which may be nobody else's business.
UPLOADED_PATTERNS = [*run_directory.MODEL_PATTERNS, run_directory.METRICS_FILE, run_directory.SETTINGS_FILE]
LOGIN_HINT = "hf auth login, or set HF_TOKEN to a token that may write"


def check_hub_access(config: RunConfig) -> None:
    """See that there is a Hub, and a token that it takes, before anything slow.

    Raises:
        UserError: in one line, with the way out.
    """
    if not config.push_to_hub:
        if config.hub_model_id or config.hub_private_repo:
            flag = "--hub-model-id" if config.hub_model_id else "--hub-private-repo"
            raise UserError(f"{flag}: nothing is uploaded without {PUSH_FLAG}; add it, or leave this out")
        return
    from huggingface_hub import get_token, whoami

    if config.hub_model_id:
        _check_name(config.hub_model_id, "--hub-model-id")
    if why := explain_unreachable():
        raise HubUnreachable(f"{PUSH_FLAG}: {why}; leave it out, and upload later with --resume {PUSH_FLAG}")
    if get_token() is None:
        raise UserError(f"{PUSH_FLAG}: there is no token for the Hub; {LOGIN_HINT}")
    with _told(f"{PUSH_FLAG}: the Hub does not take the token", LOGIN_HINT):
        whose = whoami(cache=True)
    if whose.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UserError(f"{PUSH_FLAG}: the token of {whose['name']} may only read; {LOGIN_HINT}")


def _check_name(name: str, flag: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"{flag} {name}: no name of a repository ({summarize_error(error)}); give NAME or ORG/NAME"
        ) from error


def create_hub_repo(config: RunConfig, folder: Path) -> str:
    """Make the repository of a run, unless it is there, and see that it may be written to; its full name.

    Raises:
        UserError: no right to it, or the connection broke.
    """
    from huggingface_hub import HfApi, whoami

    name = config.hub_model_id or folder.resolve().name
    if not config.hub_model_id:
        _check_name(name, f"{PUSH_FLAG}, called after --output-dir,")
    api = HfApi()
    with _told(
        f"{PUSH_FLAG}: the Hub does not let this token make or write {name}", "name another --hub-model-id"
    ):
        full = name if "/" in name else f"{whoami(cache=True)['name']}/{name}"
        api.create_repo(full, private=config.hub_private_repo or None, exist_ok=True)
        api.auth_check(full, write=True)
    return full


def upload_run(task: str, folder: Path, config: RunConfig, reporter: Reporter) -> None:
    """Upload a finished run: the model, its card, its scores and its settings.

    Raises:
        UserError: it could not be uploaded, with the command that does so later.
    """
    from huggingface_hub import HfApi

    from bertkit.pipeline.hub_card import build_hub_card

    again = f"upload it with: {format_resume_command(task, folder, config)}"
    try:
        repo = create_hub_repo(config, folder)
        reporter.info(f"uploading to {repo}")
        with _told(f"{folder}: the run is finished, but was not uploaded", again):
            made = HfApi().create_commit(
                repo, _operations(folder, build_hub_card(folder, repo)), commit_message=f"bertkit {task}"
            )
    except KeyboardInterrupt:
        raise RunInterrupted(f"{folder}: the run is finished, but was not uploaded; {again}") from None
    reporter.info(f"on the Hub: {made.repo_url}")


def _operations(folder: Path, card: str) -> list[Any]:
    from huggingface_hub import CommitOperationAdd

    files = sorted({path for pattern in UPLOADED_PATTERNS for path in folder.glob(pattern)})
    return [
        CommitOperationAdd(run_directory.CARD_FILE, card.encode()),
        *(CommitOperationAdd(path.name, path) for path in files),
    ]


@contextmanager
def _told(what: str, fix: str) -> Iterator[None]:
    """What the Hub or the way to it refuses, as one line."""
    # The first two: of the card, and of a large file.
    refused: tuple[type[Exception], ...] = (ValueError, RuntimeError, *get_connection_error_types())
    try:
        yield
    except refused as error:
        raise UserError(f"{what} ({summarize_error(error)}); {fix}") from error


def format_resume_command(task: str, folder: Path, config: RunConfig) -> str:
    """The command that goes on with a run, or uploads it where it is finished."""
    words = ["bertkit", task, "--resume", "--output-dir", str(folder)]
    words += ["--nproc", str(distributed.get_world_size())] if distributed.get_world_size() > 1 else []
    if config.push_to_hub:
        words.append(PUSH_FLAG)
        words += ["--hub-model-id", config.hub_model_id] if config.hub_model_id else []
        words += ["--hub-private-repo"] if config.hub_private_repo else []
    return shlex.join(words)

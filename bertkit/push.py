"""`--push-to-hub`: a finished run on the Hugging Face Hub, in one commit.

What may be refused is asked for before training; what fails after it loses nothing, since the run is
finished and `--resume --push-to-hub` uploads it again.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertkit import ranks, rundir
from bertkit.config import RunConfig
from bertkit.errors import Stopped, UserError
from bertkit.hub import Unreachable, connection_errors, reason, unreachable
from bertkit.reporter import Reporter

FLAG = "--push-to-hub"
# Beside the card. Predictions tell the rows of the data, which may be nobody else's business.
FILES = [*rundir.MODEL, rundir.METRICS, rundir.SETTINGS]
LOG_IN = "hf auth login, or set HF_TOKEN to a token that may write"


def check(config: RunConfig) -> None:
    """See that there is a Hub, and a token that it takes, before anything slow.

    Raises:
        UserError: in one line, with the way out.
    """
    if not config.push_to_hub:
        if config.hub_model_id or config.hub_private_repo:
            flag = "--hub-model-id" if config.hub_model_id else "--hub-private-repo"
            raise UserError(f"{flag}: nothing is uploaded without {FLAG}; add it, or leave this out")
        return
    from huggingface_hub import get_token, whoami

    if config.hub_model_id:
        _check_name(config.hub_model_id, "--hub-model-id")
    if why := unreachable():
        raise Unreachable(f"{FLAG}: {why}; leave it out, and upload later with --resume {FLAG}")
    if get_token() is None:
        raise UserError(f"{FLAG}: there is no token for the Hub; {LOG_IN}")
    with _told(f"{FLAG}: the Hub does not take the token", LOG_IN):
        whose = whoami(cache=True)
    if whose.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UserError(f"{FLAG}: the token of {whose['name']} may only read; {LOG_IN}")


def _check_name(name: str, flag: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"{flag} {name}: no name of a repository ({reason(error)}); give NAME or ORG/NAME"
        ) from error


def create(config: RunConfig, folder: Path) -> str:
    """Make the repository of a run, unless it is there, and see that it may be written to; its full name.

    Raises:
        UserError: no right to it, or the connection broke.
    """
    from huggingface_hub import HfApi, whoami

    name = config.hub_model_id or folder.resolve().name
    if not config.hub_model_id:
        _check_name(name, f"{FLAG}, called after --output-dir,")
    api = HfApi()
    with _told(
        f"{FLAG}: the Hub does not let this token make or write {name}", "name another --hub-model-id"
    ):
        full = name if "/" in name else f"{whoami(cache=True)['name']}/{name}"
        api.create_repo(full, private=config.hub_private_repo or None, exist_ok=True)
        api.auth_check(full, write=True)
    return full


def push(task: str, folder: Path, config: RunConfig, reporter: Reporter) -> None:
    """Upload a finished run: the model, its card, its scores and its settings.

    Raises:
        UserError: it could not be uploaded, with the command that does so later.
    """
    from huggingface_hub import HfApi

    from bertkit.hub_card import hub_card

    again = f"upload it with: {resume_command(task, folder, config)}"
    try:
        repo = create(config, folder)
        reporter.say(f"uploading to {repo}")
        with _told(f"{folder}: the run is finished, but was not uploaded", again):
            made = HfApi().create_commit(
                repo, _operations(folder, hub_card(folder, repo)), commit_message=f"bertkit {task}"
            )
    except KeyboardInterrupt:
        raise Stopped(f"{folder}: the run is finished, but was not uploaded; {again}") from None
    reporter.say(f"on the Hub: {made.repo_url}")


def _operations(folder: Path, card: str) -> list[Any]:
    from huggingface_hub import CommitOperationAdd

    files = sorted({path for pattern in FILES for path in folder.glob(pattern)})
    return [
        CommitOperationAdd(rundir.CARD, card.encode()),
        *(CommitOperationAdd(path.name, path) for path in files),
    ]


@contextmanager
def _told(what: str, way_out: str) -> Iterator[None]:
    """What the Hub or the way to it refuses, as one line."""
    # The first two: of the card, and of a large file.
    refused: tuple[type[Exception], ...] = (ValueError, RuntimeError, *connection_errors())
    try:
        yield
    except refused as error:
        raise UserError(f"{what} ({reason(error)}); {way_out}") from error


def resume_command(task: str, folder: Path, config: RunConfig) -> str:
    """The command that goes on with a run, or uploads it where it is finished."""
    words = ["bertkit", task, "--resume", "--output-dir", str(folder)]
    words += ["--nproc", str(ranks.count())] if ranks.count() > 1 else []
    if config.push_to_hub:
        words.append(FLAG)
        words += ["--hub-model-id", config.hub_model_id] if config.hub_model_id else []
        words += ["--hub-private-repo"] if config.hub_private_repo else []
    return shlex.join(words)

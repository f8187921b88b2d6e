"""Upload of a finished run to the Hugging Face Hub, in one commit.

Access is checked before training. If the upload fails, the run is still finished, and `--resume
--push-to-hub` uploads it later.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from bertkit.data.hub import HubUnreachable, explain_unreachable, summarize_error, translate_errors
from bertkit.data.sources import find_dataset_spec, parse_hub_name
from bertkit.errors import RunInterrupted, UserError
from bertkit.reports.card import PIPELINE_CALL, rewrite_for_hub
from bertkit.run_directory import RunDir
from bertkit.settings.run_settings import PACKAGED_MODELS, RunConfig
from bertkit.tasks import task_class
from bertkit.utils import distributed
from bertkit.utils.files import join_command
from bertkit.utils.reporting import report_info

PUSH_FLAG = "--push-to-hub"
LOGIN_HINT = "log in with: hf auth login, or set HF_TOKEN to a token with write access"
UPLOAD_ERRORS = (ValueError, RuntimeError)  # the Hub refuses the model card, or cannot store a large file


# ---- before training


def check_hub_access(config: RunConfig) -> None:
    """With `--push-to-hub`, check that the Hub can be reached and that the token is not read-only."""
    if not config.push_to_hub:
        if config.hub_model_id or config.hub_private_repo:
            flag = "--hub-model-id" if config.hub_model_id else "--hub-private-repo"
            raise UserError(f"{flag}: has no effect without {PUSH_FLAG}; add it, or omit {flag}")
        return
    from huggingface_hub import get_token, whoami

    if config.hub_model_id:
        _check_repo_name(config.hub_model_id, f"--hub-model-id {config.hub_model_id}")
    if reason := explain_unreachable():
        raise HubUnreachable(
            f"{PUSH_FLAG}: {reason}; omit it, and upload the run later with --resume {PUSH_FLAG}"
        )
    if get_token() is None:
        raise UserError(f"{PUSH_FLAG}: found no token for the Hub; {LOGIN_HINT}")
    with translate_errors(
        f"{PUSH_FLAG}: the Hub rejected the token", hint=LOGIN_HINT, more_errors=UPLOAD_ERRORS
    ):
        account = whoami(cache=True)
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UserError(f"{PUSH_FLAG}: the token of {account['name']} is read-only; {LOGIN_HINT}")


def _check_repo_name(name: str, where: str) -> None:
    """Check that a name is valid for a repository; `where` starts the error message."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"{where}: is not a valid repository name ({summarize_error(error)}); pass --hub-model-id NAME "
            "or ORG/NAME"
        ) from error


def create_hub_repo(config: RunConfig, folder: Path) -> str:
    """Create the repository of a run unless it exists, check write access, and return its name `ORG/NAME`."""
    from huggingface_hub import HfApi, whoami

    name = config.hub_model_id or folder.resolve().name
    if not config.hub_model_id:
        _check_repo_name(name, f"{PUSH_FLAG}: the name of the run directory {name}")
    api = HfApi()
    problem = f"{PUSH_FLAG}: the token cannot create {name} or write to it"
    with translate_errors(problem, hint="choose another --hub-model-id", more_errors=UPLOAD_ERRORS):
        full_name = name if "/" in name else f"{whoami(cache=True)['name']}/{name}"
        api.create_repo(full_name, private=config.hub_private_repo or None, exist_ok=True)
        api.auth_check(full_name, write=True)
    return full_name


# ---- after training


def upload_run(task: str, folder: Path, config: RunConfig) -> None:
    """Upload a finished run; an error contains the command that uploads it later."""
    from huggingface_hub import HfApi

    run_dir = RunDir(folder)
    problem = f"{folder}: the run is finished, but was not uploaded"
    fix = f"upload it with: {format_resume_command(task, folder, config, is_finished=True)}"
    try:
        repo = create_hub_repo(config, folder)
        report_info(f"uploading to {repo}")
        with translate_errors(problem, hint=fix, more_errors=UPLOAD_ERRORS):
            text, settings = rewrite_for_hub(run_dir.read_card() or "", repo), run_dir.read_settings()
            library = "transformers" if PIPELINE_CALL.search(text) else "bertkit"
            metadata = build_card_metadata(run_dir.require_metrics(), settings, repo, library)
            card = f"---\n{metadata.to_yaml()}\n---\n\n{text}"
            operations = [
                CommitOperationAdd(RunDir.CARD_FILE, card.encode()),
                *(
                    CommitOperationAdd(file.relative_to(folder).as_posix(), file)
                    for file in run_dir.list_uploaded_files()
                ),
            ]
            commit = HfApi().create_commit(repo, operations, commit_message=f"bertkit {task}")
    except KeyboardInterrupt:
        raise RunInterrupted(f"{problem}; {fix}") from None
    report_info(f"uploaded to {commit.repo_url}")


def format_resume_command(task: str, folder: Path, config: RunConfig, is_finished: bool = False) -> str:
    """Return the command that resumes an unfinished run, or uploads a finished run, in one process.

    On several machines, the command to resume starts torchrun, and has to be run on each of them.
    """
    arguments = ["bertkit", task, "--resume", "--output-dir", str(folder)]
    if distributed.has_several_hosts() and not is_finished:
        arguments = [*distributed.get_torchrun_command(folder.name), "-m", *arguments]
    elif distributed.get_world_size() > 1 and not is_finished:
        arguments += ["--nproc", str(distributed.get_world_size())]
    for value in config.metric:
        arguments += ["--metric", value]
    if config.push_to_hub:
        arguments.append(PUSH_FLAG)
        if config.hub_model_id:
            arguments += ["--hub-model-id", config.hub_model_id]
        if config.hub_private_repo:
            arguments.append("--hub-private-repo")
    return join_command(arguments)


# ---- the model card


def build_card_metadata(
    metrics: Mapping[str, Any], settings: Mapping[str, Any], repo: str, library: str
) -> Any:
    """Return the `ModelCardData` of a run, by which the Hub displays and finds the model.

    Language and license are left out, because bertkit does not know them.
    """
    task_type = task_class(metrics["task"])
    task = task_type(task_type.definition.config(**settings))
    model = settings.get("model", "")
    is_local = model in ("", *PACKAGED_MODELS) or Path(model).is_absolute()
    dataset = find_hub_dataset(str(settings.get("data", "")))
    return ModelCardData(
        library_name=library,
        pipeline_tag=task.pipeline.task,
        base_model=None if is_local else model,
        datasets=[dataset] if dataset else None,
        tags=["bertkit"],
        model_name=repo.partition("/")[2],
        eval_results=[
            EvalResult(
                task_type=task.pipeline.task,
                dataset_type=dataset or metrics["data"]["name"],
                dataset_name=metrics["data"]["name"],
                dataset_split=split,
                metric_type=metric,
                metric_value=value,
            )
            for split in ("validation", "test")
            for metric, value in metrics[split].items()
        ],
    )


def find_hub_dataset(data: str) -> str | None:
    """Return the Hub repository of a value of `--data`, or None if no repository is known."""
    if Path(data).is_absolute():
        return None
    spec = find_dataset_spec(data)
    location = spec.hub if spec else parse_hub_name(data)
    return location["id"] if location else None

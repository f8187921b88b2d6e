"""The run directory, through which training passes a model and its metrics to all other commands."""

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

from bertkit.errors import MAX_REPR_LENGTH, UserError
from bertkit.settings.recipes import PASSED_DATA, list_passed_data, serialize_settings
from bertkit.settings.run_settings import RunConfig
from bertkit.utils import distributed, locks
from bertkit.utils.compat import NotRequired
from bertkit.utils.files import (
    OutputKind,
    create_directory,
    join_command,
    make_relative,
    replace_path,
    report_creation_errors,
    write_text,
)
from bertkit.utils.text import dump_yaml, read_yaml, validate

SETTINGS_FILE, METRICS_FILE, LOG_FILE = "run.yaml", "metrics.json", "training_log.jsonl"
CARD_FILE, CHECKPOINTS_DIR, TENSORBOARD_DIR = "README.md", "checkpoints", "tensorboard"
REPORT_FILE = "report.html"
LOGITS_FILE = "test_logits.npz"  # of the runs of a study
CALIBRATION_FILE = "calibration.json"
ONNX_DIR = "onnx"  # default output directory of `export`
BACKUP_DIR = ".replaced"  # holds the run that --overwrite replaces, until the new run is finished
DEFAULT_RUNS_DIR = "runs"
# File names of the model and the tokenizer, which transformers loads.
MODEL_PATTERNS = [
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "spiece.model", "spm.model", "sentencepiece*.model", "chat_template.jinja",
]  # fmt: skip
# Names of all files and directories of a run. --overwrite replaces these and nothing else.
RUN_PATTERNS = [
    SETTINGS_FILE, METRICS_FILE, CHECKPOINTS_DIR, LOG_FILE, CARD_FILE, ONNX_DIR, TENSORBOARD_DIR,
    REPORT_FILE, CALIBRATION_FILE, "masked_samples*.jsonl",
    "predictions*.jsonl", "predictions*.conll", "predictions*.json", "nbest_predictions*.json",
    "null_odds*.json", LOGITS_FILE, *MODEL_PATTERNS, "training_args.bin",
]  # fmt: skip
RECORDED_PACKAGES = [
    "bertkit",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "scikit-learn",
]


class Provenance(TypedDict):
    """Keys of the provenance that every `run.yaml` has; some runs have more."""

    command: str
    data: dict[str, str]
    python: str
    packages: dict[str, str]


class _Settings(TypedDict):
    """Content of `run.yaml`."""

    task: str
    settings: dict[str, Any]
    provenance: dict[str, Any]


class _Metrics(TypedDict):
    """Structure of `metrics.json`, without the details of its sections."""

    task: str
    data: NotRequired[dict[str, Any]]
    validation: NotRequired[dict[str, Any]]
    test: NotRequired[dict[str, Any]]
    intervals: NotRequired[dict[str, Any]]
    baselines: NotRequired[dict[str, Any]]
    training: NotRequired[dict[str, Any]]


# ---- kinds of output directories


def _find_files_unless_run(names: set[str]) -> set[str]:
    """Return all file names of a directory, or none if it contains a run."""
    return set() if SETTINGS_FILE in names else names


def _find_files_unless_evaluation(names: set[str]) -> set[str]:
    """Return the files of a trained model; if there are none, proceed as for a run."""
    trained = {name for name in names if name in (CHECKPOINTS_DIR, ONNX_DIR) or name.endswith(".safetensors")}
    return trained or _find_files_unless_run(names)


RUN = OutputKind("a run", "pass --overwrite to replace it, or --resume to resume it", _find_files_unless_run)
EVALUATION = OutputKind("an evaluation", "pass --overwrite to replace it", _find_files_unless_evaluation)


# ---- creating and removing run directories


def _choose_default_directory(*parts: str) -> Path:
    """Return the path of the default run directory, with a number at the end if the path exists."""
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
    folder = Path(DEFAULT_RUNS_DIR) / name
    number = 2
    while folder.exists():
        folder = Path(DEFAULT_RUNS_DIR) / f"{name}-{number}"
        number += 1
    return folder


def create_default_directory(*parts: str) -> Path:
    """Create a new directory `runs/PARTS`; two runs that start at the same time get different directories.

    Args:
        *parts: Parts of the directory name, such as task, data and model.
    """
    while True:
        folder = _choose_default_directory(*parts)
        try:
            create_directory(folder, exist_ok=False)
        except FileExistsError:
            continue
        return folder


def create_run_directory(folder: Path, overwrite: bool, with_checkpoints: bool = True) -> None:
    """Create a run directory.

    Args:
        folder: The directory.
        overwrite: Whether to move the files of an existing run to a backup first.
        with_checkpoints: Whether the run will save checkpoints.
    """
    with report_creation_errors(folder):
        if overwrite:
            back_up_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if with_checkpoints:
            (folder / CHECKPOINTS_DIR).mkdir(exist_ok=True)


def back_up_run(folder: Path, more_patterns: Sequence[str] = ()) -> None:
    """Move the files of a run, which a new run replaces, to a backup in the same directory.

    Args:
        folder: The run directory.
        more_patterns: File name patterns of the run in addition to `RUN_PATTERNS`.
    """
    if (folder / SETTINGS_FILE).exists():
        delete_backup(folder)  # a killed run with --overwrite may have left one
        (folder / BACKUP_DIR).mkdir()
        _move(folder, folder / BACKUP_DIR, [*RUN_PATTERNS, *more_patterns])


def _move(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """Move those files and directories in `source` that match one of the patterns to `target`."""
    for pattern in patterns:
        for path in source.glob(pattern):
            replace_path(path, target / path.name)


def delete_backup(folder: Path) -> None:
    """Delete the backup of the replaced run."""
    shutil.rmtree(folder / BACKUP_DIR, ignore_errors=True)


def discard_unstarted_run(folder: Path) -> None:
    """Remove a run that failed before its first checkpoint, and restore the run that it replaced.

    A run with a checkpoint is not changed.
    """
    if find_last_checkpoint(folder):
        return
    for part in (CHECKPOINTS_DIR, TENSORBOARD_DIR):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / SETTINGS_FILE).unlink(missing_ok=True)
    if (folder / BACKUP_DIR).is_dir():
        _move(folder / BACKUP_DIR, folder, ["*"])
        delete_backup(folder)
    if not folder.is_symlink():
        locks.remove_if_unused(folder)
        with suppress(OSError):  # `runs` may contain other runs
            Path(DEFAULT_RUNS_DIR).rmdir()


def find_last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the highest step, or None if there is none."""
    steps: dict[Path, int] = {}
    for path in (folder / CHECKPOINTS_DIR).glob("checkpoint-*"):
        step = path.name.rpartition("-")[2]
        if step.isdecimal() and path.is_dir():
            steps[path] = int(step)
    return max(steps, key=lambda path: steps[path], default=None)


# ---- run.yaml


def write_settings(
    folder: Path,
    task: str,
    config: RunConfig,
    data: Mapping[str, str],
    label_fixes: Mapping[str, Any] | None = None,
) -> None:
    """Write `run.yaml`: the settings, which `--recipe` reads, and the provenance of the run.

    Args:
        folder: The run directory.
        task: The command.
        config: Resolved settings.
        data: Fingerprints of the rows by split.
        label_fixes: What `--label-fixes` changed; empty without fixes.
    """
    from bertkit.utils import devices  # imports torch

    processes, passed_data = distributed.get_world_size(), list_passed_data(config)
    provenance = {
        "command": _get_command_line(),
        "data": dict(data),
        **({PASSED_DATA: passed_data} if passed_data else {}),
        **({"label_fixes": dict(label_fixes)} if label_fixes else {}),
        **({"processes": processes} if processes > 1 else {}),
        "device": devices.describe_device(),
        "python": platform.python_version(),
        "packages": get_installed_versions(RECORDED_PACKAGES),
    }
    _write_settings(folder, task, config, provenance)


def _write_settings(folder: Path, task: str, config: RunConfig, provenance: dict[str, Any]) -> None:
    content = {"task": task, "settings": serialize_settings(config), "provenance": provenance}
    repeat = _format_repetition(folder, task, config, provenance)
    comment = f"Repeat this run{repeat}".replace("\n", "\n# ")  # a path may contain a line break
    write_text(folder / SETTINGS_FILE, f"# {comment}\n" + dump_yaml(content))


def _format_repetition(folder: Path, task: str, config: RunConfig, provenance: Mapping[str, Any]) -> str:
    """Return how to repeat a run: a command, or a Python call if data objects have to be passed again."""
    if kinds := provenance.get(PASSED_DATA):
        call = format_python_call(task, {"recipe": str(folder / SETTINGS_FILE)}, kinds)
        return f" in Python, with the same data: {call}"
    command = ["bertkit", *task.split(), "--recipe", str(folder / SETTINGS_FILE)]
    for value in config.metric:
        command += ["--metric", value]
    if "processes" in provenance:
        command += ["--nproc", str(provenance["processes"])]
    return f": {join_command(command)}"


def format_python_call(function: str, arguments: Mapping[str, Any], data_names: Iterable[str]) -> str:
    """Return a call such as `bertkit.classify(recipe='run.yaml', data=...)`.

    Args:
        function: Name of a command, such as "classify" or "study classify".
        arguments: Values by argument.
        data_names: Settings that receive data objects.
    """
    function, _, task = function.partition(" ")  # `study TASK` is the function `study` with the task
    data = [f"{name}=..." for name in data_names]
    values = [f"{name}={value!r}" for name, value in arguments.items()]
    task_argument = [repr(task)] if task else []
    return f"bertkit.{function.replace('-', '_')}({', '.join([*task_argument, *values, *data])})"


def update_settings(folder: Path, config: RunConfig, reason: dict[str, Any]) -> None:
    """Replace the settings of a run that has started.

    Args:
        folder: The run directory.
        config: The new settings.
        reason: Entry for the provenance of the run, which explains the change.
    """
    previous = _read_settings_file(folder)
    _write_settings(folder, previous["task"], config, previous["provenance"] | reason)


def get_installed_versions(names: list[str]) -> dict[str, str]:
    """Return the versions of packages by name, without packages that are not installed."""
    versions = {name: _get_installed_version(name) for name in names}
    return {name: version for name, version in versions.items() if version is not None}


@cache
def _get_installed_version(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _get_command_line() -> str:
    """Return the command line of this process, or "from Python" if it is not a bertkit command."""
    program = Path(sys.argv[0]).name
    is_command = program in ("bertkit", "bertkit.exe", "__main__.py")
    return join_command(["bertkit", *sys.argv[1:]]) if is_command else "from Python"


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the `provenance` of a run, with at least the keys of `Provenance`."""
    provenance = _read_settings_file(folder)["provenance"]
    validate(provenance, Provenance, folder / SETTINGS_FILE)
    return provenance


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the resolved settings of a run that differ from the defaults."""
    return _read_settings_file(folder)["settings"]


def _read_settings_file(folder: Path) -> _Settings:
    path = folder / SETTINGS_FILE
    settings: _Settings = validate(read_yaml(path), _Settings, path)
    return settings


# ---- metrics.json


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write `metrics.json`. As the last file of a run, it marks the run as finished."""
    write_text(folder / METRICS_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """Return the metrics of a finished run, or None if the run is not finished.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / METRICS_FILE
    if not path.exists():
        return None
    try:
        metrics = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path}: cannot parse it as JSON ({error}); run the training again") from error
    validate(metrics, _Metrics, path)
    return dict(metrics)


def require_metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics of a finished run.

    Raises:
        UserError: The directory does not exist, or does not contain a finished run.
    """
    metrics = read_metrics(folder) if folder.is_dir() else None
    if metrics is None:
        problem = f"it does not contain {METRICS_FILE}" if folder.is_dir() else "the directory does not exist"
        raise UserError(
            f"{folder}: is not a finished run ({problem}); pass the output directory of a training command, "
            f"such as {DEFAULT_RUNS_DIR}/classify-imdb-minilm"
        )
    return metrics


ENSEMBLE_DIR, ENSEMBLE_FILE = "ensemble", "ensemble.json"


class _Ensemble(TypedDict):
    """Content of `ensemble.json`; the paths are relative to the file."""

    members: list[str]


def find_ensemble(folder: Path) -> Path | None:
    """Return the directory of an ensemble: `folder`, or its subdirectory `ensemble`; None if it is a run."""
    candidates = (folder, folder / ENSEMBLE_DIR)
    return next((path for path in candidates if (path / ENSEMBLE_FILE).is_file()), None)


def write_ensemble(folder: Path, members: Sequence[Path]) -> None:
    """Write the list of the members.

    Args:
        folder: Directory of the ensemble.
        members: The finished runs, which have the same task.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [make_relative(member, folder) for member in members]
    write_text(folder / ENSEMBLE_FILE, json.dumps({"members": paths}, indent=2) + "\n")


def read_members(folder: Path) -> list[Path]:
    """Return the runs of an ensemble.

    Raises:
        UserError: The list is damaged or empty, or a member does not exist.
    """
    path = folder / ENSEMBLE_FILE
    fix = "run the study again"
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path}: cannot parse it as JSON ({error}); {fix}") from error
    ensemble: _Ensemble = validate(content, _Ensemble, path, fix)
    if not ensemble["members"]:
        raise UserError(f"{path}: has no members; {fix}")
    for member in ensemble["members"]:
        if not os.path.isdir(folder / member):  # noqa: PTH112 (`Path.is_dir` fails for a name that is too long)
            raise UserError(
                f"{path}: member {member[:MAX_REPR_LENGTH]} does not exist; restore its directory, or {fix}"
            )
        if find_ensemble(folder / member):
            raise UserError(f"{path}: member {member} is an ensemble itself; {fix}")
    return [folder / member for member in ensemble["members"]]


def refuse_ensemble(folder: Path) -> None:
    """Raise a `UserError` if the directory is an ensemble or a study with an ensemble."""
    if ensemble := find_ensemble(folder):
        member = os.path.normpath(read_members(ensemble)[0])
        raise UserError(
            f"{folder}: is an ensemble, which this command cannot use; pass one of its members, such as "
            f"{member}"
        )

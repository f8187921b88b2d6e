"""The run directory: the only thing that passes from training to everything after it."""

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import safetensors

from bertkit.config import RunConfig, serialize_settings
from bertkit.errors import UserError, shorten_repr
from bertkit.utils import distributed
from bertkit.utils.files import PARTIAL, dump_yaml, write_text
from bertkit.utils.schema import validate
from bertkit.utils.yaml import read_yaml

SETTINGS_FILE, METRICS_FILE, CHECKPOINTS_DIR, LOG_FILE = (
    "run.yaml",
    "metrics.json",
    "checkpoints",
    "training_log.jsonl",
)
DEFAULT_RUNS_DIR = "runs"
ONNX_DIR = "onnx"  # what `export` makes of a run, unless it is told to put it elsewhere
BACKUP_DIR = ".replaced"  # the run that --overwrite replaces, until the new one has a checkpoint
CARD_FILE, TENSORBOARD_DIR, REPORT_FILE = "README.md", "tensorboard", "report.html"
# Model and tokenizer: what transformers loads.
MODEL_PATTERNS = [
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "spiece.model", "spm.model", "sentencepiece*.model", "chat_template.jinja",
]  # fmt: skip
# All that a run may hold: what --overwrite removes, and nothing else.
RUN_PATTERNS = [
    SETTINGS_FILE, METRICS_FILE, CHECKPOINTS_DIR, LOG_FILE, CARD_FILE, ONNX_DIR, TENSORBOARD_DIR, REPORT_FILE, "masked_samples*.jsonl",
    "predictions*.jsonl", "predictions*.conll", "predictions*.json", "nbest_predictions*.json",
    "null_odds*.json", *MODEL_PATTERNS, "training_args.bin",
]  # fmt: skip
METRICS_SECTIONS = {"data", "validation", "test", "intervals", "baselines", "training"}  # of metrics.json
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
    """What every run says that it was made with; some say more."""

    command: str
    data: dict[str, str]
    python: str
    packages: dict[str, str]


def choose_default_directory(*parts: str) -> Path:
    """`runs/TASK-DATA-MODEL`, with a number behind it where that is taken."""
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
    folder, number = Path(DEFAULT_RUNS_DIR) / name, 2
    while folder.exists():
        folder, number = Path(DEFAULT_RUNS_DIR) / f"{name}-{number}", number + 1
    return folder


def create_default_directory(*parts: str) -> Path:
    """Make the default directory; of two runs that start together each gets its own."""
    while True:
        folder = choose_default_directory(*parts)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be made ({error.strerror}); name one with --output-dir"
            ) from error
        return folder


def check_run_directory(folder: Path, overwrite: bool) -> None:
    """Refuse, before any work, a directory that holds something.

    Raises:
        UserError: naming the directory and the way out.
    """
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / SETTINGS_FILE).exists():
            raise UserError(f"--output-dir {folder}: holds files that are no run; name another directory")
        if not overwrite:
            ways = "--overwrite replaces it, --resume goes on with it"
            raise UserError(f"--output-dir {folder}: holds a run; {ways}")


def check_evaluation_directory(folder: Path, overwrite: bool) -> None:
    """Refuse, for the scores of a run, a directory that holds something, and a trained model in any case.

    Raises:
        UserError: naming the directory and the way out.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    trained = (
        (folder / CHECKPOINTS_DIR).exists()
        or any(folder.glob("*.safetensors"))
        or (folder / ONNX_DIR).exists()
    )
    if trained or not (folder / SETTINGS_FILE).exists():
        what = "a trained run" if trained else "files that are no evaluation"
        raise UserError(f"--output-dir {folder}: holds {what}; name another directory")
    if not overwrite:
        raise UserError(f"--output-dir {folder}: holds an evaluation; --overwrite replaces it")


def check_output_directory(folder: Path) -> None:
    """Refuse a directory that is a file or cannot be written, whatever it holds."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--output-dir {folder}: is a file")
    except OSError as error:  # a name that is too long, say
        raise UserError(
            f"--output-dir {folder}: cannot be made ({error.strerror}); name another directory"
        ) from error
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f"--output-dir {folder}: cannot be written, {there} refuses it")


def require_disk_space(folder: Path, parameters: int) -> None:
    """Refuse a disk that cannot hold two checkpoints (weights and two Adam moments) and the model."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    needed, free = parameters * 4 * 7, shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f"--output-dir {folder}: {free / 1e6:,.0f} MB are free and {needed / 1e6:,.0f} MB are needed "
            "for checkpoints and the model; name a directory on another disk"
        )


def create_run_directory(folder: Path, overwrite: bool, with_checkpoints: bool = True) -> None:
    """Make the directory, and with `overwrite` put the run in it aside (and only what runs hold).

    Args:
        trained: whether it will hold checkpoints.
    """
    try:
        if overwrite:
            back_up_run(folder)
        (folder / CHECKPOINTS_DIR if with_checkpoints else folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output-dir {folder}: cannot be made ({error.strerror})") from error


def back_up_run(folder: Path, more: Sequence[str] = ()) -> None:
    """Put the run in a directory aside, until the new one has a checkpoint; `more` is what it holds too."""
    if (folder / SETTINGS_FILE).exists():
        delete_backup(folder)  # of an --overwrite that was killed
        (folder / BACKUP_DIR).mkdir()
        _move(folder, folder / BACKUP_DIR, [*RUN_PATTERNS, *more])


def _move(source: Path, target: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for path in source.glob(pattern):
            path.replace(target / path.name)


def delete_backup(folder: Path) -> None:
    """Remove the run that was put aside: the new one has a checkpoint."""
    shutil.rmtree(folder / BACKUP_DIR, ignore_errors=True)


def discard_unstarted_run(folder: Path) -> None:
    """Remove a run that failed before its first checkpoint, and put back the one it was to replace."""
    if last_checkpoint(folder):
        return
    for part in (CHECKPOINTS_DIR, TENSORBOARD_DIR):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / SETTINGS_FILE).unlink(missing_ok=True)
    if (folder / BACKUP_DIR).is_dir():
        _move(folder / BACKUP_DIR, folder, ["*"])
        delete_backup(folder)
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        with suppress(OSError):  # in a folder of somebody else's; the default's parent, where it holds others
            folder.rmdir()
            Path(DEFAULT_RUNS_DIR).rmdir()


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the highest step, or None."""
    steps = {path: path.name.rpartition("-")[2] for path in (folder / CHECKPOINTS_DIR).glob("checkpoint-*")}
    paths = {path: int(step) for path, step in steps.items() if step.isdecimal() and path.is_dir()}
    return max(paths, key=lambda path: paths[path], default=None)


def write_settings(folder: Path, task: str, config: RunConfig, data: Mapping[str, str]) -> None:
    """`run.yaml`: what `--recipe` reads, and what the run was made with; `data`: a fingerprint a split."""
    provenance = {
        "command": _command(),
        "data": dict(data),
        **({"processes": distributed.get_world_size()} if distributed.get_world_size() > 1 else {}),
        "python": platform.python_version(),
        "packages": get_installed_versions(RECORDED_PACKAGES),
    }
    _write_settings(folder, task, config, provenance)


def _write_settings(folder: Path, task: str, config: RunConfig, provenance: dict[str, Any]) -> None:
    content = {"task": task, "settings": serialize_settings(config), "provenance": provenance}
    several = f" --nproc {provenance['processes']}" if "processes" in provenance else ""
    again = f"bertkit {task} --recipe {shlex.quote(str(folder / SETTINGS_FILE))}{several}"
    header = f"# Repeat this run: {again}\n"
    write_text(folder / SETTINGS_FILE, header + dump_yaml(content))


def update_settings(folder: Path, config: RunConfig, why: dict[str, Any]) -> None:
    """Other settings for a run that has begun; `why` goes into what it was made with."""
    before = read_yaml(folder / SETTINGS_FILE)
    _write_settings(folder, before["task"], config, before["provenance"] | why)


def get_installed_versions(names: list[str]) -> dict[str, str]:
    """Name -> version of each package that is installed."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _command() -> str:
    """The command line, where it was one that made the run."""
    program = Path(sys.argv[0]).name
    return shlex.join(["bertkit", *sys.argv[1:]]) if program in ("bertkit", "__main__.py") else "from Python"


def read_provenance(folder: Path) -> dict[str, Any]:
    """The `provenance` of a run's settings."""
    found = _saved(folder, "provenance")
    validate(found, Provenance, folder / SETTINGS_FILE)
    return found


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a run, as resolved: those that differ from the defaults."""
    return _saved(folder, "settings")


def _saved(folder: Path, key: str) -> dict[str, Any]:
    path = folder / SETTINGS_FILE
    content = read_yaml(path)
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise UserError(f"{path}: is not what a run writes; it has no {key!r}")
    return found


@contextmanager
def stage_output(
    folder: Path, what: str = "the model", fix: str = "make room, then --resume"
) -> Iterator[Path]:
    """A folder to write into, whose files move to `folder` when all are written.

    Raises:
        UserError: they could not be written; nothing of them is left.
    """
    try:
        with stage_files(folder) as aside:
            yield aside
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder}: {what} could not be written ({reason}); {fix}") from error


@contextmanager
def stage_files(folder: Path) -> Iterator[Path]:
    """A folder to write into, whose content moves to `folder` at the end; else nothing of it is left."""
    aside = folder / PARTIAL
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        yield aside
        for path in aside.iterdir():
            if path.is_file():
                path.chmod(0o644)  # safetensors makes its files private
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """`metrics.json`; written last, so that a directory that has it is a finished run."""
    write_text(folder / METRICS_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """The scores of a finished run, None of an unfinished one."""
    path = folder / METRICS_FILE
    if not path.exists():
        return None
    try:
        metrics = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path}: broken JSON ({error})") from error
    if not isinstance(metrics, dict) or not isinstance(metrics.get("task"), str):
        raise UserError(f"{path}: is not what a run writes; it has no 'task'")
    for key in METRICS_SECTIONS & metrics.keys():
        if not isinstance(metrics[key], dict):
            raise UserError(f"{path}: is not what a run writes; {key!r} holds {shorten_repr(metrics[key])}")
    return metrics


def require_metrics(folder: Path) -> dict[str, Any]:
    """The scores of a finished run. Raises `UserError` where the directory is none."""
    metrics = read_metrics(folder) if folder.is_dir() else None
    if metrics is None:
        why = f"no {METRICS_FILE} in it" if folder.is_dir() else "no such folder"
        raise UserError(
            f"{folder}: not a finished run ({why}); one is a directory that a training command left, such as "
            f"{DEFAULT_RUNS_DIR}/classify-imdb-minilm"
        )
    return metrics

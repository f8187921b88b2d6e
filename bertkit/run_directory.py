"""The run directory, through which training passes a model and its metrics to all other commands."""

import json
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

from bertkit.errors import MAX_REPR_LENGTH, UserError, shorten_repr
from bertkit.settings.recipes import (
    PASSED_DATA,
    get_task_name,
    list_passed_data,
    read_recipe_file,
    require_recorded_plugins,
    serialize_settings,
)
from bertkit.settings.run_settings import RunConfig
from bertkit.utils import distributed, locks
from bertkit.utils.compat import NotRequired
from bertkit.utils.files import (
    BLOCK_SIZE,
    OutputKind,
    create_directory,
    join_command,
    make_relative,
    replace_file,
    replace_path,
    report_creation_errors,
    write_chunks,
    write_jsonl,
    write_text,
)
from bertkit.utils.plugins import describe_used_plugins
from bertkit.utils.text import dump_yaml, read_yaml, validate

DEFAULT_RUNS_DIR = "runs"
RECORDED_PACKAGES = [
    "bertkit", "torch", "transformers", "tokenizers", "datasets", "accelerate", "scikit-learn",
]  # fmt: skip
RETRAIN_HINT = "run the training again"
ENSEMBLE_HINT = "run the study again"
EXTRA_SPLITS = ("test", "validation_mismatched", "test_mismatched")  # in addition to validation


# ---- content of the files


class Provenance(TypedDict):
    """Keys of the provenance that every `run.yaml` has; some runs have more."""

    command: str
    data: dict[str, str]  # fingerprints of the rows by split
    python: str
    packages: dict[str, str]


class SettingsRecord(TypedDict):
    """Content of `run.yaml`."""

    task: str
    settings: dict[str, Any]
    provenance: dict[str, Any]


class MetricsRecord(TypedDict):
    """Content of `metrics.json` of any command that writes one, without the details of its sections."""

    task: str
    data: NotRequired[dict[str, Any]]
    validation: NotRequired[dict[str, Any]]
    test: NotRequired[dict[str, Any]]
    intervals: NotRequired[dict[str, Any]]
    baselines: NotRequired[dict[str, Any]]
    training: NotRequired[dict[str, Any]]


class ReliabilityRecord(TypedDict):
    """Statistics of confidence bins; null for an empty bin."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


class RiskCoverage(TypedDict):
    """Points of the risk-coverage curve."""

    coverage: list[float]
    risk: list[float]
    min_confidence: list[float]
    aurc: float


class AbstentionRecord(TypedDict):
    min_confidence: float


class ThresholdRecord(TypedDict):
    """The thresholds, and the scores by threshold."""

    thresholds: dict[str, float]
    curve: NotRequired[dict[str, list[float]]]


class CalibrationDataRecord(TypedDict):
    rows: int
    name: NotRequired[str]
    is_validation_split: NotRequired[bool]


class CalibrationRecord(TypedDict):
    """The part of `calibration.json` that pages show."""

    data: NotRequired[CalibrationDataRecord]
    reliability: dict[str, ReliabilityRecord]
    risk_coverage: NotRequired[RiskCoverage]
    abstention: NotRequired[AbstentionRecord]
    threshold: NotRequired[ThresholdRecord]


class EnsembleRecord(TypedDict):
    """Content of `ensemble.json`; the paths are relative to the file."""

    members: list[str]


# ---- the directory


@dataclass(frozen=True)
class RunDir:
    """A run directory, which holds the files of a run and knows their names.

    Only this class reads and writes the settings, metrics, calibration, predictions and logits of a run, and
    the list of an ensemble. A `UserError` names a file that is damaged or cannot be written.

    Attributes:
        folder: The directory, which need not exist.
    """

    folder: Path

    SETTINGS_FILE = "run.yaml"
    METRICS_FILE = "metrics.json"
    LOG_FILE = "training_log.jsonl"
    CARD_FILE = "README.md"
    REPORT_FILE = "report.html"
    CALIBRATION_FILE = "calibration.json"
    LOGITS_FILE = "test_logits.npz"  # of the runs of a study
    MODEL_CONFIG_FILE = "config.json"
    ENSEMBLE_FILE = "ensemble.json"
    CHECKPOINTS_DIR = "checkpoints"
    TENSORBOARD_DIR = "tensorboard"
    ONNX_DIR = "onnx"  # default output directory of `export`
    ENSEMBLE_DIR = "ensemble"  # of a study
    POOLING_DIR = "1_Pooling"  # of sentence-transformers
    WORDS_DIR = "words"  # has the models of `--save-words`
    WORDS_FILE, STATIC_DIR = "words.json", "static"  # of a linear model of texts
    BACKUP_DIR = ".replaced"  # holds the run that --overwrite replaces, until the new run is finished
    VALIDATION_PREDICTIONS = ("predictions.jsonl", "masked_samples.jsonl")
    PREDICTION_PATTERNS = (
        "predictions*.jsonl", "predictions*.conll", "predictions*.json", "nbest_predictions*.json",
        "null_odds*.json", "masked_samples*.jsonl",
    )  # fmt: skip
    # The model and the tokenizer, which transformers loads.
    MODEL_PATTERNS = (
        MODEL_CONFIG_FILE, "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
        "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
        "spiece.model", "spm.model", "sentencepiece*.model", "chat_template.jinja", WORDS_FILE, STATIC_DIR,
    )  # fmt: skip
    # How sentence-transformers turns the last layer into one vector, for a model whose config has a pooling.
    SENTENCE_PATTERNS = ("modules.json", "sentence_bert_config.json", POOLING_DIR)
    # All files and directories of a run. --overwrite replaces these and nothing else.
    RUN_PATTERNS = (
        SETTINGS_FILE, METRICS_FILE, CHECKPOINTS_DIR, WORDS_DIR, LOG_FILE, CARD_FILE, ONNX_DIR,
        TENSORBOARD_DIR, REPORT_FILE, CALIBRATION_FILE, LOGITS_FILE, "training_args.bin",
        *PREDICTION_PATTERNS, *MODEL_PATTERNS, *SENTENCE_PATTERNS,
    )  # fmt: skip
    # Files that --push-to-hub uploads in addition to the model card, and that a pickled `Classifier` holds.
    # Predictions are not among them, because they contain rows of the data, which may be private.
    UPLOADED_PATTERNS = (*MODEL_PATTERNS, *SENTENCE_PATTERNS, METRICS_FILE, SETTINGS_FILE, CALIBRATION_FILE)

    @property
    def settings_file(self) -> Path:
        return self.folder / self.SETTINGS_FILE

    @property
    def checkpoints(self) -> Path:
        return self.folder / self.CHECKPOINTS_DIR

    @property
    def is_started(self) -> bool:
        return self.settings_file.exists()

    @property
    def is_finished(self) -> bool:
        """Whether there are metrics, which are written last."""
        return (self.folder / self.METRICS_FILE).exists()

    def measure_model(self) -> float:
        """Return the megabytes of what prediction reads: the model, its config and its tokenizer."""
        files = self._list_files([*self.MODEL_PATTERNS, "model.onnx*"])
        return sum(path.stat().st_size for path in files) / 1e6

    def hash_model(self) -> str:
        """Return a hash of what predictions depend on: the model and its settings, or those of members."""
        digest = blake2b(digest_size=16)
        for folder in self.find_members() or [self.folder]:
            patterns = [*self.MODEL_PATTERNS, "model.onnx*", self.SETTINGS_FILE, self.CALIBRATION_FILE]
            for path in filter(Path.is_file, sorted(RunDir(folder)._list_files(patterns))):
                digest.update(f"{path.name} {path.stat().st_size}".encode())
                with path.open("rb") as file:
                    while block := file.read(BLOCK_SIZE):
                        digest.update(block)
        return digest.hexdigest()

    def list_uploaded_files(self) -> list[Path]:
        """Return the files of `UPLOADED_PATTERNS`, also those in directories."""
        return sorted(self._list_files(self.UPLOADED_PATTERNS))

    def _list_files(self, patterns: Sequence[str]) -> list[Path]:
        """Return the files that match one of the patterns, or are in a directory that does, in this order."""
        found = [path for pattern in patterns for path in self.folder.glob(pattern)]
        files = (file for path in found for file in (path.rglob("*") if path.is_dir() else [path]))
        return list(dict.fromkeys(files))

    # ---- creating and removing the files of a run

    def create(self, overwrite: bool, with_checkpoints: bool = True) -> None:
        """Create the directory; with `overwrite`, move the files of an existing run to a backup first."""
        with report_creation_errors(self.folder):
            if overwrite:
                self.back_up()
            self.folder.mkdir(parents=True, exist_ok=True)
            if with_checkpoints:
                self.checkpoints.mkdir(exist_ok=True)

    def back_up(self, more_patterns: Sequence[str] = ()) -> None:
        """Move the files of a run (`RUN_PATTERNS` and more) to a backup in the same directory."""
        if self.is_started:
            self.delete_backup()  # a killed run with --overwrite may have left one
            (self.folder / self.BACKUP_DIR).mkdir()
            _move(self.folder, self.folder / self.BACKUP_DIR, [*self.RUN_PATTERNS, *more_patterns])

    def delete_backup(self) -> None:
        shutil.rmtree(self.folder / self.BACKUP_DIR, ignore_errors=True)

    @contextmanager
    def copy_to(self, folder: Path, overwrite: bool) -> Iterator["RunDir"]:
        """Copy the finished run, without checkpoints, exports and logs of trackers, for a block of changes.

        If the block fails, the copy is removed, and the run that it replaces is restored.
        """
        copy = RunDir(folder)
        copy.create(overwrite, with_checkpoints=False)
        left_out = (
            self.CHECKPOINTS_DIR,
            self.WORDS_DIR,
            self.ONNX_DIR,
            self.TENSORBOARD_DIR,
            self.METRICS_FILE,
        )
        patterns = [*(name for name in self.RUN_PATTERNS if name not in left_out), self.METRICS_FILE]
        try:
            with report_creation_errors(folder):
                for path in self._list_files(patterns):
                    target = folder / path.relative_to(self.folder)
                    target.parent.mkdir(exist_ok=True)
                    shutil.copyfile(path, target)
            yield copy
        except BaseException:
            for path in copy._list_files(patterns):
                path.unlink()
            for name in (self.POOLING_DIR, self.STATIC_DIR):
                shutil.rmtree(folder / name, ignore_errors=True)
            copy.discard_unstarted()
            raise
        copy.delete_backup()

    def discard_unstarted(self) -> None:
        """Remove a run that failed before its first checkpoint, and restore the run that it replaced."""
        if self.find_last_checkpoint():
            return
        for part in (self.checkpoints, self.folder / self.WORDS_DIR, self.folder / self.TENSORBOARD_DIR):
            shutil.rmtree(part, ignore_errors=True)
        self.settings_file.unlink(missing_ok=True)
        if (self.folder / self.BACKUP_DIR).is_dir():
            _move(self.folder / self.BACKUP_DIR, self.folder, ["*"])
            self.delete_backup()
        if not self.folder.is_symlink():
            locks.remove_if_unused(self.folder)
            with suppress(OSError):  # `runs` may contain other runs
                Path(DEFAULT_RUNS_DIR).rmdir()

    def find_last_checkpoint(self) -> Path | None:
        """Return the checkpoint with the highest step, or None if there is none."""
        steps: dict[Path, int] = {}
        for path in self.checkpoints.glob("checkpoint-*"):
            step = path.name.rpartition("-")[2]
            if step.isdecimal() and path.is_dir():
                steps[path] = int(step)
        return max(steps, key=lambda path: steps[path], default=None)

    # ---- run.yaml

    def write_settings(
        self, task: str, config: RunConfig, data: Mapping[str, str],
        label_fixes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Write `run.yaml`: the settings, which `--recipe` reads, and the provenance of the run.

        Args:
            task: The command.
            config: Resolved settings.
            data: Fingerprints of the rows by split.
            label_fixes: What `--label-fixes` changed; empty without fixes.
        """
        from bertkit.utils import devices  # imports torch

        processes, passed_data = distributed.get_world_size(), list_passed_data(config)
        program = Path(sys.argv[0]).name
        is_command = program in ("bertkit", "bertkit.exe", "__main__.py")
        provenance = {
            "command": join_command(["bertkit", *sys.argv[1:]]) if is_command else "from Python",
            "data": dict(data),
            **({PASSED_DATA: passed_data} if passed_data else {}),
            **({"label_fixes": dict(label_fixes)} if label_fixes else {}),
            **({"processes": processes} if processes > 1 else {}),
            "device": devices.describe_device(),
            **({"plugins": plugins} if (plugins := find_used_plugins(task, config)) else {}),
            "python": platform.python_version(),
            "packages": get_installed_versions(RECORDED_PACKAGES),
        }
        self._write_settings(task, config, provenance)

    def update_settings(self, config: RunConfig, reason: Mapping[str, Any]) -> None:
        """Replace the settings of a run that has started; `reason` is added to its provenance."""
        previous = self._read_settings()
        provenance = previous["provenance"] | dict(reason)
        if "processes" in provenance:  # batch settings are per process, and a resumed run may have others
            provenance["processes"] = distributed.get_world_size()
        self._write_settings(previous["task"], config, provenance)

    def _write_settings(self, task: str, config: RunConfig, provenance: dict[str, Any]) -> None:
        """Write `run.yaml` with a comment: the command, or the Python call, that repeats the run."""
        if kinds := provenance.get(PASSED_DATA):
            call = format_python_call(task, {"recipe": str(self.settings_file)}, kinds)
            repeat = f" in Python, with the same data: {call}"
        else:
            command = ["bertkit", *task.split(), "--recipe", str(self.settings_file)]
            for value in config.metric:
                command += ["--metric", value]
            if "processes" in provenance:
                command += ["--nproc", str(provenance["processes"])]
            repeat = f": {join_command(command)}"
        comment = f"Repeat this run{repeat}".replace("\n", "\n# ")  # a path may contain a line break
        content = {"task": task, "settings": serialize_settings(config), "provenance": provenance}
        write_text(self.settings_file, f"# {comment}\n" + dump_yaml(content))

    def _read_settings(self) -> SettingsRecord:
        record: SettingsRecord = validate(read_yaml(self.settings_file), SettingsRecord, self.settings_file)
        return record

    def read_settings(self) -> dict[str, Any]:
        """Return the resolved settings that differ from the defaults."""
        return self._read_settings()["settings"]

    def read_provenance(self) -> dict[str, Any]:
        """Return the provenance, with at least the keys of `Provenance`."""
        provenance = self._read_settings()["provenance"]
        validate(provenance, Provenance, self.settings_file)
        return provenance

    def require_plugins(self) -> None:
        """Raise a `UserError` if the run has a task or a method of a plugin that is not installed."""
        if self.is_started:
            require_recorded_plugins(read_recipe_file(self.settings_file), self.settings_file)

    # ---- metrics.json

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write `metrics.json`. As the last file of a run, it marks the run as finished."""
        self._write_json(self.METRICS_FILE, metrics)

    def read_metrics(self) -> dict[str, Any] | None:
        """Return the metrics of a finished run, or None if the run is not finished."""
        path = self.folder / self.METRICS_FILE
        if not path.exists():
            return None
        try:
            metrics = json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            raise UserError(f"{path}: cannot parse it as JSON ({error}); {RETRAIN_HINT}") from error
        validate(metrics, MetricsRecord, path)
        return dict(metrics)

    def require_metrics(self) -> dict[str, Any]:
        """Return the metrics; raise a `UserError` if the directory does not contain a finished run."""
        is_directory = self.folder.is_dir()
        metrics = self.read_metrics() if is_directory else None
        if metrics is None:
            lack = f"it does not contain {self.METRICS_FILE}"
            problem = lack if is_directory else "the directory does not exist"
            raise UserError(
                f"{self.folder}: is not a finished run ({problem}); pass the output directory of a training "
                f"command, such as {DEFAULT_RUNS_DIR}/classify-imdb-minilm"
            )
        return metrics

    # ---- the log, the predictions and the logits

    def write_log(self, entries: Iterable[dict[str, Any]]) -> None:
        write_jsonl(self.folder / self.LOG_FILE, entries)

    def write_predictions(
        self, name: str, split: str, records: Iterable[dict[str, Any]], files: Mapping[str, Iterable[str]]
    ) -> None:
        """Write the prediction files of a split; their names end in `-SPLIT`, except for validation.

        Args:
            name: Name of the file of records, without extension.
            split: The split.
            records: The predictions.
            files: Chunks of text of further files, by file name.
        """
        suffix = "" if split == "validation" else f"-{split}"
        write_jsonl(self.folder / f"{name}{suffix}.jsonl", records)
        for file_name, chunks in files.items():
            stem, dot, extension = file_name.partition(".")
            write_chunks(self.folder / f"{stem}{suffix}{dot}{extension}", chunks)

    @property
    def predictions_path(self) -> Path:
        """Path of `records`, whether or not the file exists."""
        paths = [self.folder / name for name in self.VALIDATION_PREDICTIONS]
        return next((path for path in paths if path.exists()), paths[0])

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Predictions for the validation split, or masked samples from it."""
        return list(self.iter_lines(self.predictions_path.name))

    def make_record_error(self, index: int, problem: str) -> UserError:
        """Build the error for an invalid record; `index` is its position in `records`."""
        return UserError(f"{self.predictions_path}:{index + 1}: {problem}; {RETRAIN_HINT}")

    def write_logits(self, logits: Any, fitted_params: Mapping[str, float]) -> None:
        """Write the logits of the test split, and `Task.fitted_params`."""
        import numpy as np

        path = self.folder / self.LOGITS_FILE
        try:
            with replace_file(path) as partial, partial.open("wb") as file:
                np.savez(file, **{"logits": logits, **fitted_params})
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); free disk space") from error

    def read_logits(self) -> tuple[Any, dict[str, float]]:
        """Return what `write_logits` wrote: the logits, and the fitted parameters."""
        import numpy as np

        path = self.folder / self.LOGITS_FILE
        try:
            # numpy does not close a damaged file that it opened itself.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                params = {name: float(arrays[name]) for name in arrays.files if name != "logits"}
                return arrays["logits"], params
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{path}: cannot be read ({reason}); delete its directory to train it again"
            ) from error

    # ---- calibration, model card and page

    def write_calibration(self, calibration: Mapping[str, Any]) -> None:
        self._write_json(self.CALIBRATION_FILE, calibration)

    def delete_calibration(self) -> None:
        (self.folder / self.CALIBRATION_FILE).unlink(missing_ok=True)

    @cached_property
    def calibration(self) -> CalibrationRecord:
        """Content of `calibration.json`; empty if the run is not calibrated."""
        record: CalibrationRecord = self.read_json(self.CALIBRATION_FILE, CalibrationRecord)
        return record

    @property
    def is_calibrated_on_validation(self) -> bool:
        """Whether the calibration used the validation split of the run."""
        return self.calibration.get("data", {}).get("is_validation_split", False)

    def write_card(self, text: str) -> None:
        write_text(self.folder / self.CARD_FILE, text)

    def read_card(self) -> str | None:
        """Return the model card; None for a run of a study, which has none."""
        path = self.folder / self.CARD_FILE
        return path.read_text("utf-8") if path.exists() else None

    def write_report(self, html: str) -> None:
        write_text(self.folder / self.REPORT_FILE, html)

    # ---- JSON

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_text(self.folder / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def read_json(self, name: str, schema: Any) -> Any:
        """Read a JSON file of the run and validate it; empty if the file does not exist."""
        path = self.folder / name
        return validate(_parse_json(path.read_bytes(), path), schema, path) if path.exists() else {}

    def iter_lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a file of JSON lines; none if the file does not exist."""
        path = self.folder / name
        if not path.exists():
            return
        with path.open("rb") as file:  # binary mode: the parser reports invalid UTF-8 with the line
            for number, line in enumerate(file, 1):
                yield _parse_json(line, f"{path}:{number}")

    # ---- ensembles

    def write_members(self, members: Sequence[Path]) -> None:
        """Make the directory an ensemble of finished runs, which have the same task."""
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = [make_relative(member, self.folder) for member in members]
        write_text(self.folder / self.ENSEMBLE_FILE, json.dumps({"members": paths}, indent=2) + "\n")

    def find_members(self) -> list[Path]:
        """Return the runs of the ensemble in this directory or in that of a study; empty if it is a run."""
        path = self._find_ensemble_file()
        if path is None:
            return []
        try:
            content = json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            raise UserError(f"{path}: cannot parse it as JSON ({error}); {ENSEMBLE_HINT}") from error
        ensemble: EnsembleRecord = validate(content, EnsembleRecord, path, ENSEMBLE_HINT)
        if not ensemble["members"]:
            raise UserError(f"{path}: has no members; {ENSEMBLE_HINT}")
        members = [path.parent / member for member in ensemble["members"]]
        for member, folder in zip(ensemble["members"], members, strict=True):
            if not os.path.isdir(folder):  # noqa: PTH112 (`Path.is_dir` fails for a name that is too long)
                raise UserError(
                    f"{path}: member {member[:MAX_REPR_LENGTH]} does not exist; restore its directory, or "
                    f"{ENSEMBLE_HINT}"
                )
            if RunDir(folder)._find_ensemble_file():
                raise UserError(f"{path}: member {member} is an ensemble itself; {ENSEMBLE_HINT}")
        return members

    def _find_ensemble_file(self) -> Path | None:
        paths = (self.folder / self.ENSEMBLE_FILE, self.folder / self.ENSEMBLE_DIR / self.ENSEMBLE_FILE)
        return next((path for path in paths if path.is_file()), None)

    def refuse_ensemble(self) -> None:
        """Raise a `UserError` if the directory is an ensemble or a study with an ensemble."""
        if members := self.find_members():
            raise UserError(
                f"{self.folder}: is an ensemble, which this command cannot use; pass one of its members, "
                f"such as {os.path.normpath(members[0])}"
            )


def _move(source: Path, target: Path, patterns: Sequence[str]) -> None:
    """Move those files and directories in `source` that match one of the patterns to `target`."""
    for pattern in patterns:
        for path in source.glob(pattern):
            replace_path(path, target / path.name)


def _parse_json(text: bytes, location: object) -> dict[str, Any]:
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{location}: cannot parse as JSON ({error}); {RETRAIN_HINT}") from error
    if not isinstance(content, dict):
        raise UserError(f"{location}: expected a JSON object, found {shorten_repr(content)}; {RETRAIN_HINT}")
    return content


# ---- kinds of output directories


# Names of files and directories that only experiments write, such as a study.
EXPERIMENT_NAMES = {"study.json", "out_of_fold.jsonl", "folds", "seeds", "trials", "defaults", "ensemble"}
EXPERIMENT = OutputKind(
    "a run", "pass --overwrite to replace it, or --resume to resume it",
    lambda names: set() if RunDir.SETTINGS_FILE in names else names,
)  # fmt: skip
RUN = replace(
    EXPERIMENT,
    find_foreign_files=lambda names: names & EXPERIMENT_NAMES or EXPERIMENT.find_foreign_files(names),
)


def _find_files_unless_evaluation(names: set[str]) -> set[str]:
    """Return the files of a trained model; if there are none, proceed as for a run."""
    model_dirs = (RunDir.CHECKPOINTS_DIR, RunDir.ONNX_DIR)
    trained = {name for name in names if name in model_dirs or name.endswith(".safetensors")}
    return trained or RUN.find_foreign_files(names)


EVALUATION = OutputKind("an evaluation", "pass --overwrite to replace it", _find_files_unless_evaluation)


def create_default_directory(*parts: str) -> Path:
    """Create a new directory such as `runs/TASK-DATA-MODEL`, with a number at the end if it exists.

    Two runs that start at the same time get different directories.
    """
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
    folder, number = Path(DEFAULT_RUNS_DIR) / name, 2
    while True:
        while folder.exists():
            folder, number = Path(DEFAULT_RUNS_DIR) / f"{name}-{number}", number + 1
        with suppress(FileExistsError):
            create_directory(folder, exist_ok=False)
            return folder


# ---- provenance


def format_python_call(function: str, arguments: Mapping[str, Any], data_names: Iterable[str]) -> str:
    """Return a call such as `bertkit.classify(recipe='run.yaml', data=...)`.

    `function` is the name of a command. `data_names` are the settings that receive data objects.
    """
    function, _, task = function.partition(" ")  # `study TASK` is the function `study` with the task
    parts = [repr(task)] if task else []
    parts += [f"{name}={value!r}" for name, value in arguments.items()]
    parts += [f"{name}=..." for name in data_names]
    return f"bertkit.{function.replace('-', '_')}({', '.join(parts)})"


def find_used_plugins(task: str, config: RunConfig) -> dict[str, str]:
    """Return the packages of the plugins that a run of a command uses, by plugin, for its provenance."""
    metrics = [value.partition(":")[0] for value in config.metric]
    return describe_used_plugins(
        {"task": [get_task_name(task)], "method": [config.method], "metric": metrics}
    )


def get_installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages by name, without packages that are not installed."""
    return {name: found for name in names if (found := _find_version(name)) is not None}


@cache  # a process has one version of a package, and writes the settings of several runs
def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

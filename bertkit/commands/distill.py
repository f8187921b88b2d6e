"""`bertkit distill RUN`: train a student with the settings of the run of its teacher."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from bertkit.commands import train
from bertkit.commands.configs import DistillConfig
from bertkit.errors import UserError
from bertkit.models.loading import find_run_model, load_config, load_tokenizer
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import get_settings
from bertkit.settings.recipes import apply_overrides, list_passed_data
from bertkit.settings.run_settings import FineTuningConfig
from bertkit.settings.validation import validate_settings
from bertkit.tasks.text.config import LINEAR_TEXT_METHODS
from bertkit.tasks.trained_model import load_run_task
from bertkit.utils.files import expand_home

# Settings of the teacher's run that do not apply to the student: those of its model and of its training, and
# those that load code.
TEACHER_SETTINGS = frozenset({
    "model", "new_head", "method", "num_layers", "freeze", "lora", "learning_rate", "features", "teacher",
    "unlabeled", "alpha", "temperature", "metric", "metric_for_best_model",
    "greater_is_better", "bf16", "fp16",  # the student may be trained on another device
})  # fmt: skip


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    task_name, student_settings = resolve_student_settings(settings)
    train.run_command(task_name, student_settings, as_json)


def resolve_student_settings(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the task, and the settings with which `bertkit.run.train.train` trains the student."""
    values = validate_settings(DistillConfig, settings, "distill()")
    folder = expand_home(values.pop("run"))
    task = load_run_task(folder, accepts_ensemble=True)
    runs = RunDir(folder).find_members() or [folder]
    _check_teacher(folder, runs, task.config)
    renamed = {"student": "model", "data": "unlabeled"}
    overrides = {renamed.get(name, name): value for name, value in values.items()}
    student, ineffective = values.get("student"), set[str]()
    if student in LINEAR_TEXT_METHODS:
        if student not in get_args(get_settings(type(task.config))["method"].type):
            raise UserError(
                f"--student {student}: {task.definition.name} has no linear models of texts; pass a "
                "pre-trained model, or --num-layers"
            )
        overrides["method"] = overrides.pop("model")
        ineffective = set(type(task.config)(method=student).list_ineffective_settings())
    if values.get("num_layers") is not None or (
        student in LINEAR_TEXT_METHODS and "model" not in ineffective
    ):
        overrides["model"] = str(runs[0].resolve())  # whose encoder has learned the task
    overrides["teacher"] = str(folder.resolve())
    if values.get("resume"):
        return task.definition.name, overrides
    _check_student(values, runs[0], task.config)
    output_dir = values.get("output_dir")
    if output_dir is not None and expand_home(output_dir).resolve() in {
        run.resolve() for run in (folder, *runs)
    }:
        raise UserError(f"--output-dir {output_dir}: is the run of the teacher; choose another directory")
    inherited = {
        name: getattr(task.config, name)
        for name, field in get_settings(type(task.config)).items()
        if name not in TEACHER_SETTINGS | ineffective
        and getattr(task.config, name) not in (field.default, None)
    }
    if values.get("data") is not None:  # which may be many times the rows of the teacher
        inherited.pop("epochs", None)
    # A seed of the student must not change which rows are held out.
    inherited = {"split_seed": task.config.seed} | inherited
    return task.definition.name, apply_overrides(inherited, overrides, type(task.config))


def _check_teacher(folder: Path, runs: Sequence[Path], config: Any) -> None:
    """Check that a run can be a teacher, and that its data is still there."""
    if not isinstance(config, FineTuningConfig):
        raise UserError(f"{folder}: is a run of pre-training; pass a run of classify, nli, ner, qa or swag")
    for run in runs:
        find_run_model(run)
    if passed := list_passed_data(config):
        kind = next(iter(passed.values()))
        raise UserError(
            f"{folder}: was trained on a {kind} passed from Python, which is not saved with the run; write "
            "it to a file, and train the run on the file"
        )
    for name in ("data", "validation", "test"):
        path = getattr(config, name)
        if path and Path(path).is_absolute() and not Path(path).exists():
            raise UserError(f"{folder}: its data {path} does not exist; restore the file")


def _check_student(values: Mapping[str, Any], run: Path, config: Any) -> None:
    """Check that the settings name one student, and that it is smaller than the teacher of this run."""
    count = values.get("num_layers")
    if (count is None) == (values.get("student") is None):
        raise UserError("--num-layers and --student: exactly one of them names the student; pass one")
    if values.get("data") is not None and values.get("alpha") == 0:
        raise UserError("--data: rows without labels have no effect with --alpha 0; omit one of them")
    if count is None:
        return
    source = find_run_model(run)
    load_tokenizer(source)  # `prepare`, which loads it again, would call the run --model in an error
    num_layers = load_config(source).num_hidden_layers
    if count >= num_layers:
        raise UserError(f"--num-layers {count}: {run} has {num_layers} layers; pass a smaller number")
    if config.features is not None:
        raise UserError(f"{run}: has a frozen encoder (--features); pass another model with --student")

"""`bertkit distill RUN`: the settings of a student, from those of the run of its teacher."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import FineTuningConfig
from bertkit.data_objects import DataSource
from bertkit.errors import UserError
from bertkit.setting import DATA, MODEL, OUTPUT, get_settings, setting
from bertkit.utils.paths import expand_home
from bertkit.validation import validate_settings

DISTILL_HELP = (
    "Train a smaller model, the student, on the predictions of a finished run, its teacher. The settings of "
    "the run are the defaults."
)
DISTILLATION = "Distillation"
# Settings of the teacher's run that do not apply to the student: those of its model and of its training, and
# those that load code.
TEACHER_SETTINGS = frozenset({
    "model", "new_head", "method", "num_layers", "freeze", "lora", "learning_rate", "features", "teacher",
    "unlabeled", "alpha", "temperature", "metric", "metric_for_best_model",
    "greater_is_better", "bf16", "fp16",  # the student may be trained on another device
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DistillConfig(FineTuningConfig):
    """The settings of `bertkit distill`.

    The student has the rows, the columns and the splits of its teacher, so they are no settings here.
    """

    excluded_settings = frozenset({
        "validation", "test", "validation_fraction", "keep_overlap", "max_eval_samples", "split_seed",
        "label_fixes", "model", "teacher", "unlabeled", "head",
    })  # fmt: skip

    run: str = setting(
        dataclasses.MISSING, "Run of the teacher, or a study with an ensemble.", MODEL,
        is_positional=True, completion="runs",
    )  # fmt: skip
    num_layers: int | None = setting(
        None,
        "Student: N of the teacher's encoder layers, evenly spread from the first to the last, and its head.",
        DISTILLATION,
        min=1,
    )
    student: str | None = setting(
        None,
        "Student: another pre-trained model, in place of --num-layers.",
        DISTILLATION,
        completion="models",
    )
    data: DataSource | None = setting(
        None,
        "More rows, without labels, to learn the teacher's predictions on: a file, a directory, or a known "
        "dataset.",
        DATA,
        completion="data",
        is_path=True,
        default_text="none",
    )
    temperature: float = setting(
        FineTuningConfig.temperature,
        "Number by which the logits of both models are divided before their predictions are compared.",
        DISTILLATION,
        min=0.1,
    )
    alpha: float = setting(
        FineTuningConfig.alpha,
        "Weight of the teacher's predictions in the loss; the weight of the labels is 1 - alpha.",
        DISTILLATION,
        min=0.0,
        max=1.0,
    )
    output_dir: str | None = setting(
        None,
        "Run directory of the student.",
        OUTPUT,
        flags=("--output-dir", "-o"),
        is_saved=False,
        default_text="runs/TASK-DATA-RUN",
    )


def resolve_student_settings(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the task, and the settings with which `bertkit.pipeline.run.train` trains the student.

    Args:
        settings: Settings of `bertkit distill`.

    Raises:
        UserError: RUN cannot be a teacher, or the settings contradict each other or do not fit it.
    """
    from bertkit.pipeline.ensemble import find_ensemble, read_members
    from bertkit.pipeline.finished_run import load_run_task
    from bertkit.recipes import apply_overrides

    values = validate_settings(DistillConfig, settings, "distill()")
    folder = expand_home(values.pop("run"))
    task = load_run_task(folder, accepts_ensemble=True)
    ensemble = find_ensemble(folder)
    runs = read_members(ensemble) if ensemble else [folder]
    _check_teacher(folder, runs, task.config)
    overrides = _translate(values, runs[0]) | {"teacher": str(folder.resolve())}
    if values.get("resume"):
        return task.spec.name, overrides
    _check_student(values, runs[0], task.config)
    _check_output_is_not_teacher(values.get("output_dir"), {folder, *runs})
    return task.spec.name, apply_overrides(_get_teacher_settings(task.config), overrides, type(task.config))


def _check_teacher(folder: Path, runs: Sequence[Path], config: Any) -> None:
    """Check that a run can be a teacher, and that its data is still there."""
    from bertkit.modeling.loading import find_model
    from bertkit.recipes import list_passed_data

    if not isinstance(config, FineTuningConfig):
        raise UserError(f"{folder}: is a run of pre-training; pass a run of classify, nli, ner, qa or swag")
    for run in runs:
        find_model(str(run), "RUN")
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
    """Check that the settings name one student, and that it is smaller than its teacher.

    Args:
        values: Settings of `bertkit distill`.
        run: The run of the teacher.
        config: The settings of the run.
    """
    from bertkit.modeling.loading import ModelSource, load_config

    count = values.get("num_layers")
    if (count is None) == (values.get("student") is None):
        raise UserError("--num-layers and --student: exactly one of them names the student; pass one")
    if values.get("data") is not None and values.get("alpha") == 0:
        raise UserError("--data: rows without labels have no effect with --alpha 0; leave out one of them")
    if count is None:
        return
    num_layers = load_config(ModelSource(run.name, run)).num_hidden_layers
    if count >= num_layers:
        raise UserError(f"--num-layers {count}: {run} has {num_layers} layers; pass a smaller number")
    if getattr(config, "features", None) is not None:
        raise UserError(f"{run}: has a frozen encoder (--features); pass another model with --student")


def _check_output_is_not_teacher(output_dir: str | None, folders: Collection[Path]) -> None:
    """Refuse to replace the teacher, whose model is read during training."""
    if output_dir is not None and expand_home(output_dir).resolve() in {path.resolve() for path in folders}:
        raise UserError(f"--output-dir {output_dir}: is the run of the teacher; choose another directory")


def _translate(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the settings of `bertkit distill` as settings of the task."""
    renamed = {"student": "model", "data": "unlabeled"}
    overrides = {renamed.get(name, name): value for name, value in values.items()}
    if values.get("num_layers") is not None:
        overrides["model"] = str(run.resolve())
    return overrides


def _get_teacher_settings(config: FineTuningConfig) -> dict[str, Any]:
    """Return the settings of the teacher's run that the student has too, without defaults.

    A seed of the student must not change which rows are held out.
    """
    settings = {
        name: getattr(config, name)
        for name, field in get_settings(type(config)).items()
        if name not in TEACHER_SETTINGS and getattr(config, name) not in (field.default, None)
    }
    return {"split_seed": config.seed} | settings

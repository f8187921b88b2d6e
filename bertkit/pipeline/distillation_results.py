"""The scores, the size and the speed of a teacher beside those of its student."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.split import sample_rows
from bertkit.modeling.loading import ModelSource
from bertkit.pipeline.prepare import PreparedRun
from bertkit.pipeline.results import compare_evaluations
from bertkit.pipeline.trained_model import TrainedModel, build_trained_model
from bertkit.tasks.evaluation import Evaluation, Outputs
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.data.rows import Rows

SPEED_ROWS, SPEED_ROUNDS = 128, 3  # validation rows on which the speed is measured, and repetitions


@dataclass(frozen=True)
class ScoredTeacher:
    """A teacher with its outputs for the validation split of the student."""

    model: TrainedModel
    outputs: Outputs


def score_teacher(prepared: PreparedRun, reporter: Reporter) -> ScoredTeacher | None:
    """Compute the outputs of the teacher for the validation split; None without a teacher.

    All ranks must call this.
    """
    if prepared.distillation is None:
        return None
    teacher = prepared.distillation.load_teacher()
    teacher.task.use_cache = True  # unlike in prediction, a whole split is tokenized
    return ScoredTeacher(teacher, teacher.compute_outputs(prepared.splits["validation"], reporter, "teacher"))


def compare_with_teacher(
    prepared: PreparedRun, teacher: ScoredTeacher, evaluation: Evaluation, folder: Path
) -> dict[str, Any]:
    """Return the sections "compared" and "distillation" of `metrics.json`.

    Args:
        prepared: The run of the student.
        teacher: The teacher.
        evaluation: Evaluation of the student on the validation split.
        folder: The run directory of the student, which has its model.
    """
    assert prepared.distillation is not None
    name, modules, seed = str(prepared.distillation.folder), prepared.metric_modules, prepared.config.seed
    teacher_evaluation = teacher.model.task.evaluate(teacher.outputs)
    return {
        "compared": compare_evaluations(name, teacher_evaluation, evaluation, modules, seed),
        "distillation": _describe_models(prepared, teacher.model, folder),
    }


def _describe_models(prepared: PreparedRun, teacher: TrainedModel, folder: Path) -> dict[str, Any]:
    """Return the settings of the loss, and the size and the speed of both models."""
    distillation, config = prepared.distillation, prepared.config
    assert distillation is not None
    task = type(prepared.task)(config)
    student = build_trained_model(task, ModelSource(folder.name, folder))
    rows = sample_rows(prepared.splits["validation"], SPEED_ROWS, config.seed)
    speeds = measure_speeds([teacher, student], rows, config.eval_batch_size)
    folders = [distillation.run_folders, [folder]]
    models = [
        {
            "parameters": _count_parameters(model),
            "megabytes": _compute_megabytes(paths),
            "rows_per_second": speed,
        }
        for model, paths, speed in zip([teacher, student], folders, speeds, strict=True)
    ]
    return {
        "teacher": str(distillation.folder),
        "temperature": config.temperature,
        "alpha": config.alpha,
        "unlabeled_rows": 0 if distillation.unlabeled is None else len(distillation.unlabeled),
        "models": dict(zip(("teacher", "student"), models, strict=True)),
    }


def measure_speeds(models: Sequence[TrainedModel], rows: "Rows", batch_size: int) -> list[float]:
    """Return the rows per second of each model, without tokenization; the best of some rounds.

    The models take turns, so that other load on the machine affects all of them.
    """
    from bertkit.training.scoring import predict_batches

    features = [model.task.featurize(rows, model.tokenizer) for model in models]
    collators = [model.task.make_collator(model.tokenizer, model.model) for model in models]
    best = [float("inf")] * len(models)
    for _ in range(SPEED_ROUNDS):
        for number, model in enumerate(models):
            started = time.perf_counter()
            predict_batches(model.model, features[number], collators[number], batch_size)
            best[number] = min(best[number], time.perf_counter() - started)
    return [len(rows) / seconds for seconds in best]


def _count_parameters(model: TrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.model.parameters())


def _compute_megabytes(folders: Sequence[Path]) -> float:
    """Return the size of the weights of all folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors")) / 1e6

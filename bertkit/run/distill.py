"""Distillation: a model, the student, learns the predictions of a finished run, its teacher."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit import run_directory
from bertkit.data.columns import add_renamed_columns
from bertkit.data.sources import load_dataset
from bertkit.data.split import find_remaining
from bertkit.data.table import UNLABELED_ROWS, Rows, Splits, describe_changes, fingerprint_splits
from bertkit.errors import UserError, format_count, format_list
from bertkit.models import loading
from bertkit.models.heads import SEQUENCE_HEAD, TAGGER_HEAD, TOKEN_HEAD, has_head
from bertkit.run.finished_run import TrainedModel, combine_models, load_trained_model, serialize_tokenizer
from bertkit.run_directory import find_ensemble, read_members
from bertkit.settings.run_settings import FineTuningConfig
from bertkit.tasks.base import Task
from bertkit.utils.reporting import report_info

if TYPE_CHECKING:
    from bertkit.data.features import Features
    from bertkit.models.losses import Loss
    from bertkit.run.prepare import PreparedRun


@dataclass(frozen=True)
class Distillation:
    """What a student learns from its teacher, determined before any weights are loaded.

    Attributes:
        folder: The run of the teacher, or a study whose ensemble is the teacher.
        has_same_tokenizer: Whether teacher and student have the same tokenizer. The teacher then reads the
            features of the student; otherwise it tokenizes the rows itself.
        label_order: Index of each output of the student among those of the teacher; None for the same order.
        unlabeled: Rows without labels, on which the student learns only the predictions of the teacher.
    """

    folder: Path
    has_same_tokenizer: bool
    label_order: np.ndarray | None
    unlabeled: Rows | None

    def load_teacher(self) -> TrainedModel:
        """Load the model of the run, or those of the ensemble."""
        if ensemble := find_ensemble(self.folder):
            folders = read_members(ensemble)
            return combine_models(folders, [load_trained_model(member) for member in folders])
        return load_trained_model(self.folder)

    @property
    def run_folders(self) -> list[Path]:
        """The run of the teacher, or the members of the ensemble."""
        ensemble = find_ensemble(self.folder)
        return read_members(ensemble) if ensemble else [self.folder]


# ---- preparation


def prepare_distillation(prepared: "PreparedRun") -> Distillation | None:
    """Check that the student can learn from its teacher, and load the unlabeled rows.

    Returns:
        What the student learns; None if the settings name no teacher.

    Raises:
        UserError: Teacher and student do not fit each other, or the unlabeled rows are not usable.
    """
    config = prepared.config
    if not isinstance(config, FineTuningConfig) or config.teacher is None:
        return None
    folder = Path(config.teacher)
    _require_same_evaluation_rows(prepared, folder)
    ensemble = find_ensemble(folder)
    run = read_members(ensemble)[0] if ensemble else folder
    source = loading.find_run_model(run)
    teacher_config, teacher_tokenizer = loading.load_config(source), loading.load_tokenizer(source)
    has_same_tokenizer = serialize_tokenizer(teacher_tokenizer) == serialize_tokenizer(prepared.tokenizer)
    if has_same_tokenizer:
        _check_length(prepared, folder, teacher_config)
    elif prepared.task.definition.scores_tokens:
        raise UserError(
            f"{folder}: has another tokenizer than {prepared.model_source.name}, so that the tokens of "
            f"{prepared.task.definition.name} differ; choose a student with the same tokenizer"
        )
    unlabeled = _load_unlabeled_rows(prepared) if config.unlabeled is not None else None
    order = _match_labels(folder, teacher_config, prepared.model_config)
    return Distillation(folder, has_same_tokenizer, order, unlabeled)


def _require_same_evaluation_rows(prepared: "PreparedRun", folder: Path) -> None:
    """Check that no evaluation row of the student was a training row of the teacher."""
    if find_ensemble(folder):
        if "validation" in prepared.dataset.splits:
            return
        raise UserError(
            f"{folder}: the members of this ensemble were trained on all labeled rows, so none can validate "
            "the student; pass one of the runs, or use data with a validation split"
        )
    saved = run_directory.read_provenance(folder)["data"]
    saved = {name: value for name, value in saved.items() if name not in ("train", UNLABELED_ROWS)}
    current = fingerprint_splits({name: rows for name, rows in prepared.splits.items() if name != "train"})
    if changes := describe_changes(saved, current):
        raise UserError(f"{folder}: the data of this run has changed ({changes}); restore the data")


def _check_length(prepared: "PreparedRun", folder: Path, teacher_config: Any) -> None:
    """Check that the teacher can read the sequences of the student."""
    max_length, max_positions = prepared.config.max_length, loading.get_max_positions(teacher_config)
    if max_positions is not None and max_length > max_positions:
        raise UserError(
            f"--max-length {max_length}: {folder} has only {max_positions} positions; use at most that many"
        )


def _match_labels(folder: Path, teacher_config: Any, student_config: Any) -> np.ndarray | None:
    """Return the index of each label of the student among those of the teacher; None for the same order."""
    if not has_head(teacher_config, SEQUENCE_HEAD, TOKEN_HEAD, TAGGER_HEAD):
        return None
    teacher, student = (
        [config.id2label[index] for index in range(config.num_labels)]
        for config in (teacher_config, student_config)
    )
    if sorted(teacher) != sorted(student):
        raise UserError(
            f"{folder}: was trained for {format_list(teacher)}, the student for {format_list(student)}; "
            "use the same labels"
        )
    return None if teacher == student else np.array([teacher.index(label) for label in student])


# ---- unlabeled rows


def _load_unlabeled_rows(prepared: "PreparedRun") -> Rows:
    """Load the unlabeled rows, without those that are also in an evaluation split.

    Raises:
        UserError: The rows cannot be read or lack a column, or none remains.
    """
    task, config = prepared.task, prepared.config
    dialect = task.definition.make_dialect(config.encoding)
    dataset = load_dataset(config.unlabeled, task.definition.name, config.data_dir, dialect)
    dataset.require_training_split()
    rows = _parse_unlabeled_rows(task, dataset.splits["train"])
    remaining = _find_new_rows(task, rows, prepared.splits)
    count = format_count(len(remaining), f"unlabeled {task.definition.unit}")
    removed = len(rows) - len(remaining)
    note = f" ({removed:,} left out: also in an evaluation split)" if removed else ""
    if not len(remaining):
        raise UserError(
            f"--data {config.unlabeled}: no unlabeled {task.definition.unit} remains{note}; add rows"
        )
    report_info(f"{count} from {dataset.source}{note}")
    return rows.select(remaining)


def _parse_unlabeled_rows(task: Task, rows: Rows) -> Rows:
    """Return rows in the internal format of the task, with the columns of the training rows."""
    reader = copy.copy(task)
    reader.map_columns(rows, {})
    gold = reader.input_schema.gold_columns
    inputs = {name: values for name, values in rows.columns.items() if name not in gold}
    parsed, _ = reader.parse_rows(rows.replace_columns(inputs))
    return add_renamed_columns(parsed, reader.config, task.config)


def _find_new_rows(task: Task, rows: Rows, splits: Splits) -> np.ndarray:
    """Return the indices of the rows that are in no evaluation split."""
    evaluation = {name: split for name, split in splits.items() if name != "train"}
    return find_remaining(evaluation, task.split_keys, task.split_keys(rows))


# ---- training


def add_unlabeled_features(features: "Features", prepared: "PreparedRun") -> "Features":
    """Return the training features with those of the unlabeled rows, if there are any."""
    from bertkit.training.distillation import ConcatenatedFeatures, add_placeholder_labels

    if prepared.distillation is None or prepared.distillation.unlabeled is None:
        return features
    unlabeled = prepared.task.featurize(prepared.distillation.unlabeled, prepared.tokenizer)
    return ConcatenatedFeatures.from_parts([features, add_placeholder_labels(unlabeled, features)])


def make_loss(prepared: "PreparedRun") -> "Loss":
    """Return the loss of the task, or that of a student."""
    from bertkit.training.distillation import DistillationLoss

    labeled, *unlabeled = _list_parts(prepared.features["train"])
    loss: Any = prepared.task.make_loss(labeled)
    if prepared.distillation is None:
        return loss  # type: ignore[no-any-return]
    config = prepared.config
    return DistillationLoss(loss, config.alpha, config.temperature, has_unlabeled=bool(unlabeled))


def add_teacher_logits(prepared: "PreparedRun") -> "Features":
    """Return the training features with the logits of the teacher, which are cached."""
    from bertkit.training.distillation import ConcatenatedFeatures

    features, distillation = prepared.features["train"], prepared.distillation
    if distillation is None or prepared.config.alpha == 0:
        return features
    teacher = distillation.load_teacher()
    rows = [prepared.splits["train"], distillation.unlabeled]
    parts = [
        _add_teacher_logits(prepared, teacher, part, part_rows)
        for part, part_rows in zip(_list_parts(features), rows, strict=False)
    ]
    return ConcatenatedFeatures.from_parts(parts) if len(parts) > 1 else parts[0]


def _add_teacher_logits(
    prepared: "PreparedRun", teacher: TrainedModel, features: "Features", rows: Any
) -> "Features":
    from bertkit.training.distillation import compute_teacher_logits

    distillation = prepared.distillation
    assert distillation is not None
    is_shared = distillation.has_same_tokenizer
    inputs = features if is_shared else teacher.task.featurize(rows, teacher.tokenizer)
    collator = teacher.task.make_collator(teacher.tokenizer, teacher.model)
    batch_size = prepared.config.eval_batch_size
    logits = compute_teacher_logits(teacher.model, inputs, collator, batch_size)
    if distillation.label_order is not None:
        logits = logits.reorder_labels(distillation.label_order)
    return dataclasses.replace(features, teacher_logits=logits)


def _list_parts(features: "Features") -> "Sequence[Features]":
    """Return the features of the labeled rows and, if there are any, of the unlabeled rows."""
    from bertkit.training.distillation import ConcatenatedFeatures

    return features.parts if isinstance(features, ConcatenatedFeatures) else [features]

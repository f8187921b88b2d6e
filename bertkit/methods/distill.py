"""Distillation: a model, the student, learns the predictions of a finished run, its teacher.

The loss is that of Hinton et al. 2015, section 2.
"""

import copy
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.columns import add_renamed_columns
from bertkit.data.features import (
    TARGETS,
    TEACHER_LOGITS,
    UNLABELED,
    UNLABELED_NUMBER,
    WEIGHTS,
    Features,
    StoredLogits,
    update_with_tokens,
)
from bertkit.data.sources import load_dataset
from bertkit.data.split import find_overlap, sample_rows
from bertkit.data.table import UNLABELED_ROWS, Rows, describe_changes, fingerprint_splits
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.errors import UserError, format_count, format_list
from bertkit.methods.base import Method, PreparedRun, TrainingInputs
from bertkit.models import loading
from bertkit.models.forward import Collator, batch_by_length, collate_on_device
from bertkit.models.heads import SEQUENCE_HEAD, TAGGER_HEAD, TOKEN_HEAD, has_head
from bertkit.models.losses import LabelLoss
from bertkit.run_directory import RunDir
from bertkit.tasks.base import Evaluation, Outputs
from bertkit.tasks.trained_model import (
    TrainedLinearText,
    TrainedModel,
    build_trained_model,
    combine_models,
    load_linear_text,
    load_trained_model,
    serialize_tokenizer,
)
from bertkit.training.scoring import bind_logits, score_with_halving
from bertkit.utils.arrays import compute_offsets
from bertkit.utils.cache import cache_or_write
from bertkit.utils.reporting import report_info, track_progress

SPEED_ROWS, SPEED_ROUNDS = 128, 3  # validation rows on which the speed is measured, and repetitions
# Keys of `config.json` that do not affect the logits.
IRRELEVANT_CONFIG_KEYS = {"_name_or_path", "transformers_version", "id2label", "label2id", "dtype"}


class Distillation(Method):
    """The student learns the labels, and the predictions of its teacher on labeled and unlabeled rows.

    Attributes:
        folder: The run of the teacher, or a study whose ensemble is the teacher.
        has_same_tokenizer: Whether teacher and student have the same tokenizer. The teacher then reads the
            features of the student; otherwise it tokenizes the rows itself.
        label_order: Index of each output of the student among those of the teacher; None for the same order.
        unlabeled_rows: Rows without labels, on which the student learns only the predictions of the teacher.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members = RunDir(folder).find_members()

    # ---- preparation

    def prepare(self, run: PreparedRun) -> None:
        self._require_same_evaluation_rows(run)
        member = self.members[0] if self.members else self.folder
        source = loading.find_run_model(member)
        teacher_config, teacher_tokenizer = loading.load_config(source), loading.load_tokenizer(source)
        if run.tokenizer is None:  # the student is a linear model of texts
            self.label_order = self._match_labels(teacher_config, run.model_config)
            if run.config.unlabeled is not None:
                self.unlabeled_rows = _load_unlabeled_rows(run)
            return
        self.has_same_tokenizer = serialize_tokenizer(teacher_tokenizer) == serialize_tokenizer(run.tokenizer)
        max_length, max_positions = run.config.max_length, loading.get_max_positions(teacher_config)
        if self.has_same_tokenizer and max_positions is not None and max_length > max_positions:
            raise UserError(
                f"--max-length {max_length}: {self.folder} has only {max_positions} positions; use at most "
                "that many"
            )
        if not self.has_same_tokenizer and run.task.definition.scores_tokens:
            raise UserError(
                f"{self.folder}: has another tokenizer than {run.model_source.name}, so that the tokens of "
                f"{run.task.definition.name} differ; choose a student with the same tokenizer"
            )
        self.label_order = self._match_labels(teacher_config, run.model_config)
        if run.config.unlabeled is not None:
            self.unlabeled_rows = _load_unlabeled_rows(run)
            labeled = run.features["train"]
            unlabeled = run.task.featurize(self.unlabeled_rows, run.tokenizer)
            # labels that mark the rows as unlabeled, in shape and type of the others
            assert labeled.labels is not None
            dtype = labeled.labels.dtype
            value = UNLABELED_NUMBER if np.issubdtype(dtype, np.floating) else UNLABELED
            shape = (int(unlabeled.logit_offsets[-1]), *labeled.labels.shape[1:])
            # their weights and probabilities are not read
            fill: dict[str, Any] = {
                name: np.zeros((len(unlabeled), *values.shape[1:]), values.dtype)
                for name in (WEIGHTS, TARGETS)
                if (values := getattr(labeled, name)) is not None
            }
            unlabeled = dataclasses.replace(unlabeled, labels=np.full(shape, value, dtype), **fill)
            run.features["train"] = ConcatenatedFeatures.from_parts([labeled, unlabeled])

    def _require_same_evaluation_rows(self, run: PreparedRun) -> None:
        """Check that no evaluation row of the student was a training row of the teacher."""
        if self.members:
            if "validation" in run.dataset.splits:
                return
            raise UserError(
                f"{self.folder}: the members of this ensemble were trained on all labeled rows, so none can "
                "validate the student; pass one of the runs, or use data with a validation split"
            )
        saved = RunDir(self.folder).read_provenance()["data"]
        saved = {name: value for name, value in saved.items() if name not in ("train", UNLABELED_ROWS)}
        current = fingerprint_splits({name: rows for name, rows in run.splits.items() if name != "train"})
        if changes := describe_changes(saved, current):
            raise UserError(f"{self.folder}: the data of this run has changed ({changes}); restore the data")

    def _match_labels(self, teacher_config: Any, student_config: Any) -> np.ndarray | None:
        """Return the index of each label of the student among those of the teacher; None if all are equal."""
        if not has_head(teacher_config, SEQUENCE_HEAD, TOKEN_HEAD, TAGGER_HEAD):
            return None
        teacher, student = (
            [config.id2label[index] for index in range(config.num_labels)]
            for config in (teacher_config, student_config)
        )
        if sorted(teacher) != sorted(student):
            raise UserError(
                f"{self.folder}: was trained for {format_list(teacher)}, the student for "
                f"{format_list(student)}; use the same labels"
            )
        return None if teacher == student else np.array([teacher.index(label) for label in student])

    # ---- training

    def load_teacher(self) -> TrainedModel:
        """Load the model of the run, or those of the ensemble."""
        if self.members:
            return combine_models(self.members, [load_trained_model(member) for member in self.members])
        return load_trained_model(self.folder)

    def convert(self, run: PreparedRun, inputs: TrainingInputs) -> TrainingInputs:
        label_loss: Any = inputs.loss
        config, has_unlabeled = run.config, self.unlabeled_rows is not None
        return inputs._replace(
            loss=DistillationLoss(label_loss, config.alpha, config.temperature, has_unlabeled)
        )

    def precompute(
        self, run: PreparedRun, model: Any, features: dict[str, Features], collator: Any
    ) -> dict[str, Features]:
        """Return training features with the logits of the teacher, which are cached."""
        train = run.features["train"]
        if run.config.alpha == 0:
            return features | {"train": train}
        teacher = self.load_teacher()
        teacher_collator = teacher.task.make_collator(teacher.tokenizer, teacher.model)
        parts = train.parts if isinstance(train, ConcatenatedFeatures) else [train]
        rows: list[Any] = [run.splits["train"], self.unlabeled_rows]
        taught = []
        for part, part_rows in zip(parts, rows, strict=False):
            inputs = part if self.has_same_tokenizer else teacher.task.featurize(part_rows, teacher.tokenizer)
            logits = compute_teacher_logits(
                teacher.model, inputs, teacher_collator, run.config.eval_batch_size
            )
            if self.label_order is not None:
                logits = logits.reorder_labels(self.label_order)
            taught.append(dataclasses.replace(part, teacher_logits=logits))
        return features | {"train": ConcatenatedFeatures.from_parts(taught) if len(taught) > 1 else taught[0]}

    def add_predictions(self, run: PreparedRun, labels: TrainingLabels) -> tuple[Rows, TrainingLabels]:
        """Return the rows that a linear model of texts learns, and their labels.

        They are the training rows, whose labels are mixed with the predictions of the teacher by `--alpha`,
        and the unlabeled rows with the predictions of the teacher. All are weighted alike, unless the
        training rows have weights.
        """
        teacher, config = self.load_teacher(), run.config
        teacher.task.use_cache = True
        parts = [run.splits["train"], *([] if self.unlabeled_rows is None else [self.unlabeled_rows])]
        names = run.task.input_schema.text_columns
        rows = Rows.concatenate(
            [part.replace_columns({name: part[name] for name in names}) for part in parts]
        )
        logits = teacher.compute_outputs(rows, "teacher").logits
        if self.label_order is not None:
            logits = logits[:, self.label_order]
        probabilities = run.task.state.label_type.compute_probabilities(logits)
        return rows, labels.mix(logits[:, 0] if probabilities is None else probabilities, config.alpha)

    # ---- comparison

    def finish(self, run: PreparedRun, model: Any) -> bool:
        if not run.options.has_report:  # then no page compares them
            return False
        self.teacher = self.load_teacher()
        self.teacher.task.use_cache = True  # unlike in prediction, a whole split is tokenized
        self.teacher_outputs: Outputs = self.teacher.compute_outputs(run.splits["validation"], "teacher")
        return False

    def summarize(self, run: PreparedRun, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        if not run.options.has_report:
            return {}
        config = run.config
        task = type(run.task)(config)
        student: TrainedModel
        if run.tokenizer is None:
            student = load_linear_text(task, folder)
            num_parameters = [_count_parameters(self.teacher.model), student.model.num_parameters]
        else:
            student = build_trained_model(task, loading.find_run_model(folder))
            num_parameters = [_count_parameters(each.model) for each in (self.teacher, student)]
        models = [self.teacher, student]
        folders = [self.members or [self.folder], [folder]]
        sample = sample_rows(run.splits["validation"], SPEED_ROWS, config.seed)
        speeds = measure_forward_speeds(models, sample, config.eval_batch_size)
        sizes = [
            {
                "parameters": count,
                "megabytes": sum(
                    path.stat().st_size for member in members
                    for pattern in ("*.safetensors", "static/*.safetensors") for path in member.glob(pattern)
                ) / 1e6,
                "rows_per_second": speed,
            }
            for count, members, speed in zip(num_parameters, folders, speeds, strict=True)
        ]  # fmt: skip
        teacher_evaluation = self.teacher.task.evaluate(self.teacher_outputs)
        return {
            "compared": run.metric_modules.describe_difference(
                str(self.folder), teacher_evaluation, evaluation, config.seed
            ),
            "distillation": {
                "teacher": str(self.folder),
                "temperature": 1.0 if run.tokenizer is None else config.temperature,
                "alpha": config.alpha,
                "unlabeled_rows": 0 if self.unlabeled_rows is None else len(self.unlabeled_rows),
                "models": dict(zip(("teacher", "student"), sizes, strict=True)),
            },
        }


def _load_unlabeled_rows(run: PreparedRun) -> Rows:
    """Load the unlabeled rows with the columns of the training rows, without those of an evaluation split."""
    task, config = run.task, run.config
    dialect = task.definition.make_dialect(config)
    dataset = load_dataset(config.unlabeled, task.definition.name, config.data_dir, dialect)
    dataset.require_training_split()
    read_rows = dataset.splits["train"]
    reader = copy.copy(task)
    reader.map_columns(read_rows, {})
    gold = reader.input_schema.gold_columns
    inputs = {name: values for name, values in read_rows.columns.items() if name not in gold}
    parsed, _ = reader.parse_rows(read_rows.replace_columns(inputs))
    rows = add_renamed_columns(parsed, reader.config, task.config)
    evaluation = [task.split_keys(split) for name, split in run.splits.items() if name != "train"]
    keys = dataclasses.replace(task.split_keys(rows), time=None)  # they are usually newer than labeled rows
    excluded = [np.zeros(len(rows), bool), *find_overlap(keys, evaluation).values()]
    remaining = np.flatnonzero(~np.any(excluded, axis=0))
    removed = len(rows) - len(remaining)
    note = f" ({removed:,} left out: also in an evaluation split)" if removed else ""
    if not len(remaining):
        raise UserError(
            f"--data {config.unlabeled}: no unlabeled {task.definition.unit} remains{note}; add rows"
        )
    count = format_count(len(remaining), f"unlabeled {task.definition.unit}")
    report_info(f"{count} from {dataset.source}{note}")
    return rows.select(remaining)


def _count_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure_forward_speeds(models: Sequence[TrainedModel], rows: Rows, batch_size: int) -> list[float]:
    """Return the rows per second of each model, without tokenization; the best of some rounds.

    The models take turns, so that other load on the machine affects all of them. With a linear model of
    texts, which has no tokens, the tokenization of the other one counts, too.
    """
    if any(isinstance(model, TrainedLinearText) for model in models):
        return _measure_speeds_from_texts(models, rows)
    features = [model.task.featurize(rows, model.tokenizer) for model in models]
    collators = [model.task.make_collator(model.tokenizer, model.model) for model in models]
    best = [float("inf")] * len(models)
    for _ in range(SPEED_ROUNDS):
        for number, model in enumerate(models):
            started = time.perf_counter()
            inputs, compute = features[number], bind_logits(model.model)
            device = next(model.model.parameters()).device
            with torch.no_grad():
                for examples in batch_by_length(inputs, batch_size):
                    batch = collate_on_device(inputs, examples, collators[number], device)
                    inputs.reduce_logits(compute(batch).float(), examples, batch).cpu()
            best[number] = min(best[number], time.perf_counter() - started)
    return [len(rows) / seconds for seconds in best]


def _measure_speeds_from_texts(models: Sequence[TrainedModel], rows: Rows) -> list[float]:
    best = [float("inf")] * len(models)
    for _ in range(SPEED_ROUNDS):
        for number, model in enumerate(models):
            started = time.perf_counter()
            model.compute_outputs(rows)
            best[number] = min(best[number], time.perf_counter() - started)
    return [len(rows) / seconds for seconds in best]


# ---- the loss


@dataclass(frozen=True)
class DistillationLoss:
    """The mean loss towards the labels, plus the mean loss towards the teacher's predictions.

    The two parts are averaged separately: "labels" over the labeled items and "teacher" over all items. A
    batch without logits of the teacher has the plain loss towards the labels. So the validation loss can be
    compared with that of the teacher. The weights of rows and the probabilities of labels belong to the part
    "labels".

    Args:
        label_loss: The loss of the task.
        alpha: Weight of the part "teacher"; the part "labels" has the weight 1 - alpha.
        temperature: Number by which the logits of both models are divided.
        has_unlabeled: Whether batches may have unlabeled examples; their labels are placeholders.
    """

    label_loss: LabelLoss
    alpha: float
    temperature: float
    has_unlabeled: bool = False

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        counts = self.label_loss.count_items(self._select_labeled(batch)[1])
        if TEACHER_LOGITS not in batch:
            return counts
        labels = batch["labels"]
        return {
            "labels": counts["loss"],
            "teacher": torch.full((), float(labels.numel()), device=labels.device),
        }

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        labeled, labeled_batch = self._select_labeled(batch)
        sums = self.label_loss.sum_losses(logits if labeled is None else logits[labeled], labeled_batch)
        if TEACHER_LOGITS not in batch:
            return sums
        # The batch has only the finite logits of the teacher. The student has -inf at padding, where the
        # teacher gets it, too. A CUDA graph has no `masked_scatter`.
        is_finite = logits != -torch.inf
        indices = is_finite.flatten().cumsum(0).clamp(min=1) - 1
        targets = batch[TEACHER_LOGITS].float()[indices].view_as(logits).masked_fill(~is_finite, -torch.inf)
        teacher = self.label_loss.sum_teacher_losses(logits.float(), targets, self.temperature)
        return {"labels": (1 - self.alpha) * sums["loss"], "teacher": self.alpha * teacher}

    def _select_labeled(
        self, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """Return which examples (for `ner`, words) are labeled, None if all of them are, and their labels."""
        if not self.has_unlabeled:
            return None, batch
        labels = batch["labels"]
        first = labels.flatten(1)[:, 0] if labels.dim() > 1 else labels
        is_labeled = ~first.isnan() if first.is_floating_point() else first != UNLABELED
        keys = [name for name in ("labels", WEIGHTS, TARGETS) if name in batch]
        return is_labeled, {name: batch[name][is_labeled] for name in keys}


# ---- the logits of the teacher


def compute_teacher_logits(
    model: Any, features: Features, collator: Collator, batch_size: int
) -> StoredLogits:
    """Compute the logits of all examples as the teacher reads them, or load them from the cache."""

    def write(folder: Path) -> None:
        batches = _iter_logits(model, features, collator, batch_size)
        StoredLogits.write(folder, batches, np.diff(features.logit_offsets))

    key = _compute_cache_key(model, features)
    return StoredLogits.load(cache_or_write("teacher-logits", key, write, "the teacher's logits"))


def _iter_logits(
    model: Any, features: Features, collator: Collator, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield examples and their logits. The longest ones come first: memory runs out at once or never."""
    compute, device = bind_logits(model), next(model.parameters()).device

    @torch.no_grad()
    def score(examples: np.ndarray) -> np.ndarray:
        logits: torch.Tensor = compute(collate_on_device(features, examples, collator, device))
        return logits.float().cpu().numpy()

    batches = batch_by_length(features, batch_size)
    for batch_examples in track_progress(batches, len(batches), "computing the teacher's predictions"):
        for examples, logits in score_with_halving(score, batch_examples):
            if np.isnan(logits).any():
                raise UserError("teacher: its logits are NaN; train it again")
            yield examples, logits


def _compute_cache_key(model: Any, features: Features) -> str:
    """Return a digest of everything that the logits depend on: the model, and the inputs in their order."""
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in IRRELEVANT_CONFIG_KEYS
    }
    digest = blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    digest.update(np.ascontiguousarray(features.sequence_offsets).data)
    digest.update(np.ascontiguousarray(features.sequence_lengths).data)
    update_with_tokens(digest, features)
    if positions := getattr(features, "positions", None):  # of the words of `ner`
        digest.update(np.ascontiguousarray(positions.offsets).data)
        digest.update(np.ascontiguousarray(positions.values).data)
    return digest.hexdigest()


# ---- the features of labeled and unlabeled rows


@dataclass(frozen=True, kw_only=True)
class ConcatenatedFeatures(Features):
    """The examples of several datasets, one after another, for training."""

    parts: Sequence[Features]

    @classmethod
    def from_parts(cls, parts: Sequence[Features]) -> "ConcatenatedFeatures":
        """Concatenate datasets; the statistics are those of the first one."""
        counts = np.concatenate([np.diff(part.sequence_offsets) for part in parts])
        first = parts[0]
        return cls(
            parts=parts, sequence_offsets=compute_offsets(counts), labels=None,
            num_truncated=first.num_truncated, max_untruncated_length=first.max_untruncated_length,
            unk_fraction=first.unk_fraction, warnings=first.warnings,
        )  # fmt: skip

    @cached_property
    def _first_examples(self) -> np.ndarray:
        return compute_offsets(np.array([len(part) for part in self.parts]))

    @cached_property
    def _first_sequences(self) -> np.ndarray:
        return compute_offsets(np.array([len(part.sequence_lengths) for part in self.parts]))

    def __getitem__(self, index: int) -> dict[str, Any]:
        part = int(np.searchsorted(self._first_examples, index, side="right")) - 1
        return self.parts[part][index - int(self._first_examples[part])]

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        part = int(np.searchsorted(self._first_sequences, number, side="right")) - 1
        return self.parts[part].get_sequence(number - int(self._first_sequences[part]))

    @cached_property
    def sequence_lengths(self) -> np.ndarray:  # type: ignore[override]
        return np.concatenate([part.sequence_lengths for part in self.parts])

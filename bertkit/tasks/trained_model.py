"""The trained model of a finished run or of an ensemble, with its task and its tokenizer."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertkit.data.features import LabeledRows
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.models import loading
from bertkit.models.loading import ModelSource
from bertkit.run_directory import RunDir
from bertkit.settings.recipes import read_recipe
from bertkit.stats.scope_score import compute_scope_features
from bertkit.tasks import list_tasks, task_class
from bertkit.tasks.base import Outputs, Task
from bertkit.utils import distributed
from bertkit.utils.reporting import silence_libraries
from bertkit.utils.system import resume_collection

# Attributes of a model's config that decide what its outputs mean.
OUTPUT_ATTRIBUTES = ("id2label", "problem_type", "tag_scheme", "first_ending", "label_separator")


def load_run_task(folder: Path, accepts_ensemble: bool = False) -> Task:
    """Return the task of a finished run, with the settings of the run.

    With `accepts_ensemble`, the directory may be an ensemble, which has the task of its first member.
    """
    run = RunDir(folder)
    if not accepts_ensemble:
        run.refuse_ensemble()
    elif members := run.find_members():
        return load_run_task(members[0])
    metrics = run.require_metrics()
    if metrics["task"] not in list_tasks():
        run.require_plugins()
        recommended = folder / "recommended"
        example = f", such as {recommended}" if recommended.exists() else ""
        raise UserError(f"{folder}: contains several runs; pass one of its subdirectories{example}")
    if "training" not in metrics:
        raise UserError(f"{folder}: contains an evaluation without a model; pass the run that was evaluated")
    task_type = task_class(metrics["task"])
    recipe = read_recipe(str(run.settings_file), task_type.definition.name, task_type.definition.config)
    if not recipe.provenance:
        raise UserError(
            f"{recipe.path}: the key 'provenance' is missing; restore the file, or run the training again"
        )
    return task_type(task_type.definition.config(**recipe.settings))


def load_task_state(task: Task, folder: Path) -> None:
    """Load what a finished run has found: the labels and the fitted parameters, in its `config.json`."""
    is_linear = loading.is_linear_text_model(folder)
    task.load_state(
        loading.load_linear_text_config(folder)
        if is_linear
        else loading.load_config(loading.find_run_model(folder))
    )


@dataclass(frozen=True)
class TrainedModel:
    """A task with its trained model and its tokenizer.

    Attributes:
        task: The task, with the settings of the run.
        model: The model, in evaluation mode. If its head reads [CLS], its last hidden states are valid only
            there; see `bertkit.models.layers`.
        tokenizer: The tokenizer of the model.
    """

    task: Task
    model: Any
    tokenizer: Any

    def featurize(self, rows: Rows) -> Any:
        """Return the features of parsed rows."""
        return self.task.featurize(rows, self.tokenizer)

    def compute_scope_features(self, rows: Rows, divisor: float, description: str = "scoring") -> np.ndarray:
        """Return the features of the score that a text is in scope, of parsed rows and divided logits."""
        from bertkit.models.heads import append_layer_inputs  # imports torch

        with append_layer_inputs(self.model) as size:
            outputs = self.compute_outputs(rows, description).logits
        return compute_scope_features(outputs[:, : len(self.task.state.labels)] / divisor, outputs[:, -size:])

    def compute_outputs(self, rows: Rows, description: str = "scoring") -> Outputs:
        """Compute the logits of parsed rows. The outputs include the gold labels of labeled rows."""
        from bertkit.models.load_check import report_length_errors  # imports torch
        from bertkit.training.scoring import predict_logits

        features = distributed.main_process_first(self.featurize, rows)  # which fills the cache
        collator = self.task.make_collator(self.tokenizer, self.model)
        batch_size = self.task.config.eval_batch_size
        with report_length_errors(self.model, features):
            logits = predict_logits(self.model, features, collator, batch_size, description)
        return Outputs(logits, features, rows)


@dataclass(frozen=True)
class TrainedLinearText(TrainedModel):
    """A trained linear model of texts; the tokenizer is None."""

    def featurize(self, rows: Rows) -> LabeledRows:
        task: Any = self.task
        features: LabeledRows = task.encode_rows(rows)
        return features

    def compute_outputs(self, rows: Rows, description: str = "scoring") -> Outputs:
        from bertkit.models.linear_text import PREDICTED_ROWS

        columns = [list(rows[name]) for name in self.task.input_schema.text_columns]
        rank, num_ranks, num_parts = (
            distributed.get_rank(),
            distributed.get_world_size(),
            len(rows) // PREDICTED_ROWS + 1,
        )
        first, last = (num_parts * number // num_ranks * PREDICTED_ROWS for number in (rank, rank + 1))
        own = self.model.compute_logits([texts[first:last] for texts in columns])
        return Outputs(np.concatenate(distributed.gather_object(own)), self.featurize(rows), rows)


def load_linear_text(task: Task, folder: Path) -> TrainedLinearText:
    """Load a linear model of texts; the task receives its labels and its fitted parameters."""
    from bertkit.models.linear_text import LinearTextModel

    model = LinearTextModel.load(folder)
    task.load_state(model.config)
    return TrainedLinearText(task, model, None)


def load_trained_model(run: Path) -> TrainedModel:
    """Load the model of a finished run."""
    return build_trained_model(load_run_task(run), loading.find_run_model(run))


def build_trained_model(task: Task, source: ModelSource, keep_stock_layers: bool = False) -> TrainedModel:
    """Build the model that a run saved; the task receives its labels and its fitted parameters.

    With `keep_stock_layers`, the model stays as transformers builds it, on the CPU.
    """
    from bertkit.models.forward import prepare_for_inference  # imports torch

    task.use_cache = False
    with silence_libraries():
        config, tokenizer = loading.load_config(source), loading.load_tokenizer(source)
        loading.require_embeddings(source, config, tokenizer)
        task.load_state(config)
        model = task.build_model(config, source)
        model = model if keep_stock_layers else prepare_for_inference(model)
    resume_collection()
    return TrainedModel(task, model.eval(), tokenizer)


def add_scope_output(task: Task, model: Any) -> None:
    """Append the linear part of the score that a text is in scope to the outputs, if a run has it."""
    import torch

    from bertkit.models.heads import append_outputs

    if weights := task.state.fitted_confidence.scope_weights:
        append_outputs(model, torch.tensor([weights[:-2]]), torch.tensor(weights[-1:]))


def serialize_tokenizer(tokenizer: Any) -> str:
    """Return a text that is equal for tokenizers that make the same tokens."""
    return str(tokenizer.backend_tokenizer.to_str())


M = TypeVar("M", bound=TrainedModel)


def combine_models(folders: Sequence[Path], members: Sequence[M]) -> M:
    """Return a model with the averaged predictions of its members, the models of the runs in `folders`.

    Truncation, windows and decoding are those of the first member. Thresholds are the means of the members'
    thresholds. An ensemble neither abstains nor has prediction sets.
    """
    first = members[0]
    is_linear = isinstance(first, TrainedLinearText)
    must_agree: dict[str, Callable[[M], Any]] = {
        "another task": lambda member: member.task.definition.name,
        "another kind of model": lambda member: isinstance(member, TrainedLinearText),
        "other labels": lambda member: [
            getattr(member.model.config, name, None) for name in OUTPUT_ATTRIBUTES
        ],
        "another tokenizer": lambda member: is_linear or serialize_tokenizer(member.tokenizer),
        "another maximum length": lambda member: member.task.config.max_length,
    }
    for folder, member in zip(folders[1:], members[1:], strict=True):
        for difference, get_value in must_agree.items():
            if get_value(member) != get_value(first):
                raise UserError(
                    f"{folder}: has {difference} than {folders[0]}; the members of an ensemble must have the "
                    "same"
                )
    first.task.state.average([member.task.state for member in members])
    models = [member.model for member in members]
    if is_linear:
        from bertkit.models.linear_text import LinearTextEnsemble

        return dataclasses.replace(first, model=LinearTextEnsemble(models, first.task.combine_logits))
    from bertkit.models.forward import EnsembleModel  # imports torch

    model = EnsembleModel(models, first.task.combine_logits)
    return dataclasses.replace(first, model=model.eval())

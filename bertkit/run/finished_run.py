"""Settings and data of a finished run, for the commands that use the run."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertkit import run_directory
from bertkit.data.sources import LoadedDataset
from bertkit.data.table import UNLABELED_ROWS, Rows, Splits, describe_changes, fingerprint_splits
from bertkit.errors import UserError
from bertkit.models import loading
from bertkit.models.forward import EnsembleModel, prepare_for_inference
from bertkit.models.loading import ModelSource
from bertkit.run.load_data import parse_all_rows, parse_and_split
from bertkit.run.settings import require_data_objects
from bertkit.run_directory import find_ensemble, format_python_call, read_members, refuse_ensemble
from bertkit.settings.recipes import list_passed_data, read_recipe
from bertkit.settings.run_settings import RunConfig
from bertkit.settings.validation import DataObject
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.tasks.evaluation import Outputs
from bertkit.utils.reporting import silence_libraries, silence_reports
from bertkit.utils.system import resume_collection


def load_run_task(folder: Path, accepts_ensemble: bool = False) -> Task:
    """Return the task of a finished run, with the settings of the run.

    Args:
        folder: The run directory.
        accepts_ensemble: Whether the directory may be an ensemble, which has the task of its first member.

    Raises:
        UserError: The directory does not contain exactly one finished training run, or is an ensemble.
    """
    if not accepts_ensemble:
        refuse_ensemble(folder)
    elif ensemble := find_ensemble(folder):
        return load_run_task(read_members(ensemble)[0])
    metrics = run_directory.require_metrics(folder)
    if metrics["task"] not in TASKS:
        raise UserError(f"{folder}: contains several runs; pass one of its subdirectories")
    if "training" not in metrics:
        raise UserError(f"{folder}: contains an evaluation without a model; pass the run that was evaluated")
    task_type = task_class(metrics["task"])
    settings_file = str(folder / run_directory.SETTINGS_FILE)
    recipe = read_recipe(settings_file, task_type.definition.name, task_type.definition.config)
    if not recipe.provenance:
        raise UserError(
            f"{recipe.path}: the key 'provenance' is missing; restore the file, or run the training again"
        )
    return task_type(task_type.definition.config(**recipe.settings))


def select_data_again(config: RunConfig, data: DataObject) -> dict[str, Any]:
    """Return the settings by which one object with all splits replaces those that were not saved."""
    return {**dict.fromkeys(list_passed_data(config)), "data": data}


def require_same_data(folder: Path, fingerprints: dict[str, str]) -> None:
    """Raise a `UserError` unless the data has the fingerprints of a finished run."""
    if (folder / run_directory.LOGITS_FILE).exists():
        raise UserError(f"{folder}: is a run of a study, whose splits cannot be loaded again")
    saved = run_directory.read_provenance(folder)["data"]
    saved = {name: fingerprint for name, fingerprint in saved.items() if name != UNLABELED_ROWS}
    if changes := describe_changes(saved, fingerprints):
        raise UserError(f"{folder}: the data of this run has changed ({changes}); restore the data")


def reload_run_data(
    folder: Path, data: DataObject | None = None, function: str = "evaluate"
) -> tuple[LoadedDataset, Splits]:
    """Load the data of a finished run again, with the settings of the run.

    Args:
        folder: The run directory.
        data: The object that the run was trained on; ignored if the run was trained on files.
        function: Python function that accepts the object, for the error message.

    Returns:
        The dataset, and the splits. Those of an ensemble are only the training rows, unless the dataset has a
        validation split: the members were trained on all other rows.

    Raises:
        UserError: The data cannot be loaded, or has changed since the run.
    """
    task = load_run_task(folder, accepts_ensemble=True)
    if data and list_passed_data(task.config):
        task.resolve(**select_data_again(task.config, data))
    require_data_objects(task.config, format_python_call(function, {"run": str(folder)}, ["data"]))
    with silence_reports():
        dataset = task.load_data()
        if find_ensemble(folder) and "validation" not in dataset.splits:
            dataset = parse_all_rows(task, dataset)
            return dataset, {"train": dataset.splits["train"]}
        dataset, splits = parse_and_split(task, dataset)
    if find_ensemble(folder):  # the members have the fingerprints of their own folds
        return dataset, splits
    require_same_data(folder, fingerprint_splits(splits))
    return dataset, splits


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

    def compute_outputs(self, rows: Rows, description: str = "scoring") -> Outputs:
        """Compute the logits of parsed rows. The outputs include the gold labels of labeled rows."""
        from bertkit.run.load_check import report_length_errors
        from bertkit.training.scoring import predict_logits

        features = self.task.featurize(rows, self.tokenizer)
        collator = self.task.make_collator(self.tokenizer, self.model)
        batch_size = self.task.config.eval_batch_size
        with report_length_errors(self.model, features):
            logits = predict_logits(self.model, features, collator, batch_size, description)
        return Outputs(logits, features, rows)


def load_trained_model(run: Path, keep_stock_layers: bool = False) -> TrainedModel:
    """Load the model of a finished run.

    Args:
        run: The run directory.
        keep_stock_layers: Whether the model stays as transformers builds it, on the CPU.

    Raises:
        UserError: The directory is not a finished run.
    """
    return build_trained_model(load_run_task(run), loading.find_run_model(run), keep_stock_layers)


def build_trained_model(task: Task, source: ModelSource, keep_stock_layers: bool = False) -> TrainedModel:
    """Build the model that a run saved.

    Args:
        task: The task of the run, which receives the labels and the fitted parameters of the model.
        source: The directory of the run.
        keep_stock_layers: Whether the model stays as transformers builds it, on the CPU.
    """
    task.use_cache = False
    with silence_libraries():
        config, tokenizer = loading.load_config(source), loading.load_tokenizer(source)
        loading.require_embeddings(source, config, tokenizer)
        task.load_state(config)
        model = task.build_model(config, source)
        model = model if keep_stock_layers else prepare_for_inference(model)
    resume_collection()
    return TrainedModel(task, model.eval(), tokenizer)


def serialize_tokenizer(tokenizer: Any) -> str:
    """Return a text that is equal for tokenizers that make the same tokens."""
    serialized: str = tokenizer.backend_tokenizer.to_str()
    return serialized


M = TypeVar("M", bound=TrainedModel)
# Attributes of a model's config that decide what its outputs mean.
OUTPUT_ATTRIBUTES = ("id2label", "problem_type", "tag_scheme", "first_ending", "label_separator")


def combine_models(folders: Sequence[Path], members: Sequence[M]) -> M:
    """Return a model with the averaged predictions of its members.

    Truncation, windows and decoding are those of the first member. Thresholds are the means of the members'
    thresholds.

    Args:
        folders: The runs, for error messages.
        members: Their models.

    Raises:
        UserError: The members differ in their task, labels, tokenizer or maximum length.
    """
    first = members[0]
    for folder, member in zip(folders[1:], members[1:], strict=True):
        if difference := _find_difference(first, member):
            raise UserError(
                f"{folder}: has {difference} than {folders[0]}; the members of an ensemble must have the same"
            )
    first.task.state.average([member.task.state for member in members])
    model = EnsembleModel([member.model for member in members], first.task.combine_logits)
    return dataclasses.replace(first, model=model.eval())


def _find_difference(first: TrainedModel, other: TrainedModel) -> str | None:
    """Return what distinguishes two members that cannot be combined; None if they can."""
    if first.task.definition.name != other.task.definition.name:
        return "another task"
    if any(_get_output(first, name) != _get_output(other, name) for name in OUTPUT_ATTRIBUTES):
        return "other labels"
    if serialize_tokenizer(first.tokenizer) != serialize_tokenizer(other.tokenizer):
        return "another tokenizer"
    if first.task.config.max_length != other.task.config.max_length:
        return "another maximum length"
    return None


def _get_output(member: TrainedModel, name: str) -> Any:
    return getattr(member.model.config, name, None)

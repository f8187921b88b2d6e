"""Training that is retried once with smaller batches if memory runs out."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import run_directory
from bertkit.data.split import sample_rows
from bertkit.data.table import describe_changes
from bertkit.errors import RunInterrupted, UserError
from bertkit.models.loading import TRAINED_LENGTH_KEY, find_run_model, takes_token_type_ids
from bertkit.models.own_models import save_model
from bertkit.reports.card import build_model_card
from bertkit.run import upload
from bertkit.run.dry_run import dry_run, plan_time_limit
from bertkit.run.finished_run import TrainedModel, build_trained_model
from bertkit.run.prepare import PreparedRun, count_parameters, prepare
from bertkit.run.results import (
    compare_evaluations,
    compute_scores,
    evaluate_splits,
    summarize_baselines,
    summarize_data,
    write_logits,
    write_predictions,
)
from bertkit.run.session import Session
from bertkit.run.settings import resolve_settings
from bertkit.settings.recipes import Recipe
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.metric_modules import load_module
from bertkit.tasks import task_definition
from bertkit.tasks.evaluation import Evaluation, Outputs
from bertkit.training.arguments import restore_algorithms
from bertkit.training.callbacks import merge_log_history
from bertkit.training.failures import OutOfMemory, get_batch_settings, halve_batch, release_memory
from bertkit.training.scoring import predict_batches
from bertkit.utils import distributed, locks
from bertkit.utils.files import (
    check_output_directory,
    require_disk_space,
    stage_files,
    write_jsonl,
    write_text,
)
from bertkit.utils.reporting import (
    report_info,
    report_warning,
    silence_libraries,
    silence_reports,
)

if TYPE_CHECKING:
    from bertkit.data.table import Rows
    from bertkit.run.session import Session


def train_with_retry(session: Session) -> dict[str, Any]:
    """Train to the end; if memory runs out, retry once with smaller batches.

    The effective batch size stays the same.

    Returns:
        The section "training" of `metrics.json`.

    Raises:
        OutOfMemory: Memory ran out again, or a retry is not possible.
        RunInterrupted: See `Session.train`.
    """
    config = session.prepared.config
    try:
        return session.train(resume=config.resume)
    except OutOfMemory:
        smaller_config = _choose_smaller_batches(session)
        if smaller_config is None:
            raise
    # This is outside the `except` block, because the error keeps the model and its activations in memory.
    _restart(session, smaller_config)
    return session.train(resume=True)


def _choose_smaller_batches(session: Session) -> RunConfig | None:
    """Return the settings for a retry, or None if a retry is not possible.

    With several ranks, a retry is not possible because all ranks would have to choose the same settings.
    With `tokens_per_batch`, a retry is not possible after a checkpoint. A smaller budget changes the batches
    of the epoch, so the steps after the checkpoint would repeat some examples and skip others.
    """
    config, task = session.prepared.config, session.prepared.task
    has_checkpoint = run_directory.find_last_checkpoint(session.folder) is not None
    if session.training_args.world_size > 1 or (config.tokens_per_batch is not None and has_checkpoint):
        return None
    if not task.training_method.trains_encoder:
        return None
    return halve_batch(config, min_tokens=task.config.max_training_length())


def _restart(session: Session, config: RunConfig) -> None:
    """Create a new model and trainer with these settings, and save the settings in the run directory."""
    previous_config = session.prepared.config
    session.prepared.task.resolve(**get_batch_settings(config))
    del session.trainer, session.model
    release_memory()
    session.set_up()
    reason = {"out_of_memory_at": get_batch_settings(previous_config)}
    run_directory.update_settings(session.folder, config, reason)
    has_checkpoint = run_directory.find_last_checkpoint(session.folder) is not None
    action = "resumes from the last checkpoint" if has_checkpoint else "restarts"
    report_warning(
        f"out of memory at {_format_batch_settings(previous_config)}: training {action} with "
        f"{_format_batch_settings(config)} (same effective batch size)"
    )


def _format_batch_settings(config: RunConfig) -> str:
    return ", ".join(f"{name} {value}" for name, value in get_batch_settings(config).items())


SPEED_ROWS, SPEED_ROUNDS = 128, 3  # validation rows on which the speed is measured, and repetitions


@dataclass(frozen=True)
class ScoredTeacher:
    """A teacher with its outputs for the validation split of the student."""

    model: TrainedModel
    outputs: Outputs


def score_teacher(prepared: PreparedRun) -> ScoredTeacher | None:
    """Compute the outputs of the teacher for the validation split; None without a teacher.

    All ranks must call this.
    """
    if prepared.distillation is None:
        return None
    teacher = prepared.distillation.load_teacher()
    teacher.task.use_cache = True  # unlike in prediction, a whole split is tokenized
    return ScoredTeacher(teacher, teacher.compute_outputs(prepared.splits["validation"], "teacher"))


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
    student = build_trained_model(task, find_run_model(folder))
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


# Two checkpoints of 12 bytes (fp32 weights and two Adam moments), and the final model of 4 bytes.
BYTES_PER_PARAMETER = 28


@dataclass(frozen=True)
class Run:
    """Result of a training command: a finished run, a dry run, or a preview of the training examples.

    Attributes:
        output_dir: The run directory, or None after a dry run or a preview, which write only to the cache.
        metrics: Content of `metrics.json`, measurements of a dry run, or statistics of a preview.
        samples: Training examples that a preview shows; otherwise empty.
    """

    output_dir: Path | None
    metrics: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what Jupyter displays: the scores and the charts."""
        from bertkit.reports.page import build_mime_bundle

        return build_mime_bundle(self.output_dir, self.metrics)


def train(
    task_name: str,
    overrides: Mapping[str, Any],
    recipe: str | Recipe | None = None,
) -> Run:
    """Train a model for a task.

    Args:
        task_name: Name of the task.
        overrides: Settings of the user, which take precedence over those of the recipe.
        recipe: A recipe, or its name or path.

    Raises:
        UserError: The run cannot succeed. Most of these errors are raised before weights are loaded.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the run.
    """
    config_class = task_definition(task_name).config
    resolve = partial(resolve_settings, task_name, config_class, overrides, recipe)
    config, _ = resolve()
    reports = nullcontext() if distributed.is_main_process() else silence_reports()
    with reports, silence_libraries(), distributed.use_process_group():
        distributed.on_main_process(upload.check_hub_access, config)
        run = _run_or_load(task_name, config, partial(resolve, is_locked=True))
        if config.push_to_hub and run.output_dir:
            distributed.on_main_process(upload.upload_run, task_name, run.output_dir, config)
        return run


def _run_or_load(
    task_name: str,
    config: RunConfig,
    resolve_locked: Callable[[], tuple[RunConfig, dict[str, str] | None]],
) -> Run:
    """Run the pipeline in a locked directory, or return the metrics if the run to resume is finished.

    Args:
        task_name: Name of the task.
        config: Resolved settings.
        resolve_locked: Resolves the settings again in the locked directory. Before, another process may have
            replaced the run to resume.
    """
    if config.output_dir is None:
        return _run(task_name, config, None)
    folder = Path(config.output_dir)
    if finished := _load_finished(config, folder):
        return finished
    with locks.lock_directory(folder):  # before preparation, so a second run fails at once
        if not config.resume:
            return _run(task_name, config, None)
        with silence_reports():
            config, fingerprints = resolve_locked()
        finished = _load_finished(config, folder)
        return finished or _run(task_name, config, fingerprints)


def _load_finished(config: RunConfig, folder: Path) -> Run | None:
    """Return the metrics if the run to resume is finished, else None."""
    if not config.resume or not (metrics := run_directory.read_metrics(folder)):
        return None
    report_info("the run is already finished; showing its scores")
    return Run(folder, metrics)


def _run(task_name: str, config: RunConfig, fingerprints: Mapping[str, str] | None) -> Run:
    """Prepare the run, and then show a preview, do a dry run, or train.

    Args:
        task_name: Name of the task.
        config: Resolved settings.
        fingerprints: Fingerprints by split of the data of the run to resume, or None for a new run.
    """
    # only here, where the user started a run: a file of a finished run must not decide which code is executed
    loaded_modules = distributed.main_process_first(lambda: [load_module(value) for value in config.metric])
    prepared = distributed.main_process_first(prepare, task_name, config, loaded_modules)
    if fingerprints is not None:
        require_unchanged_data(config.output_dir, fingerprints, prepared.fingerprints)
    if preview := prepared.task.preview(prepared.features["train"], prepared.tokenizer):
        for note in preview.notes:
            report_info(note)
        return Run(None, preview.statistics, preview.samples)
    if config.dry_run:
        return Run(None, dry_run(prepared))
    if config.output_dir is not None:
        return train_prepared(prepared, Path(config.output_dir))
    name_parts = (prepared.task.definition.name, prepared.dataset.name, prepared.model_source.name)
    default_folder = distributed.on_main_process(run_directory.create_default_directory, *name_parts)
    with locks.lock_directory(default_folder, is_new=True) as folder:
        return train_prepared(prepared, folder)


def require_unchanged_data(
    folder: Path | str | None, saved: Mapping[str, str], current: Mapping[str, str]
) -> None:
    """Check that the data of a run is the same as when the run was started.

    Args:
        folder: The directory to resume.
        saved: Fingerprints by split from its `run.yaml`.
        current: Fingerprints by split of the data.

    Raises:
        UserError: The data has changed.
    """
    if changes := describe_changes(saved, current):
        raise UserError(
            f"--resume {folder}: the data has changed ({changes}); restore it, or train from scratch with "
            "--overwrite"
        )


@restore_algorithms()
def train_prepared(prepared: PreparedRun, folder: Path) -> Run:
    """Train in a locked directory, from the start or from the last checkpoint, and write the results."""
    config = prepared.config
    if not config.resume:
        distributed.on_main_process(_check_directory, prepared, folder)
    # With --overwrite, the directory contains a finished run until the new run replaces it; with --resume, it
    # contains the run to resume. An error before training must not change this run.
    contains_previous_run = (folder / run_directory.SETTINGS_FILE).exists()
    try:
        with distributed.raise_on_all_ranks():
            session = Session(prepared, folder)
        plan_time_limit(session)
        session.warn_about_long_warmup()
        if not config.resume:
            session.verify_label_order()
        if config.push_to_hub:
            distributed.on_main_process(upload.create_hub_repo, config, folder)
        contains_previous_run = False
        if not config.resume:
            distributed.on_main_process(_create_directory, prepared, folder)
        return _finish(session, train_with_retry(session))
    except BaseException as error:
        checkpoint = None if contains_previous_run else run_directory.find_last_checkpoint(folder)
        if not contains_previous_run and distributed.is_main_process():
            run_directory.discard_unstarted_run(folder)
        if not isinstance(error, KeyboardInterrupt):
            raise
        if contains_previous_run:
            raise RunInterrupted(f"interrupted before training started; {folder} is unchanged") from None
        if checkpoint is None:
            raise RunInterrupted("interrupted before the first checkpoint; nothing was saved") from None
        raise RunInterrupted(f"interrupted; {session.resume_hint}") from None


def _check_directory(prepared: PreparedRun, folder: Path) -> None:
    """Check that the run can be written into `folder`, and that the disk has enough space."""
    check_output_directory(folder, run_directory.RUN, prepared.config.overwrite)
    num_bytes = count_parameters(prepared.model_config) * BYTES_PER_PARAMETER
    require_disk_space(folder, num_bytes, "checkpoints and the model", "choose a directory on another disk")


def _create_directory(prepared: PreparedRun, folder: Path) -> None:
    run_directory.create_run_directory(folder, prepared.config.overwrite)
    run_directory.write_settings(
        folder,
        prepared.task.definition.name,
        prepared.config,
        prepared.fingerprints,
        prepared.dataset.label_fixes,
    )


# ---- results


def _finish(session: Session, training_metrics: dict[str, Any]) -> Run:
    """Compute the outputs of the evaluation splits on all ranks; the main process writes the results."""
    outputs = {
        split: session.get_final_outputs(split) for split in session.prepared.splits if split != "train"
    }
    teacher = score_teacher(session.prepared)
    weights = session.trainer.gather_weights()
    metrics = distributed.on_main_process(
        _write_results, session, outputs, training_metrics, weights, teacher
    )
    return Run(session.folder, metrics)


def _write_results(
    session: Session,
    outputs: dict[str, Outputs],
    training_metrics: dict[str, Any],
    weights: Any,
    teacher: ScoredTeacher | None,
) -> dict[str, Any]:
    """Write all results into the run directory, with `metrics.json` last.

    Args:
        session: The trained session.
        outputs: Model outputs by split.
        training_metrics: The section "training" of `metrics.json`.
        weights: Complete state dict of sharded weights, else None.
        teacher: The teacher of a student, else None.

    Returns:
        Content of `metrics.json`.
    """
    from bertkit.reports.page import write_page

    prepared, folder = session.prepared, session.folder
    task, splits = prepared.task, prepared.splits
    run_directory.delete_backup(folder)
    evaluations = evaluate_splits(task, outputs)
    session.model.config.update(task.state.fitted_params)
    for name, value in task.state.fitted_params.items():
        report_info(f"{name} {value:.3f}: fitted on the validation split, saved in config.json")
    options = prepared.options
    metrics = {
        "task": task.definition.name,
        "data": summarize_data(prepared.dataset, prepared.fingerprints, splits),
        "model": prepared.model_source.name,
        **compute_scores(task, evaluations, prepared.metric_modules, options.has_report),
        **summarize_baselines(prepared.score_baselines(), len(splits["train"])),
        "training": training_metrics,
    }
    state = session.trainer.state
    if prepared.probe is not None:
        metrics["probe"] = prepared.probe.summarize(state.log_history, state.best_global_step)
    _write_model(session, weights)
    if teacher is not None:
        metrics |= compare_with_teacher(prepared, teacher, evaluations["validation"], folder)
    write_predictions(folder, task, evaluations)
    write_jsonl(folder / run_directory.LOG_FILE, merge_log_history(state.log_history))
    if options.has_report:
        provenance = run_directory.read_provenance(folder)
        write_text(folder / run_directory.CARD_FILE, build_model_card(folder, metrics, task, provenance))
        write_page(folder, metrics)
    if options.logits_file is not None:
        write_logits(folder / options.logits_file, outputs["test"].logits, task.state.fitted_params)
    run_directory.write_metrics(folder, metrics)
    return metrics


def _compute_trained_length(prepared: PreparedRun) -> int | None:
    """Return the length up to which positions are trained after the run, or None without a limit."""
    length: int = prepared.config.max_training_length()
    if prepared.model_source.is_new:
        return length
    return None if prepared.trained_length is None else max(length, prepared.trained_length)


def _write_model(session: Session, weights: Any) -> None:
    """Save the model and the tokenizer in the format of transformers.

    The tokenizer is saved with the maximum length and the truncation side of the run. It returns token type
    ids if and only if the model uses them. Without them, `pipeline()` would read both texts of a pair as one
    text; a model with one token type cannot read the ids of a second text.
    """
    tokenizer, config = session.prepared.tokenizer, session.prepared.config
    tokenizer.model_max_length = config.max_length
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    token_types = ["token_type_ids"] if takes_token_type_ids(session.model) else []
    if set(tokenizer.model_input_names) != {*names, *token_types}:
        tokenizer.model_input_names = [*names, *token_types]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # what is saved
    if trained_length := _compute_trained_length(session.prepared):
        session.model.config.update({TRAINED_LENGTH_KEY: trained_length})
    tokenizer.truncation_side = "left" if config.long_texts == "tail" else "right"
    with stage_files(session.folder) as staging:
        save_model(session.model, staging, weights, tokenizer)

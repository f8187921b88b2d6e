"""Training from settings to `metrics.json`: the steps are here in the order in which they happen."""

import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.table import describe_changes
from bertkit.errors import RunInterrupted, UserError, format_list
from bertkit.reports.card import build_model_card
from bertkit.run import upload
from bertkit.run.baselines import fit_validation_baselines
from bertkit.run.dry_run import dry_run, plan_time_limit
from bertkit.run.prepare import PreparedRun, find_linear_text, prepare
from bertkit.run.resolve_settings import resolve_settings
from bertkit.run.results import (
    Run,
    compute_scores,
    find_slices,
    fit_scope_of_texts,
    summarize_baselines,
    summarize_data,
    summarize_judgement,
    summarize_slices,
    write_predictions,
)
from bertkit.run.session import LinearTextSession, Session
from bertkit.run_directory import RUN, RunDir, create_default_directory
from bertkit.settings.recipes import Recipe
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.metric_modules import load_module
from bertkit.stats.scope_score import compute_scope_score, summarize_found
from bertkit.tasks import task_definition
from bertkit.tasks.base import CONFIDENCE_KEY, FittedConfidence, Outputs
from bertkit.training.arguments import restore_algorithms
from bertkit.training.callbacks import check_callbacks, merge_log_history
from bertkit.training.failures import OutOfMemory, get_batch_settings, halve_batch, release_memory
from bertkit.utils import distributed, locks
from bertkit.utils.files import check_output_directory, require_disk_space
from bertkit.utils.reporting import report_info, report_warning, silence_libraries, silence_reports

# Two checkpoints of 12 bytes (fp32 weights and two Adam moments), and the final model of 4 bytes.
BYTES_PER_PARAMETER = 28


def train(
    task_name: str,
    overrides: Mapping[str, Any],
    recipe: str | Recipe | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Train a model for a task.

    Args:
        task_name: Name of the task.
        overrides: Settings of the user, which take precedence over those of the recipe.
        recipe: A recipe, or its name or path.
        callbacks: Instances or classes of `TrainerCallback`.

    Raises:
        UserError: The run cannot succeed. Most of these errors are raised before weights are loaded.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the run.
    """
    check_callbacks(callbacks)
    config_class = task_definition(task_name).config
    resolve = partial(resolve_settings, task_name, config_class, overrides, recipe)
    error_of_host = None
    try:
        config, _ = resolve()
    except UserError as error:
        if not distributed.has_several_hosts():
            raise
        error_of_host = distributed.name_host(error)  # the other hosts would wait for this one
    reports = nullcontext() if distributed.is_main_process() else silence_reports()
    with reports, silence_libraries(), distributed.use_process_group():
        with distributed.raise_on_all_ranks():
            if error_of_host is not None:
                raise error_of_host
        distributed.on_main_process(upload.check_hub_access, config)
        run = _run_or_load(task_name, config, partial(resolve, is_locked=True), callbacks)
        if config.push_to_hub and run.output_dir:
            distributed.on_main_process(upload.upload_run, task_name, run.output_dir, config)
        return run


def _run_or_load(
    task_name: str,
    config: RunConfig,
    resolve_locked: Callable[[], tuple[RunConfig, dict[str, str] | None]],
    callbacks: Sequence[Any],
) -> Run:
    """Run the pipeline in a locked directory, or return the metrics if the run to resume is finished.

    `resolve_locked` resolves the settings again in the locked directory: before, another process may have
    replaced the run to resume.
    """
    if config.output_dir is None:
        return _run(task_name, config, None, callbacks)
    folder = Path(config.output_dir)
    if finished := _load_finished(config, folder):
        return finished
    with locks.lock_directory(folder):  # before preparation, so a second run fails at once
        if not config.resume:
            return _run(task_name, config, None, callbacks)
        with silence_reports():
            config, fingerprints = resolve_locked()
        finished = _load_finished(config, folder)
        return finished or _run(task_name, config, fingerprints, callbacks)


def _load_finished(config: RunConfig, folder: Path) -> Run | None:
    """Return the metrics if the run to resume is finished, else None."""
    if not config.resume or not (metrics := RunDir(folder).read_metrics()):
        return None
    report_info("the run is already finished; showing its scores")
    return Run(folder, metrics)


def _run(
    task_name: str, config: RunConfig, fingerprints: Mapping[str, str] | None, callbacks: Sequence[Any]
) -> Run:
    """Prepare the run, and then show a preview, do a dry run, or train.

    `fingerprints` are those of the data of the run to resume by split, or None for a new run.
    """
    # only here, where the user started a run: a file of a finished run must not decide which code is executed
    loaded_modules = distributed.main_process_first(lambda: [load_module(value) for value in config.metric])
    prepared = distributed.main_process_first(prepare, task_name, config, loaded_modules)
    prepared.add_callbacks(callbacks)
    if distributed.has_several_hosts():
        _require_same_data(prepared.fingerprints)
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
    default_folder = distributed.on_main_process(create_default_directory, *name_parts)
    with locks.lock_directory(default_folder, is_new=True) as folder:
        return train_prepared(prepared, folder)


def _require_same_data(fingerprints: Mapping[str, str]) -> None:
    """Refuse data that differs between hosts: their ranks would train on rows of different files."""
    (host, first), *others = distributed.gather_object((socket.gethostname(), fingerprints))
    for other_host, other in others:
        if splits := [split for split in first if first[split] != other.get(split)]:
            raise UserError(
                f"--data: the rows of {format_list(splits)} on the host {other_host} differ from those on "
                f"{host}; copy the same files to both, or read them from a shared file system"
            )


def require_unchanged_data(
    folder: Path | str | None, saved: Mapping[str, str], current: Mapping[str, str]
) -> None:
    """Refuse to resume a run if the fingerprints of its data by split have changed."""
    if changes := describe_changes(saved, current):
        raise UserError(
            f"--resume {folder}: the data has changed ({changes}); restore it, or train from scratch with "
            "--overwrite"
        )


@restore_algorithms()
def train_prepared(prepared: PreparedRun, folder: Path) -> Run:
    """Train in a locked directory, from the start or from the last checkpoint, and write the results."""
    config, run_dir = prepared.config, RunDir(folder)
    if not config.resume:
        distributed.on_main_process(_check_directory, prepared, folder)
    # With --overwrite, the directory contains a finished run until the new run replaces it; with --resume, it
    # contains the run to resume. An error before training must not change this run.
    contains_previous_run = run_dir.is_started
    try:
        with distributed.raise_on_all_ranks():
            session = create_session(prepared, folder)
        if isinstance(session, Session):
            plan_time_limit(session)
            session.warn_about_long_warmup()
            if not config.resume:
                session.verify_label_order()
        if config.push_to_hub:
            distributed.on_main_process(upload.create_hub_repo, config, folder)
        contains_previous_run = False
        if not config.resume:
            distributed.on_main_process(_create_directory, prepared, run_dir)
        training_metrics = _train_with_retry(session) if isinstance(session, Session) else session.train()
        outputs, scope_features = session.finish(), session.compute_scope_features()
        weights = session.gather_weights()
        metrics = distributed.on_main_process(
            _write_results, session, outputs, scope_features, training_metrics, weights
        )
        return Run(folder, metrics)
    except BaseException as error:
        checkpoint = None if contains_previous_run else run_dir.find_last_checkpoint()
        if not contains_previous_run and distributed.is_main_process():
            run_dir.discard_unstarted()
        if not isinstance(error, KeyboardInterrupt):
            raise
        if contains_previous_run:
            raise RunInterrupted(f"interrupted before training started; {folder} is unchanged") from None
        if checkpoint is None:
            raise RunInterrupted("interrupted before the first checkpoint; nothing was saved") from None
        raise RunInterrupted(f"interrupted; {session.resume_hint}") from None


def create_session(prepared: PreparedRun, folder: Path) -> Session | LinearTextSession:
    """Return the session of a run whose model is trained in steps, or of a linear model of texts."""
    if method := find_linear_text(prepared.methods):
        return LinearTextSession(prepared, folder, method)
    return Session(prepared, folder)


def _check_directory(prepared: PreparedRun, folder: Path) -> None:
    """Check that the run can be written into `folder`, and that the disk has enough space."""
    check_output_directory(folder, RUN, prepared.config.overwrite)
    if find_linear_text(prepared.methods):
        return
    num_bytes = prepared.num_encoder_parameters * BYTES_PER_PARAMETER
    require_disk_space(folder, num_bytes, "checkpoints and the model", "choose a directory on another disk")


def _create_directory(prepared: PreparedRun, run_dir: RunDir) -> None:
    run_dir.create(prepared.config.overwrite)
    run_dir.write_settings(
        prepared.task.definition.name, prepared.config, prepared.fingerprints, prepared.dataset.label_fixes
    )


# ---- training


def _train_with_retry(session: Session) -> dict[str, Any]:
    """Train to the end; if memory runs out, retry once with smaller batches of the same effective size.

    The result is the section "training" of `metrics.json`.
    """
    prepared, run_dir = session.prepared, session.run_dir
    config = prepared.config
    try:
        return session.train(resume=config.resume)
    except OutOfMemory:
        # All ranks would have to choose the same settings. With a smaller token budget, the batches of the
        # epoch change, so the steps after a checkpoint would repeat some examples and skip others.
        has_checkpoint = run_dir.find_last_checkpoint() is not None
        has_changed_batches = config.tokens_per_batch is not None and has_checkpoint
        if session.training_args.world_size > 1 or has_changed_batches or not prepared.has_training_steps:
            raise
        smaller = halve_batch(config, min_tokens=config.max_training_length())
        if smaller is None:
            raise
    # This is outside the `except` block, because the error keeps the model and its activations in memory.
    prepared.task.resolve(**get_batch_settings(smaller))
    del session.trainer, session.model
    release_memory()
    session.set_up()
    run_dir.update_settings(smaller, {"out_of_memory_at": get_batch_settings(config)})
    old, new = (
        ", ".join(f"{name} {value}" for name, value in get_batch_settings(settings).items())
        for settings in (config, smaller)
    )
    action = "resumes from the last checkpoint" if has_checkpoint else "restarts"
    report_warning(f"out of memory at {old}: training {action} with {new} (same effective batch size)")
    return session.train(resume=True)


# ---- results


def _write_results(
    session: Session | LinearTextSession,
    outputs: dict[str, Outputs],
    scope_features: Mapping[str, Mapping[str, np.ndarray]],
    training_metrics: dict[str, Any],
    weights: Any,
) -> dict[str, Any]:
    """Write all results into the run directory, with `metrics.json` last, and return its content.

    `scope_features` are those of `Session.compute_scope_features`. `weights` is the complete state dict of
    sharded weights, else None.
    """
    from bertkit.reports.page import write_page  # charts are slow to import

    prepared, run_dir = session.prepared, session.run_dir
    task, splits, options = prepared.task, prepared.splits, prepared.options
    run_dir.delete_backup()
    # The validation split is evaluated only once, before the decision parameters are fitted on it. The result
    # is the same as after the fit: without fitted parameters, `evaluate` already uses the parameters that fit
    # the evaluated split best.
    validation = task.evaluate(outputs["validation"])
    task.fit_decision(validation)
    scored, scope = outputs, {}
    if scope_features and (scope := _fit_scope(session, validation, scope_features)):
        weights_of_scope = np.array(task.state.fitted_confidence.scope_weights)
        for split, features in scope_features["inside"].items():  # as the model of the finished run computes
            linear = features[:, :-1] @ weights_of_scope[:-2, None] + weights_of_scope[-1]
            logits = np.concatenate([outputs[split].logits, linear], axis=1)
            scored = {**scored, split: replace(outputs[split], logits=logits)}
        validation = task.evaluate(scored["validation"])
    evaluations = {
        split: validation if split == "validation" else task.evaluate(split_outputs)
        for split, split_outputs in scored.items()
    }
    session.update_config(task.state.fitted_params)
    for name, value in task.state.fitted_params.items():
        report_info(f"{name} {value:.3f}: fitted on the validation split, saved in config.json")
    slices = find_slices(task, splits["validation"]) if options.has_report else {}
    baselines = fit_validation_baselines(prepared)
    command = shlex.join(["bertkit", "calibrate", str(session.folder)])
    metrics = {
        "task": task.definition.name,
        "data": summarize_data(task, prepared.dataset, prepared.fingerprints, splits),
        "model": prepared.model_source.name,
        **compute_scores(task, evaluations, prepared.metric_modules, options.has_report),
        **summarize_baselines(baselines, len(splits["train"])),
        **summarize_judgement(task, validation, baselines, session.collect_training_facts(), command),
        **summarize_slices(task, validation, slices),
        **({"out_of_scope": scope} if scope else {}),
        "training": training_metrics,
    }
    if prepared.probe is not None:
        metrics["probe"] = prepared.probe.summarize(session.log_history, session.best_step)
    if prepared.budget is not None:
        metrics |= prepared.budget.summarize(session.log_history, training_metrics["steps"])
    session.write_model(weights)
    for method in prepared.methods:
        metrics |= method.summarize(prepared, validation, session.folder)
    write_predictions(run_dir, task, evaluations)
    run_dir.write_log(merge_log_history(session.log_history))
    if options.has_report:
        run_dir.write_card(build_model_card(session.folder, metrics, task, run_dir.read_provenance()))
        write_page(session.folder, metrics)
    if options.has_logits:
        run_dir.write_logits(outputs["test"].logits, task.state.fitted_params)
    run_dir.write_metrics(metrics)
    return metrics


def _fit_scope(
    session: Session | LinearTextSession, validation: Any, features: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, Any]:
    """Fit which texts are out of scope, and store the numbers in the model's config.

    `features` are those of `Session.compute_scope_features`. The result is the section "out_of_scope" of
    `metrics.json`; empty if the score does not find such texts.
    """
    task, outside = session.prepared.task, features["outside"]
    parts = features["inside"]["validation"], outside["train"], *features["shipped"].values()
    texts = session.prepared.dataset.out_of_scope["train"]
    try:
        scope = fit_scope_of_texts(task, validation, texts, parts, coverage=None)
    except UserError as error:  # training has taken too long to fail
        report_warning(str(error))
        return {}
    weights = scope.pop("weights")
    fitted = FittedConfidence(scope_weights=weights, min_scope_score=scope["min_score"])
    task.state.fitted_confidence = fitted
    session.update_config({CONFIDENCE_KEY: fitted.to_dict()})
    found = {"validation": scope}
    if "test" in outside:
        found["test"] = summarize_found(compute_scope_score(outside["test"], weights) < scope["min_score"])
    return found

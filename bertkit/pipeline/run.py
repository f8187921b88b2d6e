"""The one training pipeline: settings and data in, a run directory out. It knows no task by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import run_directory
from bertkit.config import RunConfig
from bertkit.data.rows import describe_changes
from bertkit.errors import RunInterrupted, UserError
from bertkit.modeling.loading import takes_token_type_ids
from bertkit.pipeline import upload
from bertkit.pipeline.prepare import PreparedRun, count_parameters, prepare, resolve_settings
from bertkit.pipeline.results import compute_scores, evaluate_splits, summarize_data, write_predictions
from bertkit.reports.model_card import build_model_card
from bertkit.tasks import task_class
from bertkit.tasks.evaluation import Outputs
from bertkit.utils import distributed, locks
from bertkit.utils.files import write_jsonl, write_text
from bertkit.utils.quiet import silence_libraries
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.pipeline.session import Session


@dataclass(frozen=True)
class Run:
    """A finished run: what `metrics.json` holds, and where it lies.

    After a dry run or a preview it lies nowhere; of a preview there are `samples`, and the metrics are rates.
    """

    output_dir: Path | None
    metrics: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)


def train(
    task_name: str, given: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Train `task_name` with the settings in `given`, which go before those of `recipe`.

    Raises:
        UserError: anything the user can mend, before weights are loaded where it can be known.
        RunInterrupted: Ctrl-C or SIGTERM; a checkpoint is written.
    """
    reporter = reporter if reporter and distributed.is_main_process() else Reporter()
    config, before = resolve_settings(task_name, task_class(task_name).spec.config, given, recipe, reporter)
    with silence_libraries(), distributed.use_process_group():
        distributed.on_main_process(upload.check_hub_access, config)
        run = _made(task_name, config, before, reporter)
        if config.push_to_hub and run.output_dir:
            distributed.on_main_process(upload.upload_run, task_name, run.output_dir, config, reporter)
        return run


def _made(task_name: str, config: RunConfig, before: Mapping[str, str] | None, reporter: Reporter) -> Run:
    """The run, where it is finished already as it is."""
    if config.resume and (finished := run_directory.read_metrics(Path(config.output_dir or ""))):
        reporter.info("the run is finished; these are its scores")
        return Run(Path(config.output_dir or ""), finished)
    if config.output_dir is None:
        return _run(task_name, config, before, reporter)
    with locks.lock_directory(Path(config.output_dir)):  # from now on: another run would work in vain
        return _run(task_name, config, before, reporter)


def _run(task_name: str, config: RunConfig, before: Mapping[str, str] | None, reporter: Reporter) -> Run:
    prepared = distributed.main_process_first(prepare, task_name, config, reporter)
    if before is not None and (changed := describe_changes(before, prepared.fingerprints)):
        raise UserError(
            f"--resume {config.output_dir}: its data has changed: {changed}; restore the data, or start "
            "again with --overwrite"
        )
    if seen := prepared.task.preview(prepared.features["train"], prepared.tokenizer):
        for note in seen.notes:
            reporter.info(note)
        return Run(None, seen.statistics, seen.samples)
    if config.dry_run:
        from bertkit.pipeline.dry_run import dry_run

        return Run(None, dry_run(prepared, reporter))
    if config.output_dir is not None:
        return _train(prepared, Path(config.output_dir), reporter)
    named = (prepared.task.spec.name, prepared.dataset.name, prepared.model_source.name)
    with locks.lock_directory(
        distributed.on_main_process(run_directory.create_default_directory, *named)
    ) as folder:
        return _train(prepared, folder, reporter)


def _train(prepared: PreparedRun, folder: Path, reporter: Reporter) -> Run:
    """Train in a directory that is held, from nothing or from the last checkpoint in it."""
    from bertkit.pipeline.retry import train_with_retry
    from bertkit.pipeline.session import Session

    config = prepared.config
    if not config.resume:
        distributed.on_main_process(run_directory.check_run_directory, folder, config.overwrite)
        distributed.on_main_process(
            run_directory.require_disk_space, folder, count_parameters(prepared.model_config)
        )
    untouched = (folder / run_directory.SETTINGS_FILE).exists()  # an older run, until it is put aside
    try:
        with distributed.raise_on_all_ranks():
            session = Session(prepared, folder, reporter)
        if not config.resume:
            session.verify_label_order()
        if config.push_to_hub:
            distributed.on_main_process(upload.create_hub_repo, config, folder)
        untouched = False
        if not config.resume:
            distributed.on_main_process(run_directory.create_run_directory, folder, config.overwrite)
            distributed.on_main_process(
                run_directory.write_settings, folder, prepared.task.spec.name, config, prepared.fingerprints
            )
        figures = train_with_retry(session)
        return _finish(session, figures)
    except BaseException as error:
        kept = not untouched and run_directory.last_checkpoint(folder)
        if not untouched and distributed.is_main_process():
            run_directory.discard_unstarted_run(folder)
        if isinstance(error, KeyboardInterrupt):
            how = session.resume_hint if kept else "before the first checkpoint; nothing was kept"
            raise RunInterrupted(f"stopped; {how}" if kept else f"stopped {how}") from None
        raise


def _finish(session: "Session", figures: dict[str, Any]) -> Run:
    """Score every split, all ranks together, and have the first write the run directory."""
    outputs = {split: session.predict_split(split) for split in session.prepared.splits if split != "train"}
    weights = session.trainer.gather_weights()
    return Run(session.folder, distributed.on_main_process(_write, session, outputs, figures, weights))


def _write(
    session: "Session", outputs: dict[str, Outputs], figures: dict[str, Any], weights: Any
) -> dict[str, Any]:
    """The run directory, `metrics.json` last."""
    from bertkit.reports.page import write_page
    from bertkit.training.loss_meter import merge_log_history

    prepared, folder = session.prepared, session.folder
    task, splits = prepared.task, prepared.splits
    run_directory.delete_backup(folder)
    evaluations = evaluate_splits(task, outputs)
    session.model.config.update(task.fitted_params)
    for name, value in task.fitted_params.items():
        session.reporter.info(f"{name} {value:.3f}: chosen on the validation split, kept in config.json")
    metrics = {
        "task": task.spec.name,
        "data": summarize_data(prepared.dataset, prepared.fingerprints, splits),
        "model": prepared.model_source.name,
        **compute_scores(task, evaluations, splits["train"]),
        "training": figures,
    }
    _write_model(session, weights)
    write_predictions(folder, task, evaluations)
    write_jsonl(folder / run_directory.LOG_FILE, merge_log_history(session.trainer.state.log_history))
    provenance = run_directory.read_provenance(folder)
    card = build_model_card(folder, metrics, task, provenance)
    write_text(folder / run_directory.CARD_FILE, card)
    write_page(folder, metrics)
    run_directory.write_metrics(folder, metrics)
    return metrics


def _write_model(session: "Session", weights: Any) -> None:
    """Model and tokenizer, as `transformers` loads them; `max_length` and the side to cut go along.

    A tokenizer that says nothing of segments would let `pipeline()` read both texts of a pair as one.
    """
    tokenizer, config = session.prepared.tokenizer, session.prepared.config
    tokenizer.model_max_length = config.max_length
    if takes_token_type_ids(session.model) and "token_type_ids" not in tokenizer.model_input_names:
        tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # or it is not saved
    tokenizer.truncation_side = "left" if getattr(config, "long_texts", "head") == "tail" else "right"
    with run_directory.stage_output(session.folder) as aside:
        session.model.save_pretrained(aside, state_dict=weights)
        tokenizer.save_pretrained(aside)

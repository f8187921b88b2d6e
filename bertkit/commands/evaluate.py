"""`evaluate`: score a finished run on other data, or compare it with another run on the same rows."""

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.commands.configs import CalibrateConfig, EvaluateConfig, ExportConfig
from bertkit.commands.inputs import collect_passed_columns, format_flag, require_data_for_format_flags
from bertkit.commands.pair_evaluation import evaluate_minimal_pairs, print_minimal_pairs
from bertkit.data.columns import add_renamed_columns
from bertkit.data.readers.formats import Dialect
from bertkit.data.sources import LoadedDataset, load_dataset
from bertkit.data.split import sample_rows
from bertkit.data.table import Rows, Splits, fingerprint_splits
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.forward import prepare_for_inference
from bertkit.models.loading import find_run_model, load_config, load_tokenizer
from bertkit.reports.page import write_page
from bertkit.reports.terminal import print_run_json, print_scores
from bertkit.run.baselines import fit_all_baselines
from bertkit.run.load_data import reload_run_data, require_same_data, select_data_again
from bertkit.run.predictor import Predictor, load_predictor
from bertkit.run.prepare import prepare
from bertkit.run.resolve_settings import require_data_objects
from bertkit.run.results import (
    MetricModules,
    Run,
    bind_modules,
    choose_deciding_metric,
    compute_scores,
    find_slices,
    summarize_baselines,
    summarize_data,
    summarize_judgement,
    summarize_slices,
    write_predictions,
)
from bertkit.run_directory import EVALUATION, RunDir, create_default_directory, format_python_call
from bertkit.settings.declaration import expand_path_settings
from bertkit.settings.recipes import list_passed_data
from bertkit.settings.validation import DataObject, validate_settings
from bertkit.stats.judgement import EXIT_STATUSES
from bertkit.stats.metric_modules import is_lower_better, load_module, make_absolute
from bertkit.stats.scope_score import summarize_found
from bertkit.tasks.base import Evaluation, Task
from bertkit.tasks.out_of_scope import separate_out_of_scope
from bertkit.tasks.trained_model import load_run_task
from bertkit.utils import devices, distributed
from bertkit.utils.files import check_output_directory
from bertkit.utils.reporting import report_info, report_warning, silence_libraries, silence_reports


@dataclass(frozen=True)
class EvaluationInputs:
    """A run and the rows to score."""

    predictor: Predictor
    dataset: LoadedDataset  # that has the rows
    splits: Splits  # there is always a `validation` split
    train: Rows | None  # the training rows of the run, which baselines are fitted on, if they are available


def evaluate(settings: Mapping[str, Any]) -> Run:
    """Score a run on labeled rows, and write `metrics.json`, the predictions, the settings and a report."""
    config = EvaluateConfig(**validate_settings(EvaluateConfig, settings, "evaluate()"))
    config = expand_path_settings(config, "run", "output_dir", "compare")
    config = dataclasses.replace(config, metric=[make_absolute(value) for value in config.metric])
    distributed.require_launcher(config.nproc)
    devices.request_device(config.device)
    if config.minimal_pairs:
        return evaluate_minimal_pairs(config, Dialect.from_settings(config))
    if config.output_dir:
        check_output_directory(Path(config.output_dir), EVALUATION, config.overwrite)
    task = load_run_task(Path(config.run), accepts_ensemble=True)
    _check_flags(config, task)
    if config.compare:
        _check_compared_run(config, task)
    columns = collect_passed_columns(config, task, config.run)
    if columns and not config.data:
        raise UserError(f"{format_flag(next(iter(columns)))}: applies only to --data; pass both or neither")
    reports = nullcontext() if distributed.is_main_process() else silence_reports()
    with reports, silence_libraries(), distributed.use_process_group():
        loaded_modules = [load_module(value) for value in config.metric]
        if task.definition.predicts_rows:
            inputs = _load_row_inputs(config, columns)
            inputs.predictor.report_device()
        else:
            inputs = _load_text_inputs(task, config)
        other = load_predictor(config.compare).use_batch_size(config.batch_size) if config.compare else None
        restore_best_metric(inputs.predictor.task, Path(config.run))
        sampled_splits = {
            name: sample_rows(rows, config.max_eval_samples, task.config.seed)
            for name, rows in inputs.splits.items()
        }
        inputs = dataclasses.replace(inputs, splits=sampled_splits)
        modules = MetricModules()
        if loaded_modules:
            modules, _ = bind_modules(loaded_modules, inputs.predictor.task, sampled_splits["validation"])
        return _score(config, inputs, modules, other)


def _check_flags(config: EvaluateConfig, task: Task) -> None:
    """Refuse flags that have no effect, and report modules of the run that are not executed again."""
    require_data_for_format_flags(config)
    if config.encoding is not None and not task.definition.predicts_rows:
        raise UserError(
            f"--encoding {config.encoding}: a run of {task.definition.name} reads --data in its own encoding "
            f"({task.config.encoding or 'utf-8'}); save the file in that encoding"
        )
    for flag in ("metric", "by"):
        if getattr(config, flag) and not task.definition.predicts_rows:
            raise UserError(f"--{flag}: runs of {task.definition.name} do not predict rows; omit it")
    # A run directory may come from somebody else, so only the user can name code to execute.
    omitted = [value for value in task.config.metric if value not in config.metric]
    if omitted:
        flags = " ".join(f"--metric {value}" for value in omitted)
        report_info(f"scores of {format_list(omitted)} are left out; to execute this code, pass {flags}")


def restore_best_metric(task: Task, run: Path) -> None:
    """Let the score that judged the run decide again; its dataset or a flag may have chosen it."""
    judgement = (RunDir(run).read_metrics() or {}).get("judgement", {})
    if name := judgement.get("metric"):
        task.state.best_metric = (name, -1 if is_lower_better(name) else 1)


def _check_compared_run(config: EvaluateConfig, task: Task) -> None:
    """Refuse a run of `--compare` that cannot be compared, before models are loaded."""
    other, task_name = Path(str(config.compare)), task.definition.name
    if not task.definition.predicts_rows:
        raise UserError(
            f"--compare {other}: runs of {task_name} predict different masked tokens, so their scores cannot "
            "be compared; remove --compare"
        )
    if other.resolve() == Path(config.run).resolve():
        raise UserError(f"--compare {other}: is the same run, which equals itself; pass another one")
    other_name = load_run_task(other, accepts_ensemble=True).definition.name
    if other_name != task_name:
        raise UserError(
            f"--compare {other}: is a run of {other_name}, but {config.run} is a run of {task_name}; compare "
            "runs of one task"
        )


# ---- rows


def _load_text_inputs(task: Task, config: EvaluateConfig) -> EvaluationInputs:
    """Prepare a pre-training run again; `--data` replaces its validation text."""
    settings = task.config.use_run_as_model(Path(config.run))
    is_run_data = isinstance(config.data, DataObject) and bool(list_passed_data(settings))
    if isinstance(config.data, DataObject) and is_run_data:
        settings = dataclasses.replace(settings, **select_data_again(settings, config.data))
    elif config.data:
        settings = dataclasses.replace(settings, validation=config.data, validation_fraction=None, test=None)
    require_data_objects(settings, format_python_call("evaluate", {"run": config.run}, ["data"]))
    source = find_run_model(Path(config.run))  # unlike a model for --model, it must have all heads
    for load in (load_config, load_tokenizer):
        load(source)  # `prepare`, which loads them again, would call the run --model in an error
    prepared = distributed.main_process_first(prepare, task.definition.name, settings)
    if is_run_data:
        require_same_data(Path(config.run), prepared.fingerprints)
    model = prepare_for_inference(prepared.task.build_model(prepared.model_config, source))
    splits = {name: rows for name, rows in prepared.splits.items() if name != "train"}
    predictor = Predictor(prepared.task, model, prepared.tokenizer).use_batch_size(config.batch_size)
    dataset = prepared.dataset
    if isinstance(config.data, str):
        dataset = dataclasses.replace(dataset, name=Path(config.data).stem, source=config.data)
    return EvaluationInputs(predictor, dataset, splits, prepared.splits["train"])


def _load_row_inputs(config: EvaluateConfig, columns: Mapping[str, Any]) -> EvaluationInputs:
    """Load the rows to score, and the training rows of the run for the baselines."""
    predictor = load_predictor(config.run).use_batch_size(config.batch_size).use_columns(columns)
    predictor.task.use_cache = True  # unlike in prediction, whole splits are tokenized
    trained_config = predictor.task.config  # before the columns of new data are mapped
    passed = config.data if isinstance(config.data, DataObject) else None
    new_data = load_new_rows(predictor, config) if config.data and not passed else None
    try:
        dataset, run_splits = reload_run_data(Path(config.run), passed)
        train = run_splits["train"]
        is_run_data = not config.data or bool(passed and list_passed_data(trained_config))
    except UserError as error:
        if not config.data:
            raise UserError(f"{error}; pass --data to score the run on other rows") from error
        reason = f"cannot load the training rows that they are fitted on ({error})"
        if passed and list_passed_data(trained_config):
            reason = (
                "they are fitted on the training rows of the run, which were passed from Python and are not "
                "saved; `data` is another object"
            )
        report_warning(f"no baselines: {reason}")
        train, is_run_data = None, False
    if passed and not is_run_data:
        new_data = load_new_rows(predictor, config)
    if not new_data:
        splits = {name: rows for name, rows in run_splits.items() if name != "train"}
        if not splits:
            raise UserError(
                f"{config.run}: the members of the ensemble were trained on all labeled rows; pass other "
                "rows with --data"
            )
        return EvaluationInputs(predictor, dataset, splits, train)
    dataset, splits = new_data
    if train is not None:
        train = add_renamed_columns(train, trained_config, predictor.task.config)
        rows = splits["validation"]
        for overlap in describe_overlap(predictor.task, train, rows):
            report_warning(f"{overlap}: the scores are too high")
    return EvaluationInputs(predictor, dataset, splits, train)


def load_new_rows(
    predictor: Predictor, config: EvaluateConfig | CalibrateConfig | ExportConfig
) -> tuple[LoadedDataset, Splits]:
    """Load the labeled splits of `--data`, without `train` unless it is the only split."""
    task = predictor.task
    assert config.data is not None
    dialect = task.definition.make_dialect(config)
    dataset = load_dataset(config.data, task.definition.name, config.data_dir, dialect)
    splits = {name: rows for name, rows in dataset.splits.items() if name != "train"}
    labeled: Splits = {}
    outside: Splits = {}
    errors: list[UserError] = []
    if not splits:
        splits = {"validation": dataset.splits["train"]}
    for name, rows in splits.items():
        try:
            predictor.map_columns(rows)
            rows, rows_outside = separate_out_of_scope(task, rows)
            labeled[name], notes = task.parse_rows(rows, name, require_labels=True)
            if rows_outside is not None:
                outside[name] = rows_outside
        except UserError as error:
            errors.append(error)
            continue
        for note in notes:
            report_info(note)
    if not labeled:
        raise errors[0]
    for split_error in errors:
        report_warning(f"split skipped: {split_error}")
    if "validation" not in labeled:
        name = next(iter(labeled))
        labeled = {"validation": labeled.pop(name), **labeled}
        outside = {"validation" if split == name else split: rows for split, rows in outside.items()}
    for name, rows in outside.items():
        count = format_count(len(rows), f"{name} row")
        report_info(f"{count} with the label of texts out of scope")
    dataset = dataclasses.replace(dataset, out_of_scope=outside)
    report_info(f"data: {dataset.name} from {dataset.source}; {format_list(labeled)}")
    return dataset, labeled


def describe_overlap(task: Task, train: Rows, rows: Rows) -> list[str]:
    """Return how many rows are also training rows, and how many are of a group that training rows have."""
    keys, train_keys = task.split_keys(rows), task.split_keys(train)
    counts = {"are also training rows": np.isin(keys.identity, train_keys.identity).sum()}
    if keys.column_group is not None and train_keys.column_group is not None:
        problem = f"have a {keys.group_column} that training rows have"
        counts[problem] = np.isin(keys.column_group, train_keys.column_group).sum()
    of_rows = f"of {format_count(len(rows), task.definition.unit)}"
    return [f"{count:,} {of_rows} {problem}" for problem, count in counts.items() if count]


# ---- scores


def _score(
    config: EvaluateConfig, inputs: EvaluationInputs, modules: MetricModules, other: Predictor | None
) -> Run:
    """Predict the rows, in all processes; the main process scores them, and writes the results."""
    predictor, splits, task = inputs.predictor, inputs.splits, inputs.predictor.task
    slices = find_slices(task, splits["validation"], config.by)  # before the model runs: columns may be wrong
    fingerprints = fingerprint_splits(splits)
    evaluations = {
        name: task.evaluate(predictor.compute_outputs(rows, name)) for name, rows in splits.items()
    }
    outside: dict[str, Any] = {}
    for name, rows in inputs.dataset.out_of_scope.items():
        if name in splits and task.state.fitted_confidence.scope_weights is not None:
            found: Any = predictor.evaluate_without_labels(rows, "out of scope")
            outside[name] = summarize_found(found.is_out_of_scope)
    other_evaluation = None
    if other:
        try:
            other = other.copy_columns_from(task)
            other_outputs = other.compute_outputs(evaluations["validation"].outputs.rows, str(config.compare))
        except UserError as error:
            problem = f"--compare {config.compare}: {error}; compare runs with the same labels"
            raise UserError(problem) from error
        other_evaluation = other.task.evaluate(other_outputs)
    return distributed.on_main_process(
        _write_results, config, inputs, modules, evaluations, outside, other_evaluation, slices, fingerprints
    )


def _write_results(
    config: EvaluateConfig,
    inputs: EvaluationInputs,
    modules: MetricModules,
    evaluations: Mapping[str, Evaluation],
    outside: Mapping[str, Any],
    other_evaluation: Evaluation | None,
    slices: Any,
    fingerprints: dict[str, str],
) -> Run:
    """Score the predictions, compare them with another run and with baselines, and write the results."""
    predictor, splits, task = inputs.predictor, inputs.splits, inputs.predictor.task
    for name, evaluation in evaluations.items():
        for warning in evaluation.outputs.features.warnings:
            report_warning(f"{name} split: {warning}")
    train, rows = inputs.train, evaluations["validation"].outputs.rows
    validation = evaluations["validation"]
    baselines = fit_all_baselines(task, train, rows, predictor.tokenizer) if train else {}
    others = baselines
    metrics = {
        "task": task.definition.name,
        "data": summarize_data(task, inputs.dataset, fingerprints, splits),
        "model": config.run,
        **compute_scores(task, evaluations, modules),
        **({"out_of_scope": outside} if outside else {}),
        **summarize_baselines(baselines, len(train or ())),
    }
    if other_evaluation:  # test how the scores differ
        others = {str(config.compare): other_evaluation.scorer}
        metrics["compared"] = modules.describe_difference(
            str(config.compare), other_evaluation, validation, task.config.seed
        )
    metrics |= summarize_judgement(task, validation, others, model=config.run if other_evaluation else None)
    if other_evaluation and "judgement" not in metrics:
        name, _ = choose_deciding_metric(task, validation)
        raise UserError(
            f"--compare {config.compare}: has no {name}, which judges {config.run}; compare runs with the "
            "same labels and --positive-label"
        )
    metrics |= summarize_slices(task, validation, slices)
    if config.output_dir:
        folder = Path(config.output_dir)
    else:
        name_parts = ("evaluate", Path(config.run).resolve().name, metrics["data"]["name"])
        folder = create_default_directory(*name_parts)
    run_dir, run_config = RunDir(folder), task.config
    run_dir.create(config.overwrite, with_checkpoints=False)
    if task.definition.predicts_rows:
        run_config = dataclasses.replace(run_config, metric=config.metric)  # the modules of this evaluation
    run_dir.write_settings(task.definition.name, run_config, fingerprints)
    write_predictions(run_dir, task, evaluations)
    write_page(folder, metrics)
    run_dir.write_metrics(metrics)
    run_dir.delete_backup()
    return Run(folder, metrics)


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> int:
    run = evaluate(settings)
    if not distributed.is_main_process():
        return 0
    if as_json:
        print_run_json(run)
    elif settings.get("minimal_pairs"):
        print_minimal_pairs(run)
    else:
        print_scores(run.metrics, run.output_dir, has_slices=bool(settings.get("by")))
    return EXIT_STATUSES[run.metrics["judgement"]["verdict"]] if settings.get("compare") else 0

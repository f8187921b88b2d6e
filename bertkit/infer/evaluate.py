"""`evaluate`: a finished run scored on other data, or beside another run on the same."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.config import DATA, OUTPUT, Settings, setting
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.infer.predictor import Predictor
    from bertkit.pipeline.run import Run
    from bertkit.tasks.base import Task
    from bertkit.tasks.evaluation import Evaluation

# A run at work, what was found, the rows to score by, and those it was trained on, where they are to be had.
EvaluationInputs = tuple["Predictor", "LoadedDataset", "Splits", "Rows | None"]
EVALUATE_HELP = (
    "Score a finished run on other data, with intervals and baselines; --compare tests it against another."
)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Settings):
    """The settings of `bertkit evaluate`."""

    run: str = setting(
        dataclasses.MISSING, "A finished run, or what was exported of it.", OUTPUT, positional=True
    )
    data: str | None = setting(
        None,
        "A file, a folder, a known name, a Hub data set.",
        DATA,
        default_text="what the run was scored on",
    )
    data_dir: str | None = setting(
        None, "Where data sets lie as they are distributed (environment: BERTKIT_DATA_DIR).", DATA
    )
    max_eval_samples: int | None = setting(
        None, "Score on this many rows, drawn by the run's seed.", DATA, min=1
    )
    compare: str | None = setting(None, "Another finished run of the task, scored on the same rows.", DATA)
    batch_size: int | None = setting(
        None, "Rows scored at a time.", OUTPUT, min=1, default_text="as in training"
    )
    output_dir: str | None = setting(
        None, "Where scores, predictions and the report are put.", OUTPUT, flags=("--output-dir", "-o"),
        default_text="runs/evaluate-RUN-DATA",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the evaluation in --output-dir.", OUTPUT)


def evaluate(settings: Mapping[str, Any], reporter: Reporter | None = None) -> "Run":
    """Score a run; the directory holds `metrics.json`, the predictions and the settings of the run.

    Raises:
        UserError: no finished run, no labelled rows, labels that the run does not know, runs of two tasks.
    """
    from bertkit import run_directory
    from bertkit.data.split import sample_rows
    from bertkit.pipeline.prepare import load_run_task
    from bertkit.utils.quiet import silence_libraries

    config = EvaluateConfig(**validate_settings(EvaluateConfig, settings, "evaluate()"))
    reporter = reporter or Reporter()
    if config.output_dir:
        run_directory.check_output_directory(Path(config.output_dir))
        run_directory.check_evaluation_directory(Path(config.output_dir), config.overwrite)
    task = load_run_task(Path(config.run))
    with silence_libraries():
        parts = _of_rows(config, reporter) if task.spec.row_level else _of_text(task, config, reporter)
        predictor, found, splits, train = parts
        other = _other(predictor, config) if config.compare else None
        drawn = {
            name: sample_rows(rows, config.max_eval_samples, task.config.seed)
            for name, rows in splits.items()
        }
        return _scored(config, predictor, other, (found, drawn, train), reporter)


def _other(predictor: "Predictor", config: EvaluateConfig) -> "Predictor":
    """The run to compare with."""
    from bertkit.infer.predictor import load_predictor

    name = predictor.task.spec.name
    if not predictor.task.spec.row_level:
        raise UserError(f"--compare {config.compare}: runs of {name} each predict pieces of their own")
    other = _sized(load_predictor(str(config.compare)), config)
    if other.task.spec.name != name:
        raise UserError(
            f"--compare {config.compare}: is a run of {other.task.spec.name}, and {config.run} of {name}; compare "
            "runs of one task"
        )
    return other


def _sized(predictor: "Predictor", config: EvaluateConfig) -> "Predictor":
    if config.batch_size:
        task = predictor.task
        task.config = dataclasses.replace(task.config, eval_batch_size=config.batch_size)
    return predictor


# ---- rows


def _of_text(task: "Task", config: EvaluateConfig, reporter: Reporter) -> EvaluationInputs:
    """Of pre-training: the run goes on, as it were, with the text as its validation split."""
    from bertkit.infer.predictor import Predictor
    from bertkit.pipeline.prepare import prepare

    settings = task.config.continued_from(Path(config.run))
    if config.data:
        settings = dataclasses.replace(settings, validation=config.data, validation_fraction=None, test=None)
    prepared = prepare(task.spec.name, settings, reporter)
    model = prepared.task.build_model(prepared.model_config, prepared.model_source).eval()
    splits = {name: rows for name, rows in prepared.splits.items() if name != "train"}
    predictor = _sized(Predictor(prepared.task, model, prepared.tokenizer), config)
    found = prepared.dataset
    if config.data:
        found = dataclasses.replace(found, name=Path(config.data).stem, source=config.data)
    return predictor, found, splits, prepared.splits["train"]


def _of_rows(config: EvaluateConfig, reporter: Reporter) -> EvaluationInputs:
    """What to score by, split by split, and the run's own training rows, where they are still to be had."""
    from bertkit.infer.predictor import load_predictor, rename_columns
    from bertkit.pipeline.prepare import reload_run_rows

    predictor = _sized(load_predictor(config.run), config)
    trained = predictor.task.config
    other = _other_rows(predictor, config, reporter) if config.data else None
    try:
        own, again = reload_run_rows(Path(config.run))
        train = again["train"]
    except UserError as error:
        if not other:
            raise UserError(f"{error}; score the run on other rows with --data") from error
        reporter.warn(f"no baselines, which are fitted on the rows it was trained on: {error}")
        train = None
    if not other:
        return predictor, own, {name: rows for name, rows in again.items() if name != "train"}, train
    found, splits = other
    if train is not None:
        train = rename_columns(train, trained, predictor.task.config)
        _tell_overlap(predictor.task, train, splits["validation"], reporter)
    return predictor, found, splits, train


def _other_rows(
    predictor: "Predictor", config: EvaluateConfig, reporter: Reporter
) -> tuple["LoadedDataset", "Splits"]:
    """The labelled splits of `--data`; a single file, or a set that has nothing else, is all to score by."""
    from bertkit.data.loading import load_dataset
    from bertkit.data.readers.files import Dialect

    task, dialect = predictor.task, Dialect(conll=True) if predictor.task.spec.reads_word_lines else None
    found = load_dataset(str(config.data), task.spec.name, config.data_dir, dialect)
    splits = {name: rows for name, rows in found.splits.items() if name != "train"}
    scored: Splits = {}
    refusals: list[UserError] = []
    for name, rows in (splits or {"validation": found.splits["train"]}).items():
        predictor.map_columns(rows, reporter)
        try:
            scored[name], notes = task.parse_rows(rows, name, require_labels=True)
        except UserError as error:
            refusals.append(error)
            continue
        for note in notes:
            reporter.info(note)
    if not scored:
        raise refusals[0]
    for refusal in refusals:
        reporter.warn(f"left out: {refusal}")
    if "validation" not in scored:
        scored = {"validation": scored.pop(next(iter(scored))), **scored}
    reporter.info(f"data: {found.name} from {found.source}; {format_list(scored)}")
    return found, scored


def _tell_overlap(task: "Task", train: "Rows", rows: "Rows", reporter: Reporter) -> None:
    """Rows that stand among the training rows too flatter a model."""
    known = set(task.split_keys(train).identity)
    seen = sum(key in known for key in task.split_keys(rows).identity)
    if seen:
        stand = f"{format_count(len(rows), 'row')} {'stands' if seen == 1 else 'stand'}"
        reporter.warn(f"{seen:,} of {stand} among the rows it was trained on too")


# ---- scores


def _scored(
    config: EvaluateConfig, predictor: "Predictor", other: "Predictor | None", data: Any, reporter: Reporter
) -> "Run":
    from bertkit.data.rows import fingerprint_splits
    from bertkit.pipeline.results import compute_scores, summarize_data
    from bertkit.pipeline.run import Run

    found, splits, train = data
    prints = fingerprint_splits(splits)
    task = predictor.task
    evaluations = {
        name: task.evaluate(predictor.compute_outputs(rows, reporter, name)) for name, rows in splits.items()
    }
    metrics = {
        "task": task.spec.name,
        "data": summarize_data(found, prints, splits),
        "model": config.run,
        **compute_scores(task, evaluations, train),
    }
    if other:
        metrics["compared"] = _compared(config, predictor, other, evaluations["validation"], reporter)
    folder = _write(config, task, evaluations, prints, metrics)
    return Run(folder, metrics)


def _compared(
    config: EvaluateConfig, predictor: "Predictor", other: "Predictor", evaluation: "Evaluation",
    reporter: Reporter,
) -> dict[str, Any]:
    """The other run's scores on the validation rows, and what this one's are above them."""
    from bertkit.metrics.paired import compare_scorers

    try:
        other_outputs = other.use_columns_of(predictor.task).compute_outputs(
            evaluation.outputs.rows, reporter, str(config.compare)
        )
    except UserError as error:
        raise UserError(f"--compare {config.compare}: {error}; compare runs of the same labels") from error
    other_evaluation = other.task.evaluate(other_outputs)
    seed = predictor.task.config.seed
    differences = compare_scorers(other_evaluation.scorer(), evaluation.scorer(), seed)
    return {
        "with": config.compare,
        "validation": other_evaluation.scores,
        "difference": {name: found.to_dict() for name, found in differences.items()},
    }


def _write(
    config: EvaluateConfig, task: "Task", evaluations: Mapping[str, "Evaluation"], prints: Mapping[str, str],
    metrics: dict[str, Any],
) -> Path:  # fmt: skip
    from bertkit import run_directory
    from bertkit.pipeline.results import write_predictions
    from bertkit.reports.page import write_page

    names = ("evaluate", Path(config.run).resolve().name, metrics["data"]["name"])
    folder = Path(config.output_dir) if config.output_dir else run_directory.create_default_directory(*names)
    run_directory.create_run_directory(folder, config.overwrite, with_checkpoints=False)
    run_directory.write_settings(folder, task.spec.name, task.config, prints)
    write_predictions(folder, task, evaluations)
    write_page(folder, metrics)
    run_directory.write_metrics(folder, metrics)
    run_directory.delete_backup(folder)
    return folder

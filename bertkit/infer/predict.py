"""`predict`: predict rows in chunks, and serialize the predictions as JSON lines, CSV or CoNLL."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from bertkit.errors import UserError, format_list
from bertkit.infer.configs import PREDICT_TEXT_SETTINGS, PredictConfig
from bertkit.setting import expand_path_settings
from bertkit.utils import devices
from bertkit.utils.output_paths import check_output_file
from bertkit.utils.reporting import Reporter
from bertkit.utils.serialization import replace_non_finite
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

    from bertkit.data.rows import Rows
    from bertkit.infer.predictor import Predictor
    from bertkit.tasks.base import Task
    from bertkit.tasks.evaluation import Evaluation
    from bertkit.tasks.sequence_predictions import SequenceEvaluation

PredictionFormat = Literal["jsonl", "csv", "conll"]
FORMAT_BY_SUFFIX: dict[str, PredictionFormat] = {
    ".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".conll": "conll",
}  # fmt: skip
CONLL_FILE = "predictions.conll"  # written only by tasks that tag words


@dataclass(frozen=True)
class PredictionChunk:
    """Prediction records of one chunk of rows, and the evaluation that they were made from."""

    records: list[dict[str, Any]]
    evaluation: "Evaluation"
    task_name: str


@dataclass(frozen=True)
class Predictions:
    """Prediction records, which are computed during the iteration. They can be iterated only once.

    Attributes:
        chunks: The records in chunks.
    """

    chunks: Iterator[PredictionChunk]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for chunk in self.chunks for record in chunk.records)

    def to_dataset(self) -> "Dataset":
        """Compute all predictions, and return the records as a `datasets.Dataset`, memory-mapped from disk.

        Raises:
            UserError: A row cannot be predicted, or the records have no common types.
        """
        from bertkit.infer.prediction_table import build_dataset

        return build_dataset(chunk.records for chunk in self.chunks)

    def to_pandas(self) -> "DataFrame":
        """Compute all predictions, and return the records as a `pandas.DataFrame`; see `to_dataset`."""
        return self.to_dataset().to_pandas()


def predict(
    settings: Mapping[str, Any], reporter: Reporter | None = None, stdin: BinaryIO | None = None
) -> Predictions:
    """Predict rows with a finished run.

    Args:
        settings: Settings of `PredictConfig`.
        reporter: Receives progress and notes.
        stdin: Standard input; read if the settings name no rows.

    Raises:
        UserError: The run is not finished, there are no rows, or rows come from two sources. During the
            iteration: a row cannot be predicted.
    """
    from bertkit.infer.columns import collect_passed_columns
    from bertkit.infer.explain import require_explainable
    from bertkit.infer.predictor import load_predictor
    from bertkit.pipeline.finished_run import load_run_task
    from bertkit.pipeline.load_check import warn_about_padding

    config = PredictConfig(**validate_settings(PredictConfig, settings, "predict()"))
    config = expand_path_settings(config, "run", "output")
    reporter = reporter or Reporter()
    devices.request_device(config.device)
    texts_by_flag = {name: list(texts) for name in PREDICT_TEXT_SETTINGS if (texts := getattr(config, name))}
    if config.data and texts_by_flag:
        flag = "--" + next(iter(texts_by_flag)).replace("_", "-")
        raise UserError(f"--data {config.data}: cannot be combined with {flag}; pass one of them")
    if config.output is not None:
        check_output_file(Path(config.output), config.overwrite)
    if config.explain:
        require_explainable(load_run_task(Path(config.run)), config.run)
    # The faster layers of inference compute no gradients.
    predictor = load_predictor(config.run, keep_stock_layers=config.explain).use_batch_size(config.batch_size)
    if config.explain:
        predictor.model.to(devices.select_device())
    devices.report_device(reporter, predictor.model)
    run_config = predictor.task.config
    for model in predictor.loaded_models if run_config.eval_batch_size > 1 else ():
        warn_about_padding(model, predictor.tokenizer, run_config.max_length, reporter)
    predictor = predictor.use_columns(collect_passed_columns(config, predictor.task, config.run))
    row_chunks = _iter_row_chunks(predictor.task, config, texts_by_flag, stdin, reporter)
    return Predictions(_iter_prediction_chunks(predictor, row_chunks, config, reporter))


def _iter_row_chunks(
    task: "Task",
    config: PredictConfig,
    texts_by_flag: Mapping[str, list[str]],
    stdin: BinaryIO | None,
    reporter: Reporter,
) -> Iterator["Rows"]:
    from bertkit.infer.inputs import iter_data_rows, iter_flag_rows, iter_stdin_rows
    from bertkit.infer.predictor import align_chunks_to_groups

    if config.data:
        chunks = iter_data_rows(task, config.data, config.data_dir, reporter, config.encoding)
    elif texts_by_flag:
        chunks = iter_flag_rows(task, texts_by_flag)
    else:
        chunks = iter_stdin_rows(task, stdin, config.encoding)
    return align_chunks_to_groups(task, chunks)


def _iter_prediction_chunks(
    predictor: "Predictor", row_chunks: Iterable["Rows"], config: PredictConfig, reporter: Reporter
) -> Iterator[PredictionChunk]:
    from bertkit.infer.inputs import TruncationCounter
    from bertkit.utils.reporting import silence_libraries

    truncation = TruncationCounter()
    for rows in row_chunks:
        predictor.map_columns(rows, reporter)
        description = f"rows {rows.row_numbers[0]:,} to {rows.row_numbers[-1]:,}"
        with silence_libraries():
            evaluation = predictor.evaluate_without_labels(rows, reporter, description)
        truncation.add(evaluation.outputs.features)
        records = list(predictor.iter_records(rows, evaluation, "all" if config.all_scores else "compact"))
        if config.explain:
            from bertkit.infer.explain import explain

            explanations = explain(predictor, cast("SequenceEvaluation", evaluation), reporter)
            records = [record | added.to_dict() for record, added in zip(records, explanations, strict=True)]
        yield PredictionChunk(records, evaluation, predictor.task.spec.name)
    truncation.report(predictor.task.config.max_length, reporter)


# ---- formats


def infer_format(output: str) -> PredictionFormat:
    """Return the format for the suffix of a file name. Raises `UserError` for an unknown suffix."""
    suffix = PurePath(output).suffix.lower()
    if suffix not in FORMAT_BY_SUFFIX:
        raise UserError(
            f"--output {output}: has an unknown suffix; use {format_list(FORMAT_BY_SUFFIX)}, or pass --format"
        )
    return FORMAT_BY_SUFFIX[suffix]


def serialize_predictions(
    chunks: Iterable[PredictionChunk], output_format: PredictionFormat
) -> Iterator[str]:
    """Yield the predictions as text, in chunks.

    Raises:
        UserError: The format cannot represent these predictions.
    """
    return SERIALIZERS[output_format](chunks)


def _serialize_jsonl(chunks: Iterable[PredictionChunk]) -> Iterator[str]:
    for chunk in chunks:
        for record in chunk.records:
            yield _to_json(replace_non_finite(record)) + "\n"


def _serialize_csv(chunks: Iterable[PredictionChunk]) -> Iterator[str]:
    """Yield CSV; the first chunk determines the columns."""
    columns: list[str] = []
    for chunk in chunks:
        rows = [flatten_record(record) for record in chunk.records]
        file = io.StringIO()
        if not columns:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            csv.writer(file, lineterminator="\n").writerow(columns)
        try:
            csv.DictWriter(file, columns, lineterminator="\n").writerows(rows)
        except ValueError as error:  # from csv: "dict contains fields not in fieldnames"
            raise UserError(
                f"--format csv: row {chunk.records[0]['id'] + 1} or a later one has a column that the first "
                "rows lack; use --format jsonl"
            ) from error
        yield file.getvalue()


def flatten_record(record: dict[str, Any]) -> dict[str, Any]:
    """Flatten a record into table cells.

    Each probability becomes a cell: `probability` if there is only one, else `probability of LABEL`. Other
    lists and dictionaries become JSON.
    """
    cells: dict[str, Any] = {}
    for name, value in record.items():
        if name == "probabilities" and isinstance(value, dict) and isinstance(record["predicted"], str):
            is_single = len(value) == 1
            for label, probability in value.items():
                cells["probability" if is_single else f"probability of {label}"] = probability
        else:
            cells[name] = _to_json(value) if isinstance(value, (list, tuple, dict)) else value
    return cells


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _serialize_conll(chunks: Iterable[PredictionChunk]) -> Iterator[str]:
    for chunk in chunks:
        files = chunk.evaluation.format_files()
        if CONLL_FILE not in files:
            raise UserError(f"--format conll: {chunk.task_name} does not tag words; use jsonl or csv")
        yield from files[CONLL_FILE]


SERIALIZERS: dict[PredictionFormat, Callable[[Iterable[PredictionChunk]], Iterator[str]]] = {
    "jsonl": _serialize_jsonl, "csv": _serialize_csv, "conll": _serialize_conll,
}  # fmt: skip

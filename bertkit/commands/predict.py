"""`predict`: predict rows in chunks, and serialize the predictions as JSON lines, CSV or CoNLL."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from bertkit.commands.configs import PREDICT_TEXT_SETTINGS, PredictConfig, collect_passed_columns
from bertkit.commands.inputs import TruncationCounter, iter_data_rows, iter_flag_rows, iter_stdin_rows
from bertkit.errors import UserError, format_list
from bertkit.run.finished_run import load_run_task
from bertkit.run.predictor import align_chunks_to_groups, load_predictor
from bertkit.settings.setting import expand_path_settings
from bertkit.settings.validation import validate_settings
from bertkit.utils import devices
from bertkit.utils.cache import write_to_temporary
from bertkit.utils.files import check_output_file
from bertkit.utils.reporting import keep_reporter, silence_libraries
from bertkit.utils.text import replace_non_finite

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from pandas import DataFrame

    from bertkit.data.table import Rows
    from bertkit.run.predictor import Predictor
    from bertkit.tasks.base import Task
    from bertkit.tasks.evaluation import Evaluation
    from bertkit.tasks.text.predictions import SequenceEvaluation


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
        return build_dataset(chunk.records for chunk in self.chunks)

    def to_pandas(self) -> "DataFrame":
        """Compute all predictions, and return the records as a `pandas.DataFrame`; see `to_dataset`."""
        return self.to_dataset().to_pandas()


def predict(settings: Mapping[str, Any], stdin: BinaryIO | None = None) -> Predictions:
    """Predict rows with a finished run.

    Args:
        settings: Settings of `PredictConfig`.
        stdin: Standard input; read if the settings name no rows.

    Raises:
        UserError: The run is not finished, there are no rows, or rows come from two sources. During the
            iteration: a row cannot be predicted.
    """
    from bertkit.commands.explain import require_explainable
    from bertkit.run.load_check import warn_about_padding

    config = PredictConfig(**validate_settings(PredictConfig, settings, "predict()"))
    config = expand_path_settings(config, "run", "output")
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
    devices.report_device(predictor.model)
    run_config = predictor.task.config
    for model in predictor.loaded_models if run_config.eval_batch_size > 1 else ():
        warn_about_padding(model, predictor.tokenizer, run_config.max_length)
    predictor = predictor.use_columns(collect_passed_columns(config, predictor.task, config.run))
    row_chunks = _iter_row_chunks(predictor.task, config, texts_by_flag, stdin)
    return Predictions(keep_reporter(_iter_prediction_chunks(predictor, row_chunks, config)))


def _iter_row_chunks(
    task: "Task",
    config: PredictConfig,
    texts_by_flag: Mapping[str, list[str]],
    stdin: BinaryIO | None,
) -> Iterator["Rows"]:
    if config.data:
        chunks = iter_data_rows(task, config.data, config.data_dir, config.encoding)
    elif texts_by_flag:
        chunks = iter_flag_rows(task, texts_by_flag)
    else:
        chunks = iter_stdin_rows(task, stdin, config.encoding)
    return align_chunks_to_groups(task, chunks)


def _iter_prediction_chunks(
    predictor: "Predictor", row_chunks: Iterable["Rows"], config: PredictConfig
) -> Iterator[PredictionChunk]:
    truncation = TruncationCounter()
    for rows in row_chunks:
        predictor.map_columns(rows)
        description = f"rows {rows.row_numbers[0]:,} to {rows.row_numbers[-1]:,}"
        with silence_libraries():
            evaluation = predictor.evaluate_without_labels(rows, description)
        truncation.add(evaluation.outputs.features)
        records = list(predictor.iter_records(rows, evaluation, "all" if config.all_scores else "compact"))
        if config.explain:
            from bertkit.commands.explain import explain

            explanations = explain(predictor, cast("SequenceEvaluation", evaluation))
            records = [record | added.to_dict() for record, added in zip(records, explanations, strict=True)]
        yield PredictionChunk(records, evaluation, predictor.task.definition.name)
    truncation.report(predictor.task.config.max_length)


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


TABLE_FILE = "predictions.arrow"


def build_dataset(chunks: Iterable[list[dict[str, Any]]]) -> "Dataset":
    """Return the records of all chunks as a memory-mapped dataset.

    The types of the columns are known only after the last chunk. Each chunk is therefore written to a file of
    its own first. All files are deleted when the process ends.

    Raises:
        UserError: There are no records, the disk is full, or a column has values of different types.
    """
    from datasets import Dataset

    folder = write_to_temporary(lambda folder: _write_chunks(chunks, folder), "the predictions")
    return Dataset.from_file(str(folder / TABLE_FILE))


def _write_chunks(chunks: Iterable[list[dict[str, Any]]], folder: Path) -> None:
    """Write all records to `TABLE_FILE` in a directory."""
    import pyarrow as pa

    schemas: list[pa.Schema] = []
    try:
        for number, records in enumerate(chunk for chunk in chunks if chunk):
            table = _make_table(records)
            schemas.append(table.schema)
            _write_table(folder / f"{number}.arrow", table)
        if not schemas:
            raise UserError("predictions: there are no rows; pass data with rows")
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"predictions: a column has values of different types ({reason}); iterate over the records"
        ) from error
    _join_tables([folder / f"{number}.arrow" for number in range(len(schemas))], folder / TABLE_FILE, schema)


def _join_tables(parts: Iterable[Path], path: Path, schema: "pa.Schema") -> None:
    """Write the rows of several files to one file with this schema, and delete the parts."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for part in parts:
            with pa.memory_map(str(part)) as source:
                writer.write_table(_fill_schema(pa.ipc.open_stream(source).read_all(), schema))
            part.unlink()


def _make_table(records: list[dict[str, Any]]) -> "pa.Table":
    """Return records as a table; a key that a record lacks is null."""
    import pyarrow as pa

    columns = {}
    for name in dict.fromkeys(name for record in records for name in record):
        try:
            columns[name] = pa.array([record.get(name) for record in records])
        except (pa.ArrowException, OverflowError) as error:  # the latter for integers of more than 64 bits
            raise UserError(
                f"predictions: column {name!r} cannot be stored in one Arrow column "
                f"({str(error).splitlines()[0]}); leave out the column, or iterate over the records"
            ) from error
    return pa.table(columns)


def _write_table(path: Path, table: "pa.Table") -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _fill_schema(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """Return a table with the columns and the types of a schema; columns that it lacks are null."""
    import pyarrow as pa

    return pa.concat_tables([schema.empty_table(), table], promote_options="permissive").select(schema.names)

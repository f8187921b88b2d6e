"""`predict`: predict rows in chunks, and serialize the predictions as JSON lines, CSV or CoNLL."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import typer
from rich.text import Text

from bertkit.commands.configs import PREDICT_TEXT_SETTINGS, PredictConfig
from bertkit.commands.inputs import (
    TruncationCounter,
    collect_passed_columns,
    format_flag,
    iter_data_rows,
    iter_flag_rows,
    iter_stdin_rows,
)
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.run.predictor import Predictor, align_chunks_to_groups, load_predictor
from bertkit.settings.declaration import expand_path_settings
from bertkit.settings.validation import validate_settings
from bertkit.tasks.base import Evaluation, ScoreDetail
from bertkit.tasks.text.task import SequenceEvaluation
from bertkit.tasks.trained_model import load_run_task
from bertkit.utils.cache import write_to_temporary
from bertkit.utils.console import get_piped_stdin, out_console, print_json, print_records
from bertkit.utils.files import check_output_file, expand_home, write_chunks
from bertkit.utils.reporting import keep_reporter, silence_libraries
from bertkit.utils.text import replace_control_characters, replace_non_finite

if TYPE_CHECKING:  # predict imports neither of them, which are slow
    from datasets import Dataset
    from pandas import DataFrame

PredictionFormat = Literal["jsonl", "csv", "conll"]
FORMAT_BY_SUFFIX: dict[str, PredictionFormat] = {
    ".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".conll": "conll",
}  # fmt: skip
CONLL_FILE = "predictions.conll"  # written only by tasks that tag words
TABLE_FILE = "predictions.arrow"


@dataclass(frozen=True)
class PredictionChunk:
    """Prediction records of one chunk of rows, and the evaluation that they were made from.

    The evaluation of ranked rows is None, because they have another order.
    """

    records: list[dict[str, Any]]
    evaluation: Evaluation | None
    task_name: str


@dataclass(frozen=True)
class Predictions:
    """Prediction records, which are computed during the iteration. They can be iterated only once."""

    chunks: Iterator[PredictionChunk]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for chunk in self.chunks for record in chunk.records)

    def to_dataset(self) -> "Dataset":
        """Compute all predictions, and return them as a `datasets.Dataset`, memory-mapped from disk."""
        return build_dataset(chunk.records for chunk in self.chunks)

    def to_pandas(self) -> "DataFrame":
        """Compute all predictions, and return the records as a `pandas.DataFrame`; see `to_dataset`."""
        return self.to_dataset().to_pandas()


def predict(settings: Mapping[str, Any], stdin: BinaryIO | None = None) -> Predictions:
    """Predict rows with a finished run. Standard input is read if the settings name no rows."""
    config = PredictConfig(**validate_settings(PredictConfig, settings, "predict()"))
    config = expand_path_settings(config, "run", "output")
    texts_by_flag = {name: list(texts) for name in PREDICT_TEXT_SETTINGS if (texts := getattr(config, name))}
    if config.data and texts_by_flag:
        flag = format_flag(next(iter(texts_by_flag)))
        raise UserError(f"--data {config.data}: cannot be combined with {flag}; pass one of them")
    if config.output is not None:
        check_output_file(Path(config.output), config.overwrite)
    if config.explain:
        from bertkit.commands.explain import require_explainable  # imports torch

        require_explainable(load_run_task(Path(config.run)), config.run)
    # The faster layers of inference compute no gradients.
    predictor = load_predictor(config.run, config.explain, config.device).use_batch_size(config.batch_size)
    if config.explain:
        from bertkit.utils import devices

        predictor.model.to(devices.select_device())
    if config.rank_for_labeling:
        from bertkit.commands.label_ranking import require_rankable  # imports torch

        require_rankable(predictor, config.run)
    predictor.report_device()
    predictor.warn_about_padding()
    predictor = predictor.use_columns(collect_passed_columns(config, predictor.task, config.run))
    if config.data:
        chunks = iter_data_rows(predictor.task, config)
    elif texts_by_flag:
        chunks = iter_flag_rows(predictor.task, texts_by_flag)
    else:
        chunks = iter_stdin_rows(predictor.task, stdin, config.encoding)
    row_chunks = align_chunks_to_groups(predictor.task, chunks)
    return Predictions(keep_reporter(_iter_prediction_chunks(predictor, row_chunks, config)))


def _iter_prediction_chunks(
    predictor: Predictor, row_chunks: Iterable[Rows], config: PredictConfig
) -> Iterator[PredictionChunk]:
    truncation, ranking = TruncationCounter(), None
    if config.rank_for_labeling:
        from bertkit.commands.label_ranking import LabelRanking  # imports torch

        ranking = LabelRanking(predictor)
    scores: ScoreDetail = "all" if config.all_scores else "compact"
    for rows in row_chunks:
        if ranking:
            rows = ranking.prepare_rows(rows)
        predictor.map_columns(rows)
        description = f"rows {rows.row_numbers[0]:,} to {rows.row_numbers[-1]:,}"
        with silence_libraries():
            evaluation = predictor.evaluate_without_labels(rows, description)
        truncation.add(evaluation.outputs.features)
        added = ranking.add(rows, evaluation) if ranking else None
        records = list(predictor.iter_records(rows, evaluation, scores, added))
        if config.explain:
            from bertkit.commands.explain import explain  # imports torch

            explanations = explain(predictor, cast("SequenceEvaluation", evaluation))
            records = [record | added.to_dict() for record, added in zip(records, explanations, strict=True)]
        if ranking:
            ranking.records += records
        else:
            yield PredictionChunk(records, evaluation, predictor.task.definition.name)
    truncation.report(predictor.task.config.max_length)
    if ranking and ranking.records:
        yield PredictionChunk(ranking.order_records(), None, predictor.task.definition.name)


# ---- formats


def serialize_predictions(
    chunks: Iterable[PredictionChunk], output_format: PredictionFormat
) -> Iterator[str]:
    """Yield the predictions as text, in chunks. The first chunk determines the columns of CSV."""
    columns: list[str] = []
    for chunk in chunks:
        if output_format == "jsonl":
            yield from (_to_json(replace_non_finite(record)) + "\n" for record in chunk.records)
            continue
        if output_format == "conll":
            files = chunk.evaluation.format_files() if chunk.evaluation else {}
            if CONLL_FILE not in files:
                raise UserError(f"--format conll: {chunk.task_name} does not tag words; use jsonl or csv")
            yield from files[CONLL_FILE]
            continue
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


def build_dataset(chunks: Iterable[list[dict[str, Any]]]) -> "Dataset":
    """Return the records of all chunks as a memory-mapped dataset.

    The types of the columns are known only after the last chunk. Each chunk is therefore written to a file of
    its own first. All files are deleted when the process ends.
    """
    from datasets import Dataset

    folder = write_to_temporary(lambda folder: _write_records(chunks, folder), "the predictions")
    return Dataset.from_file(str(folder / TABLE_FILE))


def _write_records(chunks: Iterable[list[dict[str, Any]]], folder: Path) -> None:
    """Write all records to `TABLE_FILE` in a directory."""
    import pyarrow as pa

    schemas: list[Any] = []
    try:
        for number, records in enumerate(chunk for chunk in chunks if chunk):
            table = _make_table(records)
            schemas.append(table.schema)
            path = str(folder / f"{number}.arrow")
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        if not schemas:
            raise UserError("predictions: there are no rows; pass data with rows")
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"predictions: a column has values of different types ({reason}); iterate over the records"
        ) from error
    with pa.OSFile(str(folder / TABLE_FILE), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for number in range(len(schemas)):
            part = folder / f"{number}.arrow"
            with pa.memory_map(str(part)) as source:
                table = pa.ipc.open_stream(source).read_all()
                # Columns that a part lacks are null.
                tables = [schema.empty_table(), table]
                writer.write_table(
                    pa.concat_tables(tables, promote_options="permissive").select(schema.names)
                )
            part.unlink()


def _make_table(records: list[dict[str, Any]]) -> Any:
    """Return records as an Arrow table; a key that a record lacks is null."""
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


# ---- command line

MAX_WORDS = 5  # of an explanation, in a cell of the printed table
POSITIVE_COLOR, NEGATIVE_COLOR = (0, 150, 60), (200, 40, 40)  # on a black background


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    output, file_format = settings.get("output"), _choose_format(settings, as_json)
    predictions = predict(settings, get_piped_stdin())
    if output:
        path, count = expand_home(output), 0

        def count_records() -> Iterator[PredictionChunk]:
            nonlocal count
            for chunk in predictions.chunks:
                count += len(chunk.records)
                yield chunk

        write_chunks(path, serialize_predictions(count_records(), file_format))
        typer.echo(f"{path}: {format_count(count, 'prediction')}", err=True)
        if as_json:
            print_json({"output": output, "rows": count})
    elif as_json:
        print_json({"predictions": list(predictions)})
    elif file_format == "table":
        for chunk in predictions.chunks:
            _print_table(chunk.records)
    else:
        for text in serialize_predictions(predictions.chunks, file_format):
            sys.stdout.write(text)


def _choose_format(settings: Mapping[str, Any], as_json: bool) -> Any:
    """Return the format from `--format`, or from the suffix of `--output`.

    Otherwise, it is a table on a terminal and jsonl elsewhere. `--json` without `--output` has no format.
    """
    file_format, output = settings.get("format"), settings.get("output")
    if as_json and file_format:
        raise UserError(f"--format {file_format}: cannot be combined with --json; leave out one of them")
    if as_json and output is None:
        return None
    if output and file_format == "table":
        raise UserError(
            f"--format table: cannot be written to a file (--output {output}); pass jsonl, csv or conll"
        )
    if not file_format and not output:
        return "table" if sys.stdout.isatty() else "jsonl"
    suffix = PurePath(output or "").suffix.lower()
    if not file_format and suffix not in FORMAT_BY_SUFFIX:
        raise UserError(
            f"--output {output}: has an unknown suffix; use {format_list(FORMAT_BY_SUFFIX)}, or pass --format"
        )
    chosen = file_format or FORMAT_BY_SUFFIX[suffix]
    if chosen == "conll" and settings.get("rank_for_labeling"):
        flag = "--format conll" if file_format else f"--output {output}"
        raise UserError(f"{flag}: a CoNLL file has no ranks; use jsonl or csv with --rank-for-labeling")
    return chosen


def _print_table(records: Sequence[Mapping[str, Any]]) -> None:
    """Print records as a table. With `--explain`, also print the words of each record.

    The table has the most important words, such as "bad +1.23". Below it, words are shaded by their
    attributions relative to the highest one: green for the predicted label, red against it.
    """
    rows = []
    for record in records:
        row = dict(record)
        if "explanation" in record:
            words = sorted(record["explanation"], key=lambda word: -abs(word["attribution"]))[:MAX_WORDS]
            row["explanation"] = ", ".join(f"{word['word']} {word['attribution']:+.2f}" for word in words)
        rows.append(flatten_record(row))
    print_records(rows)
    for record in records:
        if "explanation" not in record:
            continue
        from bertkit.reports.page import compute_strengths  # imports matplotlib

        text = Text(f"{record['id']}: ")
        strengths = compute_strengths([word["attribution"] for word in record["explanation"]])
        for number, (word, strength) in enumerate(zip(record["explanation"], strengths, strict=True)):
            color = POSITIVE_COLOR if strength > 0 else NEGATIVE_COLOR
            red, green, blue = (round(abs(strength) * part) for part in color)
            style = f"white on rgb({red},{green},{blue})" if strength else ""
            text.append(" " if number else "").append(replace_control_characters(word["word"]), style)
        out_console.print(text, soft_wrap=True)

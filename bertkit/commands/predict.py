"""`predict`: predict rows in chunks, and serialize the predictions as JSON lines, CSV or CoNLL."""

import csv
import io
import json
import os
import sys
import uuid
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from glob import glob, has_magic
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypedDict, cast

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
from bertkit.models.loading import is_linear_text_model
from bertkit.run.predictor import (
    Predictor,
    align_chunks_to_groups,
    load_prediction_task,
    load_predictor,
    supports_gpu,
)
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import RAY_SETTINGS, expand_path_settings, get_settings
from bertkit.settings.validation import validate_settings
from bertkit.tasks.base import Evaluation, ScoreDetail, Task
from bertkit.tasks.text.task import SequenceEvaluation
from bertkit.tasks.trained_model import load_run_task
from bertkit.utils.cache import write_to_temporary
from bertkit.utils.console import get_piped_stdin, out_console, print_json, print_records
from bertkit.utils.files import (
    check_output_file,
    create_directory,
    expand_home,
    write_chunks,
    write_text,
)
from bertkit.utils.reporting import (
    Reporter,
    keep_reporter,
    report_info,
    report_warning,
    silence_libraries,
    track_progress,
    use_reporter,
)
from bertkit.utils.system import read_int
from bertkit.utils.text import format_signed, replace_control_characters, replace_non_finite, validate
from bertkit.utils.worker_processes import (
    WorkerProcess,
    check_process_count,
    divide_machine,
    enter_worker,
    require_one_executor,
)

if TYPE_CHECKING:  # predict imports neither of them, which are slow
    from datasets import Dataset
    from pandas import DataFrame

    from bertkit.commands.label_ranking import LabelRanking

PredictionFormat = Literal["jsonl", "csv", "conll"]
FORMAT_BY_SUFFIX: dict[str, PredictionFormat] = {
    ".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".conll": "conll",
}  # fmt: skip
CONLL_FILE = "predictions.conll"  # written only by tasks that tag words
TABLE_FILE = "predictions.arrow"
PREDICTED_WITH = "predicted-with.json"  # the run and the settings of a directory of predictions
# What a worker process imports in addition, by whether the model is a linear one.
RUN_MODULES = {True: ["bertkit.models.linear_text", "scipy.sparse"], False: ["bertkit.training.scoring"]}


@dataclass(frozen=True)
class PredictionChunk:
    """Prediction records of one chunk of rows, and the evaluation that they were made from.

    The evaluation of ranked rows is None, because they have another order, and so is that of a worker
    process. A worker process has serialized the records if the format has no columns: the text replaces them.
    """

    records: list[dict[str, Any]]
    evaluation: Evaluation | None
    count: int  # of the records
    text: str | None = None


@dataclass(frozen=True)
class Predictions:
    """Prediction records, which are computed during the iteration. They can be iterated only once."""

    chunks: Generator[PredictionChunk]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for chunk in self.chunks for record in chunk.records)

    def to_dataset(self) -> "Dataset":
        """Compute all predictions, and return them as a `datasets.Dataset`, memory-mapped from disk."""
        return build_dataset(chunk.records for chunk in self.chunks)

    def to_pandas(self) -> "DataFrame":
        """Compute all predictions, and return the records as a `pandas.DataFrame`; see `to_dataset`."""
        return self.to_dataset().to_pandas()


def predict(
    settings: Mapping[str, Any],
    stdin: BinaryIO | None = None,
    output_format: "PredictionFormat | None" = None,
) -> Predictions:
    """Predict rows with a finished run. Standard input is read if the settings name no rows.

    Worker processes serialize their predictions if the output format is known.
    """
    config = _make_config(settings)
    if config.output is not None:
        check_output_file(Path(config.output), config.overwrite)
    task = _check_config(config, output_format)
    texts_by_flag = {name: list(texts) for name in PREDICT_TEXT_SETTINGS if (texts := getattr(config, name))}
    if config.ray or config.nproc > 1:
        predict_elsewhere = _predict_on_ray if config.ray else _predict_in_workers
        results = predict_elsewhere(
            _iter_rows(config, task, texts_by_flag, stdin),
            WorkerInputs(replace(config, data=None), output_format),  # the rows are sent in chunks
        )
        return Predictions(keep_reporter(_merge_results(results)))
    predictor = _load_predictor(config)
    row_chunks = _iter_rows(config, predictor.task, texts_by_flag, stdin)
    return Predictions(keep_reporter(_iter_prediction_chunks(predictor, row_chunks, config)))


def _make_config(settings: Mapping[str, Any]) -> PredictConfig:
    config = PredictConfig(**validate_settings(PredictConfig, settings, "predict()"))
    return expand_path_settings(config, "run", "output")


def _check_config(config: PredictConfig, output_format: PredictionFormat | None) -> Task:
    """Check what can be checked without the model and the rows; return the task of the run."""
    text_flags = [format_flag(name) for name in PREDICT_TEXT_SETTINGS if getattr(config, name)]
    if config.data and text_flags:
        raise UserError(f"--data {config.data}: cannot be combined with {text_flags[0]}; pass one of them")
    if config.explain:
        from bertkit.commands.explain import require_explainable  # imports torch

        require_explainable(load_run_task(Path(config.run)), config.run)
    task = load_prediction_task(config.run)
    collect_passed_columns(config, task, config.run)
    if output_format == "conll" and not task.definition.reads_conll:
        raise UserError(f"--format conll: {task.definition.name} does not tag words; use jsonl or csv")
    if flag := require_one_executor(config, "nproc"):
        if not config.ray:
            check_process_count(config.nproc, config.device if supports_gpu(config.run) else "cpu")
        if config.rank_for_labeling:
            raise UserError(
                f"{flag}: cannot be combined with --rank-for-labeling, which compares all rows; pass one of "
                "them"
            )
    return task


def _load_predictor(config: PredictConfig) -> Predictor:
    """Load the model of the run for the settings, and report how it predicts."""
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
    return predictor.use_columns(collect_passed_columns(config, predictor.task, config.run))


def _iter_rows(
    config: PredictConfig, task: Task, texts_by_flag: Mapping[str, list[str]], stdin: BinaryIO | None
) -> Iterator[Rows]:
    """Yield the rows to predict in chunks, which do not depend on the number of processes."""
    if config.data:
        chunks = iter_data_rows(task, config)
    elif texts_by_flag:
        chunks = iter_flag_rows(task, texts_by_flag)
    else:
        chunks = iter_stdin_rows(task, stdin, config.encoding)
    return align_chunks_to_groups(task, chunks)


def _iter_prediction_chunks(
    predictor: Predictor, row_chunks: Iterable[Rows], config: PredictConfig
) -> Iterator[PredictionChunk]:
    truncation, ranking = TruncationCounter(), None
    if config.rank_for_labeling:
        from bertkit.commands.label_ranking import LabelRanking  # imports torch

        ranking = LabelRanking(predictor)
    for rows in row_chunks:
        chunk = _predict_chunk(predictor, rows, config, truncation, ranking)
        if ranking:
            ranking.records += chunk.records
        else:
            yield chunk
    truncation.report(predictor.task.config.max_length)
    if ranking and ranking.records:
        records = ranking.order_records()
        yield PredictionChunk(records, None, len(records))


def _predict_chunk(
    predictor: Predictor,
    rows: Rows,
    config: PredictConfig,
    truncation: TruncationCounter,
    ranking: "LabelRanking | None" = None,
) -> PredictionChunk:
    """Predict one chunk of rows."""
    if ranking:
        rows = ranking.prepare_rows(rows)
    predictor.map_columns(rows)
    description = f"rows {rows.row_numbers[0]:,} to {rows.row_numbers[-1]:,}"
    with silence_libraries():
        evaluation = predictor.evaluate_without_labels(rows, description)
    truncation.add(evaluation.outputs.features)
    added = ranking.add(rows, evaluation) if ranking else None
    scores: ScoreDetail = "all" if config.all_scores else "compact"
    records = list(predictor.iter_records(rows, evaluation, scores, added))
    if config.explain:
        from bertkit.commands.explain import explain  # imports torch

        explanations = explain(predictor, cast("SequenceEvaluation", evaluation))
        records = [record | added.to_dict() for record, added in zip(records, explanations, strict=True)]
    return PredictionChunk(records, evaluation, len(records))


# ---- in several processes

PENDING_CALLS = 2  # of each worker process, so that it never waits for this process
KEPT_CHUNKS = 4  # of each worker process, in memory, because a chunk before them is not predicted yet


@dataclass(frozen=True)
class WorkerInputs:
    """What a worker process needs in addition to the rows."""

    config: PredictConfig
    output_format: PredictionFormat | None
    folder: str = field(default_factory=os.getcwd)  # in which relative paths are valid
    key: str = field(default_factory=lambda: uuid.uuid4().hex)  # of the command

    @property
    def missing(self) -> str:
        """What the output lacks after an error."""
        output = self.config.output
        return f"{output} was not written" if output else "the predictions are incomplete"


@dataclass(frozen=True)
class WorkerResult:
    """What a worker process returns for a chunk of rows."""

    chunk: PredictionChunk
    truncation: TruncationCounter
    max_length: int
    messages: Sequence[tuple[str, bool]]  # with whether each is a warning


class _KeepingReporter(Reporter):
    """A reporter that keeps messages for the main process."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bool]] = []

    def info(self, message: str) -> None:
        self.messages.append((message, False))

    def warn(self, message: str) -> None:
        self.messages.append((message, True))


def _predict_in_workers(row_chunks: Iterable[Rows], inputs: WorkerInputs) -> Iterator[WorkerResult]:
    """Yield the predictions of worker processes of this machine, in the order of the rows."""
    config = inputs.config
    uses_gpu = config.device in ("auto", "cuda")
    modules = ["bertkit.commands.predict", *RUN_MODULES[is_linear_text_model(expand_home(config.run))]]
    workers = []
    with ExitStack() as stack:
        for number in range(config.nproc):
            worker = WorkerProcess(modules, divide_machine(number, config.nproc, uses_gpu), enter_worker)
            stack.callback(worker.kill)
            workers.append(worker)
        yield from _map_in_order(workers, row_chunks, inputs)


def _map_in_order(
    workers: Sequence[WorkerProcess], row_chunks: Iterable[Rows], inputs: WorkerInputs
) -> Iterator[WorkerResult]:
    """Predict each chunk in the worker process with the least work, and yield the results in order."""
    calls: deque[tuple[WorkerProcess, Future[WorkerResult]]] = deque()
    remaining = iter(row_chunks)

    def count_calls(worker: WorkerProcess) -> int:
        return sum(other is worker and not future.done() for other, future in calls)

    try:
        while True:
            while len(calls) < KEPT_CHUNKS * len(workers):
                worker = min(workers, key=count_calls)
                if count_calls(worker) == PENDING_CALLS or (rows := next(remaining, None)) is None:
                    break
                calls.append((worker, worker.submit(_predict_in_worker, inputs, rows)))
            if not calls:
                return
            worker, future = calls[0]
            if future.done():
                calls.popleft()
                yield future.result()
            else:
                wait([future for _, future in calls if not future.done()], return_when=FIRST_COMPLETED)
    except BrokenProcessPool:
        raise UserError(
            f"--nproc: a worker process {worker.describe_end('--nproc')}, and {inputs.missing}; pass a "
            "smaller --nproc or --batch-size if memory ran out"
        ) from None


def _predict_on_ray(row_chunks: Iterable[Rows], inputs: WorkerInputs) -> Iterator[WorkerResult]:
    """Yield the predictions of the processes of a Ray cluster, in the order of the rows."""
    from bertkit.utils import ray_cluster  # imports ray

    with ray_cluster.connect(inputs.config) as cluster:
        cluster.check_nodes([inputs.config.run])
        yield from cluster.map_in_order(
            _predict_in_worker, inputs, row_chunks, inputs.missing,
            "start again, with more --num-cpus or a smaller --batch-size if memory ran out",
        )  # fmt: skip


def _merge_results(results: Iterable[WorkerResult]) -> Iterator[PredictionChunk]:
    """Yield the predictions, and report the messages of all worker processes, each once."""
    truncation, reported = TruncationCounter(), set()
    max_length = 0
    for result in track_progress(results, None, "rows", lambda result: result.chunk.count):
        for message, is_warning in result.messages:
            if message not in reported:
                reported.add(message)
                (report_warning if is_warning else report_info)(message)
        truncation.merge(result.truncation)
        max_length = result.max_length
        yield result.chunk
    truncation.report(max_length)


_loaded: tuple[str, Predictor] | None = None  # in a worker process, with the key of the command


def _predict_in_worker(inputs: WorkerInputs, rows: Rows) -> WorkerResult:
    """Predict a chunk of rows; the first one loads the model."""
    global _loaded
    reporter, truncation = _KeepingReporter(), TruncationCounter()
    with use_reporter(reporter):
        if _loaded is None or _loaded[0] != inputs.key:
            os.chdir(inputs.folder)
            predictor = _load_predictor(inputs.config)
            if "torch" in sys.modules:
                import torch

                torch.set_num_threads(read_int("OMP_NUM_THREADS", 0) or torch.get_num_threads())
            _loaded = inputs.key, predictor
        _, predictor = _loaded
        chunk = _predict_chunk(predictor, rows, inputs.config, truncation)
    if inputs.output_format == "csv":
        chunk = replace(chunk, records=[flatten_record(record) for record in chunk.records])
    elif inputs.output_format is not None:
        text = "".join(_iter_serialized(chunk, inputs.output_format))
        chunk = replace(chunk, records=[], text=text)
    max_length = predictor.task.config.max_length
    return WorkerResult(replace(chunk, evaluation=None), truncation, max_length, reporter.messages)


# ---- formats


def serialize_predictions(
    chunks: Iterable[PredictionChunk], output_format: PredictionFormat
) -> Iterator[str]:
    """Yield the predictions as text, in chunks. The first chunk determines the columns of CSV."""
    columns: list[str] = []
    for chunk in chunks:
        if output_format != "csv":
            yield from [chunk.text] if chunk.text is not None else _iter_serialized(chunk, output_format)
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


def _iter_serialized(chunk: PredictionChunk, output_format: PredictionFormat) -> Iterator[str]:
    """Yield the text of a chunk in a format without columns."""
    if output_format == "jsonl":
        yield from (_to_json(replace_non_finite(record)) + "\n" for record in chunk.records)
        return
    assert chunk.evaluation is not None
    yield from chunk.evaluation.format_files()[CONLL_FILE]


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
                f"({str(error).splitlines()[0]}); omit the column, or iterate over the records"
            ) from error
    return pa.table(columns)


# ---- command line

MAX_WORDS = 5  # of an explanation, in a cell of the printed table
POSITIVE_COLOR, NEGATIVE_COLOR = (0, 150, 60), (200, 40, 40)  # on a black background


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    data = settings.get("data")
    if isinstance(data, str) and has_magic(data) and not expand_home(data).exists():
        _predict_files(settings, as_json)
        return
    if settings.get("resume"):
        raise UserError("--resume: applies only to several files; pass a pattern such as --data 'rows-*.csv'")
    output, file_format = settings.get("output"), _choose_format(settings, as_json)
    is_serialized = file_format not in (None, "table")
    predictions = predict(settings, get_piped_stdin(), file_format if is_serialized else None)
    with closing(predictions.chunks):  # which ends the worker processes
        _write(predictions, output, file_format, as_json)


def _predict_files(settings: dict[str, Any], as_json: bool) -> None:
    """Predict the files that match a pattern, each into a file of its own in the directory of `--output`.

    A file is written atomically. What exists is therefore complete, and `--resume` leaves it out.
    """
    pattern = settings["data"]
    matches = glob(str(expand_home(pattern)))  # noqa: PTH207 - a pattern may be absolute
    paths = sorted(filter(Path.is_file, map(Path, matches)))
    if not paths:
        raise UserError(f"--data {pattern}: matches no file; pass another pattern, in quotes")
    if not settings.get("output"):
        raise UserError(f"--data {pattern}: predicts each matching file; pass a directory with --output")
    settings = {**settings, "format": settings.get("format") or "jsonl"}
    output_format = _choose_format(settings, as_json=False)
    folder = expand_home(settings["output"])
    outputs = {path: folder / f"{path.stem}.{output_format}" for path in paths}
    if clash := next((each for each, count in Counter(outputs.values()).items() if count > 1), None):
        names = format_list([str(path) for path, output in outputs.items() if output == clash])
        raise UserError(f"--data {pattern}: {names} would all be written to {clash}; narrow the pattern")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file; pass a directory")
    if not folder.exists() and folder.suffix in FORMAT_BY_SUFFIX:
        raise UserError(
            f"--output {folder}: is the name of a file; with a pattern in --data, pass a directory"
        )
    if any(folder.resolve() in (path.parent.resolve(), path.resolve().parent) for path in paths):
        raise UserError(f"--output {folder}: has the rows of --data; pass another directory")
    if settings.get("resume") and settings.get("overwrite"):
        raise UserError("--resume: cannot be combined with --overwrite; pass one of them")
    config = _make_config(settings)
    _check_config(config, output_format)
    is_new, identity = not folder.exists(), _identify(config, outputs)
    if settings.get("resume") and not is_new:
        identity["files"] = _require_same(folder, identity, outputs) | identity["files"]
    elif not is_new and any(folder.iterdir()) and not settings.get("overwrite"):
        raise UserError(f"--output {folder}: has files; pass --resume, --overwrite or another directory")
    create_directory(folder)
    if not settings.get("resume"):
        for output in outputs.values():  # before an interruption could leave them with the new identity
            check_output_file(output, overwrite=True)
            output.unlink(missing_ok=True)
    write_text(folder / PREDICTED_WITH, json.dumps(identity))
    try:
        for number, (path, output) in enumerate(outputs.items(), start=1):
            if settings.get("resume") and output.exists():
                report_info(f"file {number:,} of {len(paths):,}: {output} is complete")
                continue
            report_info(f"file {number:,} of {len(paths):,}: {path}")
            file_settings = {**settings, "data": str(path), "output": str(output)}
            run_command({**file_settings, "overwrite": True, "resume": False}, as_json=False)
    finally:
        if [path.name for path in folder.iterdir()] == [PREDICTED_WITH]:  # no file was predicted
            (folder / PREDICTED_WITH).unlink()
            if is_new:
                folder.rmdir()
    if as_json:
        print_json({"output": str(folder), "files": [str(output) for output in outputs.values()]})


class PredictedWith(TypedDict):
    """What the predictions in a directory depend on. `--resume` refuses another one."""

    settings: dict[str, Any]
    model: str  # its hash
    files: dict[str, tuple[str, int, int]]  # path, size and time of the rows, by the name of the output


# They do not change predictions, or other keys of `PredictedWith` have them.
FREE_SETTINGS = frozenset({
    "run", "data", "output", "overwrite", "resume", "nproc", "batch_size", "device", *RAY_SETTINGS,
})  # fmt: skip


def _identify(config: PredictConfig, outputs: Mapping[Path, Path]) -> PredictedWith:
    settings = {
        name: value
        for name, declared in get_settings(PredictConfig).items()
        if name not in FREE_SETTINGS and (value := getattr(config, name)) != declared.default
    }
    files = {}
    for path, output in outputs.items():
        status = path.stat()
        files[output.name] = str(path.resolve()), status.st_size, status.st_mtime_ns
    return {"settings": settings, "model": RunDir(Path(config.run)).hash_model(), "files": files}


def _require_same(
    folder: Path, identity: PredictedWith, outputs: Mapping[Path, Path]
) -> dict[str, tuple[str, int, int]]:
    """Check that existing predictions are those of the identity; return the files of all predictions."""
    path = folder / PREDICTED_WITH
    if not path.is_file():
        if any(folder.iterdir()):
            raise UserError(f"--resume: {folder} has files, but no {PREDICTED_WITH}; pass another directory")
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    saved: PredictedWith = validate(content, PredictedWith, path, "pass another directory, or --overwrite")
    existing = {output.name for output in outputs.values() if output.exists()}
    differing = [name for name in sorted(existing) if saved["files"].get(name) != identity["files"][name]]
    if saved["settings"] != json.loads(json.dumps(identity["settings"])):
        problem = f"{folder} has predictions with other settings"
    elif saved["model"] != identity["model"]:
        problem = f"{folder} has predictions of another model"
    elif differing:
        problem = f"{folder / differing[0]} has predictions of other rows"
    else:
        return saved["files"]
    raise UserError(f"--resume: {problem}; pass --overwrite")


def _write(predictions: Predictions, output: str | None, file_format: Any, as_json: bool) -> None:
    """Write the predictions to a file, or print them."""
    if output:
        path, count = expand_home(output), 0

        def count_records() -> Iterator[PredictionChunk]:
            nonlocal count
            for chunk in predictions.chunks:
                count += chunk.count
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
        raise UserError(f"--format {file_format}: cannot be combined with --json; omit one of them")
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
            row["explanation"] = ", ".join(
                f"{word['word']} {format_signed(word['attribution'], '+.2f')}" for word in words
            )
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

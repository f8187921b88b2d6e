"""`predict`: rows in, predictions out, some at a time."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from bertkit.config import DATA, OUTPUT, Settings, setting
from bertkit.errors import UserError
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.data.rows import Rows
    from bertkit.infer.predictor import Predictor
    from bertkit.infer.writers import PredictionBatch
    from bertkit.tasks.base import Task

PREDICT_HELP = "Predict with a finished run: rows of a file, texts, or lines on standard input."
OUTPUT_SETTINGS = ("output", "overwrite", "format")  # settings of the command alone
TEXT_SETTINGS = ("text", "text_pair", "question", "context", "ending")  # settings that are texts of a row


@dataclass(frozen=True, kw_only=True)
class PredictConfig(Settings):
    """The settings of `bertkit predict`."""

    run: str = setting(
        dataclasses.MISSING, "A finished run, or a folder that it was exported to.", OUTPUT, positional=True,
        values="runs",
    )  # fmt: skip
    data: str | None = setting(None, "Rows in any form that training reads.", DATA, values="data")
    data_dir: str | None = setting(
        None, "Where data sets lie as they are distributed (environment: BERTKIT_DATA_DIR).", DATA
    )
    text: list[str] = setting((), "A text. Repeatable, as the flags that follow.", DATA)
    text_pair: list[str] = setting((), "The second text, of a run on pairs.", DATA)
    question: list[str] = setting((), "The question, of a run of qa.", DATA)
    context: list[str] = setting((), "The paragraph, of a run of qa, or the context, of one of swag.", DATA)
    ending: list[str] = setting((), "An ending, of a run of swag.", DATA)
    all_scores: bool = setting(False, "Also the scores of what is not predicted.", OUTPUT)
    output: str | None = setting(
        None, "File for the predictions, .jsonl, .csv or .conll.", OUTPUT, flags=("--output", "-o"),
        default_text="standard output",
    )  # fmt: skip
    overwrite: bool = setting(False, "Replace the file of --output.", OUTPUT)
    format: Literal["table", "jsonl", "csv", "conll"] | None = setting(
        None,
        "Their form.",
        OUTPUT,
        default_text="by the file's ending; else a table at a terminal, else jsonl",
    )
    batch_size: int | None = setting(
        None, "Rows scored at a time.", OUTPUT, min=1, default_text="as in training"
    )


@dataclass(frozen=True)
class Predictions:
    """Predictions that are made while they are read.

    Attributes:
        parts: some records at a time, with what they were made from.
    """

    batches: "Iterator[PredictionBatch]"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for part in self.batches for record in part.records)


def predict(
    settings: Mapping[str, Any], reporter: Reporter | None = None, stdin: BinaryIO | None = None
) -> Predictions:
    """The predictions of a finished run.

    Args:
        settings: those of `PredictConfig`.
        piped: standard input, read where nothing else is named.

    Raises:
        UserError: no finished run, nothing to predict or two sources of it; and while they are read, a row
            that cannot be predicted.
    """
    from bertkit.infer.predictor import load_predictor

    config, reporter = (
        PredictConfig(**validate_settings(PredictConfig, settings, "predict()")),
        reporter or Reporter(),
    )
    said = {name: list(texts) for name in TEXT_SETTINGS if (texts := getattr(config, name))}
    if config.data and said:
        flag = "--" + next(iter(said)).replace("_", "-")
        raise UserError(f"--data {config.data}: leave it out, or {flag}; rows come from one of them")
    _check_output(config)
    predictor = load_predictor(config.run)
    if config.batch_size:
        predictor.task.config = dataclasses.replace(predictor.task.config, eval_batch_size=config.batch_size)
    rows = _asked(predictor.task, config, said, stdin, reporter)
    return Predictions(_parts(predictor, rows, config.all_scores, reporter))


def _check_output(config: PredictConfig) -> None:
    if config.output is None:
        return
    path = Path(config.output)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--output {path}: {'is a folder' if path.is_dir() else 'no such folder'}")
    if path.exists() and not config.overwrite:
        raise UserError(f"--output {path}: is there already; --overwrite replaces it")


def _asked(
    task: "Task", config: PredictConfig, said: Mapping[str, list[str]], piped: BinaryIO | None,
    reporter: Reporter,
) -> Iterator["Rows"]:  # fmt: skip
    from bertkit.infer import rows
    from bertkit.infer.predictor import align_chunks_to_groups

    if config.data:
        parts = rows.iter_data_rows(task, config.data, config.data_dir, reporter)
    elif said:
        parts = rows.iter_flag_rows(task, said)
    else:
        parts = rows.iter_stdin_rows(task, piped)
    return align_chunks_to_groups(task, parts)


def _parts(
    predictor: "Predictor", parts: Iterable["Rows"], all_scores: bool, reporter: Reporter
) -> Iterator["PredictionBatch"]:
    from bertkit.infer.inputs import TruncationCounter
    from bertkit.infer.writers import PredictionBatch
    from bertkit.utils.quiet import silence_libraries

    cut = TruncationCounter()
    for rows in parts:
        predictor.map_columns(rows, reporter)
        with silence_libraries():
            evaluation = predictor.evaluate_unlabeled(
                rows, reporter, f"rows {rows.row_numbers[0]:,} to {rows.row_numbers[-1]:,}"
            )
        cut.add(evaluation.outputs.features)
        records = list(predictor.iter_records(rows, evaluation, "all" if all_scores else "compact"))
        yield PredictionBatch(records, evaluation, predictor.task.spec.name)
    cut.report(predictor.task.config.max_length, reporter)

"""`bertkit predict`: print or write predictions as a table, JSON lines, CSV or CoNLL columns."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.streams import get_piped_stdin, print_json
from bertkit.commands.configs import PREDICT_HELP, PredictConfig
from bertkit.errors import UserError, format_count
from bertkit.utils.files import expand_home

if TYPE_CHECKING:
    from bertkit.commands.predict import PredictionChunk, Predictions


def _run(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.predict import predict

    output, file_format = settings.get("output"), _choose_format(settings, as_json)
    predictions = predict(settings, get_piped_stdin())
    if output:
        count = _write_file(predictions, expand_home(output), file_format)
        if as_json:
            print_json({"output": output, "rows": count})
    elif as_json:
        print_json({"predictions": list(predictions)})
    else:
        _print_predictions(predictions, file_format)


def _choose_format(settings: dict[str, Any], as_json: bool) -> Any:
    """Return the format from `--format`, or from the suffix of `--output`.

    Otherwise, it is a table on a terminal and jsonl elsewhere. `--json` without `--output` has no format.
    """
    from bertkit.commands.predict import infer_format

    file_format, output = settings.get("format"), settings.get("output")
    if as_json and file_format:
        raise UserError(f"--format {file_format}: cannot be combined with --json; leave out one of them")
    if as_json and output is None:
        return None
    if output and file_format == "table":
        raise UserError(
            f"--format table: cannot be written to a file (--output {output}); pass jsonl, csv or conll"
        )
    if file_format:
        return file_format
    if output:
        return infer_format(output)
    return "table" if sys.stdout.isatty() else "jsonl"


def _write_file(predictions: "Predictions", path: Path, file_format: Any) -> int:
    """Write predictions in chunks, and return their number."""
    from bertkit.commands.predict import serialize_predictions
    from bertkit.utils.files import write_chunks

    count = 0

    def count_records() -> "Iterator[PredictionChunk]":
        nonlocal count
        for chunk in predictions.chunks:
            count += len(chunk.records)
            yield chunk

    write_chunks(path, serialize_predictions(count_records(), file_format))
    typer.echo(f"{path}: {format_count(count, 'prediction')}", err=True)
    return count


def _print_predictions(predictions: "Predictions", file_format: Any) -> None:
    from bertkit.cli.console import print_explanations, print_records, summarize_explanation
    from bertkit.commands.predict import flatten_record, serialize_predictions

    if file_format != "table":
        for text in serialize_predictions(predictions.chunks, file_format):
            sys.stdout.write(text)
        return
    for chunk in predictions.chunks:
        print_records([flatten_record(summarize_explanation(record)) for record in chunk.records])
        print_explanations(chunk.records)


predict = build_command(PredictConfig, PREDICT_HELP, _run)

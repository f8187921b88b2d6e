"""`bertkit predict`: predictions as a table, JSON lines, CSV or a column file."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.stdin import get_piped_stdin
from bertkit.errors import UserError, format_count
from bertkit.infer.configs import PREDICT_HELP, PredictConfig

if TYPE_CHECKING:
    from bertkit.infer.predict import Predictions


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.infer.predict import predict

    output, form = given.get("output"), _form(given, as_json)
    made = predict(given, ConsoleReporter(), get_piped_stdin())
    if output:
        count = _to_file(made, Path(output), form)
        if as_json:
            typer.echo(json.dumps({"output": output, "rows": count}))
    elif as_json:
        typer.echo(json.dumps({"predictions": list(made)}, ensure_ascii=False, default=str))
    else:
        _to_console(made, form)


def _form(given: dict[str, Any], as_json: bool) -> Any:
    """As asked, by the file's ending, or as fits who reads."""
    from bertkit.infer.predict import infer_format

    form, output = given.get("format"), given.get("output")
    if as_json and (form or output is None):
        if form:
            raise UserError(f"--format {form}: --json has a form of its own; leave out one of them")
        return None
    if output and form == "table":
        raise UserError(
            f"--format table: is for the terminal; a file takes jsonl, csv or conll (--output {output})"
        )
    return form or (infer_format(output) if output else "table" if sys.stdout.isatty() else "jsonl")


def _to_file(made: "Predictions", path: Path, form: Any) -> int:
    from bertkit.infer.predict import serialize_predictions
    from bertkit.utils.files import write_chunks

    count = 0

    def passed() -> Any:
        nonlocal count
        for part in made.batches:
            count += len(part.records)
            yield part

    write_chunks(path, serialize_predictions(passed(), form))
    typer.echo(f"{path}: {format_count(count, 'prediction')}", err=True)
    return count


def _to_console(made: "Predictions", form: Any) -> None:
    from bertkit.cli.console import print_records
    from bertkit.infer.predict import flatten_record, serialize_predictions

    if form != "table":
        for text in serialize_predictions(made.batches, form):
            sys.stdout.write(text)
        return
    for part in made.batches:
        print_records([flatten_record(record) for record in part.records])


predict = build_command(PredictConfig, PREDICT_HELP, _run)

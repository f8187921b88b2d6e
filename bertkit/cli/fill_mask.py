"""`bertkit fill-mask`: the words a model expects."""

import json
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.stdin import get_piped_stdin
from bertkit.infer.configs import FILL_MASK_HELP, FillMaskConfig


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.infer.fill_mask import fill_mask

    found = fill_mask(given, ConsoleReporter(), get_piped_stdin())
    if as_json:
        typer.echo(json.dumps({"model": found.model, "texts": found.texts}, ensure_ascii=False))
        return
    for one in found.texts:
        _print_text(one)


def _print_text(one: dict[str, Any]) -> None:
    from rich.table import Table

    from bertkit.cli.console import out_console, to_plain_text

    table = Table(title=to_plain_text(one["text"]), title_justify="left")
    several = len(one["masks"]) > 1
    if several:
        table.add_column("mask", justify="right")
    table.add_column("word")
    table.add_column("probability", justify="right")
    table.add_column("filled")
    for number, words in enumerate(one["masks"], start=1):
        for word in words:
            first = [str(number)] if several else []
            table.add_row(
                *first,
                to_plain_text(word["word"]),
                f"{word['probability']:.3f}",
                to_plain_text(word["filled"]),
            )
        table.add_section()
    out_console.print(table)


fill_mask = build_command(FillMaskConfig, FILL_MASK_HELP, _run)

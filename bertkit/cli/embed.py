"""`bertkit embed`: vectors to a file, the rows nearest to a query, one word in several texts."""

import json
from collections.abc import Mapping
from typing import Any

import typer

from bertkit.cli.options import settings_command
from bertkit.cli.piped import piped
from bertkit.errors import UserError, counted
from bertkit.infer.embed import HELP, EmbedConfig

ASKED = {"output", "query", "word", "index"}  # without any of them nothing would be seen of the vectors
SHOWN = 12  # occurrences of a word: --json has more


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.infer.embed import embed

    if not ASKED & given.keys():
        raise UserError("--output is missing: a file for the vectors (.npy, .parquet, .safetensors)")
    made = embed(given, ConsoleReporter(), piped())
    where = {"output": str(made.output)} if made.output else {}
    if as_json:
        found = {"results": made.results} if made.results else {}
        typer.echo(json.dumps({**where, **made.figures, **found, **(made.word or {})}, ensure_ascii=False))
        return
    for result in made.results:
        _print_hits(result)
    if made.word:
        _print_word(made.word)
    if made.output:
        figures = made.figures
        typer.echo(
            f"{made.output}: {counted(figures['rows'], 'vector')} "
            f"of {figures['dimensions']:,} ({figures['dtype']}), "
            f"{figures['model']}, layer {figures['layer']}, {figures['pooling']}; "
            f"{figures['rows_per_second']:,.0f} rows/s"
        )


def _print_hits(result: Mapping[str, Any]) -> None:
    from rich.table import Table

    from bertkit.cli.console import out, plain

    table = Table(title=plain(result["query"]), title_justify="left")
    for heading in ("rank", "cosine", "row"):
        table.add_column(heading, justify="right")
    if "text" in result["hits"][0]:
        table.add_column("text", no_wrap=True, max_width=max(20, out.width - 36))  # what the numbers leave
    for hit in result["hits"]:
        texts = [" ".join(hit["text"].split())] if "text" in hit else []
        table.add_row(str(hit["rank"]), f"{hit['cosine']:.3f}", str(hit["row"]), *map(plain, texts))
    out.print(table)


def _print_word(about: Mapping[str, Any]) -> None:
    """The matrix of similarities, and beside it what static vectors would say."""
    from rich.table import Table

    from bertkit.cli.console import out, plain

    occurrences = about["occurrences"][:SHOWN]
    table = Table(title=plain(f"{about['word']}: cosines of its vectors"), title_justify="left")
    table.add_column("row", justify="right")
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=60)
    for one in occurrences:
        table.add_column(str(one["row"]), justify="right")
    for one, cosines in zip(occurrences, about["similarities"], strict=False):
        text = plain(one["text"])
        text.stylize("bold", one["start"], one["stop"])
        table.add_row(str(one["row"]), text, *(f"{cosine:.2f}" for cosine in cosines[:SHOWN]))
    out.print(table)
    if len(about["occurrences"]) > SHOWN:
        out.print(f"the first {SHOWN} of {len(about['occurrences']):,} occurrences")
    static = [cosine for cosines in about["static"] for cosine in cosines]
    low, high = f"{min(static):.2f}", f"{max(static):.2f}"
    between = f"{high} everywhere" if low == high else f"{low} to {high}"
    out.print(f"static (the word embeddings alone, which read no text): {between}")


embed = settings_command(EmbedConfig, HELP, _run)

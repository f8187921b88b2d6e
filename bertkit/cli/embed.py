"""`bertkit embed`: vectors to a file, the rows nearest to a query, one word in several texts."""

import json
from collections.abc import Mapping
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.stdin import get_piped_stdin
from bertkit.errors import UserError, format_count
from bertkit.infer.configs import EMBED_HELP, EmbedConfig

RESULT_SETTINGS = {
    "output",
    "query",
    "word",
    "index",
}  # without any of them nothing would be seen of the vectors
MAX_OCCURRENCES = 12  # occurrences of a word: --json has more


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.infer.embed import embed

    if not RESULT_SETTINGS & given.keys():
        raise UserError("--output is missing: a file for the vectors (.npy, .parquet, .safetensors)")
    made = embed(given, ConsoleReporter(), get_piped_stdin())
    where = {"output": str(made.output)} if made.output else {}
    if as_json:
        found = {"results": made.results} if made.results else {}
        typer.echo(
            json.dumps(
                {**where, **made.metadata, **found, **(made.word_comparison or {})}, ensure_ascii=False
            )
        )
        return
    for result in made.results:
        _print_hits(result)
    if made.word_comparison:
        _print_word(made.word_comparison)
    if made.output:
        figures = made.metadata
        typer.echo(
            f"{made.output}: {format_count(figures['rows'], 'vector')} "
            f"of {figures['dimensions']:,} ({figures['dtype']}), "
            f"{figures['model']}, layer {figures['layer']}, {figures['pooling']}; "
            f"{figures['rows_per_second']:,.0f} rows/s"
        )


def _print_hits(result: Mapping[str, Any]) -> None:
    from rich.table import Table

    from bertkit.cli.console import out_console, to_plain_text

    table = Table(title=to_plain_text(result["query"]), title_justify="left")
    for heading in ("rank", "cosine", "row"):
        table.add_column(heading, justify="right")
    if "text" in result["hits"][0]:
        table.add_column(
            "text", no_wrap=True, max_width=max(20, out_console.width - 36)
        )  # what the numbers leave
    for hit in result["hits"]:
        texts = [" ".join(hit["text"].split())] if "text" in hit else []
        table.add_row(str(hit["rank"]), f"{hit['cosine']:.3f}", str(hit["row"]), *map(to_plain_text, texts))
    out_console.print(table)


def _print_word(about: Mapping[str, Any]) -> None:
    """The matrix of similarities, and beside it what static vectors would say."""
    from rich.table import Table

    from bertkit.cli.console import out_console, to_plain_text

    occurrences = about["occurrences"][:MAX_OCCURRENCES]
    table = Table(title=to_plain_text(f"{about['word']}: cosines of its vectors"), title_justify="left")
    table.add_column("row", justify="right")
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=60)
    for one in occurrences:
        table.add_column(str(one["row"]), justify="right")
    for one, cosines in zip(occurrences, about["similarities"], strict=False):
        text = to_plain_text(one["text"])
        text.stylize("bold", one["start"], one["stop"])
        table.add_row(str(one["row"]), text, *(f"{cosine:.2f}" for cosine in cosines[:MAX_OCCURRENCES]))
    out_console.print(table)
    if len(about["occurrences"]) > MAX_OCCURRENCES:
        out_console.print(f"the first {MAX_OCCURRENCES} of {len(about['occurrences']):,} occurrences")
    static = [cosine for cosines in about["static"] for cosine in cosines]
    low, high = f"{min(static):.2f}", f"{max(static):.2f}"
    between = f"{high} everywhere" if low == high else f"{low} to {high}"
    out_console.print(f"static (the word embeddings alone, which read no text): {between}")


embed = build_command(EmbedConfig, EMBED_HELP, _run)

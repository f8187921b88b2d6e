"""`bertkit embed`: write vectors, search for similar rows, and compare a word in its contexts."""

from collections.abc import Mapping
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.streams import get_piped_stdin, print_json
from bertkit.commands.configs import EMBED_HELP, EmbedConfig
from bertkit.errors import UserError, format_count

RESULT_SETTINGS = {"output", "query", "word", "index"}  # the command requires one of them
MAX_OCCURRENCES = 12  # rows and columns of the printed matrix; --json prints more
# Widths in characters: the limits of the text column, and all other columns of the table of hits.
MIN_TEXT_WIDTH, MAX_TEXT_WIDTH, NUMBERS_WIDTH = 20, 100, 36


def _run(settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.embed import embed

    if not RESULT_SETTINGS & settings.keys():
        raise UserError("--output is missing; pass a file for the vectors (.npy, .parquet)")
    result = embed(settings, get_piped_stdin())
    if as_json:
        output = {"output": str(result.output)} if result.output else {}
        hits = {"results": result.results} if result.results else {}
        print_json({**output, **result.metadata, **hits, **(result.word_comparison or {})})
        return
    for query_result in result.results:
        _print_hits(query_result)
    if result.word_comparison:
        _print_word_comparison(result.word_comparison)
    if result.output:
        typer.echo(f"{result.output}: {_describe_vectors(result.metadata)}")


def _describe_vectors(metadata: Mapping[str, Any]) -> str:
    return (
        f"{format_count(metadata['rows'], 'vector')} with {metadata['dimensions']:,} dimensions "
        f"({metadata['dtype']}), {metadata['model']}, layer {metadata['layer']}, {metadata['pooling']}; "
        f"{metadata['rows_per_second']:,.0f} rows/s"
    )


def _print_hits(query_result: Mapping[str, Any]) -> None:
    """Print the rows that are most similar to a query. Queries and texts are shortened to one line."""
    from rich.table import Table

    from bertkit.cli.console import out_console, to_plain_text

    hits, width = query_result["hits"], _get_text_width(out_console.width)
    title = to_plain_text(" ".join(query_result["query"].split()))
    title.truncate(width + NUMBERS_WIDTH, overflow="ellipsis")
    table = Table(title=title, title_justify="left")
    for heading in ("rank", "cosine", "row"):
        table.add_column(heading, justify="right")
    if "text" in hits[0]:
        table.add_column("text", no_wrap=True, max_width=width)
    for hit in hits:
        texts = [" ".join(hit["text"].split())] if "text" in hit else []
        table.add_row(str(hit["rank"]), f"{hit['cosine']:.3f}", str(hit["row"]), *map(to_plain_text, texts))
    out_console.print(table)


def _get_text_width(console_width: int) -> int:
    return min(MAX_TEXT_WIDTH, max(MIN_TEXT_WIDTH, console_width - NUMBERS_WIDTH))


def _print_word_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the cosine similarities of the vectors of a word, and those of its static embeddings."""
    from rich.table import Table

    from bertkit.cli.console import out_console, to_plain_text

    occurrences = comparison["occurrences"][:MAX_OCCURRENCES]
    title = to_plain_text(f"{comparison['word']}: cosine similarities of its vectors")
    table = Table(title=title, title_justify="left")
    table.add_column("row", justify="right")
    table.add_column("text", no_wrap=True, overflow="ellipsis", max_width=60)
    for occurrence in occurrences:
        table.add_column(str(occurrence["row"]), justify="right")
    for occurrence, cosines in zip(occurrences, comparison["similarities"], strict=False):
        text = to_plain_text(occurrence["text"])
        text.stylize("bold", occurrence["start"], occurrence["stop"])
        cells = (f"{cosine:.2f}" for cosine in cosines[:MAX_OCCURRENCES])
        table.add_row(str(occurrence["row"]), text, *cells)
    out_console.print(table)
    if len(comparison["occurrences"]) > MAX_OCCURRENCES:
        out_console.print(f"first {MAX_OCCURRENCES} of {len(comparison['occurrences']):,} occurrences")
    static = [cosine for cosines in comparison["static"] for cosine in cosines]
    low, high = f"{min(static):.2f}", f"{max(static):.2f}"
    cosines = high if low == high else f"{low} to {high}"
    out_console.print(f"cosine similarities of the static word embeddings, without context: {cosines}")


embed = build_command(EmbedConfig, EMBED_HELP, _run)

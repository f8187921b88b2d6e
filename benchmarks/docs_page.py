"""Write results to the pages of the documentation.

    python benchmarks/docs_page.py

replaces the tables of docs/benchmarks.md by those of the measurements in docs/benchmarks/. The benchmarks
append to these files: `--out docs/benchmarks/training.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from harness import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
MEASUREMENTS = ROOT / "docs" / "benchmarks"  # a file of measurements for each section of the page
MAX_SLOWDOWN = 0.05
RATE = re.compile(r"/s\b")
DURATION = re.compile(r"(?<!['/])\b(?:s|ms|µs|min)\b")
Measurement = Mapping[str, Any]  # as harness.read_report returns it
Table = Mapping[str, Any]


def format_table(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a Markdown table with a name and right-aligned measurements per row."""
    head = f"| | {' | '.join(columns)} |"
    body = [f"| {' | '.join([name, *cells])} |" for name, cells in rows.items()]
    return [head, f"|---|{'---:|' * len(columns)}", *body]


def replace_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace the text between the two comments with this name.

    Raises:
        SystemExit: the page has no such comments.
    """
    content = page.read_text("utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if content.count(begin) != 1 or content.count(end) != 1:
        raise SystemExit(f"{page}: needs the lines {begin.strip()} and {end}, once each")
    before, rest = content.split(begin)
    page.write_text(f"{before}{begin}{text.strip()}\n{end}{rest.split(end)[1]}", "utf-8")


# ---- the page of benchmarks


def format_section(name: str, measurements: Sequence[Measurement]) -> str:
    """Return the newest tables of a file of measurements, with their machines and commands."""
    newest = [
        (measured, table, find_table(reversed(measurements[:position]), measured, table))
        for position, measured in enumerate(measurements)
        for table in measured["tables"]
        if find_table(measurements[position + 1 :], measured, table) is None
    ]
    lines: list[str] = []
    for (about, facts), block in groupby(newest, lambda each: (each[0]["about"], format_facts(each[0]))):
        entries = list(block)
        commands = dict.fromkeys(command for measured, _, _ in entries for command in measured["commands"])
        lines += [about, ""] if about else []
        for columns, group in groupby(entries, lambda each: each[1]["columns"]):
            lines += [*format_tables(columns, [(table, earlier) for _, table, earlier in group]), ""]
        lines += [f"{facts}:", "", "```sh", *commands, "```", ""]
    return "\n".join([*lines, f"[All numbers as JSON](benchmarks/{name}.json)"])


def find_table(measurements: Iterable[Measurement], measured: Measurement, table: Table) -> Table | None:
    """Return the first table with the same title, commands and machine."""
    for other in measurements:
        if all(other[key] == measured[key] for key in ("machine", "commands")):
            for found in other["tables"]:
                if found["title"] == table["title"]:
                    return dict(found)
    return None


def format_facts(measured: Measurement) -> str:
    """Return where and when something was measured."""
    return ", ".join(measured[key] for key in ("machine", "versions", "date", "commit") if measured[key])


def format_tables(columns: Sequence[str], tables: Sequence[tuple[Table, Table | None]]) -> list[str]:
    """Join tables with the same columns, each with an earlier one to compare with, to a Markdown table."""
    rows = []
    for table, earlier in tables:
        title = [f"**{table['title']}**", *[""] * (len(columns) - 1)]
        rows += [*([title] if table["title"] else []), *format_rows(table, earlier)]
    numeric = map(
        any, zip(*(map(is_number, row) for table, _ in tables for row in table["rows"]), strict=True)
    )
    alignments = ["---:" if is_numeric else "---" for is_numeric in numeric]
    return [f"| {' | '.join(cells)} |" for cells in (columns, alignments, *rows)]


def format_rows(table: Table, earlier: Table | None) -> list[list[str]]:
    """Format the numbers of a column with the same number of decimals, and mark those that are slower."""
    before: dict[tuple[tuple[str, ...], str], Any] = {}
    if earlier:
        for row in earlier["rows"]:
            before |= {
                (get_row_name(row), column): cell
                for column, cell in zip(earlier["columns"], row, strict=True)
            }
    names = [get_row_name(row) for row in table["rows"]]
    formatted = []
    for column, *cells in zip(table["columns"], *table["rows"], strict=True):
        decimals = max((len(str(cell).partition(".")[2]) for cell in cells if is_number(cell)), default=0)
        formatted.append(
            [
                f"{cell:,.{decimals}f}{mark_slower(column, cell, before.get((name, column)))}"
                if is_number(cell)
                else cell
                for name, cell in zip(names, cells, strict=True)
            ]
        )
    return [list(row) for row in zip(*formatted, strict=True)]


def mark_slower(column: str, cell: Any, earlier: Any) -> str:
    """Return a mark if a time is longer, or a rate lower, by more than 5 %."""
    if not (is_number(cell) and is_number(earlier) and cell and earlier):
        return ""
    if RATE.search(column):
        slowdown = 1 - cell / earlier
    elif DURATION.search(column):
        slowdown = cell / earlier - 1
    else:
        return ""
    return f" ({slowdown:.0%} slower)" if slowdown > MAX_SLOWDOWN else ""


def get_row_name(row: Sequence[Any]) -> tuple[str, ...]:
    """Return the cells of a row that are not measured."""
    return tuple(cell for cell in row if not is_number(cell))


def is_number(cell: Any) -> bool:
    """Return whether a cell is a number."""
    return isinstance(cell, int | float)


def main() -> None:
    """Replace the tables of the page by those of the files."""
    for file in sorted(MEASUREMENTS.glob("*.json")):
        replace_section(file.stem, format_section(file.stem, json.loads(file.read_text("utf-8"))))


if __name__ == "__main__":
    main()

"""`bertkit check TASK`: data checks before training, printed as tables and a list of findings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.streams import print_json, replace_control_characters
from bertkit.cli.usage_errors import CommandGroup
from bertkit.commands.configs import CHECK_HELP, make_check_config
from bertkit.errors import UserError, format_count
from bertkit.tasks import TASKS, task_definition

if TYPE_CHECKING:
    from rich.table import Table

    from bertkit.commands.check import CheckReport
    from bertkit.tasks.checks import Finding

MAX_LABELS = 12  # rows of the table of labels
MAX_BAR_WIDTH = 20  # characters
MIN_SCRIPT_FRACTION = 0.0005  # smaller fractions are rounded to 0.0%
LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}

app = typer.Typer(cls=CommandGroup, help=CHECK_HELP, no_args_is_help=True)


def _run(task_name: str, settings: dict[str, Any], as_json: bool) -> None:
    from bertkit.commands.check import check

    is_strict = settings.pop("strict", False)
    report = check(task_name, settings)
    if as_json:
        print_json(report.as_dict())
    else:
        print_check_report(report)
    errors, warnings = report.count("error"), report.count("warning")
    if errors:
        raise UserError(
            f"{format_count(errors, 'error')} in the data: training would stop; fix the errors listed above"
        )
    if is_strict and warnings:
        raise UserError(
            f"{format_count(warnings, 'warning')} in the data: --strict treats warnings as errors; "
            "fix those listed above or leave out --strict"
        )


for _task_name in TASKS:
    _config = make_check_config(task_definition(_task_name).config)
    app.command(_task_name)(
        build_command(_config, f"Check data for `bertkit {_task_name}`.", partial(_run, _task_name))
    )


# ---- the printed report


def print_check_report(report: "CheckReport") -> None:
    """Print a table of splits, a table of labels, and the findings."""
    from bertkit.cli.console import out_console

    source = f"{report.data['name']} from {report.data['source']}"
    out_console.print(source, markup=False, soft_wrap=True, style="bold")
    if report.summary:
        out_console.print(report.summary, markup=False, soft_wrap=True)
    out_console.print(_build_split_table(report))
    label_counts = {
        name: statistics["labels"] for name, statistics in report.splits.items() if statistics.get("labels")
    }
    if label_counts:
        out_console.print(_build_label_table(label_counts))
    for finding in report.findings:
        _print_finding(finding)
    level_counts = [
        format_count(count, level)
        for level in LEVEL_STYLES
        if (count := report.count(level))  # type: ignore[arg-type]
    ]
    out_console.print(", ".join(level_counts) or "no problems found")


def _build_split_table(report: "CheckReport") -> "Table":
    """Build a table of the rows, token lengths, [UNK] tokens and scripts of each split.

    Columns without any value are left out.
    """
    from rich.table import Table

    from bertkit.cli.console import to_plain_text

    formatters: dict[str, Callable[[Mapping[str, Any]], str]] = {
        f"{task_definition(report.task).unit}s": lambda statistics: f"{statistics['rows']:,}",
        **{name: partial(_format_length, name) for name in ("median", "95%", "longest")},
        f"over {report.max_length}": partial(_format_fraction_of, "over"),
        "[UNK]": partial(_format_fraction_of, "unknown"),
        "script": _format_scripts,
    }
    columns = {
        heading: cells
        for heading, formatter in formatters.items()
        if any(cells := [formatter(statistics) for statistics in report.splits.values()])
    }
    table = Table()
    table.add_column(to_plain_text(f"in tokens of {report.model}" if report.model else ""))
    for heading in columns:
        # As plain text, because [UNK] looks like markup.
        table.add_column(to_plain_text(heading), justify="left" if heading == "script" else "right")
    for name, *cells in zip(report.splits, *columns.values(), strict=True):
        table.add_row(name, *cells)
    return table


def _format_length(name: str, statistics: Mapping[str, Any]) -> str:
    return f"{statistics['lengths'][name]:,}" if "lengths" in statistics else ""


def _format_fraction_of(name: str, statistics: Mapping[str, Any]) -> str:
    return f"{statistics[name]:.1%}" if name in statistics else ""


def _format_scripts(statistics: Mapping[str, Any]) -> str:
    """Format the fractions of scripts: `Latin 99.8%, Greek 0.2%`, or `Latin 100%`."""
    scripts = {
        name: fraction
        for name, fraction in statistics.get("scripts", {}).items()
        if fraction >= MIN_SCRIPT_FRACTION
    }
    return ", ".join(
        f"{name} {fraction:.1%}" if fraction < 1 - MIN_SCRIPT_FRACTION else f"{name} {fraction:.0%}"
        for name, fraction in scripts.items()
    )


def _build_label_table(counts: Mapping[str, Mapping[str, int]]) -> "Table":
    """Build a table with the count and the fraction of each label, and with bars for the first split.

    Args:
        counts: Number of rows by split and label.
    """
    from rich.table import Table
    from rich.text import Text

    from bertkit.cli.console import to_plain_text

    labels = list(dict.fromkeys(label for split_counts in counts.values() for label in split_counts))
    table = Table("label", "")
    for split in counts:
        table.add_column(split, justify="right")
    first_split = next(iter(counts.values()))
    max_count = max(first_split.values())
    for label in labels[:MAX_LABELS]:
        width = max(1, round(MAX_BAR_WIDTH * first_split.get(label, 0) / max_count))
        bar = Text("█" * width if label in first_split else "", "cyan")
        cells = [_format_label_count(label, split_counts) for split_counts in counts.values()]
        table.add_row(to_plain_text(label), bar, *cells)
    if len(labels) > MAX_LABELS:
        table.add_row(f"... and {len(labels) - MAX_LABELS:,} more", "")
    return table


def _format_label_count(label: str, counts: Mapping[str, int]) -> str:
    count = counts.get(label, 0)
    return f"{count:,} ({count / sum(counts.values()):.1%})"


def _print_finding(finding: "Finding") -> None:
    from rich.text import Text

    from bertkit.cli.console import out_console

    line = Text(finding.level, LEVEL_STYLES[finding.level])
    line.append(f"  {replace_control_characters(finding.message)}", "default")
    out_console.print(line, soft_wrap=True)
    names_all_rows = all(row in finding.message for row in finding.rows)
    if not names_all_rows:
        num_omitted = finding.count - len(finding.rows)
        suffix = f", and {num_omitted:,} more" if num_omitted > 0 else ""
        rows_line = f"    {_format_rows(finding.rows)}{suffix}"
        out_console.print(rows_line, markup=False, soft_wrap=True, style="dim")
    if finding.fix:
        out_console.print(f"    {finding.fix}", markup=False, soft_wrap=True)


def _format_rows(rows: Sequence[str]) -> str:
    """Format row locations as `train.csv: row 3, row 9`; each file is named once, without its directory."""
    parts = []
    previous_file = None
    for location in rows:
        file, separator, row = location.partition(": ")
        parts.append(row if file == previous_file else f"{Path(file).name}{separator}{row}")
        previous_file = file
    return ", ".join(parts)

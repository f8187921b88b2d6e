"""What a look at the data found, for people: counts first, then findings, errors before warnings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bertkit.checks.base import Finding
from bertkit.checks.engine import CheckReport
from bertkit.cli.console import out_console, to_plain_text
from bertkit.cli.escape import replace_control_characters
from bertkit.tasks import task_class

MAX_LABELS = 12  # labels shown
MAX_BAR_WIDTH = 20  # of the longest bar
LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def print_check_report(report: CheckReport) -> None:
    """Rows, lengths and scripts by split; labels with bars; findings."""
    out_console.print(
        f"{report.data['name']} from {report.data['source']}", markup=False, soft_wrap=True, style="bold"
    )
    if report.summary:
        out_console.print(report.summary, markup=False, soft_wrap=True)
    out_console.print(_splits(report))
    if any(figures.get("labels") for figures in report.splits.values()):
        out_console.print(_labels(report.splits))
    for finding in report.findings:
        _print_finding(finding)
    counts = [
        f"{count} {level}{'s' * (count != 1)}"
        for level in LEVEL_STYLES
        if (count := report.count(level))  # type: ignore[arg-type]
    ]
    out_console.print(", ".join(counts) or "nothing to say against it")


def _splits(seen: CheckReport) -> Table:
    """Of each split its rows, how long its texts are in pieces, what is unknown of them, and their script."""
    heads: dict[str, Callable[[Mapping[str, Any]], str]] = {
        f"{task_class(seen.task).spec.unit}s": lambda figures: f"{figures['rows']:,}",
        **{name: partial(_length, name) for name in ("median", "95%", "longest")},
        f"over {seen.max_length}": partial(_share, "over"),
        "unknown": partial(_share, "unknown"),
        "script": _scripts,
    }
    table = Table()
    table.add_column(to_plain_text(f"in pieces of {seen.model}" if seen.model else ""))
    shown = {head: tell for head, tell in heads.items() if any(map(tell, seen.splits.values()))}
    for head in shown:
        table.add_column(head, justify="left" if head == "script" else "right")
    for name, figures in seen.splits.items():
        table.add_row(name, *(tell(figures) for tell in shown.values()))
    return table


def _length(which: str, figures: Mapping[str, Any]) -> str:
    return f"{figures['lengths'][which]:,}" if "lengths" in figures else ""


def _share(which: str, figures: Mapping[str, Any]) -> str:
    return f"{figures[which]:.1%}" if which in figures else ""


def _scripts(figures: Mapping[str, Any]) -> str:
    shares = figures.get("scripts", {}).items()
    return ", ".join(f"{name} {_rounded(share)}" for name, share in shares if share >= 0.0005)


def _rounded(share: float) -> str:
    return f"{share:.1%}" if 0.0005 <= share < 0.9995 else f"{share:.0%}"


def _labels(splits: Mapping[str, Mapping[str, Any]]) -> Table:
    """Of each label its count and share by split, a bar for the first."""
    counts = {name: figures.get("labels") or {} for name, figures in splits.items()}
    counts = {name: labels for name, labels in counts.items() if labels}
    names = list(dict.fromkeys(label for labels in counts.values() for label in labels))
    table = Table("label", "")
    for name in counts:
        table.add_column(name, justify="right")
    first = next(iter(counts.values()))
    for label in names[:MAX_LABELS]:
        bar = "█" * max(1, round(MAX_BAR_WIDTH * first.get(label, 0) / max(first.values())))
        cells = [
            f"{some.get(label, 0):,} ({some.get(label, 0) / sum(some.values()):.1%})"
            for some in counts.values()
        ]
        table.add_row(to_plain_text(label), Text(bar if label in first else "", "cyan"), *cells)
    if len(names) > MAX_LABELS:
        table.add_row(f"... and {len(names) - MAX_LABELS:,} more", "")
    return table


def _print_finding(finding: Finding) -> None:
    head = Text(finding.level, LEVEL_STYLES[finding.level])
    out_console.print(
        head.append(f"  {replace_control_characters(finding.message)}", "default"), soft_wrap=True
    )
    more = finding.count - len(finding.rows)
    if finding.rows and finding.rows != [row for row in finding.rows if row in finding.message]:
        rest = f", and {more:,} more" if more > 0 else ""
        out_console.print(f"    {_in_files(finding.rows)}{rest}", markup=False, soft_wrap=True, style="dim")
    if finding.fix:
        out_console.print(f"    {finding.fix}", markup=False, soft_wrap=True)


def _in_files(places: Sequence[str]) -> str:
    """`train.csv: row 3, row 9`: a file is named where it is another than before, without its folder."""
    told, before = [], None
    for place in places:
        file, mark, row = place.partition(": ")
        told.append(row if file == before else f"{Path(file).name}{mark}{row}")
        before = file
    return ", ".join(told)

"""Write results to docs/benchmarks.md, and draw its charts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
STYLESHEET = ROOT / "bertkit" / "reports" / "templates" / "page.css"


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


def draw_bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Draw a bar chart with a group per workload, as SVG with light and dark colors.

    Args:
        groups: workload -> system -> speed relative to the baseline, whose bar ends at 1.
    """
    from bertkit.charts import ACCENT, GRID, INK, LINE_COLORS, MUTED, WIDTH

    sizes = [len(group) for group in groups.values()]
    height = 24 * sum(sizes) + 34 * len(sizes) + 10
    limit = 1.15 * max(value for group in groups.values() for value in group.values())

    def draw(axes: Any) -> None:
        for panel, (name, group) in zip([axes] if len(groups) == 1 else axes, groups.items(), strict=True):
            colors = [ACCENT if label.startswith("bertkit") else LINE_COLORS[4] for label in group]
            panel.barh(range(len(group)), list(group.values()), color=colors, height=0.62)
            for place, value in enumerate(group.values()):
                panel.text(value + 0.02 * limit, place, f"{value:.2f}", va="center", fontsize=9.5)
            panel.axvline(1, color=MUTED, linewidth=1, dashes=(4, 3))
            panel.set_title(name, loc="left", fontsize=10.5, color=INK)
            panel.set(xlim=(0, limit), ylim=(len(group) - 0.5, -0.5))
            panel.set_yticks(range(len(group)), list(group), fontsize=9.5)
            panel.tick_params(axis="y", labelcolor=INK)
            panel.tick_params(axis="x", labelbottom=False)
            panel.spines[:].set_color(GRID)
        longest = max(len(label) for group in groups.values() for label in group)
        edge = 22 / height
        figure = panel.figure
        figure.subplots_adjust(left=(12 + 5.1 * longest) / WIDTH, top=1 - edge, bottom=edge / 3, hspace=0.35)

    return _render(title, draw, sizes, height)


def draw_stacked_bars(
    title: str, panels: Mapping[str, Mapping[str, Mapping[str, float]]], parts: Sequence[str]
) -> str:
    """Draw stacked bars with a panel per workload, as SVG with light and dark colors.

    Each panel has its own scale, in which the longest bar has length 1. The sum is printed next to each bar.

    Args:
        panels: workload -> bar -> part -> value.
        parts: The parts, in the order in which they are stacked.
    """
    from bertkit.charts import GRID, INK, LINE_COLORS, MUTED, WIDTH

    colors = dict(zip(parts, [*LINE_COLORS, MUTED, GRID, INK], strict=True))
    sizes = [len(bars) for bars in panels.values()]
    legend_height = 15 * ((len(parts) + 1) // 2) + 8
    height = 24 * sum(sizes) + 34 * len(sizes) + 10 + legend_height

    def draw(axes: Any) -> None:
        for panel, (name, bars) in zip([axes] if len(panels) == 1 else axes, panels.items(), strict=True):
            _stack_bars(panel, bars, colors)
            panel.set_title(name, loc="left", fontsize=10.5, color=INK)
            panel.set(xlim=(0, 1.12), ylim=(len(bars) - 0.5, -0.5))
            panel.set_yticks(range(len(bars)), list(bars), fontsize=9.5)
            panel.tick_params(axis="y", labelcolor=INK)
            panel.tick_params(axis="x", labelbottom=False)
            panel.spines[:].set_color(GRID)
        longest = max(len(label) for bars in panels.values() for label in bars)
        top = 1 - (legend_height + 22) / height
        panel.figure.subplots_adjust(
            left=(12 + 5.1 * longest) / WIDTH, top=top, bottom=7 / height, hspace=0.6
        )
        handles, labels = panel.get_legend_handles_labels()
        panel.figure.legend(handles, labels, loc="upper left", ncols=2, fontsize=9, borderaxespad=0.2)

    return _render(title, draw, sizes, height)


def _stack_bars(panel: Any, bars: Mapping[str, Mapping[str, float]], colors: Mapping[str, str]) -> None:
    """Draw the stacked bars of a workload, with the sum at the end of each bar."""
    totals = [sum(bar.values()) for bar in bars.values()]
    starts = [0.0] * len(bars)
    for part, color in colors.items():
        values = [bar[part] / max(totals) for bar in bars.values()]
        panel.barh(range(len(bars)), values, left=starts, color=color, height=0.62, label=part)
        starts = [start + value for start, value in zip(starts, values, strict=True)]
    for place, (end, total) in enumerate(zip(starts, totals, strict=True)):
        panel.text(end + 0.01, place, f"{total:.0f}", va="center", fontsize=9.5)


def _render(title: str, draw: Callable[[Any], None], sizes: Sequence[int], height: int) -> str:
    """Render a chart as a standalone SVG with its own colors."""
    from bertkit.charts import WIDTH, render_chart

    svg = str(render_chart(title, draw, height_ratios=sizes, height=height).svg)
    svg_tag = f"<svg xmlns:xlink='http://www.w3.org/1999/xlink' width='{2 * WIDTH}' height='{2 * height}'"
    svg = re.sub(r' xmlns:xlink="[^"]*"', "", svg, count=1).replace("<svg", svg_tag, 1)
    return re.sub(r"(<svg[^>]*>)", lambda match: f"{match[0]}{_colors()}", svg, count=1)


def _colors() -> str:
    """Return the colors of report.html, light and dark, for a standalone picture."""
    declared = re.findall(r"(--\w+: (?:light-dark|var)\(.*?\);)", STYLESHEET.read_text("utf-8"))
    light, dark = (
        "".join(re.sub(r"light-dark\((.*?), (.*?)\)", rf"\{side}", line) for line in declared)
        for side in (1, 2)
    )
    letters = "font-family:system-ui,sans-serif"
    return f"<style>svg{{{light}{letters}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"

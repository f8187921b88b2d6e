"""The page of one run: everything in one file that asks nobody for anything."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bertkit._version import __version__
from bertkit.errors import format_count
from bertkit.reports import REPORT_FILE
from bertkit.reports.curves import build_training_charts
from bertkit.reports.examples import build_browser
from bertkit.reports.finished_run import EXTRA_SPLITS, FinishedRun
from bertkit.reports.model_card import format_comparison_rows, format_detail_rows, format_score_rows
from bertkit.reports.views import create_view
from bertkit.utils.files import write_text

TEMPLATE_DIR = Path(__file__).parent / "templates"


def write_page(folder: Path, metrics: Mapping[str, Any]) -> None:
    """The page of a run that is about to end: all of it is written but `metrics.json`, which is last."""
    write_text(folder / REPORT_FILE, render_page(FinishedRun(folder, metrics)))


def render_page(run: FinishedRun) -> str:
    """The page of a run: settings and data, scores, training, what was right and wrong."""
    view = create_view(run)
    examples = view.build_examples() if view else []
    return render_template(
        "page.html",
        title=run.name,
        run=run,
        scores=[(*row, compute_interval_bar(run.metrics, row[0])) for row in format_score_rows(run.metrics)],
        compared=format_comparison_rows(run.metrics),
        details=format_detail_rows(run.metrics),
        others={split: run.metrics[split] for split in EXTRA_SPLITS if run.metrics.get(split)},
        training=build_training_charts(run.log),
        results=view.build_charts() if view else [],
        browser=build_browser(examples, view.measure_name, view.filter_names) if view else None,
    )


def compute_interval_bar(metrics: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Where a score, its interval and the baselines lie, in percent of all there is; None of a loss."""
    value, interval = metrics["validation"][name], metrics["intervals"].get(name)
    beside = {baseline: found[name] for baseline, found in metrics["baselines"].items() if name in found}
    known = [value, *(interval or []), *beside.values()]
    whole = 100.0 if max(known) > 1 else 1.0
    if interval is None or min(known) < 0 or max(known) > whole or name.endswith(("loss", "perplexity")):
        return None
    places = {"at": value, "low": interval[0], "high": interval[1]}
    shares = {key: round(100 * place / whole, 2) for key, place in places.items()}
    return {**shares, "beside": {key: round(100 * place / whole, 2) for key, place in beside.items()}}


def render_template(template: str, **values: Any) -> str:
    """A page: style and script stand in it, and nothing else may run or be loaded."""
    style, script = (Markup((TEMPLATE_DIR / name).read_text("utf-8")) for name in ("page.css", "browser.js"))  # noqa: S704
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template(template).render(
        style=style, script=script, digest=digest, version=__version__, **values
    )  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATE_DIR)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = _number
    environment.filters["counted"] = format_count
    return environment


def _number(value: Any) -> str:
    """A figure as people write it; other values in words."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

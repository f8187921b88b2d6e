"""The model card, `README.md` in a run directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bertkit.config import serialize_settings
from bertkit.errors import format_count
from bertkit.tasks.base import Task

BERTKIT_ONLY_LONG_TEXTS = (
    "windows",
    "head+tail",
)  # ways with long texts that transformers' pipelines do not have

PIPELINE_TEMPLATE = """from transformers import pipeline

model = pipeline({options})
model({call})"""
LOAD_TEMPLATE = """import bertkit

model = bertkit.load({path!r})
list(model.predict([{example}]))"""


def build_model_card(
    folder: Path, metrics: Mapping[str, Any], task: Task, provenance: Mapping[str, Any]
) -> str:
    """Data, settings, scores, versions and how to use the model, as Markdown."""
    settings = serialize_settings(task.config)
    data = metrics["data"]
    parts = [
        f"# {folder.name}",
        f"`{metrics['model']}` {task.spec.training_phrase} `{metrics['task']}` on `{data['name']}` ({data['source']}; "
        f"{data['train']:,} training and {format_count(data['validation'], f'validation {task.spec.unit}')}; "
        f"fingerprint `{data['fingerprint']}`).",
        "What is learned: " + task.describe() + ".",
        "## Scores\n\n" + format_score_table(metrics),
        format_detail_table(metrics),
        "## Use\n\n```python\n" + _usage(folder, task, settings) + "\n```",
        _cutting(task, settings),
        "## Settings\n\n```yaml\n"
        + yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
        + "```",
        "## Made with\n\n```yaml\n"
        + yaml.safe_dump(dict(provenance), sort_keys=False, allow_unicode=True)
        + "```",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def format_score_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str, str, dict[str, str]]]:
    """For each score of the validation split: name, value, interval, and each baseline's value."""
    rows = []
    for name, value in metrics["validation"].items():
        low, high = metrics["intervals"].get(name, (None, None))
        interval = "" if low is None else f"{low:.3f} to {high:.3f}"
        beside = {
            baseline: f"{scores[name]:.3f}" if name in scores else ""
            for baseline, scores in metrics["baselines"].items()
        }
        rows.append((name, f"{value:.3f}", interval, beside))
    return rows


def format_score_table(metrics: Mapping[str, Any]) -> str:
    """The validation scores as a Markdown table, the baselines beside them."""
    baselines = list(metrics["baselines"])
    head = ["validation", "score", "95 % interval", *baselines]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, value, interval, beside in format_score_rows(metrics):
        lines.append("| " + " | ".join([name, value, interval, *beside.values()]) + " |")
    for split in ("test", "validation_mismatched", "test_mismatched"):
        if metrics.get(split):
            scores = ", ".join(f"{name} {value:.3f}" for name, value in metrics[split].items())
            lines.append(f"\n{split}: {scores}")
    return "\n".join(lines)


def format_comparison_rows(metrics: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Beside another run: each score's name, the other's, what this one's is above it, with its interval, p.

    Empty where the run is compared with none.
    """
    compared = metrics.get("compared", {})
    rows: list[tuple[str, ...]] = []
    for name, found in compared.get("difference", {}).items():
        low, high = found["interval"]
        above = f"{found['difference']:+.3f}", f"{low:+.3f} to {high:+.3f}"
        p = f"{found['p']:.3g} ({found['test']})"
        rows.append((name, f"{compared['validation'][name]:.3f}", *above, p))
    return rows


def format_detail_rows(metrics: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """The name and the scores of each part of the validation split; a count is a whole number."""
    return [
        (name, {key: f"{v:,}" if isinstance(v, int) else f"{v:.3f}" for key, v in scores.items()})
        for name, scores in metrics.get("details", {}).get("validation", {}).items()
    ]


def format_detail_table(metrics: Mapping[str, Any]) -> str:
    """The same as a Markdown table; nothing where a task has no parts."""
    rows = format_detail_rows(metrics)
    if not rows:
        return ""
    head = ["validation", *rows[0][1]]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join([name, *cells.values()]) + " |" for name, cells in rows)])


def _usage(folder: Path, task: Task, settings: Mapping[str, Any]) -> str:
    pipeline, inputs = task.spec.pipeline, task.inputs
    if pipeline.caveat is not None or settings.get("long_texts") in BERTKIT_ONLY_LONG_TEXTS:
        return LOAD_TEMPLATE.format(path=str(folder), example=inputs.example_row())
    pair = len(inputs.text_columns) == 2
    text = "{'text': '...', 'text_pair': '...'}" if pair else repr(pipeline.example_input)
    options = [repr(pipeline.task), repr(str(folder)), *_keywords(pipeline.init_kwargs)]
    call = [text, *_keywords(pipeline.call_kwargs)]
    stock = PIPELINE_TEMPLATE.format(options=", ".join(options), call=", ".join(call))
    if not task.spec.uses_windows:
        return stock
    ours = LOAD_TEMPLATE.format(path=str(folder), example=inputs.example_row())
    return f"{ours}\n\n# or, of texts that are not too long, without bertkit\n{stock}"


def _keywords(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in options.items()]


def _cutting(task: Task, settings: Mapping[str, Any]) -> str:
    length, long = settings["max_length"], settings.get("long_texts", "head")
    if task.spec.dynamic_examples:
        return f"It was trained on examples of up to {length} pieces."
    if caveat := task.spec.pipeline.caveat:
        how = "read in windows" if task.spec.uses_windows else "cut"
        return f"`transformers.pipeline` {caveat}. Texts over {length} pieces are {how}."
    if long in BERTKIT_ONLY_LONG_TEXTS:
        return (
            f"Texts over {length} pieces are treated by `--long-texts {long}`, which `transformers.pipeline` does "
            "not know: it would cut them. `bertkit.load` does as in training."
        )
    if task.spec.uses_windows:
        return (
            f"Texts over {length} pieces are read in windows and put together again by `bertkit.load`, which "
            "also keeps the predictions legal; `transformers.pipeline` does neither."
        )
    return f"Texts over {length} pieces are cut; `truncation=True` cuts them as in training."

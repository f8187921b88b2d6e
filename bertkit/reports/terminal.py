"""What a command prints about a run on the terminal: its scores, its estimated cost, or masked examples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bertkit.errors import format_count
from bertkit.reports import card
from bertkit.run_directory import EXTRA_SPLITS
from bertkit.tasks import task_definition
from bertkit.utils.console import out_console, print_json, to_plain_text
from bertkit.utils.text import format_duration, replace_control_characters

MIN_REPORTED_DATA_WAIT = 0.1  # fraction of the training time; more workers of the data loader may help


def print_run_json(run: Any) -> None:
    """Print the metrics and the directory of a `Run` as one line of JSON."""
    output_dir = {"output_dir": str(run.output_dir)} if run.output_dir else {}
    print_json({**run.metrics, **output_dir})


def print_scores(metrics: Mapping[str, Any], output_dir: object, has_slices: bool = False) -> None:
    """Print the scores of all splits, the comparison, slices, the judgement, and the run directory."""
    sizes, unit = metrics["data"], task_definition(metrics["task"]).unit
    _print_table(
        f"{metrics['task']} · {metrics['data']['name']} · {metrics['model']}",
        [
            f"validation ({format_count(sizes['validation'], unit)})",
            metrics["model"].rpartition("/")[2],  # a path would leave no space for the intervals
            "95 % interval",
            *card.format_baseline_names(metrics),
        ],
        card.format_score_rows(metrics),
    )  # fmt: skip
    if details := card.format_detail_rows(metrics):  # of each entity type or label, if the task has them
        _print_table("", details[0], details[1:])
    for split in EXTRA_SPLITS:
        if metrics.get(split):
            scores = ", ".join(f"{name} {value:.3f}" for name, value in metrics[split].items())
            line = f"{split} ({format_count(sizes[split], unit)}): {scores}"
            out_console.print(line, markup=False, soft_wrap=True)
    for split, found in metrics.get("out_of_scope", {}).items():
        line = f"out of scope ({split}): {card.describe_found(found)}"
        out_console.print(line, markup=False, soft_wrap=True)
    if "compared" in metrics:
        _print_table(
            f"compared with {metrics['compared']['with']} on the same rows",
            ["validation", card.name_compared_run(metrics), "difference", "95 % interval", "p-value"],
            card.format_comparison_rows(metrics),
        )
    if "distillation" in metrics:
        _print_table("", ["", "teacher", "student"], card.format_distillation_rows(metrics))
    if "training" in metrics:
        out_console.print(_describe_training(metrics), markup=False, soft_wrap=True)
    if has_slices:
        for headings, *rows in card.format_slice_tables(metrics):
            _print_table("", headings, rows)
    for sentence in [*card.list_judgement(metrics), *([card.describe_slices(metrics)] if has_slices else [])]:
        out_console.print(sentence, style="bold", markup=False, soft_wrap=True)
    out_console.print(f"run: {output_dir}", markup=False, soft_wrap=True)


def _print_table(title: str, headings: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table with names in the first column and numbers in the others."""
    table = Table(title=to_plain_text(title) if title else None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(to_plain_text(heading), justify="right" if number else "left", overflow="fold")
    for cells in rows:
        table.add_row(*map(to_plain_text, cells))
    out_console.print(table)


def _describe_training(metrics: Mapping[str, Any]) -> str:
    """Return on how many rows and for how long the model was trained."""
    training = metrics["training"]
    if training.get("examples_seen") == 0:
        return "not trained: 0 steps"
    resumed_from = training.get("resumed_from")
    since_step = "" if resumed_from is None else f" since step {resumed_from}"
    extent = _describe_extent(training, metrics["data"]["train"], task_definition(metrics["task"]).unit)
    verb = "trained" if training["steps"] else "fitted"
    line = f"{verb} {extent} in {format_duration(training['seconds'])}{since_step}"
    if (data_wait := training.get("data_wait", 0.0)) > MIN_REPORTED_DATA_WAIT:
        line += f", {data_wait:.1%} of the time waiting for data"
    return line


def _describe_extent(training: Mapping[str, Any], num_rows: int, unit: str) -> str:
    """Return the number of training rows. If training ended within the first epoch, also what it has seen."""
    row_count = format_count(num_rows, unit)
    num_examples = training.get("examples_per_epoch", 0)
    num_seen = training.get("examples_seen", num_examples)
    if num_seen == num_examples:
        return f"on {row_count}"
    steps = f"for {format_count(training['steps'], 'step')}"
    if num_examples == num_rows:
        return f"{steps} on {num_seen:,} of {row_count}"
    return f"{steps} on {num_seen:,} of {num_examples:,} examples from {row_count}"  # pre-training


# ---- dry run and preview


def print_dry_run(estimate: Mapping[str, Any]) -> None:
    """Print the data, the settings and the estimated cost of a run that was not started."""
    loss = "" if estimate["loss"] is None else f", loss {estimate['loss']:.3f}"
    longest = estimate["longest_batch"]  # None for a linear model of texts, which has no batches
    sizes = {name: size for name, size in estimate["data"].items() if isinstance(size, int)}
    is_truncated = estimate["windowed"] is None
    fraction = estimate["truncated" if is_truncated else "windowed"]
    long_texts = {}
    if fraction is not None:  # else the task builds examples that fit into max_length
        description = f"{fraction:.1%} of the training texts, at {estimate['max_length']} tokens"
        long_texts["truncated" if is_truncated else "split into windows"] = description
    lines = {
        "data": f"{estimate['data']['name']} from {estimate['data']['source']}",
        f"{task_definition(estimate['task']).unit}s": ", ".join(
            f"{name} {size:,}" for name, size in sizes.items()
        ),
        "task": estimate["summary"],
        "model": f"{estimate['model']}, {estimate['precision']}",
        **long_texts,
        "steps": f"{estimate['steps']:,}",
        **({"longest batch": "{} x {} tokens".format(*longest) + loss} if longest else {}),
        "training time": f"about {format_duration(estimate['estimated_seconds'])}",
        "peak memory": f"{estimate['peak_memory_mb']:,.0f} MB",
    }
    table = Table(title="dry run: no run was written", show_header=False, title_justify="left")
    for name, value in lines.items():
        table.add_row(name, to_plain_text(value))
    out_console.print(table)


def print_preview(statistics: Mapping[str, float], samples: Iterable[Mapping[str, Any]]) -> None:
    """Print masked examples, with the original token after each masked position, and the statistics."""
    for sample in samples:
        text, original_tokens = Text(), dict(zip(sample["positions"], sample["tokens"], strict=True))
        for position, token in enumerate(sample["masked"].split(" ")):
            is_masked = position in original_tokens
            text.append(f"{replace_control_characters(token)} ", "bold red" if is_masked else "")
            if is_masked:
                text.append(f"({replace_control_characters(original_tokens[position])}) ", "green")
        label = Text(replace_control_characters(sample.get("pair", "")), "bold")
        out_console.print(label, text, soft_wrap=True)
    table = Table(title="preview: nothing was written", show_header=False, title_justify="left")
    for name, value in statistics.items():
        table.add_row(name, f"{value:g}" if name == "examples" else f"{value:.4f}")
    out_console.print(table)

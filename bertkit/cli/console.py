"""Console output for people: progress and messages on standard error, tables on standard output."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bertkit.cli.streams import print_json, replace_control_characters
from bertkit.errors import format_count
from bertkit.report.page import compute_strengths
from bertkit.tasks import task_definition
from bertkit.utils.reporting import Reporter
from bertkit.utils.text import format_duration

if TYPE_CHECKING:
    from bertkit.run.train import Run


T = TypeVar("T")
MIN_REPORTED_DATA_WAIT = 0.02  # fraction of the training time


class SafeConsole(Console):
    """A console that replaces control characters in strings; for table cells, see `to_plain_text`."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects as rich does, after replacing the control characters of strings."""
        safe_objects = (
            replace_control_characters(item) if isinstance(item, str) else item for item in objects
        )
        super().print(*safe_objects, **options)


err_console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
out_console = SafeConsole(highlight=False)


def to_plain_text(text: str, single_line: bool = False) -> Text:
    """Convert a string to a cell or title that shows markup literally and control characters as symbols.

    Args:
        text: A string, usually from the data.
        single_line: Whether a text that is too long ends in an ellipsis instead of being wrapped.
    """
    text = replace_control_characters(text)
    return Text(text, no_wrap=True, overflow="ellipsis") if single_line else Text(text)


def print_run_json(run: "Run") -> None:
    """Print the metrics and the directory of a run as one line of JSON."""
    output_dir = {"output_dir": str(run.output_dir)} if run.output_dir else {}
    print_json({**run.metrics, **output_dir})


# ---- progress and messages


class ConsoleReporter(Reporter):
    """A reporter that prints messages as lines and progress as live bars."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task_id: Any = None

    def info(self, message: str) -> None:
        """Print a message; square brackets in it are not markup."""
        err_console.print(message, markup=False)

    def warn(self, message: str) -> None:
        """Print a warning in yellow."""
        err_console.print(f"warning: {message}", style="yellow", markup=False)

    def on_train_begin(self, total: int, done: int) -> None:
        """Show a progress bar with loss, speed and remaining time."""
        self._progress = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[speed]} steps/s"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=err_console,
        )  # fmt: skip
        self._progress.start()
        self._task_id = self._progress.add_task("training", total=total, completed=done, loss="-", speed="-")

    def on_step_end(self, step: int, **metrics: Any) -> None:
        """Advance the progress bar, and show the latest loss and speed."""
        if self._progress is None:
            return
        task = self._progress.tasks[self._task_id]
        fields: dict[str, Any] = {"loss": _format_loss(**metrics)} if "loss" in metrics else {}
        if task.speed:
            fields["speed"] = f"{task.speed:.2f}"
        self._progress.update(self._task_id, completed=step, **fields)

    def on_train_end(self) -> None:
        """Stop the progress bar, which remains on the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def track(
        self, batches: Iterable[T], total: int, description: str, get_size: Callable[[T], int] = lambda _: 1
    ) -> Iterator[T]:
        """Yield `batches`, and show a progress bar that disappears at the end.

        No bar is shown during training, or if standard error is neither a terminal nor a notebook.
        """
        if self._progress is not None or not _can_show_bars():
            yield from batches
            return
        columns = (
            TextColumn(description), BarColumn(), MofNCompleteColumn(), TextColumn("left"),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=err_console, transient=True) as progress:
            bar = progress.add_task(description, total=total)
            for batch in batches:
                yield batch
                progress.advance(bar, get_size(batch))

    @contextmanager
    def track_position(self, size: int, description: str) -> Iterator[Callable[[int], None]]:
        """Show a progress bar in bytes that disappears at the end of the block."""
        columns = (
            TextColumn(description), BarColumn(), DownloadColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(
            *columns, console=err_console, transient=True, disable=not _can_show_bars()
        ) as progress:
            bar = progress.add_task(description, total=size)
            yield lambda position: progress.update(bar, completed=position)


def _can_show_bars() -> bool:
    return err_console.is_terminal or err_console.is_jupyter


def _format_loss(loss: float, parts: Mapping[str, float]) -> str:
    """Format the total loss and its components: `6.931 (mlm 6.238, nsp 0.693)`."""
    components = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
    return f"{loss:.3f} ({components})" if len(parts) > 1 else f"{loss:.3f}"


# ---- scores


def print_scores(metrics: Mapping[str, Any], output_dir: object) -> None:
    """Print the scores of all splits, the comparison, the training statistics, and the run directory."""
    from bertkit.report.finished_run import EXTRA_SPLITS

    sizes = metrics["data"]
    unit = task_definition(metrics["task"]).unit
    _print_validation_scores(metrics, format_count(sizes["validation"], unit))
    _print_details(metrics)
    for split in EXTRA_SPLITS:
        if metrics.get(split):
            scores = ", ".join(f"{name} {value:.3f}" for name, value in metrics[split].items())
            line = f"{split} ({format_count(sizes[split], unit)}): {scores}"
            out_console.print(line, markup=False, soft_wrap=True)
    if "compared" in metrics:
        _print_comparison(metrics)
    if "distillation" in metrics:
        _print_distillation(metrics)
    if "training" in metrics:
        _print_training(metrics)
    out_console.print(f"run: {output_dir}", markup=False, soft_wrap=True)


def _print_validation_scores(metrics: Mapping[str, Any], row_count: str) -> None:
    """Print the validation scores, their intervals, and the scores of the baselines."""
    from bertkit.report.card import format_baseline_names, format_score_rows

    title = f"{metrics['task']} · {metrics['data']['name']} · {metrics['model']}"
    table = Table(title=to_plain_text(title), title_justify="left")
    table.add_column(f"validation ({row_count})")
    for heading in (metrics["model"], "95 % interval", *format_baseline_names(metrics)):
        table.add_column(to_plain_text(heading), justify="right")
    for name, value, interval, baselines in format_score_rows(metrics):
        table.add_row(name, value, interval, *baselines.values())
    out_console.print(table)


def _print_details(metrics: Mapping[str, Any]) -> None:
    """Print the validation scores of each entity type or label, if the task has them."""
    from bertkit.report.card import format_detail_rows

    rows = format_detail_rows(metrics)
    if not rows:
        return
    table = Table("validation", title_justify="left")
    for heading in rows[0][1]:
        table.add_column(heading, justify="right")
    for name, cells in rows:
        table.add_row(to_plain_text(name), *cells.values())
    out_console.print(table)


def _print_comparison(metrics: Mapping[str, Any]) -> None:
    """Print the scores of the other run, and their differences with intervals and p-values."""
    from bertkit.report.card import format_comparison_rows, name_compared_run

    title = f"compared with {metrics['compared']['with']} on the same rows"
    table = Table(title=to_plain_text(title), title_justify="left")
    for heading in ("validation", name_compared_run(metrics), "difference", "95 % interval", "p-value"):
        table.add_column(heading, justify="left" if heading == "validation" else "right")
    for row in format_comparison_rows(metrics):
        table.add_row(*row)
    out_console.print(table)


def _print_distillation(metrics: Mapping[str, Any]) -> None:
    """Print the size and the speed of a student beside those of its teacher."""
    from bertkit.report.card import format_distillation_rows

    table = Table("", title_justify="left")
    for heading in ("teacher", "student"):
        table.add_column(heading, justify="right")
    for row in format_distillation_rows(metrics):
        table.add_row(*row)
    out_console.print(table)


def _print_training(metrics: Mapping[str, Any]) -> None:
    """Print one line with the time, speed, precision, memory and padding of training."""
    training = metrics["training"]
    if training.get("examples_seen") == 0:
        out_console.print("not trained: 0 steps")
        return
    statistics = [
        f"{training['examples_per_second']:.1f} examples/s",
        f"{training['tokens_per_second']:,.0f} tokens/s",
        training["precision"],
        f"peak memory {training['peak_memory_mb']:,.0f} MB",
    ]
    if (padding := training.get("padding")) is not None:
        statistics.append(f"{padding:.1%} padding")
    if (data_wait := training.get("data_wait", 0.0)) > MIN_REPORTED_DATA_WAIT:
        statistics.append(f"{data_wait:.1%} of the time waiting for data")
    resumed_from = training.get("resumed_from")
    since_step = "" if resumed_from is None else f" since step {resumed_from}"
    extent = _describe_extent(training, metrics["data"]["train"], task_definition(metrics["task"]).unit)
    verb = "trained" if training["steps"] else "fitted"
    line = f"{verb} {extent} in {training['seconds']:.0f} s{since_step}: {', '.join(statistics)}"
    out_console.print(line, markup=False, soft_wrap=True)


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
    num_rows, length = estimate["longest_batch"]
    loss = "" if estimate["loss"] is None else f", loss {estimate['loss']:.3f}"
    sizes = {name: size for name, size in estimate["data"].items() if isinstance(size, int)}
    lines = {
        "data": f"{estimate['data']['name']} from {estimate['data']['source']}",
        f"{task_definition(estimate['task']).unit}s": ", ".join(
            f"{name} {size:,}" for name, size in sizes.items()
        ),
        "task": estimate["summary"],
        "model": f"{estimate['model']}, {estimate['precision']}",
        **_describe_long_texts(estimate),
        "steps": f"{estimate['steps']:,}",
        "longest batch": f"{num_rows} x {length} tokens{loss}",
        "training time": f"about {format_duration(estimate['estimated_seconds'])}",
        "peak memory": f"{estimate['peak_memory_mb']:,.0f} MB",
    }
    table = Table(title="dry run: no run was written", show_header=False, title_justify="left")
    for name, value in lines.items():
        table.add_row(name, to_plain_text(value))
    out_console.print(table)


def _describe_long_texts(estimate: Mapping[str, Any]) -> dict[str, str]:
    """Return the table row on texts longer than `max_length`; empty if no text can be longer."""
    if estimate["windowed"] is None:
        heading, fraction = "truncated", estimate["truncated"]
    else:
        heading, fraction = "split into windows", estimate["windowed"]
    if fraction is None:  # the task builds examples that fit into max_length
        return {}
    return {heading: f"{fraction:.1%} of the training texts, at {estimate['max_length']} tokens"}


def print_preview(statistics: Mapping[str, float], samples: Iterable[Mapping[str, Any]]) -> None:
    """Print masked examples, with the original token after each masked position, and the statistics."""
    for sample in samples:
        label = Text(replace_control_characters(sample.get("pair", "")), "bold")
        out_console.print(label, _format_masked_text(sample), soft_wrap=True)
    table = Table(title="preview: nothing was written", show_header=False, title_justify="left")
    for name, value in statistics.items():
        table.add_row(name, f"{value:g}" if name == "examples" else f"{value:.4f}")
    out_console.print(table)


def _format_masked_text(sample: Mapping[str, Any]) -> Text:
    """Return the masked tokens, with the original token in parentheses after each masked position."""
    text = Text()
    original_tokens = dict(zip(sample["positions"], sample["tokens"], strict=True))
    for position, token in enumerate(sample["masked"].split(" ")):
        is_masked = position in original_tokens
        text.append(f"{replace_control_characters(token)} ", "bold red" if is_masked else "")
        if is_masked:
            text.append(f"({replace_control_characters(original_tokens[position])}) ", "green")
    return text


# ---- predictions


def print_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Print predictions as a table; texts that do not fit are shortened with an ellipsis."""
    names = list(dict.fromkeys(name for record in records for name in record))
    table = Table()
    for name in names:
        table.add_column(to_plain_text(name, single_line=True))
    # With `no_wrap` on cells instead of columns, rich shrinks the widest column first.
    for record in records:
        table.add_row(*(to_plain_text(_format_cell(record.get(name)), single_line=True) for name in names))
    out_console.print(table)


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else " ".join(str(value).split())


MAX_WORDS = 5  # in a cell of the table
POSITIVE_COLOR, NEGATIVE_COLOR = (0, 150, 60), (200, 40, 40)  # on a black background


def summarize_explanation(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the most important words, such as "bad +1.23", in place of the explanation."""
    if "explanation" not in record:
        return dict(record)
    words = sorted(record["explanation"], key=lambda word: -abs(word["attribution"]))[:MAX_WORDS]
    summary = ", ".join(f"{word['word']} {word['attribution']:+.2f}" for word in words)
    return dict(record) | {"explanation": summary}


def print_explanations(records: Sequence[Mapping[str, Any]]) -> None:
    """Print the words of each record: green for the predicted label, red against it."""
    for record in records:
        if "explanation" in record:
            out_console.print(_shade(record["id"], record["explanation"]), soft_wrap=True)


def _shade(row_id: Any, words: Sequence[Mapping[str, Any]]) -> Text:
    """Return the words of a record, shaded by their attributions relative to the highest one."""
    text = Text(f"{row_id}: ")
    strengths = compute_strengths([word["attribution"] for word in words])
    for number, (word, strength) in enumerate(zip(words, strengths, strict=True)):
        color = POSITIVE_COLOR if strength > 0 else NEGATIVE_COLOR
        red, green, blue = (round(abs(strength) * part) for part in color)
        style = f"white on rgb({red},{green},{blue})" if strength else ""
        text.append(" " if number else "").append(replace_control_characters(word["word"]), style)
    return text

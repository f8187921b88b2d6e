"""What a person sees: progress and messages on standard error, results on standard output."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bertkit.cli.escape import replace_control_characters
from bertkit.errors import format_count
from bertkit.tasks import task_class
from bertkit.utils.reporting import Reporter

T = TypeVar("T")
EXTRA_SPLITS = ("test", "validation_mismatched", "test_mismatched")
MIN_REPORTED_DATA_WAIT = 0.02  # a share of training worth telling


class SafeConsole(Console):
    """Prints lines without anything of the data's that a terminal would obey; of tables, see `plain`."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does."""
        super().print(
            *(replace_control_characters(some) if isinstance(some, str) else some for some in objects),
            **options,
        )


err_console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
out_console = SafeConsole(highlight=False)


def to_plain_text(text: str, single_line: bool = False) -> Text:
    """A text of the data's for a cell or a title: no markup, and nothing that a terminal would obey.

    Args:
        one_line: cut it where it does not fit, rather than go on in the next line.
    """
    return Text(
        replace_control_characters(text), no_wrap=single_line, overflow="ellipsis" if single_line else None
    )


class ConsoleReporter(Reporter):
    """Messages as lines, work as a live bar."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None

    def info(self, message: str) -> None:
        """A plain line; brackets in it are no markup."""
        err_console.print(message, markup=False)

    def warn(self, message: str) -> None:
        """A yellow line."""
        err_console.print(f"warning: {message}", style="yellow", markup=False)

    def on_train_begin(self, total: int, done: int) -> None:
        """A bar with loss, speed and the time left."""
        self._bar = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[speed]} steps/s"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=err_console,
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task("training", total=total, completed=done, loss="-", speed="-")

    def on_step_end(self, step: int, **figures: Any) -> None:
        """Move the bar."""
        if self._bar is None:
            return
        task = self._bar.tasks[self._task]
        fields: dict[str, Any] = {"loss": _loss(**figures)} if "loss" in figures else {}
        if task.speed:
            fields["speed"] = f"{task.speed:.2f}"
        self._bar.update(self._task, completed=step, **fields)

    def on_train_end(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def track(self, batches: Iterable[T], total: int, description: str) -> Iterator[T]:
        """A bar of its own, for as long as it takes; none beside the training's, or where nobody watches."""
        if self._bar is not None or not err_console.is_terminal:
            yield from batches
            return
        columns = (
            TextColumn(description),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err_console, transient=True) as bar:
            yield from bar.track(batches, total=total, description=description)


def _loss(loss: float, parts: Mapping[str, float]) -> str:
    """`6.931 (mlm 6.238, nsp 0.693)`."""
    each = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
    return f"{loss:.3f} ({each})" if len(parts) > 1 else f"{loss:.3f}"


def print_scores(metrics: Mapping[str, Any], output_dir: object) -> None:
    """The validation scores with their intervals, the baselines beside them, and where the run lies."""
    from bertkit.reports.model_card import format_score_rows

    sizes, unit = metrics["data"], task_class(metrics["task"]).spec.unit
    title = f"{metrics['task']} · {sizes['name']} · {metrics['model']}"
    table = Table(title=to_plain_text(title), title_justify="left")
    table.add_column(f"validation ({format_count(sizes['validation'], unit)})")
    for heading in (metrics["model"], "95 % interval", *metrics["baselines"]):
        table.add_column(to_plain_text(heading), justify="right")
    for name, value, interval, beside in format_score_rows(metrics):
        table.add_row(name, value, interval, *beside.values())
    out_console.print(table)
    _print_details(metrics)
    for split in EXTRA_SPLITS:
        if metrics.get(split):
            scores = ", ".join(f"{name} {value:.3f}" for name, value in metrics[split].items())
            out_console.print(
                f"{split} ({format_count(sizes[split], unit)}): {scores}", markup=False, soft_wrap=True
            )
    if "compared" in metrics:
        _print_compared(metrics)
    if "training" in metrics:
        _print_training(metrics["training"], format_count(sizes["train"], unit))
    out_console.print(f"run: {output_dir}", markup=False, soft_wrap=True)


def _print_training(figures: Mapping[str, Any], rows: str) -> None:
    told = [
        f"{figures['examples_per_second']:.1f} examples/s", f"{figures['tokens_per_second']:,.0f} tokens/s",
        figures["precision"], f"at most {figures['peak_memory_mb']:,.0f} MB",
    ]  # fmt: skip
    if (padding := figures.get("padding")) is not None:
        told.append(f"{padding:.1%} padding")
    if (waited := figures.get("data_wait", 0.0)) > MIN_REPORTED_DATA_WAIT:
        told.append(f"{waited:.1%} of the time waiting for data")
    since = "" if (step := figures.get("resumed_from")) is None else f" since step {step}"
    about = f"trained on {rows} in {figures['seconds']:.0f} s{since}: {', '.join(told)}"
    out_console.print(about, markup=False, soft_wrap=True)


def _print_compared(metrics: Mapping[str, Any]) -> None:
    """The other run's scores, what this one's are above them, and whether that is more than luck."""
    from bertkit.reports.model_card import format_comparison_rows

    title = f"beside {metrics['compared']['with']}, on the same rows"
    table = Table(title=to_plain_text(title), title_justify="left")
    for heading in ("validation", "the other", "above it", "95 % interval", "p"):
        table.add_column(heading, justify="left" if heading == "validation" else "right")
    for row in format_comparison_rows(metrics):
        table.add_row(*row)
    out_console.print(table)


def _print_details(metrics: Mapping[str, Any]) -> None:
    from bertkit.reports.model_card import format_detail_rows

    rows = format_detail_rows(metrics)
    if not rows:
        return
    table = Table("validation", title_justify="left")
    for heading in rows[0][1]:
        table.add_column(heading, justify="right")
    for name, cells in rows:
        table.add_row(to_plain_text(name), *cells.values())
    out_console.print(table)


def print_dry_run(estimate: Mapping[str, Any]) -> None:
    """What a run would do, as a table of two columns."""
    rows, length = estimate["longest_batch"]
    sizes = {key: value for key, value in estimate["data"].items() if isinstance(value, int)}
    cut = ("cut", "truncated") if estimate["windowed"] is None else ("read in windows", "windowed")
    share = estimate[cut[1]]  # None: examples are drawn to fit
    over = (
        {}
        if share is None
        else {cut[0]: f"{share:.1%} of the training texts, at {estimate['max_length']} pieces"}
    )
    lines = {
        "data": f"{estimate['data']['name']} from {estimate['data']['source']}",
        f"{task_class(estimate['task']).spec.unit}s": ", ".join(
            f"{name} {size:,}" for name, size in sizes.items()
        ),
        "task": estimate["summary"],
        "model": f"{estimate['model']}, {estimate['precision']}",
        **over,
        "steps": f"{estimate['steps']:,}",
        "longest batch": f"{rows} x {length} pieces, loss {estimate['loss']:.3f}",
        "time": f"about {format_duration(estimate['estimated_seconds'])} of training",
        "peak memory": f"{estimate['peak_memory_mb']:,.0f} MB",
    }
    table = Table(title="dry run: nothing was written", show_header=False, title_justify="left")
    for name, value in lines.items():
        table.add_row(name, to_plain_text(value))
    out_console.print(table)


def print_preview(rates: Mapping[str, float], samples: Iterable[Mapping[str, Any]]) -> None:
    """Masked examples with the places to predict coloured, what belongs there behind, and the rates."""
    for sample in samples:
        text, places = Text(), dict(zip(sample["places"], sample["pieces"], strict=True))
        for place, piece in enumerate(sample["masked"].split(" ")):
            text.append(f"{replace_control_characters(piece)} ", "bold red" if place in places else "")
            if place in places:
                text.append(f"({replace_control_characters(places[place])}) ", "green")
        out_console.print(
            Text(replace_control_characters(sample.get("pair", "")), "bold"), text, soft_wrap=True
        )
    table = Table(title="measured; nothing was written", show_header=False, title_justify="left")
    for name, value in rates.items():
        table.add_row(name, f"{value:g}" if name == "examples" else f"{value:.4f}")
    out_console.print(table)


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min` or `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Predictions as a table, long texts cut to what fits beside the others."""
    names = list(dict.fromkeys(name for record in records for name in record))
    table = Table()
    for name in names:
        table.add_column(to_plain_text(name, single_line=True))
    for record in records:  # cells that stay on one line in columns that may wrap: the widest gives way first
        table.add_row(*(to_plain_text(_cell(record.get(name)), single_line=True) for name in names))
    out_console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else " ".join(str(value).split())

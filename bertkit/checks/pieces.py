"""What texts are to the tokenizer: how long, what is cut off, and what it does not know."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.findings import Finding, places, share
from bertkit.data.piece_counts import PieceCounts
from bertkit.data.rows import Rows
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.prepare import MANY_UNKNOWN, TOO_MANY_UNKNOWN, max_length
from bertkit.tasks.base import Task

MANY_CUT = 0.05  # share of texts: above it, what is cut off is worth a warning


@dataclass(frozen=True)
class Reader:
    """A tokenizer, and how much its model reads.

    Attributes:
        name: of the model.
        given: whether the user named it.
        positions: most pieces that it takes; None: any number.
    """

    name: str
    given: bool
    tokenizer: Any
    positions: int | None

    @classmethod
    def of(cls, task: Task, source: ModelSource, given: bool, wanted: int | None) -> "Reader":
        """That of a model, whose weights are not loaded; from then on the task knows its length.

        Args:
            wanted: the `--max-length` that the user gave.
        """
        described = (source.folder / "config.json").exists()  # a tokenizer may lie alone
        config = loading.load_config(source) if described else None
        longest = max_length(task, source, config, wanted)
        task.config = dataclasses.replace(task.config, max_length=longest)
        positions = loading.usable_positions(config)
        return cls(source.name, given, loading.load_tokenizer(source), positions)


def figures(task: Task, counts: PieceCounts) -> dict[str, Any]:
    """Median, 95th percentile and longest in pieces, the share that is cut, and the share that is unknown."""
    unknown = {"unknown": counts.unknown_share}
    if task.drawn_to_fit:
        return unknown
    median, most = np.percentile(counts.lengths, [50, 95], method="nearest").tolist()
    lengths = {"median": int(median), "95%": int(most), "longest": int(counts.lengths.max())}
    return {"lengths": lengths, "over": float((counts.lengths > task.config.max_length).mean()), **unknown}


def over(name: str, rows: Rows, counts: PieceCounts, task: Task, reader: Reader) -> Iterator[Finding]:
    """Rows that are longer than `--max-length`."""
    limit, longest = task.config.max_length, int(counts.lengths.max())
    long = (counts.lengths > limit).nonzero()[0]
    if task.drawn_to_fit or not len(long):
        return
    told = f"{share(len(long), len(rows))} {name} rows are over {limit} pieces and"
    if task.in_windows:
        yield Finding("note", "windows", f"{told} read in windows", "", len(long), places(rows, long))
        return
    most = reader.positions or longest
    ways = [
        f"--max-length {longest} takes all of each" if longest <= most else f"--max-length {most} is the most"
    ]
    ways += ["--long windows reads all of each"] if hasattr(task.config, "long") else []
    level = "warning" if len(long) > MANY_CUT * len(rows) else "note"
    yield Finding(level, "cut", f"{told} cut", "; ".join(ways), len(long), places(rows, long))  # type: ignore[arg-type]


def unknown(name: str, rows: Rows, counts: PieceCounts, reader: Reader) -> Iterator[Finding]:
    """As training sees it: many are a warning, very many an error, unless the user named the model."""
    if counts.unknown_share <= MANY_UNKNOWN:
        return
    stops = name == "train" and counts.unknown_share > TOO_MANY_UNKNOWN and not reader.given
    worst = np.argsort(-counts.unknown / counts.lengths, kind="stable")
    yield Finding(
        "error" if stops else "warning", "unknown",
        f"{reader.name} does not know {counts.unknown_share:.0%} of the pieces of the {name} texts",
        "name a model of their language with --model", int((counts.unknown > 0).sum()), places(rows, worst),
    )  # fmt: skip

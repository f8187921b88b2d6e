"""What texts are to the tokenizer: how long, what is cut off, and what it does not know."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.checks.findings import Finding, format_fraction, locate_rows
from bertkit.data.rows import Rows
from bertkit.data.token_counts import TokenCounts
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.pipeline.prepare import UNK_ERROR_RATE, UNK_WARNING_RATE, resolve_max_length
from bertkit.tasks.base import Task

MANY_TRUNCATED = 0.05  # share of texts: above it, what is cut off is worth a warning


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer, and how much its model reads.

    Attributes:
        name: of the model.
        given: whether the user named it.
        positions: most pieces that it takes; None: any number.
    """

    name: str
    is_model_explicit: bool
    tokenizer: Any
    max_positions: int | None

    @classmethod
    def load(
        cls, task: Task, source: ModelSource, is_model_explicit: bool, requested_length: int | None
    ) -> "TokenizerInfo":
        """That of a model, whose weights are not loaded; from then on the task knows its length.

        Args:
            wanted: the `--max-length` that the user gave.
        """
        described = (source.folder / "config.json").exists()  # a tokenizer may lie alone
        config = loading.load_config(source) if described else None
        longest = resolve_max_length(task, source, config, requested_length)
        task.config = dataclasses.replace(task.config, max_length=longest)
        positions = loading.get_max_positions(config)
        return cls(source.name, is_model_explicit, loading.load_tokenizer(source), positions)


def summarize_lengths(task: Task, counts: TokenCounts) -> dict[str, Any]:
    """Median, 95th percentile and longest in pieces, the share that is cut, and the share that is unknown."""
    unknown = {"unknown": counts.unk_fraction}
    if task.dynamic_examples:
        return unknown
    median, most = np.percentile(counts.lengths, [50, 95], method="nearest").tolist()
    lengths = {"median": int(median), "95%": int(most), "longest": int(counts.lengths.max())}
    return {"lengths": lengths, "over": float((counts.lengths > task.config.max_length).mean()), **unknown}


def find_long_rows(
    name: str, rows: Rows, counts: TokenCounts, task: Task, reader: TokenizerInfo
) -> Iterator[Finding]:
    """Rows that are longer than `--max-length`."""
    limit, longest = task.config.max_length, int(counts.lengths.max())
    long = (counts.lengths > limit).nonzero()[0]
    if task.dynamic_examples or not len(long):
        return
    told = f"{format_fraction(len(long), len(rows))} {name} rows are over {limit} pieces and"
    if task.uses_windows:
        yield Finding("note", "windows", f"{told} read in windows", "", len(long), locate_rows(rows, long))
        return
    most = reader.max_positions or longest
    ways = [
        f"--max-length {longest} takes all of each" if longest <= most else f"--max-length {most} is the most"
    ]
    ways += ["--long-texts windows reads all of each"] if hasattr(task.config, "long_texts") else []
    level = "warning" if len(long) > MANY_TRUNCATED * len(rows) else "note"
    yield Finding(level, "cut", f"{told} cut", "; ".join(ways), len(long), locate_rows(rows, long))  # type: ignore[arg-type]


def find_unk_tokens(name: str, rows: Rows, counts: TokenCounts, reader: TokenizerInfo) -> Iterator[Finding]:
    """As training sees it: many are a warning, very many an error, unless the user named the model."""
    if counts.unk_fraction <= UNK_WARNING_RATE:
        return
    stops = name == "train" and counts.unk_fraction > UNK_ERROR_RATE and not reader.is_model_explicit
    worst = np.argsort(-counts.unk_counts / counts.lengths, kind="stable")
    yield Finding(
        "error" if stops else "warning", "unknown",
        f"{reader.name} does not know {counts.unk_fraction:.0%} of the pieces of the {name} texts",
        "name a model of their language with --model", int((counts.unk_counts > 0).sum()), locate_rows(rows, worst),
    )  # fmt: skip

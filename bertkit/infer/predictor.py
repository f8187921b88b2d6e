"""A finished run at work on new rows, from its directory alone."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from bertkit.data.row_chunks import ROWS, in_chunks
from bertkit.data.rows import Rows
from bertkit.errors import UserError, listed
from bertkit.infer.onnx import find_onnx, onnx_model
from bertkit.modeling import loading
from bertkit.prepare import task_of_run
from bertkit.quiet import quiet_libraries
from bertkit.reporter import Reporter
from bertkit.tasks.base import Outputs, Task
from bertkit.tasks.records import beside
from bertkit.training.scoring import predict_logits


@dataclass(frozen=True)
class Predictor:
    """A task with its model and tokenizer. The same code cuts, pools and decodes as in training."""

    task: Task
    model: Any
    tokenizer: Any

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """A record for each row, in order: its number, its columns, and what `predictions.jsonl` tells.

        Rows are taken some at a time, so there may be any number of them.

        Raises:
            UserError: a row lacks a text column.
        """
        for part in whole(self.task, in_chunks(map(_named, rows), "rows", ROWS)):
            self.meet(part)
            yield from self.records(part, self.outputs(part))

    def meet(self, rows: Rows, reporter: Reporter | None = None) -> None:
        """Take the columns of new rows by the names they have there, and say which."""
        before = self.task.text_columns
        self.task.meet(rows)
        if reporter and self.task.text_columns != before:
            reporter.say(f"read as {listed(before)} of training: {listed(self.task.text_columns)}")

    def outputs(self, rows: Rows, reporter: Reporter | None = None, what: str = "scoring") -> Outputs:
        """Scored rows. What is to be predicted is not read, if it is there at all."""
        gold = self.task.gold_columns
        asked = {name: values for name, values in rows.columns.items() if name not in gold}
        return self.scored(self.task.readable(rows.with_columns(asked)), reporter, what)

    def scored(self, rows: Rows, reporter: Reporter | None = None, what: str = "scoring") -> Outputs:
        """Scored rows in the form that the task works on, with their gold labels where they have any."""
        features = self.task.prepare(rows, self.tokenizer)
        collator, size = self.task.collator(self.tokenizer, self.model), self.task.config.eval_batch_size
        logits = predict_logits(self.model, features, collator, size, reporter or Reporter(), what)
        return Outputs(logits, features, rows)

    def called_as(self, other: Task) -> "Predictor":
        """The same on rows whose columns are called as `other` calls them."""
        self.task.config = dataclasses.replace(self.task.config, **columns_of(other.config))
        self.task.restore(self.model.config)
        return self

    def records(
        self, rows: Rows, outputs: Outputs, all_scores: bool | None = None
    ) -> Iterator[dict[str, Any]]:
        """As `predictions.jsonl` has them: numbered, with the input columns, but no gold label of our own.

        Args:
            all_scores: whether also of what is not predicted; None: those that `predictions.jsonl` has.
        """
        task, first = self.task, int(rows.number[0]) - 1 if len(rows) else 0
        gold = {name: rows[name] for name in task.gold_columns if name in rows.columns}
        all_told = {**outputs.rows.columns, **gold}
        in_order = {name: all_told[name] for name in [*rows.columns, *all_told] if name in all_told}
        told = rows.with_columns(in_order) if len(rows) == len(outputs.rows) else None
        scores: Iterator[dict[str, Any]] = task.all_scores(outputs) if all_scores else repeat({})
        for number, (row, found) in enumerate(zip(told or outputs.rows, task.decode(outputs), strict=True)):
            found = {name: value for name, value in found.items() if name != "gold"}
            found = task.brief(found) if all_scores is False else found | next(scores)
            yield beside(first + number, row, task.retold - set(gold), found)


def columns_of(config: Any) -> dict[str, Any]:
    """The settings that name columns."""
    return {name: value for name, value in vars(config).items() if "_column" in name}


def renamed(rows: Rows, before: Any, after: Any) -> Rows:
    """Rows whose columns are called as in one config, called as in another."""
    there = dict(rows.columns)
    for name, old in columns_of(before).items():
        new = columns_of(after)[name]
        pairs = zip(old, new, strict=False) if isinstance(old, list) and new else [(old, new)]
        there |= {theirs: rows[ours] for ours, theirs in pairs if ours in rows.columns and theirs}
    return rows.with_columns(there)


def whole(task: Task, parts: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows cut where the task can read each part by itself: between documents, not within one."""
    held: Rows | None = None
    for part in parts:
        held = part if held is None else Rows.concatenate([held, part])
        names = task.together(held)
        cut = len(held) if names is None else _last_begin(held, names)
        if cut:
            yield held.select(range(cut))
            held = held.select(range(cut, len(held)))
    if held is not None and len(held):
        yield held


def _last_begin(rows: Rows, names: list[Any]) -> int:
    """Where the last run of equal names begins."""
    return next((at for at in range(len(rows) - 1, 0, -1) if names[at] != names[at - 1]), 0)


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise UserError(f"rows must be dictionaries of columns, such as {{'text': '...'}}, not {row!r}")
    return dict(row)


def load(run: str | Path) -> Predictor:
    """The predictor of a finished run, or of what was exported of it.

    Raises:
        UserError: the directory holds neither, or a run that predicts no rows.
    """
    folder, task = Path(run), task_of_run(Path(run))
    if not task.rows_told:
        ways = f"see bertkit fill-mask {run} and bertkit embed {run}"
        raise UserError(f"{run}: is a run of {task.name}, which predicts pieces, not rows; {ways}")
    task.caches = False
    exported = find_onnx(folder)
    source = exported or loading.find_model(str(folder))
    with quiet_libraries():
        config = loading.load_config(source)
        task.restore(config)
        model = onnx_model(exported) if exported else _placed(task.model(config, source))
        return Predictor(task, model.eval(), loading.load_tokenizer(source))


def _placed(model: Any) -> Any:
    """On the accelerator, where there is one."""
    import torch

    there = torch.accelerator.is_available()
    return model.to(torch.accelerator.current_accelerator()) if there else model

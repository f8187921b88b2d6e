"""A finished run at work on new rows, from its directory alone."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.readers.streaming import CHUNK_ROWS, chunk_records
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_list
from bertkit.infer.onnx_runtime import find_onnx_model, load_onnx_model
from bertkit.modeling import loading
from bertkit.pipeline.prepare import load_run_task
from bertkit.tasks.base import Task
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail, merge_prediction
from bertkit.training.scoring import predict_logits
from bertkit.utils.quiet import silence_libraries
from bertkit.utils.reporting import Reporter


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
        for part in align_chunks_to_groups(self.task, chunk_records(map(_named, rows), "rows", CHUNK_ROWS)):
            self.map_columns(part)
            yield from self.iter_records(part, self.evaluate_unlabeled(part))

    def map_columns(self, rows: Rows, reporter: Reporter | None = None) -> None:
        """Take the columns of new rows by the names they have there, and say which."""
        before = self.task.inputs.text_columns
        self.task.map_columns(rows)
        after = self.task.inputs.text_columns
        if reporter and after != before:
            reporter.info(f"read as {format_list(before)} of training: {format_list(after)}")

    def evaluate_unlabeled(
        self, rows: Rows, reporter: Reporter | None = None, description: str = "scoring"
    ) -> Evaluation:
        """Return the predictions of rows; columns of labels are not read."""
        gold = self.task.inputs.gold_columns
        unlabeled = {name: values for name, values in rows.columns.items() if name not in gold}
        parsed, _ = self.task.parse_rows(rows.replace_columns(unlabeled))
        return self.task.evaluate(self.compute_outputs(parsed, reporter, description))

    def compute_outputs(
        self, rows: Rows, reporter: Reporter | None = None, description: str = "scoring"
    ) -> Outputs:
        """Scored rows in the form that the task works on, with their gold labels where they have any."""
        features = self.task.featurize(rows, self.tokenizer)
        collator, size = self.task.collator(self.tokenizer, self.model), self.task.config.eval_batch_size
        logits = predict_logits(self.model, features, collator, size, reporter or Reporter(), description)
        return Outputs(logits, features, rows)

    def use_columns_of(self, other: Task) -> "Predictor":
        """The same on rows whose columns are called as `other` calls them."""
        self.task.config = dataclasses.replace(self.task.config, **get_column_settings(other.config))
        self.task.load_state(self.model.config)
        return self

    def iter_records(
        self, rows: Rows, evaluation: Evaluation, scores: ScoreDetail = "default"
    ) -> Iterator[dict[str, Any]]:
        """As `predictions.jsonl` has them: numbered, with the input columns, but no gold label of our own.

        Args:
            rows: the rows as they were read.
            evaluation: their predictions.
            scores: see `Evaluation.records`.
        """
        inputs, parsed = self.task.inputs, evaluation.outputs.rows
        first_number = int(rows.row_numbers[0]) - 1 if len(rows) else 0
        gold = {name: rows[name] for name in inputs.gold_columns if name in rows.columns}
        columns = {**parsed.columns, **gold}
        ordered = {name: columns[name] for name in [*rows.columns, *columns] if name in columns}
        written = rows.replace_columns(ordered) if len(rows) == len(parsed) else parsed
        hidden = inputs.hidden_columns - set(gold)
        predictions = zip(written, evaluation.records(scores), strict=True)
        for number, (row, prediction) in enumerate(predictions, first_number):
            prediction.pop("gold", None)
            yield merge_prediction(number, row, hidden, prediction)


def get_column_settings(config: Any) -> dict[str, Any]:
    """The settings that name columns."""
    return {name: value for name, value in vars(config).items() if "_column" in name}


def rename_columns(rows: Rows, before: Any, after: Any) -> Rows:
    """Rows whose columns are called as in one config, called as in another."""
    there = dict(rows.columns)
    for name, old in get_column_settings(before).items():
        new = get_column_settings(after)[name]
        pairs = zip(old, new, strict=False) if isinstance(old, list) and new else [(old, new)]
        there |= {theirs: rows[ours] for ours, theirs in pairs if ours in rows.columns and theirs}
    return rows.replace_columns(there)


def align_chunks_to_groups(task: Task, chunks: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows cut where the task can read each part by itself: between documents, not within one."""
    held: Rows | None = None
    for part in chunks:
        held = part if held is None else Rows.concatenate([held, part])
        names = task.inputs.group_ids(held)
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


def load_predictor(run: str | Path) -> Predictor:
    """The predictor of a finished run, or of what was exported of it.

    Raises:
        UserError: the directory holds neither, or a run that predicts no rows.
    """
    folder, task = Path(run), load_run_task(Path(run))
    if not task.spec.row_level:
        ways = f"see bertkit fill-mask {run} and bertkit embed {run}"
        raise UserError(f"{run}: is a run of {task.spec.name}, which predicts pieces, not rows; {ways}")
    task.use_cache = False
    exported = find_onnx_model(folder)
    source = exported or loading.find_model(str(folder))
    with silence_libraries():
        config = loading.load_config(source)
        task.load_state(config)
        model = load_onnx_model(exported) if exported else _placed(task.build_model(config, source))
        return Predictor(task, model.eval(), loading.load_tokenizer(source))


def _placed(model: Any) -> Any:
    """On the accelerator, where there is one."""
    import torch

    there = torch.accelerator.is_available()
    return model.to(torch.accelerator.current_accelerator()) if there else model

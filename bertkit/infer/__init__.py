"""A finished run at work on new rows, from its directory alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import rundir
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.modeling import loading
from bertkit.quiet import quiet_libraries
from bertkit.recipes import read_recipe
from bertkit.reporter import Reporter
from bertkit.tasks import task_class
from bertkit.tasks.base import Outputs, Task
from bertkit.training.scoring import predict_logits


@dataclass(frozen=True)
class Predictor:
    """A task with its model and tokenizer. The same code cuts, pools and decodes as in training."""

    task: Task
    model: Any
    tokenizer: Any

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """A record for each row, in order, with the keys of `predictions.jsonl`.

        Raises:
            UserError: a row lacks a text column.
        """
        gold = self.task.gold_columns  # what is predicted is not read
        table = Rows.from_dicts([{k: v for k, v in _named(row) if k not in gold} for row in rows], "rows")
        if not len(table):
            return iter(())
        table = self.task.readable(table)
        features = self.task.prepare(table, self.tokenizer)
        collator = self.task.collator(self.tokenizer, self.model)
        size = self.task.config.eval_batch_size
        logits = predict_logits(self.model, features, collator, size, Reporter())
        return self.task.decode(Outputs(logits, features, table))


def _named(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    if not isinstance(row, Mapping):
        raise UserError(f"rows must be dictionaries of columns, such as {{'text': '...'}}, not {row!r}")
    return row.items()


def load(run: str | Path) -> Predictor:
    """The predictor of a finished run. Raises `UserError` where the directory holds none."""
    folder = Path(run)
    metrics = rundir.read_metrics(folder) if folder.is_dir() else None
    if metrics is None:
        raise UserError(f"{folder}: not a finished run (no {rundir.METRICS} in it)")
    kind = task_class(metrics["task"])
    settings = read_recipe(str(folder / rundir.SETTINGS), kind.name, kind.Config).settings
    task = kind(kind.Config(**settings))
    source = loading.find_model(str(folder))
    with quiet_libraries():
        config = loading.load_config(source)
        task.restore(config)
        model = task.model(config, source)
        return Predictor(task, model.eval(), loading.load_tokenizer(source))

"""Baselines of a run: those of the task, such as TF-IDF, and those of the encoder before training."""

from typing import Any

from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.models import loading
from bertkit.models.encoder import FrozenEncoder
from bertkit.run.prepare import PreparedRun
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import Task
from bertkit.tasks.text.task import fit_linear_probe_baseline
from bertkit.training.failures import report_out_of_memory
from bertkit.utils.reporting import report_warning


def fit_validation_baselines(prepared: PreparedRun) -> dict[str, Scorer]:
    """Return the baselines on the validation split; empty for a run without report."""
    if not prepared.options.has_report:
        return {}
    if prepared.options.fit_baselines is not None:
        return prepared.options.fit_baselines()
    train, rows = prepared.splits["train"], prepared.splits["validation"]
    return fit_all_baselines(prepared.task, train, rows, prepared.tokenizer)


def fit_all_baselines(task: Task, train: Rows, rows: Rows, tokenizer: Any) -> dict[str, Scorer]:
    """Return the scorers of all baselines by name: fitted on the training rows, they predict `rows`."""
    return task.fit_baselines(train, rows) | fit_encoder_baselines(task, train, rows, tokenizer)


def fit_encoder_baselines(task: Any, train: Rows, rows: Rows, tokenizer: Any) -> dict[str, Scorer]:
    """Return the baselines that read the vectors of the encoder before training.

    The model that training started from is loaded again, so it may be missing. A finished training must not
    fail because of this, so the baselines are then left out.
    """
    # A linear model of texts has no tokenizer. Vectors of tokens that were added for the task are untrained.
    if tokenizer is None or task.definition.labeled_unit != "text" or task.state.new_tokens:
        return {}
    try:
        encoder = FrozenEncoder(task.config.model, tokenizer.pad_token_id)
        loading.require_embeddings(encoder.source, encoder.config, tokenizer)
        with report_out_of_memory("out of memory"):
            return fit_linear_probe_baseline(task, encoder, tokenizer, train, rows)
    except UserError as error:
        report_warning(f"no baselines of the encoder before training: {error}")
        return {}

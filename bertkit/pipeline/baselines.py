"""The scores of the baselines of a run."""

from typing import Any

from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.tasks.base import Scores, Task
from bertkit.utils.reporting import Reporter


def score_baselines(
    task: Task, train: Rows, rows: Rows, tokenizer: Any, reporter: Reporter
) -> dict[str, Scores]:
    """Return the scores of all baselines by name.

    Args:
        task: The task. `task.config` holds the resolved settings of the run.
        train: The training rows of the run, which the baselines are fitted on.
        rows: The rows that they are scored on.
        tokenizer: The tokenizer of the model.
        reporter: Shows the progress, and receives warnings.
    """
    return task.score_baselines(train, rows) | score_encoder_baselines(task, train, rows, tokenizer, reporter)


def score_encoder_baselines(
    task: Task, train: Rows, rows: Rows, tokenizer: Any, reporter: Reporter
) -> dict[str, Scores]:
    """Return the scores of the baselines that read the vectors of the encoder before training.

    The model that training started from is loaded again, so it may be missing. A finished training must not
    fail because of this, so the baselines are then left out.
    """
    from bertkit.modeling.frozen_encoder import FrozenEncoder
    from bertkit.tasks.sequence import SequenceTask
    from bertkit.tasks.sequence_baselines import score_linear_probe
    from bertkit.training.memory import report_out_of_memory

    # Vectors of tokens that were added for the task are untrained.
    if not isinstance(task, SequenceTask) or task.new_tokens:
        return {}
    encoder = FrozenEncoder(task.config.model, tokenizer.pad_token_id, reporter)
    try:
        encoder.require_embeddings(tokenizer)
        with report_out_of_memory("out of memory"):
            return score_linear_probe(task, encoder, tokenizer, train, rows)
    except UserError as error:
        reporter.warn(f"no baselines of the encoder before training: {error}")
        return {}

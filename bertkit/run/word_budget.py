"""`--word-budget`: the steps that read a number of words, and the models that are kept on the way."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.errors import format_count
from bertkit.training.samplers import count_words_by_step
from bertkit.utils import distributed
from bertkit.utils.reporting import report_info


class WordBudget:
    """The words that are read after each step, and the models to keep.

    Attributes:
        steps: Number of steps.
        kept_steps: The steps after which the model is kept in `RUN/words/`, by the name of its directory.
    """

    def __init__(self, words: np.ndarray, budget: int, checkpoints: Mapping[str, int]) -> None:
        self.words, self.budget, self.checkpoints = words, budget, checkpoints
        self.steps = len(words)
        self.kept_steps = {name: int(np.searchsorted(words, n)) + 1 for name, n in checkpoints.items()}

    def complete_log(self, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the log of the trainer, with the words that are read after each `step`."""
        return [
            {**entry, "words": float(self.words[entry["step"] - 1]) if entry["step"] else 0.0}
            for entry in log
        ]

    def summarize(self, log: list[dict[str, Any]], steps: int) -> dict[str, Any]:
        """Return the section "words" of `metrics.json`: the scores by the number of words, up to `steps`."""
        from bertkit.training.callbacks import merge_log_history  # here, because Trainer's import is slow

        entries = {entry["step"]: entry for entry in merge_log_history(log)}
        curve = [
            {
                "words": self.checkpoints[name], "step": step,
                **{key.removeprefix("eval_"): value for key, value in entries.get(step, {}).items()
                   if key.startswith("eval_")},
            }
            for name, step in self.kept_steps.items()
            if step <= steps
        ]  # fmt: skip
        seen = float(self.words[steps - 1]) if steps else 0.0
        return {"words": {"budget": self.budget, "seen": seen, "curve": curve}}


def plan_word_budget(config: Any, features: Any) -> WordBudget:
    """Return the budget of the training with these features, which decides its steps."""
    budget = config.word_budget
    words = count_words_by_step(
        features, config.batch_size or features.batch_size_for(config.tokens_per_batch),
        config.gradient_accumulation_steps * distributed.get_world_size(), config.seed, budget,
    )  # fmt: skip
    passes = words[-1] / features.phase_features[0].count_words_for_epoch(0).sum()
    report_info(
        f"--word-budget {budget:,}: {format_count(len(words), 'step')}, {passes:.1f} passes over the text"
    )
    return WordBudget(words, budget, config.list_word_checkpoints())

"""The probe of `--probe`, by which a model is scored at each checkpoint."""

from abc import ABC, abstractmethod
from typing import Any

from bertkit.stats.linear_probe import PROBE_PREFIX


class Probe(ABC):
    """Data on which a model is scored during pre-training."""

    name: str

    @property
    @abstractmethod
    def metric(self) -> str:
        """The name of the score."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Numbers of rows for `metrics.json`."""

    @abstractmethod
    def compute(self, model: Any, tokenizer: Any, max_length: int) -> float:
        """Return the score of a model in evaluation mode."""

    def score(self, model: Any, tokenizer: Any, max_length: int) -> float:
        """Return the score of a model with its current weights."""
        was_training = model.training
        model.eval()
        try:
            return self.compute(model, tokenizer, max_length)
        finally:
            model.train(was_training)

    def summarize(self, log_history: list[dict[str, Any]], best_step: int | None) -> dict[str, Any]:
        """Return the section "probe" of `metrics.json`: scores of the initial and of the final weights.

        The final weights are those of `best_step`; if it is None, those of the last step.
        """
        key = PROBE_PREFIX + self.metric
        scores = {entry["step"]: entry[key] for entry in log_history if key in entry}
        final = scores[max(scores) if best_step is None else best_step]
        return {"data": self.name, **self.sizes, "metric": self.metric, "before": scores[0], "after": final}

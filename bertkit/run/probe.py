"""`--probe`: a labeled dataset or minimal pairs, on which a model is scored at each checkpoint."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast

from bertkit.data.table import Splits
from bertkit.errors import UserError
from bertkit.models.encoder import Encoder, compute_pooled_vectors
from bertkit.run.load_data import load_data, split_parsed_rows
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.linear_probe import MAX_PROBE_ROWS, PROBE_PREFIX
from bertkit.tasks import task_definition
from bertkit.tasks.pretrain.minimal_pairs import (
    MinimalPairs,
    describe_minimal_pairs,
    find_correct,
    has_minimal_pairs,
    load_minimal_pairs,
    score_pairs,
)
from bertkit.tasks.text.task import SequenceTask, predict_by_probe
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_info, silence_reports

MAX_PROBE_PAIRS = 1_000  # their accuracy has a standard error of 1.6 points


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


@dataclass(frozen=True)
class LinearProbe(Probe):
    """A labeled dataset on which a linear model on the vectors of the encoder is fitted and scored."""

    name: str
    task: SequenceTask
    splits: Splits  # at most `MAX_PROBE_ROWS` rows for training, and as many for validation

    @property
    def metric(self) -> str:
        return self.task.state.label_type.default_metric

    @property
    def sizes(self) -> dict[str, int]:
        return {split: len(self.splits[split]) for split in ("train", "validation")}

    def compute(self, model: Any, tokenizer: Any, max_length: int) -> float:
        self.task.resolve(max_length=max_length)
        encoder = Encoder(model.base_model, tokenizer.pad_token_id)
        parts = [self.splits["train"], self.splits["validation"]]
        features = [self.task.featurize(part, tokenizer) for part in parts]
        vectors = [compute_pooled_vectors(encoder, part) for part in features]
        return predict_by_probe(self.task, vectors, parts).score_all()[self.metric]


@dataclass(frozen=True)
class MinimalPairsProbe(Probe):
    """Minimal pairs, whose accuracy is the score."""

    name: str
    pairs: MinimalPairs  # at most `MAX_PROBE_PAIRS`
    metric = "minimal_pairs"

    @property
    def sizes(self) -> dict[str, int]:
        return {"pairs": len(self.pairs.rows)}

    def compute(self, model: Any, tokenizer: Any, max_length: int) -> float:
        with silence_reports():
            tokenized, scores = score_pairs(self.pairs, model, tokenizer, self.name)
        return float(find_correct(scores[tokenized.good], scores[tokenized.bad]).mean())


def load_probe(config: RunConfig) -> Probe | None:
    """Load the data of `--probe`; return None if it is not set."""
    name = config.probe
    if name is None:
        return None
    if has_minimal_pairs(path := expand_home(name)):
        pairs = load_minimal_pairs(path, "--probe").sample(MAX_PROBE_PAIRS, config.seed)
        report_info(f"probe: {describe_minimal_pairs(pairs)}")
        return MinimalPairsProbe(pairs.name, pairs)
    probe_config = task_definition("classify").config(
        data=name, data_dir=config.data_dir, seed=config.seed, max_train_samples=MAX_PROBE_ROWS,
        max_eval_samples=MAX_PROBE_ROWS,
    )  # fmt: skip
    try:
        with silence_reports():
            data = load_data("classify", probe_config)
            splits = split_parsed_rows(data.task, data.dataset)
    except UserError as error:
        message = str(error)  # about the data of `classify`
        if "--data" in message:
            raise UserError(re.sub(r"--data(?![\w-])", "--probe", message)) from error
        problem = message.partition("; ")[0].removeprefix(f"{name}: ")
        raise UserError(
            f"--probe {name}: {problem}; pass a dataset that `bertkit classify --data` reads without other "
            "flags"
        ) from error
    if data.task.state.new_tokens:
        raise UserError(
            f"--probe {name}: the texts have marked entities, and the vectors of the markers are untrained; "
            "pass another dataset"
        )
    probe = LinearProbe(data.dataset.name, cast("SequenceTask", data.task), splits)
    sizes = " and ".join(f"{len(splits[split]):,} {split}" for split in ("train", "validation"))
    report_info(f"probe: {probe.name}; {probe.metric} of a linear model, with {sizes} rows")
    return probe

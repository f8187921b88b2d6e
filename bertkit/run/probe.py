"""The probe of `--probe`: a linear model on the vectors of the encoder, fitted again during pre-training."""

import dataclasses
import re
from typing import Any, cast

from bertkit.data.table import Splits
from bertkit.errors import UserError
from bertkit.models.encoder import Encoder, compute_pooled_vectors
from bertkit.run.load_data import load_data, split_parsed_rows
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.linear_probe import MAX_PROBE_ROWS, PROBE_PREFIX
from bertkit.tasks import task_definition
from bertkit.tasks.text.task import SequenceTask, score_probe
from bertkit.utils.reporting import report_info, silence_reports


@dataclasses.dataclass(frozen=True)
class Probe:
    """A labeled dataset on which a linear probe of the encoder is scored."""

    name: str
    task: SequenceTask
    splits: Splits  # at most `MAX_PROBE_ROWS` rows for training, and as many for validation

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self.task.state.label_type.default_metric

    def score(self, model: Any, tokenizer: Any, max_length: int) -> float:
        """Return the score of a linear model on the vectors of the encoder with its current weights."""
        self.task.resolve(max_length=max_length)
        encoder = Encoder(model.base_model, tokenizer.pad_token_id)
        parts = [self.splits["train"], self.splits["validation"]]
        was_training = model.training
        model.eval()
        try:
            features = [self.task.featurize(part, tokenizer) for part in parts]
            vectors = [compute_pooled_vectors(encoder, part) for part in features]
        finally:
            model.train(was_training)
        return score_probe(self.task, vectors, parts)[self.metric]

    def summarize(self, log_history: list[dict[str, Any]], best_step: int | None) -> dict[str, Any]:
        """Return the section "probe" of `metrics.json`: scores of the initial and of the final weights.

        The final weights are those of `best_step`; if it is None, those of the last step.
        """
        key = PROBE_PREFIX + self.metric
        scores = {entry["step"]: entry[key] for entry in log_history if key in entry}
        sizes = {split: len(self.splits[split]) for split in ("train", "validation")}
        final = scores[max(scores) if best_step is None else best_step]
        return {"data": self.name, **sizes, "metric": self.metric, "before": scores[0], "after": final}


def load_probe(config: RunConfig) -> Probe | None:
    """Load the dataset of `--probe`; return None if it is not set."""
    name = config.probe
    if name is None:
        return None
    probe_config = task_definition("classify").config(
        data=name,
        data_dir=config.data_dir,
        seed=config.seed,
        max_train_samples=MAX_PROBE_ROWS,
        max_eval_samples=MAX_PROBE_ROWS,
    )
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
    probe = Probe(data.dataset.name, cast("SequenceTask", data.task), splits)
    sizes = " and ".join(f"{len(splits[split]):,} {split}" for split in ("train", "validation"))
    report_info(f"probe: {probe.name}; {probe.metric} of a linear model, with {sizes} rows")
    return probe

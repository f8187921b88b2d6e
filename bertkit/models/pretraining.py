"""Pre-training on masked tokens and sentence pairs: logits at the masked positions only, loss and heads."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bertkit.data.masking import IGNORE_INDEX
from bertkit.models.loading import ModelSource, list_weight_names, raise_if_head_is_missing

MASKED_POSITIONS = "masked_lm_positions"


class PretrainingLogits(NamedTuple):
    """Output of a pre-training model.

    The classes of sentence pairs are: the second text follows the first (0), or does not (1).
    """

    prediction_logits: torch.Tensor  # [batch, P, vocabulary] at the masked positions
    seq_relationship_logits: torch.Tensor | None  # [batch, 2], if the model has a sentence-pair head

    def float(self) -> "PretrainingLogits":
        return PretrainingLogits(
            self.prediction_logits.float(),
            None if self.seq_relationship_logits is None else self.seq_relationship_logits.float(),
        )


def add_masked_position_hook(model: Any) -> Any:
    """Add a hook so that the head computes logits only at the positions of `set_masked_positions`.

    The head computes each position independently, so the logits at these positions do not change. Google's
    `run_pretraining.py` also gathers the masked positions before the head.
    """

    def gather(encoder: Any, _: Any, output: Any) -> Any:
        positions = encoder.__dict__.pop(MASKED_POSITIONS, None)
        if positions is not None:
            states = output.last_hidden_state
            index = positions.unsqueeze(-1).expand(-1, -1, states.shape[-1])
            output.last_hidden_state = states.gather(1, index)
        return output

    model.base_model.register_forward_hook(gather)
    return model


def set_masked_positions(model: Any, positions: torch.Tensor) -> None:
    """Set the masked positions [batch, P] for the next forward pass of a model.

    The positions are not passed as a model input, because not every architecture passes unknown inputs to its
    encoder. The model may be a forward method, or a wrapper such as `DistributedDataParallel`.
    """
    model = getattr(model, "__self__", model)
    unwrapped = getattr(model, "module", model)
    setattr(unwrapped.base_model, MASKED_POSITIONS, positions)


# ---- the loss


@dataclass(frozen=True)
class PretrainingLoss:
    """Mean masked-LM loss plus mean sentence-pair loss (Devlin et al. 2018, A.2).

    `masked_lm_labels` `[batch, predictions]` are -100 where nothing is predicted. `next_sentence_label`
    `[batch]` exists only if the examples are sentence pairs.

    Attributes:
        part: Name of the loss of tokens: "mlm", or "lm" for a left-to-right model.
    """

    part: str = "mlm"

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        counts = {self.part: (batch["masked_lm_labels"] != IGNORE_INDEX).sum().float()}
        if "next_sentence_label" in batch:
            pairs = batch["next_sentence_label"]
            counts["nsp"] = torch.full((), float(len(pairs)), device=pairs.device)
        return counts

    def sum_losses(
        self, logits: PretrainingLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        return {
            part: F.cross_entropy(part_logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
            for part, (part_logits, labels) in pair_logits_with_labels(logits, batch, self.part).items()
        }

    def count_correct(
        self, logits: PretrainingLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        return {
            part: (part_logits.argmax(-1) == labels).sum()
            for part, (part_logits, labels) in pair_logits_with_labels(logits, batch, self.part).items()
        }


def pair_logits_with_labels(
    logits: PretrainingLogits, batch: dict[str, torch.Tensor], part: str = "mlm"
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits `[n, num_classes]` and the labels `[n]` of each part of the pre-training loss.

    The label of an unused prediction is -100. The part "nsp" is missing if the model has no sentence-pair
    head or the examples are not pairs.
    """
    parts = {part: (logits.prediction_logits.flatten(0, 1), batch["masked_lm_labels"].flatten())}
    if logits.seq_relationship_logits is not None and "next_sentence_label" in batch:
        parts["nsp"] = (logits.seq_relationship_logits, batch["next_sentence_label"])
    return parts


def reduce_pretraining_logits(
    logits: PretrainingLogits, batch: dict[str, torch.Tensor], num_examples: int
) -> torch.Tensor:
    """Return the loss, the correct predictions and the predictions of each example, `[examples, 6]`.

    The first three columns are those of the masked LM, the last three those of sentence pairs, 0 without
    pairs.
    """
    logits_and_labels = pair_logits_with_labels(logits, batch)
    zeros = torch.zeros(num_examples, 3, device=batch["input_ids"].device)
    sums = [
        sum_per_example(*logits_and_labels[part], num_examples) if part in logits_and_labels else zeros
        for part in ("mlm", "nsp")
    ]
    return torch.cat(sums, 1)


def sum_per_example(logits: torch.Tensor, labels: torch.Tensor, num_examples: int) -> torch.Tensor:
    """Return the loss, the correct predictions and the predictions of each example `[examples, 3]`.

    The predictions are sorted by example, and each example has the same number of them (used or unused).
    """
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
    values = (loss, logits.argmax(-1) == labels, labels != IGNORE_INDEX)
    return torch.stack([value.float().view(num_examples, -1).sum(1) for value in values], 1)


# ---- heads that the weights lack


def find_missing_heads(auto_class: Any, source: ModelSource, config: Any) -> list[str]:
    """Return what a model has heads for, and its weights do not: "tokens", "sentence pairs", both or none."""
    try:
        with torch.device("meta"):
            model = auto_class.from_config(config)
    except ValueError as error:
        raise_if_head_is_missing(error, source, auto_class, config)
        raise
    encoder_prefix, weight_names = model.base_model_prefix + ".", list_weight_names(source.folder)
    missing = [
        weight
        for name, weight in model.named_parameters()  # excludes output weights tied to the embeddings
        if weight.ndim > 1 and not name.startswith(encoder_prefix) and name not in weight_names
    ]
    names = {"sentence pairs" if len(weight) == 2 else "tokens" for weight in missing}
    return [name for name in ("tokens", "sentence pairs") if name in names]

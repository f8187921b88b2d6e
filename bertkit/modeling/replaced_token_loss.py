"""The loss of replaced token detection."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from bertkit.masking.masker import IGNORE_INDEX
from bertkit.metrics.pretraining import DISCRIMINATOR_WEIGHT
from bertkit.modeling.losses import sum_per_example
from bertkit.modeling.replaced_tokens import ReplacedTokenLogits


@dataclass(frozen=True)
class ReplacedTokenLoss:
    """Mean loss of the generator, and 50 times the mean loss of the discriminator.

    This is the loss of Clark et al. 2020, section 2, with the factor of appendix A. The generator's part
    "mlm" is over the masked tokens. The discriminator's part "rtd" is over all tokens, including special
    tokens, and not over padding.

    Attributes:
        part_weights: Factor of each part in the sum; see `sum_parts`.
    """

    part_weights: dict[str, float] = field(default_factory=lambda: {"rtd": DISCRIMINATOR_WEIGHT})

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the number of masked tokens and of all tokens."""
        is_predicted = batch["masked_lm_labels"] != IGNORE_INDEX
        return {"mlm": is_predicted.sum().float(), "rtd": batch["attention_mask"].sum().float()}

    def sum_losses(
        self, logits: ReplacedTokenLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the summed cross-entropies in nats."""
        predictions = logits.prediction_logits.float().flatten(0, 1)
        labels = batch["masked_lm_labels"].flatten()
        return {
            "mlm": F.cross_entropy(predictions, labels, ignore_index=IGNORE_INDEX, reduction="sum"),
            "rtd": _compute_token_losses(logits, batch["attention_mask"]).sum(),
        }

    def count_correct(
        self, logits: ReplacedTokenLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the number of correctly predicted and of correctly classified tokens."""
        is_correct = (logits.replaced_logits > 0) == logits.is_replaced
        return {
            "mlm": (logits.prediction_logits.argmax(-1) == batch["masked_lm_labels"]).sum(),
            "rtd": (is_correct & batch["attention_mask"].bool()).sum(),
        }


def reduce_replaced_token_logits(
    logits: ReplacedTokenLogits, batch: dict[str, torch.Tensor], num_examples: int
) -> torch.Tensor:
    """Return sums of losses, predictions and decisions for each example.

    Returns:
        `[examples, 9]`: loss, correct predictions and predictions of the generator; loss, correct decisions
        and decisions of the discriminator; numbers of true positives, of tokens that are predicted to be
        replaced, and of tokens that are replaced.
    """
    mask = batch["attention_mask"].bool()
    is_positive, is_replaced = logits.replaced_logits > 0, logits.is_replaced
    values = (
        _compute_token_losses(logits, batch["attention_mask"]), (is_positive == is_replaced) & mask, mask,
        is_positive & is_replaced & mask, is_positive & mask, is_replaced & mask,
    )  # fmt: skip
    predictions = sum_per_example(
        logits.prediction_logits.flatten(0, 1), batch["masked_lm_labels"].flatten(), num_examples
    )
    return torch.cat([predictions, torch.stack([value.float().sum(1) for value in values], 1)], 1)


def _compute_token_losses(logits: ReplacedTokenLogits, mask: torch.Tensor) -> torch.Tensor:
    """Return the loss of the discriminator for each token, 0 at padding, [batch, seq_len]."""
    losses = F.binary_cross_entropy_with_logits(
        logits.replaced_logits.float(), logits.is_replaced.float(), reduction="none"
    )
    return losses * mask

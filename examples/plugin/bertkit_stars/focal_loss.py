"""The method: fine-tuning with the focal loss (Lin et al. 2017), for `--method focal-loss`."""

import torch.nn.functional as F

from bertkit.data.features import TARGETS, WEIGHTS
from bertkit.errors import UserError
from bertkit.methods.base import Method
from bertkit.models.losses import CrossEntropy, get_item_weights


class FocalCrossEntropy(CrossEntropy):
    """sum (1 - p)^2 * -log p, where p is the probability of the label."""

    def sum_losses(self, logits, batch):
        targets = batch[TARGETS] if TARGETS in batch else batch["labels"].flatten()
        losses = F.cross_entropy(logits.float().flatten(0, -2), targets, reduction="none")
        losses = (1 - (-losses).exp()) ** 2 * losses
        weights = get_item_weights(batch).flatten() if WEIGHTS in batch else 1.0  # of --weight-column
        return {"loss": (losses * weights).sum()}


class FocalLoss(Method):
    """Examples that the model already predicts well count less."""

    def convert(self, run, inputs):
        if type(inputs.loss) is not CrossEntropy or inputs.loss != CrossEntropy():
            raise UserError(
                f"{self.flag}: replaces the plain cross-entropy, which this run does not use; omit it"
            )
        return inputs._replace(loss=FocalCrossEntropy())

"""The method: fine-tuning with the focal loss (Lin et al. 2017), for `--method focal-loss`."""

from bertkit.errors import UserError
from bertkit.methods.base import Method
from bertkit.models.losses import CrossEntropy


class FocalCrossEntropy(CrossEntropy):
    """sum (1 - p)^2 * -log p, where p is the probability of the label."""

    def sum_losses(self, logits, batch):
        is_item = batch["labels"] != -100
        log_p = logits.float().log_softmax(-1)[is_item].gather(-1, batch["labels"][is_item].unsqueeze(-1))
        return {"loss": ((1 - log_p.exp()) ** 2 * -log_p).sum()}


class FocalLoss(Method):
    """Examples that the model already predicts well count less."""

    def convert(self, run, inputs):
        if type(inputs.loss) is not CrossEntropy or inputs.loss != CrossEntropy():
            raise UserError(
                f"{self.flag}: replaces the plain cross-entropy, which this run does not use; omit it"
            )
        return inputs._replace(loss=FocalCrossEntropy())

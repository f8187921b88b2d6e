"""The task: `classify` with another head and another loss."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from transformers import AutoModel
from transformers.modeling_outputs import SequenceClassifierOutput

from bertkit.data.features import TARGETS, WEIGHTS
from bertkit.models.loading import load_model, select_inputs
from bertkit.models.losses import CrossEntropy, get_item_weights
from bertkit.models.tagger import EncoderWithHead
from bertkit.tasks.text.task import Classify
from bertkit_stars.config import RATE


class MeanMaxClassifier(EncoderWithHead):
    """A head that reads the mean and the maximum over all tokens."""

    def __init__(self, encoder):
        super().__init__(encoder)
        self.config.update({"architectures": ["MeanMaxForSequenceClassification"]})
        self.output = torch.nn.Linear(2 * self.config.hidden_size, self.config.num_labels)

    def forward(self, input_ids, attention_mask, token_type_ids=None, **_):
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        states = self.base_model(**select_inputs(self.base_model, batch)).last_hidden_state
        mask = attention_mask.unsqueeze(-1).bool()
        mean = (states * mask).sum(1) / mask.sum(1)
        maximum = states.masked_fill(~mask, -1e4).amax(1)
        return SequenceClassifierOutput(logits=self.output(torch.cat([mean, maximum], -1)))


@dataclass(frozen=True)
class DistanceLoss(CrossEntropy):
    """Cross-entropy + weight * sum_k p_k |k - label|, so that an error of four stars costs most."""

    weight: float = 0.0

    def sum_losses(self, logits, batch):
        classes = torch.arange(logits.shape[-1], device=logits.device)
        distances = (classes - classes.unsqueeze(-1)).abs().float()  # [labels, classes]
        targets = batch[TARGETS] if TARGETS in batch else F.one_hot(batch["labels"], len(classes)).float()
        expected = (targets @ distances * logits.float().softmax(-1)).sum(-1)
        weights = get_item_weights(batch) if WEIGHTS in batch else 1.0  # of --weight-column
        return {"loss": super().sum_losses(logits, batch)["loss"] + self.weight * (expected * weights).sum()}


class Rate(Classify):
    """Ratings of single texts or pairs."""

    definition = RATE

    @property
    def pipeline(self):
        return replace(super().pipeline, caveat="has no class for the head of this model")

    def build_model(self, model_config, source):
        model = MeanMaxClassifier(load_model(AutoModel, source, model_config))
        if not self.state.has_new_head:
            model.load_head(source)
        return model

    def make_loss(self, features):
        return DistanceLoss(weight=self.config.distance_weight)

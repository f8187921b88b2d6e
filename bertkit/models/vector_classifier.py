"""Classification by a linear layer on the vectors of texts, for which transformers has no model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_outputs import ModelOutput

from bertkit.errors import UserError
from bertkit.models.heads import VECTOR_HEAD
from bertkit.models.loading import NORMALIZE_KEY, POOLING_KEY, ModelSource, load_model, select_inputs
from bertkit.models.pooling import (
    compute_mean_vectors,
    get_pooled_positions,
    is_causal,
    read_sentence_modules,
)
from bertkit.models.tagger import EncoderWithHead
from bertkit.settings.declaration import Pooling


@dataclass
class VectorClassifierOutput(ModelOutput):
    """Logits [batch, num_labels], and the vectors [batch, hidden_size] that the linear layer reads."""

    logits: torch.Tensor | None = None
    vectors: torch.Tensor | None = None


class VectorClassifier(EncoderWithHead):
    """A linear classifier of the vectors of texts.

    Args:
        pooling: How the last layer becomes one vector: "mean" over all tokens except padding, or "cls" for
            the vector of [CLS] (in a causal model, of the last token).
    """

    def __init__(self, encoder: Any, pooling: Pooling, normalize: bool) -> None:
        super().__init__(encoder)
        self.set_pooling(pooling, normalize)
        self.config.update({"architectures": [VECTOR_HEAD]})
        self.output = nn.Linear(self.config.hidden_size, self.config.num_labels)
        self.output.requires_grad_(False)

    def set_pooling(self, pooling: Pooling, normalize: bool) -> None:
        """Choose the vectors of texts, also in the config; see the arguments of the class."""
        self.pooling, self.normalize = pooling, normalize
        self.config.update({POOLING_KEY: pooling, NORMALIZE_KEY: normalize})

    def set_output_layer(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Set the weight [num_labels, hidden_size] and the bias [num_labels] of the linear layer."""
        with torch.no_grad():
            self.output.weight.copy_(torch.from_numpy(weight))
            self.output.bias.copy_(torch.from_numpy(bias))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, **_: Any,
    ) -> VectorClassifierOutput:  # fmt: skip
        """Return logits and vectors of tokens [batch, seq_len]; without padding, the mask may be None."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        states = self.base_model(**select_inputs(self.base_model, batch)).last_hidden_state.float()
        if self.pooling == "cls":
            positions = get_pooled_positions(attention_mask, is_causal(self.config))[:, 0]
            vectors = states[torch.arange(len(positions), device=states.device), positions]
        else:
            vectors = compute_mean_vectors(states, attention_mask)
        if self.normalize:
            vectors = nn.functional.normalize(vectors)
        return VectorClassifierOutput(logits=self.output(vectors), vectors=vectors)


def read_vector_pooling(source: ModelSource, model_config: Any) -> Pooling:
    """Return the pooling that a model was trained with; "mean" if it is not known."""
    modules = read_sentence_modules(source, model_config)
    pooling = "mean" if modules is None else modules.pooling
    if pooling == "mean":
        return "mean"
    if pooling == "cls" or (pooling == "lasttoken" and is_causal(model_config)):
        return "cls"
    raise UserError(
        f"{source.label}: was trained with {pooling} pooling, but --method contrastive reads cls or mean; "
        "use another model, or omit --method"
    )


def load_vector_classifier(
    source: ModelSource, model_config: Any, new_head: bool, pooling: Pooling
) -> VectorClassifier:
    """Load the encoder, and the head unless a new one is requested; it reads vectors of unit length."""
    normalize = new_head or getattr(model_config, NORMALIZE_KEY)
    if is_causal(model_config):
        model_config.use_cache = False  # the key/value cache only serves generation
    model = VectorClassifier(load_model(AutoModel, source, model_config), pooling, normalize)
    if not new_head:
        model.load_head(source)
    return model

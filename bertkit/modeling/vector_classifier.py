"""Text classification on one vector per text: an encoder, pooling, and a linear layer.

The linear layer is fitted to the vectors, as in SetFit (Tunstall et al. 2022) and in a linear probe. It is
not trained together with the encoder.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_outputs import ModelOutput

from bertkit.common_settings import Pooling
from bertkit.errors import UserError
from bertkit.modeling.encoder_with_head import EncoderWithHead
from bertkit.modeling.heads import VECTOR_HEAD
from bertkit.modeling.loading import NORMALIZE_KEY, POOLING_KEY, ModelSource, load_model
from bertkit.modeling.pooling import compute_mean_vectors, get_pooled_positions, is_causal
from bertkit.modeling.sentence_modules import read_sentence_modules


@dataclass
class VectorClassifierOutput(ModelOutput):
    """Output of `VectorClassifier`.

    Attributes:
        logits: [batch, num_labels].
        vectors: [batch, hidden_size] the vector of each text, which the linear layer reads.
    """

    logits: torch.Tensor | None = None
    vectors: torch.Tensor | None = None


class VectorClassifier(EncoderWithHead):
    """A linear classifier of the vectors of texts.

    Args:
        encoder: An encoder loaded by `AutoModel`, whose config contains the labels.
        pooling: How the last layer becomes one vector: "mean" over all tokens except padding, or "cls" for
            the vector of [CLS] (in a causal model, of the last token).
        normalize: Whether to scale vectors to unit length.
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
        """Set the linear layer.

        Args:
            weight: [num_labels, hidden_size].
            bias: [num_labels].
        """
        with torch.no_grad():
            self.output.weight.copy_(torch.from_numpy(weight))
            self.output.bias.copy_(torch.from_numpy(bias))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, **_: Any,
    ) -> VectorClassifierOutput:  # fmt: skip
        """Return logits and vectors.

        Args:
            input_ids: [batch, seq_len] tokens.
            attention_mask: [batch, seq_len], 0 at padding; None without padding.
            token_type_ids: [batch, seq_len], or None.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = self.select_inputs(input_ids, attention_mask, token_type_ids)
        vectors = self._pool(self.base_model(**inputs).last_hidden_state.float(), attention_mask)
        return VectorClassifierOutput(logits=self.output(vectors), vectors=vectors)

    def _pool(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Turn hidden states [batch, seq_len, hidden_size] into vectors [batch, hidden_size]."""
        if self.pooling == "cls":
            positions = get_pooled_positions(attention_mask, is_causal(self.config))[:, 0]
            vectors = states[torch.arange(len(positions), device=states.device), positions]
        else:
            vectors = compute_mean_vectors(states, attention_mask)
        return nn.functional.normalize(vectors) if self.normalize else vectors


def read_vector_pooling(source: ModelSource, model_config: Any) -> Pooling:
    """Return the pooling that a model was trained with; "mean" if it is not known.

    Raises:
        UserError: The model was trained with another pooling.
    """
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
    """Load a classifier: the encoder, and also the head of a finished run unless a new head is requested.

    A new head reads vectors of unit length.

    Args:
        source: The model whose weights are loaded.
        model_config: The model's config.
        new_head: Whether to initialize a new head.
        pooling: See `VectorClassifier`.

    Raises:
        UserError: The weights cannot be read or do not match.
    """
    normalize = new_head or getattr(model_config, NORMALIZE_KEY)
    if is_causal(model_config):
        model_config.use_cache = False  # the key/value cache only serves generation
    model = VectorClassifier(load_model(AutoModel, source, model_config), pooling, normalize)
    if not new_head:
        model.load_head(source)
    return model

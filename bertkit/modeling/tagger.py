"""Token classification on selected layers of an encoder, which is fine-tuned or frozen.

A frozen encoder is the feature-based approach of Devlin et al. 2018, 5.3 and table 7.
"""

from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.config import Head
from bertkit.errors import UserError, format_list
from bertkit.modeling.encoder_with_head import EncoderWithHead
from bertkit.modeling.heads import TAGGER_HEAD, get_head_dropout, has_head
from bertkit.modeling.loading import HEAD_KEY, INITIALIZER_RANGE, ModelSource, load_model
from bertkit.modeling.pooling import BiLstm, ScalarMix

# By name: a slice of the hidden states (0: embeddings, 1 to L: layers), and how several are combined.
FEATURE_LAYERS: dict[str, tuple[slice, Literal["concat", "sum"]]] = {
    "last": (slice(-1, None), "concat"),
    "second-to-last": (slice(-2, -1), "concat"),
    "sum-last-4": (slice(-4, None), "sum"),
    "concat-last-4": (slice(-4, None), "concat"),
    "sum-all": (slice(1, None), "sum"),
    "embeddings": (slice(0, 1), "concat"),
}
FEATURES_KEY = "bertkit_features"  # key in config.json


def select_layers(config: Any, features: str | None) -> list[int]:
    """Return the indices of the hidden states that `features` selects (0: embeddings, 1 to L: layers).

    None selects the last layer.

    Raises:
        UserError: The encoder has too few layers.
    """
    num_layers = config.num_hidden_layers
    if features is not None and num_layers < _count_required_layers(features):
        possible = format_list(name for name in FEATURE_LAYERS if num_layers >= _count_required_layers(name))
        required = _count_required_layers(features)
        raise UserError(
            f"--features {features}: requires {required} layers, and the model has {num_layers}; "
            f"use one of {possible}"
        )
    return list(range(num_layers + 1))[FEATURE_LAYERS[features or "last"][0]]


def _count_required_layers(features: str) -> int:
    return abs(FEATURE_LAYERS[features][0].start)


class Tagger(EncoderWithHead):
    """A token classifier that consists of an encoder, an optional BiLSTM, and a linear layer.

    Args:
        encoder: An encoder loaded by `AutoModel`, whose config contains the labels.
        features: A name in `FEATURE_LAYERS`. None selects the last layer of an encoder that is trained with
            the head; otherwise, the encoder is frozen.
        head: Type of the head, "linear" or "bilstm".
    """

    def __init__(self, encoder: Any, features: str | None, head: Head) -> None:
        super().__init__(encoder)
        config = self.config
        self.layers = select_layers(config, features)
        self.layer_combination = FEATURE_LAYERS[features or "last"][1]
        self.features = features
        self.config.update({FEATURES_KEY: features, HEAD_KEY: head, "architectures": [TAGGER_HEAD]})
        self.mix = ScalarMix(len(self.layers)) if self.layer_combination == "sum" else None
        dropout = get_head_dropout(config)
        size = config.hidden_size * (len(self.layers) if self.layer_combination == "concat" else 1)
        self.bilstm = BiLstm(size, config.hidden_size, dropout) if head == "bilstm" else None
        self.dropout = nn.Dropout(dropout)
        # Not named "classifier", since a model of transformers would load the layer without the BiLSTM.
        self.output = nn.Linear(
            2 * config.hidden_size if self.bilstm is not None else size, config.num_labels
        )
        nn.init.normal_(self.output.weight, std=INITIALIZER_RANGE)
        nn.init.zeros_(self.output.bias)
        encoder.requires_grad_(features is None)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Tagger":
        """Set the mode, except for a frozen encoder, whose vectors dropout would change."""
        super().train(mode)
        if self.features is not None:
            self.base_model.eval()
        return self

    def compute_hidden_states(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden states of the selected layers [batch, seq_len, layers, hidden].

        A frozen encoder always computes in fp32, and its hidden states are rounded to fp16 as in the cache.
        Scores are then the same with and without the cache.
        """
        inputs = self.select_inputs(input_ids, attention_mask, token_type_ids)
        if self.features is None:
            return self.base_model(**inputs).last_hidden_state.unsqueeze(2)
        with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
            states = self.base_model(**inputs, output_hidden_states=True).hidden_states
            seq_len = input_ids.shape[1]  # models with block-sparse attention return longer states
            selected = torch.stack([states[layer][:, :seq_len] for layer in self.layers], 2)
            return selected.half().float()

    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, vectors: torch.Tensor | None = None, **_: Any,
    ) -> TokenClassifierOutput:  # fmt: skip
        """Return logits [batch, seq_len, num_labels].

        Args:
            input_ids: [batch, seq_len] tokens, or None if `vectors` are passed.
            attention_mask: [batch, seq_len], 0 at padding; None without padding.
            token_type_ids: [batch, seq_len], or None.
            vectors: Result of `compute_hidden_states`, which replaces the tokens.
        """
        inputs = input_ids if vectors is None else vectors
        assert inputs is not None
        if attention_mask is None:
            attention_mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
        if vectors is None:
            vectors = self.compute_hidden_states(inputs, attention_mask, token_type_ids)
        combined = self.mix(vectors) if self.mix is not None else vectors.flatten(2)
        if self.bilstm is not None:
            combined = self.bilstm(combined, attention_mask)
        return TokenClassifierOutput(logits=self.output(self.dropout(combined)))

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Enable activation checkpointing in the encoder. A frozen encoder stores no activations."""
        if self.features is None:
            super().activation_checkpointing_enable(**kwargs)

    gradient_checkpointing_enable = activation_checkpointing_enable  # its name until transformers 5.23


def load_tagger(
    source: ModelSource, model_config: Any, features: str | None, head: Head, new_head: bool
) -> Tagger:
    """Load a tagger: the encoder, and also the head unless a new head is requested.

    Args:
        source: The model whose weights are loaded.
        model_config: The model's config.
        features: Layers of a frozen encoder, or None, see `Tagger`.
        head: Type of the head.
        new_head: Whether to initialize a new head.

    Raises:
        UserError: The encoder has too few layers, the weights cannot be read, or the saved head differs from
            the requested one.
    """
    select_layers(model_config, features)
    if not new_head:
        _check_head(source, model_config, features, head)
    model = Tagger(load_model(AutoModel, source, model_config), features, head)
    if not new_head:
        model.load_head(source)
    return model


def _check_head(source: ModelSource, config: Any, features: str | None, head: Head) -> None:
    if not has_head(config, TAGGER_HEAD):
        raise UserError(
            f"--model {source.name}: has no head of the requested kind; pass --new-head to initialize one"
        )
    saved_features, saved_head = getattr(config, FEATURES_KEY, None), getattr(config, HEAD_KEY, None)
    if (saved_features, saved_head) != (features, head):
        features_flag = f"--features {saved_features}" if saved_features else "no --features"
        raise UserError(
            f"--model {source.name}: its head was trained with --head {saved_head} and {features_flag}; "
            "pass the same, or --new-head to initialize another head"
        )

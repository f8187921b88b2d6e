"""Taggers: an encoder with a head for the tags of words that transformers lacks, and files of models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.errors import UserError, format_list
from bertkit.models.heads import TAGGER_HEAD, BiLstm, ScalarMix, get_head_dropout, has_head
from bertkit.models.loading import (
    HEAD_KEY,
    INITIALIZER_RANGE,
    WEIGHTS_FILE,
    ModelSource,
    load_model,
    read_weights,
    select_inputs,
)
from bertkit.models.replaced_tokens import ReplacedTokenModel
from bertkit.settings.run_settings import Head
from bertkit.utils.compat import enable_activation_checkpointing


class EncoderWithHead(nn.Module):
    """An encoder of `AutoModel`, with a head that transformers does not know. The config has the labels.

    The submodules of the head must not have the names of those in transformers' heads, such as "classifier".
    A model of transformers would otherwise load the saved weights of the head, and predict wrongly.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.base_model_prefix = encoder.base_model_prefix
        self.add_module(self.base_model_prefix, encoder)  # AutoModel expects the weights under this name

    @property
    def base_model(self) -> Any:
        return getattr(self, self.base_model_prefix)

    def load_head(self, source: ModelSource) -> None:
        """Load the weights of the head, all of which must exist."""
        encoder_prefix = self.base_model_prefix + "."
        try:
            saved = read_weights(source.folder, lambda name: not name.startswith(encoder_prefix))
            missing, unexpected = self.load_state_dict(saved, strict=False)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise UserError(
                f"{source.label}: its head does not match ({reason}); {source.head_fix}"
            ) from error
        missing_in_head = [name for name in missing if not name.startswith(encoder_prefix)]
        if mismatched := sorted([*unexpected, *missing_in_head]):
            raise UserError(
                f"{source.label}: its head does not match "
                f"(missing or unknown: {format_list(mismatched)}); {source.head_fix}"
            )

    # ---- methods of transformers' models that bertkit calls

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.get_input_embeddings()

    def resize_token_embeddings(self, num_tokens: int) -> None:
        self.base_model.resize_token_embeddings(num_tokens)

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        enable_activation_checkpointing(self.base_model, kwargs)

    gradient_checkpointing_enable = activation_checkpointing_enable  # its name until transformers 5.23

    def save_pretrained(
        self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Write `config.json` and a single file of weights. `AutoModel` can load the encoder from them."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        weights = {
            name: tensor.cpu().contiguous() for name, tensor in (state_dict or self.state_dict()).items()
        }
        save_file(weights, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})


# ---- token classification

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
    """
    num_layers = config.num_hidden_layers
    required = {name: abs(layers.start) for name, (layers, _) in FEATURE_LAYERS.items()}
    if features is not None and num_layers < required[features]:
        possible = format_list(name for name in required if num_layers >= required[name])
        raise UserError(
            f"--features {features}: requires {required[features]} layers, and the model has {num_layers}; "
            f"use one of {possible}"
        )
    return list(range(num_layers + 1))[FEATURE_LAYERS[features or "last"][0]]


class Tagger(EncoderWithHead):
    """A token classifier that consists of an encoder, an optional BiLSTM, and a linear layer.

    `features` is a name in `FEATURE_LAYERS`, and freezes the encoder. None selects the last layer of an
    encoder that is trained with the head.
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
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs = select_inputs(self.base_model, batch)
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
        """Return logits [batch, seq_len, num_labels] of tokens or of the result of `compute_hidden_states`.

        Without padding, the mask [batch, seq_len] may be None.
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
    """Load a tagger: the encoder, and also the head unless a new one is requested; see `Tagger`."""
    if not new_head:
        if not has_head(model_config, TAGGER_HEAD):
            fix = source.fix if source.is_run else "pass --new-head to initialize one"
            raise UserError(f"{source.label}: has no head of the requested kind; {fix}")
        saved = getattr(model_config, FEATURES_KEY, None), getattr(model_config, HEAD_KEY, None)
        if saved != (features, head):
            features_flag = f"--features {saved[0]}" if saved[0] else "no --features"
            fix = "pass the same, or --new-head to initialize another head"
            raise UserError(
                f"{source.label}: its head was trained with --head {saved[1]} and {features_flag}; "
                f"{source.fix if source.is_run else fix}"
            )
    model = Tagger(load_model(AutoModel, source, model_config), features, head)
    if not new_head:
        model.load_head(source)
    return model


def save_model(model: Any, folder: Path, weights: dict[str, Any] | None, tokenizer: Any) -> None:
    """Save a model with its tokenizer, or each of its submodels in a directory that transformers can load.

    The file has the names that the weights have in the model. By default, transformers would write the names
    of the file that the model was loaded from, and change those of the head with them. `weights` are the
    complete state dict of sharded weights; a `ReplacedTokenModel` is never sharded.
    """
    submodels = model.submodels if isinstance(model, ReplacedTokenModel) else {"": model}
    for name, submodel in submodels.items():
        options = {} if isinstance(submodel, EncoderWithHead) else {"save_original_format": False}
        submodel.save_pretrained(folder / name, state_dict=weights, **options)
        tokenizer.save_pretrained(folder / name)

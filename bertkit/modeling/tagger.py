"""A label for each piece, from any layers of any encoder: fine-tuned along, or frozen under a new head.

The second is the feature-based approach of Devlin et al. 2018, 5.3 and table 7.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.config import Head
from bertkit.errors import UserError, format_list
from bertkit.modeling.heads import TAGGER_HEAD, get_head_dropout, has_head
from bertkit.modeling.loading import (
    HEAD_KEY,
    WEIGHTS_FILE,
    ModelSource,
    load_model,
    read_weights,
    takes_token_type_ids,
)
from bertkit.modeling.pooling import BiLstm, ScalarMix

# Name -> which of the embeddings' output (0) and the layers' (1 ... L), and how several become one.
FEATURE_LAYERS: dict[str, tuple[slice, Literal["concat", "sum"]]] = {
    "last": (slice(-1, None), "concat"),
    "second-to-last": (slice(-2, -1), "concat"),
    "sum-last-4": (slice(-4, None), "sum"),
    "concat-last-4": (slice(-4, None), "concat"),
    "sum-all": (slice(1, None), "sum"),
    "embeddings": (slice(0, 1), "concat"),
}
FEATURES_KEY = "bertkit_features"  # in config.json


def select_layers(config: Any, features: str | None) -> list[int]:
    """The layers that `features` names, 0 the embeddings; None: the last.

    Raises:
        UserError: the encoder has too few.
    """
    count = config.num_hidden_layers
    if features is not None and count < _fewest(features):
        fit = format_list(name for name in FEATURE_LAYERS if count >= _fewest(name))
        raise UserError(
            f"--features {features}: needs {_fewest(features)} layers and the model has {count}; {fit} fit"
        )
    return list(range(count + 1))[FEATURE_LAYERS[features or "last"][0]]


def _fewest(features: str) -> int:
    return abs(FEATURE_LAYERS[features][0].start)


class Tagger(nn.Module):
    """An encoder with a choice of its layers, maybe a BiLSTM, and an output layer for each piece.

    Args:
        encoder: what `AutoModel` gives; its config says the labels.
        features: a name in `FEATURES`: the encoder is frozen and its vectors never change. None: the
            last layer of an encoder that is trained along.
        head: what stands on the vectors.
    """

    def __init__(self, encoder: Any, features: str | None, head: Head) -> None:
        super().__init__()
        config = encoder.config
        self.layers, self.layer_combination = (
            select_layers(config, features),
            FEATURE_LAYERS[features or "last"][1],
        )
        self.config, self.features = config, features
        self.config.update({FEATURES_KEY: features, HEAD_KEY: head, "architectures": [TAGGER_HEAD]})
        self.base_model_prefix = encoder.base_model_prefix
        self.add_module(self.base_model_prefix, encoder)  # so weights have the names AutoModel looks for
        self.mix = ScalarMix(len(self.layers)) if self.layer_combination == "sum" else None
        dropout = get_head_dropout(config)
        size = config.hidden_size * (len(self.layers) if self.layer_combination == "concat" else 1)
        self.bilstm = BiLstm(size, config.hidden_size, dropout) if head == "bilstm" else None
        self.dropout = nn.Dropout(dropout)
        # Not "classifier": a stock head would take its weights and do without the rest.
        self.output = nn.Linear(
            2 * config.hidden_size if self.bilstm is not None else size, config.num_labels
        )
        nn.init.normal_(self.output.weight, std=getattr(config, "initializer_range", 0.02))
        nn.init.zeros_(self.output.bias)
        encoder.requires_grad_(features is None)
        self.train(self.training)

    @property
    def base_model(self) -> Any:
        """The encoder, under the name that transformers' models have for it."""
        return getattr(self, self.base_model_prefix)

    def train(self, mode: bool = True) -> "Tagger":
        """A frozen encoder stays in evaluation mode: dropout would change its vectors."""
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
        """The encoder's vectors [sequences, length, layers, hidden], of the layers needed.

        Those of a frozen encoder are computed in fp32 whatever the training and rounded to 16 bits, as
        they are cached: a run scores the same rows alike whether it read them from the cache or not.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and takes_token_type_ids(self.base_model):
            inputs["token_type_ids"] = token_type_ids
        if self.features is None:
            return self.base_model(**inputs).last_hidden_state.unsqueeze(2)
        with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
            states = self.base_model(**inputs, output_hidden_states=True).hidden_states
            length = input_ids.shape[1]  # block-sparse attention leaves its own padding on the states
            chosen = torch.stack([states[layer][:, :length] for layer in self.layers], 2)
            return chosen.half().float()

    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None, vectors: torch.Tensor | None = None, **_: Any,
    ) -> TokenClassifierOutput:  # fmt: skip
        """Logits [sequences, length, num_labels] of pieces, or of their `vectors` as `hidden` gives them."""
        given = input_ids if vectors is None else vectors
        assert given is not None
        if attention_mask is None:
            attention_mask = torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
        if vectors is None:
            vectors = self.compute_hidden_states(given, attention_mask, token_type_ids)
        joined = self.mix(vectors) if self.mix is not None else vectors.flatten(2)
        if self.bilstm is not None:
            joined = self.bilstm(joined, attention_mask)
        return TokenClassifierOutput(logits=self.output(self.dropout(joined)))

    # ---- as transformers' models have them, for Trainer and the run directory

    def activation_checkpointing_enable(self, **how: Any) -> None:
        """Of the encoder; a frozen one keeps no activations anyway."""
        if self.features is None:
            self.base_model.activation_checkpointing_enable(**how)

    def save_pretrained(
        self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """`config.json` and one file of weights, from which `AutoModel` loads the encoder."""
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        weights = {
            name: tensor.cpu().contiguous() for name, tensor in (state_dict or self.state_dict()).items()
        }
        save_file(weights, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})


def load_tagger(
    source: ModelSource, model_config: Any, features: str | None, head: Head, new_head: bool
) -> Tagger:
    """A tagger on the encoder in `source`; its head too comes from there unless `new_head`.

    Raises:
        UserError: too few layers, weights that cannot be read, or no head that fits.
    """
    select_layers(model_config, features)
    if not new_head:
        _check_head(source, model_config, features, head)
    model = Tagger(load_model(AutoModel, source, model_config), features, head)
    if not new_head:
        _load_head(model, source)
    return model


def _check_head(source: ModelSource, config: Any, features: str | None, head: Head) -> None:
    if not has_head(config, TAGGER_HEAD):
        raise UserError(f"--model {source.name}: has no head of this kind; start afresh with --new-head")
    theirs, kind = getattr(config, FEATURES_KEY, None), getattr(config, HEAD_KEY, None)
    if (theirs, kind) != (features, head):
        raise UserError(
            f"--model {source.name}: its head was trained with --head {kind} and "
            f"{f'--features {theirs}' if theirs else 'no --features'}; say the same, or start afresh with "
            "--new-head"
        )


def _load_head(model: Tagger, source: ModelSource) -> None:
    """The weights outside the encoder, all of them and no others; those inside `load_model` has read."""
    encoder = model.base_model_prefix + "."
    try:
        saved = read_weights(source.folder, lambda name: not name.startswith(encoder))
        missing, unexpected = model.load_state_dict(saved, strict=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"--model {source.name}: its head does not fit ({reason})") from error
    wrong = sorted([*unexpected, *(name for name in missing if not name.startswith(encoder))])
    if wrong:
        raise UserError(
            f"--model {source.name}: its head does not fit (missing or unknown: {format_list(wrong)})"
        )

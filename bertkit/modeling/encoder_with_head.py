"""The base class of bertkit's own models: an encoder that `AutoModel` loads, and a head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError, format_list
from bertkit.modeling.loading import WEIGHTS_FILE, ModelSource, read_weights, takes_token_type_ids
from bertkit.utils.compat import enable_activation_checkpointing


class EncoderWithHead(nn.Module):
    """An encoder with a head that transformers does not know.

    The submodules of the head must not have the names of those in transformers' heads, such as "classifier".
    A model of transformers would otherwise load the saved weights of the head, and predict wrongly.

    Args:
        encoder: An encoder loaded by `AutoModel`, whose config contains the labels.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.base_model_prefix = encoder.base_model_prefix
        self.add_module(self.base_model_prefix, encoder)  # AutoModel expects the weights under this name

    @property
    def base_model(self) -> Any:
        """The encoder, as in transformers' models."""
        return getattr(self, self.base_model_prefix)

    def select_inputs(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of the encoder, with the token type ids if it takes them."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and takes_token_type_ids(self.base_model):
            inputs["token_type_ids"] = token_type_ids
        return inputs

    def load_head(self, source: ModelSource) -> None:
        """Load the weights of the head, all of which must exist.

        Raises:
            UserError: The weights cannot be read, or do not match.
        """
        encoder_prefix = self.base_model_prefix + "."
        try:
            saved = read_weights(source.folder, lambda name: not name.startswith(encoder_prefix))
            missing, unexpected = self.load_state_dict(saved, strict=False)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise UserError(
                f"--model {source.name}: its head does not match ({reason}); pass --new-head"
            ) from error
        missing_in_head = [name for name in missing if not name.startswith(encoder_prefix)]
        mismatched = sorted([*unexpected, *missing_in_head])
        if mismatched:
            raise UserError(
                f"--model {source.name}: its head does not match "
                f"(missing or unknown: {format_list(mismatched)}); pass --new-head"
            )

    # ---- methods of transformers' models that bertkit calls

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings."""
        return self.base_model.get_input_embeddings()

    def resize_token_embeddings(self, num_tokens: int) -> None:
        """Change the number of word embeddings."""
        self.base_model.resize_token_embeddings(num_tokens)

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Enable activation checkpointing in the encoder."""
        enable_activation_checkpointing(self.base_model, kwargs)

    gradient_checkpointing_enable = activation_checkpointing_enable  # its name until transformers 5.23

    def save_pretrained(
        self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Write `config.json` and a single file of weights. `AutoModel` can load the encoder from them."""
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        weights = {
            name: tensor.cpu().contiguous() for name, tensor in (state_dict or self.state_dict()).items()
        }
        save_file(weights, Path(folder) / WEIGHTS_FILE, metadata={"format": "pt"})

"""An encoder without a head, which returns the mean vectors of ranges of tokens from selected layers."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from bertkit.data.collator import PaddingCollator
from bertkit.data.features import TextFeatures
from bertkit.errors import UserError
from bertkit.modeling.forward import batch_by_length
from bertkit.modeling.inference import prepare_for_inference
from bertkit.modeling.loading import ModelSource, load_model, takes_token_type_ids
from bertkit.modeling.pooling import is_causal
from bertkit.utils.reporting import Reporter

CONCAT_LAST_4 = "concat-last-4"
# Turns hidden states `[batch, seq_len, size]` of these rows of the features into `[batch, ..., dimension]`.
PoolStates = Callable[[torch.Tensor, np.ndarray], torch.Tensor]


def parse_layers(layer: str, config: Any, name: str) -> list[int]:
    """Return the indices of the layers that `--layer` selects: 0 for the embeddings, 1 to L for the layers.

    Args:
        layer: An index as a text, counted from the end if negative, or "concat-last-4".
        config: The model's config.
        name: The model's name, for the error.

    Raises:
        UserError: The model has no such layer.
    """
    num_layers = config.num_hidden_layers
    available = (
        f"{name} has layers 0 (embeddings) to {num_layers}, or -1 to -{num_layers + 1} counted from the end"
    )
    if layer == CONCAT_LAST_4:
        if num_layers < 4:
            raise UserError(f"--layer {CONCAT_LAST_4}: needs four layers; {available}")
        return list(range(num_layers - 3, num_layers + 1))
    try:
        return [range(num_layers + 1)[int(layer)]]
    except (ValueError, IndexError):
        raise UserError(f"--layer {layer}: no such layer; {available}; or use {CONCAT_LAST_4}") from None


def fingerprint_weights(source: ModelSource) -> str:
    """Return a 16-digit hexadecimal hash of a model's weights."""
    digest = blake2b(digest_size=8)
    for path in sorted(source.folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def select_pooled_tokens(pooling: str, lengths: np.ndarray, config: Any) -> np.ndarray:
    """Return `[n, 2]` start and end of the tokens whose mean vector represents a text.

    Args:
        pooling: "mean" for all tokens, or "cls" for [CLS]. In a causal model, "cls" is the last token, which
            is the only one that attends to the whole text.
        lengths: `[n]` number of tokens of each text.
        config: The model's config.
    """
    if pooling == "mean":
        return np.stack([np.zeros_like(lengths), lengths], 1)
    token = lengths - 1 if is_causal(config) else np.zeros_like(lengths)
    return np.stack([token, token + 1], 1)


def average_ranges(token_ranges: np.ndarray) -> PoolStates:
    """Return the function that averages hidden states.

    Args:
        token_ranges: `[n, ..., 2]` start and end of the tokens of each vector.
    """

    def average(states: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        positions = torch.arange(states.shape[1], device=states.device)
        ranges = torch.from_numpy(token_ranges[rows]).to(states.device)
        start, stop = ranges.unsqueeze(-1).unbind(-2)
        is_in_range = ((positions >= start) & (positions < stop)).to(states.dtype)
        sums = torch.einsum("b...l,blh->b...h", is_in_range, states)
        return sums / is_in_range.sum(-1, keepdim=True)

    return average


class Encoder:
    """An encoder in fp32 for inference, on the accelerator if there is one.

    Args:
        source: The model whose weights are loaded.
        config: The model's config.
        pad_token_id: Id of the padding token.
        layers: Indices of the layers whose vectors are concatenated (0: embeddings).
        normalize: Whether to scale vectors to unit length.
    """

    def __init__(
        self, source: ModelSource, config: Any, pad_token_id: int, layers: Sequence[int], normalize: bool
    ) -> None:
        from transformers import AutoModel

        self.layers, self.last_layer, self.normalize = list(layers), config.num_hidden_layers, normalize
        config.use_cache = False  # the key/value cache only serves generation
        self.model = prepare_for_inference(load_model(AutoModel, source, config))
        self.collator = PaddingCollator(pad_token_id, takes_token_type_ids(self.model))

    @classmethod
    def from_model(cls, model: Any, pad_token_id: int) -> "Encoder":
        """Return the encoder of a model that is being trained, in its evaluation mode; for its last layer."""
        encoder = cls.__new__(cls)
        last_layer = model.config.num_hidden_layers
        encoder.layers, encoder.last_layer, encoder.normalize = [last_layer], last_layer, False
        encoder.model = model
        encoder.collator = PaddingCollator(pad_token_id, takes_token_type_ids(model))
        return encoder

    @property
    def dimension(self) -> int:
        """Size of a vector."""
        return self.model.config.hidden_size * len(self.layers)

    def encode_into(
        self, vectors: np.ndarray, features: TextFeatures, pool: PoolStates, batch_size: int,
        reporter: Reporter,
    ) -> None:  # fmt: skip
        """Compute the vectors of each example, in batches of examples of similar length.

        Args:
            vectors: `[n, ..., dimension]` output array, which may be memory-mapped.
            features: The examples, with one sequence each.
            pool: How hidden states become vectors, such as `average_ranges`.
            batch_size: Examples per forward pass.
            reporter: Reporter that shows the progress.

        Raises:
            UserError: The model produces NaN or infinity.
        """
        batches = batch_by_length(features, batch_size)
        for rows in reporter.track(batches, len(batches), "embedding"):
            pooled = pool(self._compute_states([features[row] for row in rows]), rows)
            if self.normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            if not torch.isfinite(pooled).all():
                raise UserError(
                    "the model's vectors contain NaN or infinity: its weights are broken; use another model"
                )
            vectors[rows] = pooled.cpu().numpy()

    @torch.no_grad()
    def _compute_states(self, items: list[dict[str, Any]]) -> torch.Tensor:
        """Return the hidden states `[batch, seq_len, dimension]` of the selected layers."""
        batch = {name: tensor.to(self.model.device) for name, tensor in self.collator(items).items()}
        needs_hidden_states = self.layers != [self.last_layer]
        output = self.model(**batch, output_hidden_states=needs_hidden_states)
        states = output.hidden_states if needs_hidden_states else {self.last_layer: output.last_hidden_state}
        seq_len = batch["input_ids"].shape[1]  # models with block-sparse attention return longer states
        return torch.cat([states[layer][:, :seq_len] for layer in self.layers], -1)

    @torch.no_grad()
    def average_word_embeddings(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the mean of the tokens' word embeddings `[embedding_size]`, without running the encoder."""
        table = self.model.get_input_embeddings().weight
        return table[torch.from_numpy(token_ids.astype(np.int64)).to(table.device)].mean(0).cpu().numpy()

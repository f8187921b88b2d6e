"""An encoder without any head: vectors of stretches of pieces, from the layers that are asked for."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from bertkit.data.collator import PaddingCollator
from bertkit.data.features import StoredFeatures
from bertkit.errors import UserError
from bertkit.modeling.loading import ModelSource, load_model, takes_token_type_ids
from bertkit.utils.reporting import Reporter

CONCAT_LAST_4 = "concat-last-4"
POOLING_CONFIG = "1_Pooling/config.json"  # where sentence-transformers says how a model's vectors are made


def parse_layers(layer: str, config: Any, name: str) -> list[int]:
    """The layers that `--layer` names: 0 the embeddings, 1 ... L, from the end -1 ..., or the last four.

    Raises:
        UserError: the model `name` has no such layer.
    """
    count = config.num_hidden_layers
    there = f"{name} has the layers 0 (embeddings) to {count}, from the end -1 to -{count + 1}"
    if layer == CONCAT_LAST_4:
        if count < 4:
            raise UserError(f"--layer {CONCAT_LAST_4}: needs four layers; {there}")
        return list(range(count - 3, count + 1))
    try:
        return [range(count + 1)[int(layer)]]
    except (ValueError, IndexError):
        raise UserError(f"--layer {layer}: {there}; or {CONCAT_LAST_4}") from None


def read_pooling_mode(source: ModelSource) -> str | None:
    """How the vectors of a sentence-transformers model were pooled when it was trained; None of others."""
    path = source.folder / POOLING_CONFIG
    if not path.is_file():
        return None
    about = json.loads(path.read_text("utf-8"))
    named = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    modes = [name for key, name in named.items() if about.get(key)]
    return about.get("pooling_mode") or (modes[0] if len(modes) == 1 else None)


def fingerprint_weights(source: ModelSource) -> str:
    """16 hex digits that tell a model's weights from others."""
    digest = blake2b(digest_size=8)
    for path in sorted(source.folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


class Encoder:
    """An encoder at work on the accelerator, where there is one, in fp32.

    Args:
        source, config: the model.
        tokenizer: its padding piece is used.
        layers: those whose vectors stand side by side.
        normalize: whether vectors are scaled to length 1.
    """

    def __init__(
        self, source: ModelSource, config: Any, tokenizer: Any, layers: Sequence[int], normalize: bool
    ) -> None:
        from transformers import AutoModel

        self.layers, self.last_layer, self.normalize = list(layers), config.num_hidden_layers, normalize
        config.use_cache = False  # of keys and values, for texts that are gone on with
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        self.model = load_model(AutoModel, source, config).eval().to(device)
        self.collator = PaddingCollator(tokenizer.pad_token_id, takes_token_type_ids(self.model))

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self.model.config.hidden_size * len(self.layers)

    def encode_into(
        self, vectors: np.ndarray, features: StoredFeatures, places: np.ndarray, size: int, reporter: Reporter
    ) -> None:
        """Compute the vector of each example, `size` at a time, like lengths together, longest first.

        Args:
            vectors: [n, width] to write into; may be memory-mapped.
            features: of one sequence each.
            places: [n, 2] the first piece of each that counts, and the one behind the last: the vector is
                the mean over them.

        Raises:
            UserError: weights that give no numbers.
        """
        order = np.argsort(-features.length_keys, kind="stable")
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        for rows in reporter.track(batches, len(batches), "embedding"):
            found = self._means([features[row] for row in rows], torch.from_numpy(places[rows]))
            if not torch.isfinite(found).all():
                raise UserError("the model's vectors are no numbers; its weights are broken")
            vectors[rows] = found.cpu().numpy()

    @torch.no_grad()
    def _means(self, items: list[dict[str, Any]], places: torch.Tensor) -> torch.Tensor:
        """[batch, width] means over each item's places."""
        device = self.model.device
        batch = {name: tensor.to(device) for name, tensor in self.collator(items).items()}
        several = self.layers != [self.last_layer]
        output = self.model(**batch, output_hidden_states=several)
        states = output.hidden_states if several else {self.last_layer: output.last_hidden_state}
        length = batch["input_ids"].shape[1]  # block-sparse attention leaves its own padding on the states
        joined = torch.cat([states[layer][:, :length] for layer in self.layers], -1)
        place = torch.arange(length, device=device)
        start, stop = places.to(device).T.unsqueeze(-1)
        counted = ((place >= start) & (place < stop)).to(joined.dtype)
        means = torch.einsum("bl,blh->bh", counted, joined) / counted.sum(1, keepdim=True)
        return torch.nn.functional.normalize(means) if self.normalize else means

    @torch.no_grad()
    def average_word_embeddings(self, pieces: np.ndarray) -> np.ndarray:
        """[width of the table] the mean of the pieces' word embeddings alone: no text is read."""
        table = self.model.get_input_embeddings().weight
        return table[torch.from_numpy(pieces.astype(np.int64)).to(table.device)].mean(0).cpu().numpy()

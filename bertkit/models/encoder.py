"""Vectors of an encoder without a head: computation, their cache, and features that consist of vectors."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.collators import PaddingCollator
from bertkit.data.features import Features, TextFeatures, update_with_tokens
from bertkit.errors import UserError
from bertkit.models.forward import Collator, batch_by_length, collate_on_device, prepare_for_inference
from bertkit.models.loading import (
    ModelSource,
    find_model,
    load_config,
    load_model,
    takes_token_type_ids,
)
from bertkit.models.pooling import PoolStates, average_ranges, select_pooled_tokens
from bertkit.utils import distributed
from bertkit.utils.arrays import concat_ranges
from bertkit.utils.cache import get_cache_directory, get_or_create
from bertkit.utils.files import require_disk_space
from bertkit.utils.reporting import silence_reports, track_progress

CONCAT_LAST_4 = "concat-last-4"
EXCHANGED_BATCHES = 8  # of each rank at a time


def parse_layers(layer: str, config: Any, name: str) -> list[int]:
    """Return the indices of the layers that `--layer` selects (0: embeddings, 1 to L: layers)."""
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


class Encoder:
    """An encoder without a head, in evaluation mode, and how its hidden states become vectors.

    Args:
        layers: Indices of the layers whose vectors are concatenated (0: embeddings); by default, the last.
    """

    def __init__(
        self, model: Any, pad_token_id: int, layers: Sequence[int] | None = None, normalize: bool = False
    ) -> None:
        self.model, self.last_layer, self.normalize = model, model.config.num_hidden_layers, normalize
        self.layers = [self.last_layer] if layers is None else list(layers)
        self.collator = PaddingCollator(pad_token_id, takes_token_type_ids(model))

    @classmethod
    def load(
        cls, source: ModelSource, config: Any, pad_token_id: int, layers: Sequence[int] | None = None,
        normalize: bool = False,
    ) -> "Encoder":  # fmt: skip
        """Load an encoder in fp32 for inference, on the accelerator if there is one."""
        from transformers import AutoModel

        config.use_cache = False  # the key/value cache only serves generation
        model = prepare_for_inference(load_model(AutoModel, source, config))
        return cls(model, pad_token_id, layers, normalize)

    @property
    def dimension(self) -> int:
        return self.model.config.hidden_size * len(self.layers)

    def encode_into(
        self, vectors: np.ndarray, features: Features, pool: PoolStates, batch_size: int,
        is_shared: bool = False,
    ) -> None:  # fmt: skip
        """Compute the vectors of each example, in batches of examples of similar length.

        Args:
            vectors: `[n, ..., dimension]` output array, which may be memory-mapped.
            is_shared: Whether all ranks call this, and each computes a part of the batches. Only the main
                process then writes into its array.
        """
        batches = batch_by_length(features, batch_size)
        if not is_shared or distributed.get_world_size() == 1:
            for rows in track_progress(batches, len(batches), "embedding"):
                vectors[rows] = self._encode(features, rows, pool)
            return
        # Vectors are exchanged every few batches: those of all rows may not fit into memory.
        steps = range(0, len(batches), EXCHANGED_BATCHES * distributed.get_world_size())
        for start in track_progress(steps, len(steps), "embedding"):
            part = batches[start : start + steps.step]
            own = part[distributed.get_rank() :: distributed.get_world_size()]
            encoded = [(rows, self._encode(features, rows, pool)) for rows in own]
            for rows, values in chain.from_iterable(distributed.gather_object(encoded)):
                if distributed.get_rank() == 0:
                    vectors[rows] = values

    @torch.no_grad()
    def _encode(self, features: Features, rows: np.ndarray, pool: PoolStates) -> np.ndarray:
        """Return the vectors of the examples of one batch."""
        needs_hidden_states = self.layers != [self.last_layer]
        batch = collate_on_device(features, rows, self.collator, self.model.device)
        output = self.model(**batch, output_hidden_states=needs_hidden_states)
        last = {self.last_layer: output.last_hidden_state}
        layers = output.hidden_states if needs_hidden_states else last
        seq_len = batch["input_ids"].shape[1]  # models with block-sparse attention return longer states
        states = torch.cat([layers[layer][:, :seq_len] for layer in self.layers], -1)
        pooled = pool(states, rows)
        if self.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        if not torch.isfinite(pooled).all():
            raise UserError(
                "the model's vectors contain NaN or infinity: its weights are broken; use another model"
            )
        encoded: np.ndarray = pooled.cpu().numpy()
        return encoded

    @torch.no_grad()
    def average_word_embeddings(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the mean of the tokens' word embeddings `[embedding_size]`, without running the encoder."""
        table = self.model.get_input_embeddings().weight
        return table[torch.from_numpy(token_ids.astype(np.int64)).to(table.device)].mean(0).cpu().numpy()


VECTORS_FILE = "vectors.npy"
# Keys of `config.json` that do not affect the vectors.
IRRELEVANT_CONFIG_KEYS = {
    "id2label", "label2id", "num_labels", "problem_type", "architectures", "bertkit_features", "bertkit_head",
    "bertkit_pooling", "bertkit_normalize", "bertkit_trained_length", "classifier_dropout", "use_cache",
    "dtype", "_name_or_path", "transformers_version",
}  # fmt: skip


# ---- the cache of vectors


def load_or_compute(
    kind: str, key: str, shape: tuple[int, ...], dtype: type, fill: Callable[[np.ndarray], None], advice: str
) -> np.ndarray:
    """Return an array from the cache, memory-mapped if possible; else `fill` it, and write it there."""

    def write(folder: Path) -> None:
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        require_disk_space(
            get_cache_directory(), num_bytes, "the encoder's outputs", advice, flag="BERTKIT_CACHE_DIR"
        )
        fill(allocate_memmap(folder / VECTORS_FILE, shape, dtype))

    folder = get_or_create(kind, key, write)
    if folder:
        return np.load(folder / VECTORS_FILE, mmap_mode="r")
    vectors: np.ndarray = np.empty(shape, dtype)
    fill(vectors)
    return vectors


def start_cache_key(config: Any, settings: Any) -> blake2b:
    """Return a digest of the config of an encoder, and of settings that select its vectors."""
    relevant = {key: value for key, value in config.to_dict().items() if key not in IRRELEVANT_CONFIG_KEYS}
    return blake2b(json.dumps([relevant, settings], sort_keys=True, default=str).encode(), digest_size=16)


def finish_cache_key(digest: blake2b, features: TextFeatures) -> str:
    """Add the tokens of all sequences to a digest, and return it in hexadecimal."""
    digest.update(features.token_offsets.data)
    update_with_tokens(digest, features)
    return digest.hexdigest()


def allocate_memmap(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Create a memory-mapped array and reserve its disk space.

    Writing to a memory-mapped file on a full disk would kill the process.
    """
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


# ---- vectors of tokens


class VectorFeatures:
    """Features with vectors [tokens, layers, hidden] of the tokens of all sequences in place of token ids."""

    def __init__(self, features: TextFeatures, vectors: np.ndarray) -> None:
        self.features, self.vectors = features, vectors

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item, offsets = self.features[index], self.features.sequence_offsets
        del item["input_ids"], item["token_type_ids"]
        bounds = self.features.token_offsets[offsets[index] : offsets[index + 1] + 1]
        return item | {"vectors": [self.vectors[start:stop] for start, stop in pairwise(bounds)]}

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` request private names before `features` is set.
        if name.startswith("_") or name == "features":
            raise AttributeError(name)
        return getattr(self.features, name)


def compute_vectors(model: Any, features: TextFeatures, collator: Collator, batch_size: int) -> np.ndarray:
    """Return the fp16 vectors of all tokens, [tokens, layers, hidden], by a frozen `Tagger` or the cache.

    The collator must keep the order of the items.
    """
    shape = (int(features.token_offsets[-1]), len(model.layers), model.config.hidden_size)

    def fill(vectors: np.ndarray) -> None:
        # The longest examples come first: memory runs out at the first batch or never.
        batches = batch_by_length(features, batch_size)
        device = next(model.parameters()).device
        for rows in track_progress(batches, len(batches), "computing vectors"):
            batch = collate_on_device(features, rows, collator, device)
            mask = batch["attention_mask"]
            hidden = model.compute_hidden_states(batch["input_ids"], mask, batch.get("token_type_ids"))
            batch_vectors = hidden[mask.bool()].half()
            if not torch.isfinite(batch_vectors).all():
                raise UserError(
                    f"--features {model.features}: vectors exceed the range of 16 bits, as which they are "
                    "stored; use another value or model"
                )
            starts = features.token_offsets[features.sequence_offsets[rows]]
            stops = features.token_offsets[features.sequence_offsets[rows + 1]]
            vectors[concat_ranges(starts, stops)] = batch_vectors.cpu().numpy()

    # The vectors depend on the encoder, the layers and the tokens. The pooler may be newly initialized.
    digest = start_cache_key(model.config, model.layers)
    for name, tensor in model.base_model.state_dict().items():
        if "pooler" not in name:
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    key = finish_cache_key(digest, features)
    advice = "choose a directory on another disk, or --features of fewer layers"
    return load_or_compute("vectors", key, shape, np.float16, fill, advice)


# ---- vectors of whole texts

POOLINGS = ("mean", "cls")
BATCH_SIZE = 32  # the same in all commands, so that a vector is always the same


class FrozenEncoder:
    """An encoder as its checkpoint has it, in fp32. Its weights are loaded if the cache lacks vectors."""

    def __init__(self, model: str, pad_token_id: int) -> None:
        self.source, self.pad_token_id = find_model(model), pad_token_id
        self.config = load_config(self.source)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_weights(self.source)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder.load(self.source, self.config, self.pad_token_id)

    def compute_vectors(self, features: TextFeatures) -> np.ndarray:
        """Return the vector of each text by each pooling of the last layer, `[n, poolings, hidden]`.

        The vector of a text that is split into windows is the mean of the vectors of its windows.
        """
        num_sequences = len(features.sequence_lengths)
        shape = (num_sequences, len(POOLINGS), self.config.hidden_size)
        key = finish_cache_key(start_cache_key(self.config, [POOLINGS, self._fingerprint]), features)

        vectors = load_or_compute(
            "text-vectors", key, shape, np.float32,
            lambda vectors: _fill_text_vectors(vectors, self._encoder, features),
            "choose a directory on another disk",
        )  # fmt: skip
        if num_sequences == len(features):
            return vectors
        counts = np.diff(features.sequence_offsets)
        sums = np.add.reduceat(vectors, features.sequence_offsets[:-1])
        return sums / counts[:, None, None].astype(np.float32)


def compute_pooled_vectors(encoder: Encoder, features: TextFeatures) -> np.ndarray:
    """Return the vector of each sequence by each pooling, `[n, poolings, hidden]`, without the cache."""
    shape = (len(features.sequence_lengths), len(POOLINGS), encoder.dimension)
    vectors = np.empty(shape, np.float32)
    with silence_reports():
        _fill_text_vectors(vectors, encoder, features)
    return vectors


def _fill_text_vectors(vectors: np.ndarray, encoder: Encoder, features: TextFeatures) -> None:
    lengths = features.sequence_lengths
    ranges = [select_pooled_tokens(pooling, lengths, encoder.model.config) for pooling in POOLINGS]
    sequences = dataclasses.replace(
        features, sequence_offsets=np.arange(len(lengths) + 1), labels=None, weights=None, targets=None
    )
    encoder.encode_into(vectors, sequences, average_ranges(np.stack(ranges, 1)), BATCH_SIZE)

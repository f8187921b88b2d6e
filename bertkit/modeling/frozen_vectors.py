"""Precomputed vectors of a frozen encoder, cached on disk, which replace tokens as model inputs."""

import json
import os
from collections.abc import Callable
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertkit.data.features import TextFeatures, update_with_tokens
from bertkit.errors import UserError
from bertkit.modeling.forward import batch_by_length
from bertkit.utils.cache import get_cache_directory, get_or_create
from bertkit.utils.output_paths import require_disk_space
from bertkit.utils.ragged import concat_ranges
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.modeling.tagger import Tagger

Collator = Callable[..., dict[str, torch.Tensor]]
VECTORS_FILE = "vectors.npy"
# Keys of `config.json` that do not affect the vectors.
IRRELEVANT_CONFIG_KEYS = {
    "id2label", "label2id", "num_labels", "problem_type", "architectures", "bertkit_features", "bertkit_head",
    "bertkit_pooling", "bertkit_normalize", "bertkit_trained_length", "classifier_dropout", "use_cache",
    "dtype", "_name_or_path", "transformers_version",
}  # fmt: skip


class VectorFeatures(TextFeatures):
    """Features with vectors in place of token ids.

    Args:
        features: The features that the vectors were computed from.
        vectors: [tokens, layers, hidden] vectors of the tokens of all sequences, concatenated.
    """

    features: TextFeatures
    vectors: np.ndarray

    def __init__(self, features: TextFeatures, vectors: np.ndarray) -> None:
        vars(self).update(vars(features), features=features, vectors=vectors)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.features[index]
        del item["input_ids"], item["token_type_ids"]
        bounds = self.token_offsets[self.sequence_offsets[index] : self.sequence_offsets[index + 1] + 1]
        return item | {"vectors": [self.vectors[start:stop] for start, stop in pairwise(bounds)]}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped features."""
        # `copy` and `pickle` request private names before `features` is set.
        if name.startswith("_") or name == "features":
            raise AttributeError(name)
        return getattr(self.features, name)

    @property
    def lengths(self) -> np.ndarray:
        """[n] lengths of the wrapped features."""
        return self.features.lengths

    @property
    def logit_offsets(self) -> np.ndarray:
        """[n + 1] logit offsets of the wrapped features."""
        return self.features.logit_offsets

    @property
    def length_keys(self) -> np.ndarray:
        """[n] length keys of the wrapped features."""
        return self.features.length_keys


# ---- computation


def compute_vectors(
    model: "Tagger", features: TextFeatures, collator: Collator, batch_size: int, reporter: Reporter
) -> np.ndarray:
    """Compute the fp16 vectors of all tokens, or load them from the cache.

    Args:
        model: A tagger with a frozen encoder, on the device to use.
        features: The tokens of all sequences.
        collator: Function that pads items to a batch with `input_ids`, `attention_mask` and, if the encoder
            takes them, `token_type_ids`. The batch must have the order of the items.
        batch_size: Examples per batch.
        reporter: Reporter that shows the progress.

    Returns:
        [tokens, layers, hidden] fp16, memory-mapped if the cache directory is writable.

    Raises:
        UserError: The disk is full, or a vector exceeds the range of fp16.
    """
    shape = (int(features.token_offsets[-1]), len(model.layers), model.config.hidden_size)

    def fill(vectors: np.ndarray) -> None:
        _fill_vectors(vectors, model, features, collator, batch_size, reporter)

    key = _compute_cache_key(model, features)
    advice = "choose a directory on another disk, or --features of fewer layers"
    return load_or_compute("vectors", key, shape, np.float16, fill, advice)


def load_or_compute(
    kind: str, key: str, shape: tuple[int, ...], dtype: type, fill: Callable[[np.ndarray], None], advice: str
) -> np.ndarray:
    """Return an array of vectors from the cache, or compute it and write it to the cache.

    Args:
        kind: Kind of content in the cache.
        key: Digest of everything that the vectors depend on.
        shape: Shape of the array.
        dtype: Type of its elements.
        fill: Computes the vectors, and writes them into an array of this shape.
        advice: What the user can do if the disk is full.

    Returns:
        The array, memory-mapped if the cache directory is writable.

    Raises:
        UserError: The disk is full.
    """

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


def _compute_cache_key(model: "Tagger", features: TextFeatures) -> str:
    """Return a digest of everything that the vectors depend on: encoder, layers and tokens."""
    digest = start_cache_key(model.config, model.layers)
    for name, tensor in model.base_model.state_dict().items():
        if "pooler" not in name:  # vectors do not depend on the pooler, which may be newly initialized
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return finish_cache_key(digest, features)


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


def _fill_vectors(
    vectors: np.ndarray, model: "Tagger", features: TextFeatures, collator: Collator, batch_size: int,
    reporter: Reporter,
) -> None:  # fmt: skip
    """Compute all vectors. The longest examples come first: memory runs out at the first batch or never."""
    batches = batch_by_length(features, batch_size)
    device = next(model.parameters()).device
    for rows in reporter.track(batches, len(batches), "computing vectors"):
        batch = collator([features[row] for row in rows])
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch]
        hidden = model.compute_hidden_states(**{name: batch[name].to(device) for name in names})
        batch_vectors = hidden[batch["attention_mask"].bool().to(device)].half()
        if not torch.isfinite(batch_vectors).all():
            raise UserError(
                f"--features {model.features}: vectors exceed the range of 16 bits, as which they are "
                "stored; use another value or model"
            )
        starts = features.token_offsets[features.sequence_offsets[rows]]
        stops = features.token_offsets[features.sequence_offsets[rows + 1]]
        vectors[concat_ranges(starts, stops)] = batch_vectors.cpu().numpy()

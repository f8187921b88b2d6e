"""The vectors of texts under an encoder that is not trained, cached on disk."""

import dataclasses
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.data.features import TextFeatures
from bertkit.modeling.encoder import (
    Encoder,
    average_ranges,
    fingerprint_weights,
    select_pooled_tokens,
)
from bertkit.modeling.frozen_vectors import finish_cache_key, load_or_compute, start_cache_key
from bertkit.modeling.loading import ModelSource, find_model, load_config, require_embeddings
from bertkit.utils.reporting import Reporter

POOLINGS = ("mean", "cls")
BATCH_SIZE = 32  # the same in all commands, so that a vector is always the same


class FrozenEncoder:
    """An encoder as loaded from its checkpoint, in fp32. Its weights are loaded if the cache lacks vectors.

    Args:
        model: Name or path of the model.
        pad_token_id: Id of the padding token.
        reporter: Shows the progress.
    """

    def __init__(self, model: str, pad_token_id: int, reporter: Reporter) -> None:
        self.model, self.pad_token_id, self.reporter = model, pad_token_id, reporter

    @cached_property
    def _source(self) -> ModelSource:
        return find_model(self.model)

    @cached_property
    def _config(self) -> Any:
        return load_config(self._source)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_weights(self._source)

    @cached_property
    def _encoder(self) -> Encoder:
        layers = [self._config.num_hidden_layers]
        return Encoder(self._source, self._config, self.pad_token_id, layers, normalize=False)

    def require_embeddings(self, tokenizer: Any) -> None:
        """Check that the encoder has an embedding for each token; a run may have added embeddings.

        Raises:
            UserError: It lacks embeddings, or the model cannot be loaded.
        """
        require_embeddings(self._source, self._config, tokenizer)

    def compute_vectors(self, features: TextFeatures) -> np.ndarray:
        """Return the vector of each text by each pooling of the last layer, `[n, poolings, hidden]`.

        The vector of a text that is split into windows is the mean of the vectors of its windows.

        Args:
            features: The texts.

        Raises:
            UserError: The model cannot be loaded, or its vectors contain NaN or infinity.
        """
        num_sequences = len(features.sequence_lengths)
        shape = (num_sequences, len(POOLINGS), self._config.hidden_size)
        key = finish_cache_key(start_cache_key(self._config, [POOLINGS, self._fingerprint]), features)

        def fill(vectors: np.ndarray) -> None:
            self._fill(vectors, features)

        vectors = load_or_compute(
            "text-vectors", key, shape, np.float32, fill, "choose a directory on another disk"
        )
        if num_sequences == len(features):
            return vectors
        counts = np.diff(features.sequence_offsets)
        sums = np.add.reduceat(vectors, features.sequence_offsets[:-1])
        return sums / counts[:, None, None].astype(np.float32)

    def _fill(self, vectors: np.ndarray, features: TextFeatures) -> None:
        """Compute the vectors of all sequences."""
        _fill_vectors(vectors, self._encoder, features, self.reporter)


def compute_pooled_vectors(encoder: Encoder, features: TextFeatures) -> np.ndarray:
    """Return the vector of each sequence by each pooling, `[n, poolings, hidden]`, without the cache."""
    shape = (len(features.sequence_lengths), len(POOLINGS), encoder.dimension)
    vectors = np.empty(shape, np.float32)
    _fill_vectors(vectors, encoder, features, Reporter())
    return vectors


def _fill_vectors(vectors: np.ndarray, encoder: Encoder, features: TextFeatures, reporter: Reporter) -> None:
    lengths = features.sequence_lengths
    ranges = [select_pooled_tokens(pooling, lengths, encoder.model.config) for pooling in POOLINGS]
    sequences = dataclasses.replace(features, sequence_offsets=np.arange(len(lengths) + 1), labels=None)
    encoder.encode_into(vectors, sequences, average_ranges(np.stack(ranges, 1)), BATCH_SIZE, reporter)

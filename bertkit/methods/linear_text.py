"""Methods whose models are linear in words, character n-grams and static token vectors of an encoder.

Static vectors follow model2vec (Tulkens and van Dongen 2024): each token of the vocabulary is encoded alone,
the vectors are projected to fewer dimensions by PCA, and frequent tokens count less.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bertkit.data.table import Rows
from bertkit.data.tokens import SequenceTemplate
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.errors import TrainingFailed
from bertkit.methods.base import Method
from bertkit.models import loading
from bertkit.models.encoder import Encoder, fingerprint_weights, load_or_compute, start_cache_key
from bertkit.models.linear_text import Input, LinearTextModel, StaticVectors
from bertkit.models.loading import ModelSource
from bertkit.stats.linear_probe import fit_linear_layer, scale_penalty
from bertkit.tasks.text.task import SequenceTask
from bertkit.utils.reporting import report_info, track_progress

INPUTS: Mapping[str, tuple[Input, ...]] = {  # by --method
    "tfidf": ("words",),
    "tfidf-chars": ("words", "characters"),
    "static": ("vectors",),
    "hybrid": ("words", "characters", "vectors"),
}
PENALTY = 0.1  # of the weights: that of the baseline `tfidf`
STATIC_SIZE = 256  # dimensions of the static vectors, if the encoder has more
TOKENS_PER_BATCH = 1024


class LinearText(Method):
    """A linear model of texts. Unlike other methods, it reads texts, and no encoder predicts."""

    has_training_steps = False
    needs_all_weights = True

    def __init__(self, name: str) -> None:
        self.name, self.flag, self.inputs = name, f"--method {name}", INPUTS[name]

    @property
    def needs_encoder(self) -> bool:
        """Whether the training reads an encoder, from which static vectors are computed."""
        return "vectors" in self.inputs

    def fit(
        self, task: SequenceTask, model_config: Any, source: ModelSource, rows: Rows, labels: TrainingLabels
    ) -> LinearTextModel:
        """Return the model that is fitted to training rows.

        Args:
            model_config: The config of the fitted model, with the labels of the task.
            source: The encoder.
            rows: [n] rows.
            labels: [n] labels of the rows.
        """
        columns = [list(rows[column]) for column in task.input_schema.text_columns]
        vectors = load_static_vectors(source) if self.needs_encoder else None
        model = LinearTextModel.fit_inputs(model_config, self.inputs, columns, vectors)
        features = model.compute_features(columns)
        if not features.shape[1]:
            raise TrainingFailed(
                f"{self.flag}: no training text has a word; use another --method, such as hybrid"
            )
        report_info(f"{features.shape[1]:,} features of {len(rows):,} rows")
        balanced = task.config.class_weights == "balanced"
        num_outputs = len(task.labels) or 1
        penalty = scale_penalty(PENALTY, labels, num_outputs)
        layer = fit_linear_layer(features, labels, num_outputs, penalty, balanced)
        model.weight, model.bias = (part.astype(np.float32) for part in layer)  # as they are saved
        return model


def load_static_vectors(source: ModelSource) -> StaticVectors:
    """Return the static vectors of an encoder, from the cache if they are there."""
    config, tokenizer = loading.load_config(source), loading.load_tokenizer(source)
    loading.require_embeddings(source, config, tokenizer)
    num_tokens = loading.count_token_ids(tokenizer)
    size = min(STATIC_SIZE, config.hidden_size)
    digest = start_cache_key(config, ["static vectors", 2, size, fingerprint_weights(source)])
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    embeddings = load_or_compute(
        "static-vectors", digest.hexdigest(), (num_tokens, size), np.float16,
        lambda embeddings: _fill_embeddings(embeddings, source, config, tokenizer),
        "choose a directory on another disk",
    )  # fmt: skip
    return StaticVectors(np.ascontiguousarray(embeddings), tokenizer.backend_tokenizer)


def _fill_embeddings(embeddings: np.ndarray, source: ModelSource, config: Any, tokenizer: Any) -> None:
    """Compute the vector of each token of the vocabulary, [tokens, size].

    The vector is the mean of the last layer over `[CLS] token [SEP]`, projected by PCA without weights.
    Vocabularies are ordered by frequency: the token of rank r, its id + 1, has the weight log(1 + r) (Zipf).
    """
    encoder = Encoder.load(source, config, tokenizer.pad_token_id)
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=False)
    ids = np.tile(np.array(template.slots), (len(embeddings), 1))
    ids[ids < 0] = np.arange(len(embeddings))  # between [CLS] and [SEP]
    batches = np.array_split(ids, range(TOKENS_PER_BATCH, len(ids), TOKENS_PER_BATCH))
    vectors = []
    with torch.inference_mode():
        for batch in track_progress(batches, len(batches), "token vectors"):
            tokens = torch.from_numpy(batch).to(encoder.model.device)
            states = encoder.model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
            vectors.append(states.float().mean(1).cpu().numpy())
    centered = np.concatenate(vectors).astype(np.float64)
    centered -= centered.mean(0)
    _, directions = np.linalg.eigh(centered.T @ centered)  # ascending by variance
    projected = centered @ directions[:, ::-1][:, : embeddings.shape[1]]
    embeddings[:] = projected * np.log(1 + np.arange(1, len(projected) + 1))[:, None]
    if tokenizer.unk_token_id is not None:  # the same for all unknown words, so its vector is 0
        embeddings[tokenizer.unk_token_id] = 0

"""Configs and initial weights of models for pre-training, and logits at the masked positions only."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from bertkit.models.loading import (
    INITIALIZER_RANGE,
    ModelSource,
    is_head_missing,
    list_weight_names,
    make_head_error,
)

MAX_POSITION_EMBEDDINGS = 512
BASE_HIDDEN_SIZE = 768  # hidden size of BERT-base
MASKED_POSITIONS = "masked_lm_positions"


class PretrainingLogits(NamedTuple):
    """Output of a pre-training model.

    Attributes:
        prediction_logits: [batch, P, vocabulary] logits of the tokens at the masked positions.
        seq_relationship_logits: [batch, 2] logits of two classes: the second text follows the first (0), or
            does not (1). None for a model without a sentence-pair head.
    """

    prediction_logits: torch.Tensor
    seq_relationship_logits: torch.Tensor | None

    def float(self) -> "PretrainingLogits":
        return PretrainingLogits(
            self.prediction_logits.float(),
            None if self.seq_relationship_logits is None else self.seq_relationship_logits.float(),
        )


def build_bert_config(vocab_size: int, shape: tuple[int, int, int], pad_token_id: int) -> Any:
    """Return the config of a BERT of any size, with intermediate size 4 * hidden and dropout 0.1.

    A model with a smaller hidden size than BERT-base gets initial weights with a larger standard deviation.
    The outputs of its layers then vary as much as in BERT-base. With a standard deviation of 0.02, a
    narrow model is slow to learn tasks that need several layers, above all next sentence prediction.

    Args:
        shape: Number of layers, hidden size and number of attention heads.
        pad_token_id: Id of [PAD].
    """
    from transformers import BertConfig

    layers, hidden, heads = shape
    return BertConfig(
        vocab_size=vocab_size, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=4 * hidden, max_position_embeddings=MAX_POSITION_EMBEDDINGS,
        pad_token_id=pad_token_id,
        initializer_range=compute_initializer_range(hidden),
    )  # fmt: skip


def build_electra_config(vocab_size: int, shape: tuple[int, int, int], pad_token_id: int) -> Any:
    """Return the config of an ELECTRA discriminator of the same shape as a BERT, see `build_bert_config`.

    As in ELECTRA-Base, the embeddings have the hidden size.
    """
    from transformers import ElectraConfig

    layers, hidden, heads = shape
    return ElectraConfig(
        vocab_size=vocab_size, embedding_size=hidden, num_hidden_layers=layers, hidden_size=hidden,
        num_attention_heads=heads, intermediate_size=4 * hidden,
        max_position_embeddings=MAX_POSITION_EMBEDDINGS, pad_token_id=pad_token_id,
        initializer_range=compute_initializer_range(hidden),
    )  # fmt: skip


def compute_initializer_range(hidden_size: int) -> float:
    """Return the standard deviation of the initial weights; see `build_bert_config`."""
    return INITIALIZER_RANGE * math.sqrt(max(1.0, BASE_HIDDEN_SIZE / hidden_size))


def set_token_embeddings(model: Any, vectors: np.ndarray) -> None:
    """Replace token embeddings by vectors, scaled to the standard deviation of the previous embeddings.

    Args:
        vectors: `[vocab_size, embedding_size]`; a token whose vector is zero keeps its embedding.
    """
    embeddings = model.base_model.get_input_embeddings().weight
    token_ids = np.flatnonzero(vectors.any(1))
    scale = embeddings.std().item() / vectors[token_ids].std()
    with torch.no_grad():
        embeddings[token_ids] = torch.from_numpy(vectors[token_ids] * scale)


def find_missing_heads(auto_class: Any, source: ModelSource, config: Any) -> list[str]:
    """Return what a model has heads for, and its weights do not: "tokens", "sentence pairs", both or none."""
    try:
        with torch.device("meta"):
            model = auto_class.from_config(config)
    except ValueError as error:
        if is_head_missing(error):
            raise make_head_error(source, auto_class, config) from error
        raise
    encoder_prefix, weight_names = model.base_model_prefix + ".", list_weight_names(source.folder)
    missing = [
        weight
        for name, weight in model.named_parameters()  # excludes output weights tied to the embeddings
        if weight.ndim > 1 and not name.startswith(encoder_prefix) and name not in weight_names
    ]
    is_pair_head = [len(weight) == 2 for weight in missing]
    heads = {"tokens": not all(is_pair_head), "sentence pairs": any(is_pair_head)}
    return [name for name, is_missing in heads.items() if is_missing]


def add_masked_position_hook(model: Any) -> Any:
    """Add a hook so that the head computes logits only at the positions of `set_masked_positions`.

    The head computes each position independently, so the logits at these positions do not change. Google's
    `run_pretraining.py` also gathers the masked positions before the head.
    """

    def gather(encoder: Any, _: Any, output: Any) -> Any:
        positions = encoder.__dict__.pop(MASKED_POSITIONS, None)
        if positions is not None:
            states = output.last_hidden_state
            index = positions.unsqueeze(-1).expand(-1, -1, states.shape[-1])
            output.last_hidden_state = states.gather(1, index)
        return output

    model.base_model.register_forward_hook(gather)
    return model


def set_masked_positions(model: Any, positions: torch.Tensor) -> None:
    """Set the masked positions for the next forward pass of a model.

    The positions are not passed as a model input, because not every architecture passes unknown inputs to
    its encoder.

    Args:
        model: A model, its forward method, or a wrapper such as `DistributedDataParallel`.
        positions: [batch, P] masked positions.
    """
    model = getattr(model, "__self__", model)
    unwrapped = getattr(model, "module", model)
    setattr(unwrapped.base_model, MASKED_POSITIONS, positions)


def extract_logits(output: Any) -> PretrainingLogits:
    """Return the logits of a transformers model's output. Their names depend on the architecture."""
    prediction_logits = output.get("prediction_logits", output.get("logits"))
    pair_logits = output.get("seq_relationship_logits", output.get("sop_logits"))
    return PretrainingLogits(prediction_logits, pair_logits)

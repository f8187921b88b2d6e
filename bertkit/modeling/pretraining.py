"""Models for pre-training: a config from scratch, and vocabulary logits at the masked places alone."""

import math
from typing import Any, NamedTuple

import torch

from bertkit.modeling.loading import ModelSource, list_weight_names

MAX_POSITION_EMBEDDINGS = 512
INITIALIZER_RANGE, BASE_HIDDEN_SIZE = 0.02, 768  # BERT's standard deviation of new weights, and BASE's width
MASKED_POSITIONS = "masked_lm_positions"


class PretrainingLogits(NamedTuple):
    """What a model for pre-training says.

    Attributes:
        words: [B, P, vocabulary] logits at the masked places.
        sentence: [B, 2] logits of whether the second text follows (0) or not (1); None without such a head.
    """

    prediction_logits: torch.Tensor
    seq_relationship_logits: torch.Tensor | None

    def float(self) -> "PretrainingLogits":
        """The same in fp32."""
        return PretrainingLogits(
            self.prediction_logits.float(),
            None if self.seq_relationship_logits is None else self.seq_relationship_logits.float(),
        )


def build_bert_config(vocab_size: int, shape: tuple[int, int, int], pad_token_id: int) -> Any:
    """The config of a BERT of any size: 4 times the width in between, 512 positions, dropout 0.1.

    New weights of a width below BASE's are drawn wider, so that what a layer puts out varies as much as
    BASE's does: with its 0.02 a narrow model learns late what takes several layers, next sentences above all.

    Args:
        shape: layers, width, heads.
    """
    from transformers import BertConfig

    layers, hidden, heads = shape
    return BertConfig(
        vocab_size=vocab_size, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=4 * hidden, max_position_embeddings=MAX_POSITION_EMBEDDINGS, pad_token_id=pad_token_id,
        initializer_range=INITIALIZER_RANGE * math.sqrt(max(1.0, BASE_HIDDEN_SIZE / hidden)),
    )  # fmt: skip


def find_missing_heads(auto_class: Any, source: ModelSource, config: Any) -> list[str]:
    """Which heads, over "pieces" and over "pairs", the weights of a model lack."""
    with torch.device("meta"):
        model = auto_class.from_config(config)
    inside, there = model.base_model_prefix + ".", list_weight_names(source.folder)
    lacking = [
        weight
        for name, weight in model.named_parameters()  # not that of the output layer, which is the embeddings'
        if weight.ndim > 1 and not name.startswith(inside) and name not in there
    ]
    pairs = [len(weight) == 2 for weight in lacking]
    return [name for name, new in (("pieces", not all(pairs)), ("pairs", any(pairs))) if new]


def gather_masked_positions(model: Any) -> Any:
    """Have the head over the vocabulary see only the places that `tell_places` tells of.

    Heads work place by place, so nothing changes but what is not asked for: google's `run_pretraining.py`
    gathers in the same way.
    """

    def gather(encoder: Any, _: Any, output: Any) -> Any:
        places = encoder.__dict__.pop(MASKED_POSITIONS, None)
        if places is not None:
            states = output.last_hidden_state
            output.last_hidden_state = states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        return output

    model.base_model.register_forward_hook(gather)
    return model


def set_masked_positions(model: Any, positions: torch.Tensor) -> None:
    """Tell a model, its forward function or what wraps it, the places [B, P] of the next batch.

    Not every architecture hands what it does not know on to its encoder, so they cannot go with the inputs.
    """
    model = getattr(model, "__self__", model)
    setattr(getattr(model, "module", model).base_model, MASKED_POSITIONS, positions)


def extract_logits(output: Any) -> PretrainingLogits:
    """What stock heads call by many names."""
    words = output.get("prediction_logits", output.get("logits"))
    return PretrainingLogits(words, output.get("seq_relationship_logits", output.get("sop_logits")))

"""Batches of similar length for inference, and a forward pass that returns logits for every task."""

from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.modeling.pretraining import MASKED_POSITIONS, extract_logits, set_masked_positions

NON_INPUT_KEYS = {
    "labels", "document", "choice", "sequence", "position", "masked_lm_labels", "next_sentence_label",
}  # fmt: skip
NUM_LENGTH_GROUPS = 2  # the sequences of a multiple-choice batch run in two groups of similar length


def batch_by_length(features: Features, batch_size: int) -> list[np.ndarray]:
    """Group examples of similar length, and return the example indices of each batch.

    The batch of the longest examples is first, so that memory runs out at the first batch or never.
    """
    order = np.argsort(-features.length_keys, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def compute_logits(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """Run a model on a batch, and return its logits in the form that the loss and the task expect.

    * Sequence classification and regression: `[examples, num_labels]`. The logits of a document that is
      split into windows are the mean of its windows' logits.
    * Named entity recognition: `[words, num_labels]`.
    * Question answering: `[batch, 2, seq_len]`, start and end logits of each position, -inf at padding.
    * Multiple choice: `[examples, choices]`. The logit of a missing choice is -inf, so that its probability
      and gradient are exactly 0.
    * Pre-training: `PretrainingLogits` of the masked positions only.

    Args:
        model: A model, or its forward function.
        batch: The output of `PaddingCollator`. The model does not get the labels, because bertkit's losses
            are not averaged like the losses of transformers' models.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name not in NON_INPUT_KEYS}
    if "choice" in batch:
        return _group_by_example(_score_choices(model, inputs), batch["choice"])
    if MASKED_POSITIONS in inputs:
        set_masked_positions(model, inputs.pop(MASKED_POSITIONS))
        return extract_logits(model(**inputs))
    output = model(**inputs)
    if "start_logits" in output:
        return _stack_start_end(output, inputs["attention_mask"])
    logits = output.logits
    if "position" in batch:
        return logits[batch["sequence"], batch["position"]]
    return _average_windows(logits, batch["document"]) if "document" in batch else logits


def _score_choices(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the scores of all choices in a batch, `[num_sequences]`.

    transformers' multiple-choice heads score each choice independently. The choices of all examples can thus
    be passed as choices of one example, which needs no padding choices. The sequences run in groups of
    similar length, so that short sequences are not padded to the longest one.
    """
    lengths = inputs["attention_mask"].sum(-1)
    order = lengths.argsort(stable=True)
    scores = []
    for group in order.tensor_split(NUM_LENGTH_GROUPS):
        is_used = inputs["attention_mask"][group].any(0)  # false for columns that are padding in all rows
        as_one_example = {name: tensor[group][:, is_used].unsqueeze(0) for name, tensor in inputs.items()}
        scores.append(model(**as_one_example).logits.squeeze(0))
    return torch.cat(scores)[order.argsort()]


def _average_windows(logits: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(document)
    sums = logits.new_zeros(len(counts), logits.shape[-1]).index_add(0, document, logits)
    return sums / counts.unsqueeze(-1).to(logits.dtype)


def _group_by_example(scores: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Turn scores `[num_sequences]` into `[examples, max_choices]`, with -inf for missing choices."""
    counts = torch.bincount(example)
    first_sequences = counts.cumsum(0) - counts
    choice = torch.arange(len(example), device=example.device) - first_sequences[example]
    scores_by_example = scores.new_full((len(counts), int(counts.max())), -torch.inf)
    return scores_by_example.index_put((example, choice), scores)


def _stack_start_end(output: Any, mask: torch.Tensor) -> torch.Tensor:
    """Stack start and end logits to `[batch, 2, seq_len]`, with -inf at padding.

    The softmax then excludes padding, which it includes in the losses of transformers' models.
    """
    seq_len = mask.shape[1]
    logits = torch.stack([output.start_logits, output.end_logits], 1)[..., :seq_len]
    positions = torch.arange(seq_len, device=mask.device)
    return logits.masked_fill((positions >= mask.sum(1, keepdim=True)).unsqueeze(1), -torch.inf)

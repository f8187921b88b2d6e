"""Batches for inference, and one forward pass over a batch: one row of logits per decision."""

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
    """Return the indices of the examples of each batch, longest first.

    Examples of similar length share a batch. The longest come first so that memory runs out early or never.
    """
    order = np.argsort(-features.length_keys, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def compute_logits(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """Return logits `[examples, num_labels]`, or `[words, num_labels]` if words are labeled.

    * Question answering: `[batch, 2, seq_len]`, start and end scores of each position, -inf at padding.
    * Pre-training: `PretrainingLogits` of the masked positions only.
    * Documents split into windows: the mean of the windows' logits.
    * Multiple choice: `[examples, choices]`. Missing choices have -inf, so that their probability and
      gradient are exactly 0.

    Args:
        model: A model, or its forward function.
        batch: The output of `PaddingCollator`. Labels are not passed on, because stock losses average
            differently.
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
    """Return the scores `[num_sequences]` of a multiple-choice head.

    Stock heads score each choice on its own. Therefore the choices of many examples are passed as those of
    one example, and no padding choice is computed. Sequences run in groups of similar length, each without
    the padding of the longer group.
    """
    lengths = inputs["attention_mask"].sum(-1)
    order = lengths.argsort(stable=True)
    scores = []
    for group in order.tensor_split(NUM_LENGTH_GROUPS):
        columns = inputs["attention_mask"][group].any(0)  # the others are padding in the whole group
        as_one_example = {name: tensor[group][:, columns].unsqueeze(0) for name, tensor in inputs.items()}
        scores.append(model(**as_one_example).logits.squeeze(0))
    return torch.cat(scores)[order.argsort()]


def _average_windows(logits: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(document)
    sums = logits.new_zeros(len(counts), logits.shape[-1]).index_add(0, document, logits)
    return sums / counts.unsqueeze(-1).to(logits.dtype)


def _group_by_example(scores: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Turn scores `[num_sequences]` into `[examples, max_choices]`, with -inf for missing choices."""
    counts = torch.bincount(example)
    first = counts.cumsum(0) - counts
    choice = torch.arange(len(example), device=example.device) - first[example]
    table = scores.new_full((len(counts), int(counts.max())), -torch.inf)
    return table.index_put((example, choice), scores)


def _stack_start_end(output: Any, mask: torch.Tensor) -> torch.Tensor:
    """Return `[batch, 2, seq_len]` with -inf at padding, which the softmax of stock losses would include."""
    seq_len = mask.shape[1]
    logits = torch.stack([output.start_logits, output.end_logits], 1)[..., :seq_len]
    positions = torch.arange(seq_len, device=mask.device)
    return logits.masked_fill((positions >= mask.sum(1, keepdim=True)).unsqueeze(1), -torch.inf)

"""Batches of similar length for inference, and a forward pass that returns logits for every task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bertkit.data.collator import BATCH_SHAPE, RETURN_VECTORS, BatchShape
from bertkit.data.features import Features
from bertkit.data.stored_logits import TEACHER_LOGITS
from bertkit.masking.collator import ORIGINAL_IDS
from bertkit.modeling.batch_lengths import provide_lengths
from bertkit.modeling.pretraining import MASKED_POSITIONS, extract_logits, set_masked_positions
from bertkit.utils.devices import copy_to_device

NON_INPUT_KEYS = {
    "labels", "document", "choice", "sequence", "position", "masked_lm_labels", "next_sentence_label",
    BATCH_SHAPE, RETURN_VECTORS, TEACHER_LOGITS,
}  # fmt: skip
NUM_LENGTH_GROUPS = 2  # the sequences of a multiple-choice batch run in two groups of similar length


def batch_by_length(features: Features, batch_size: int) -> list[np.ndarray]:
    """Group examples of similar length, and return the example indices of each batch.

    The batch of the longest examples is first, so that memory runs out at the first batch or never.
    """
    order = np.argsort(-features.length_keys, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def compute_logits(model: Any, batch: dict[str, Any]) -> Any:
    """Run a model on a batch, and return its logits in the form that the loss and the task expect.

    * Sequence classification and regression: `[examples, num_labels]`. The logits of a document that is
      split into windows are the mean of its windows' logits.
    * Named entity recognition: `[words, num_labels]`.
    * Question answering: `[batch, 2, seq_len]`, start and end logits of each position, -inf at padding.
    * Multiple choice: `[examples, choices]`. The logit of a missing choice is -inf, so that its probability
      and gradient are exactly 0.
    * Pre-training: `PretrainingLogits` of the masked positions only.
    * Replaced token detection: `ReplacedTokenLogits`.
    * Batches of a `VectorCollator`: the vectors `[examples, hidden_size]` of a `VectorClassifier`. The vector
      of a document is the mean of its windows' vectors.

    Args:
        model: A model, or its forward function.
        batch: The output of `PaddingCollator`. The model does not get the labels, because bertkit's losses
            are not averaged like the losses of transformers' models. If the batch has a `BatchShape`, the
            forward pass does not wait for a GPU.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name not in NON_INPUT_KEYS}
    shape: BatchShape | None = batch.get(BATCH_SHAPE)
    sequences_per_example = shape.sequences_per_example if shape else None
    if "choice" in batch:
        scores = _score_choices(model, inputs, shape.lengths if shape else None)
        return _group_by_example(scores, batch["choice"], sequences_per_example)
    if ORIGINAL_IDS in inputs:
        return _run_model(model, inputs, shape.lengths if shape else None)
    if MASKED_POSITIONS in inputs:
        set_masked_positions(model, inputs.pop(MASKED_POSITIONS))
        return extract_logits(_run_model(model, inputs, shape.lengths if shape else None))
    output = _run_model(model, inputs, shape.lengths if shape else None)
    if "start_logits" in output:
        return _stack_start_end(output, inputs["attention_mask"])
    logits = output.vectors if RETURN_VECTORS in batch else output.logits
    if "position" in batch:
        return logits[batch["sequence"], batch["position"]]
    if "document" in batch:
        return _average_windows(logits, batch["document"], sequences_per_example)
    return logits


def _run_model(model: Any, inputs: dict[str, torch.Tensor], lengths: Sequence[int] | None) -> Any:
    if lengths is None:
        return model(**inputs)
    with provide_lengths(model, lengths):
        return model(**inputs)


def _score_choices(
    model: Any, inputs: dict[str, torch.Tensor], lengths: Sequence[int] | None
) -> torch.Tensor:
    """Return the scores of all choices in a batch, `[num_sequences]`.

    transformers' multiple-choice heads score each choice independently. The choices of all examples can thus
    be passed as choices of one example, which needs no padding choices. The sequences run in groups of
    similar length, so that short sequences are not padded to the longest one.
    """
    mask = inputs["attention_mask"]
    device, all_lengths = mask.device, np.array(mask.sum(1).tolist() if lengths is None else lengths)
    order = np.argsort(all_lengths, kind="stable")
    scores = []
    for group in np.array_split(order, NUM_LENGTH_GROUPS):
        rows, seq_len = copy_to_device(torch.from_numpy(group), device), all_lengths[group].max()
        as_one_example = {name: tensor[rows, :seq_len].unsqueeze(0) for name, tensor in inputs.items()}
        group_lengths = None if lengths is None else all_lengths[group].tolist()
        scores.append(_run_model(model, as_one_example, group_lengths).logits.squeeze(0))
    return torch.cat(scores)[copy_to_device(torch.from_numpy(order.argsort()), device)]


def _count_per_example(example: torch.Tensor, known_counts: Sequence[int] | None) -> torch.Tensor:
    """Return how often each number occurs in `example`; on a GPU, `bincount` would wait for pending work."""
    if known_counts is None:
        return torch.bincount(example)
    return copy_to_device(torch.tensor(known_counts), example.device)


def _average_windows(
    logits: torch.Tensor, document: torch.Tensor, windows_per_document: Sequence[int] | None
) -> torch.Tensor:
    counts = _count_per_example(document, windows_per_document)
    sums = logits.new_zeros(len(counts), logits.shape[-1]).index_add(0, document, logits)
    return sums / counts.unsqueeze(-1).to(logits.dtype)


def _group_by_example(
    scores: torch.Tensor, example: torch.Tensor, choices_per_example: Sequence[int] | None
) -> torch.Tensor:
    """Turn scores `[num_sequences]` into `[examples, max_choices]`, with -inf for missing choices."""
    counts = _count_per_example(example, choices_per_example)
    first_sequences = counts.cumsum(0) - counts
    choice = torch.arange(len(example), device=example.device) - first_sequences[example]
    max_choices = max(choices_per_example) if choices_per_example else int(counts.max())
    scores_by_example = scores.new_full((len(counts), max_choices), -torch.inf)
    return scores_by_example.index_put((example, choice), scores)


def _stack_start_end(output: Any, mask: torch.Tensor) -> torch.Tensor:
    """Stack start and end logits to `[batch, 2, seq_len]`, with -inf at padding.

    The softmax then excludes padding, which it includes in the losses of transformers' models.
    """
    seq_len = mask.shape[1]
    logits = torch.stack([output.start_logits, output.end_logits], 1)[..., :seq_len]
    positions = torch.arange(seq_len, device=mask.device)
    return logits.masked_fill((positions >= mask.sum(1, keepdim=True)).unsqueeze(1), -torch.inf)

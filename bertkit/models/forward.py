"""Forward passes: the logits of every task, models and ensembles for inference, and attributions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from bertkit.data.collators import BATCH_SHAPE, RETURN_VECTORS, BatchShape
from bertkit.data.features import TARGETS, TEACHER_LOGITS, WEIGHTS, Features
from bertkit.data.masking import ORIGINAL_IDS
from bertkit.models.cpu import replace_modules
from bertkit.models.layers import compute_first_position_only
from bertkit.models.loading import select_inputs, takes_token_type_ids
from bertkit.models.packing import provide_lengths
from bertkit.models.pretraining import MASKED_POSITIONS, PretrainingLogits, set_masked_positions
from bertkit.utils import devices
from bertkit.utils.devices import copy_to_device
from bertkit.utils.system import keep_freed_memory

Collator = Callable[..., dict[str, torch.Tensor]]
NON_INPUT_KEYS = {
    "labels", "document", "choice", "sequence", "position", "masked_lm_labels", "next_sentence_label",
    BATCH_SHAPE, RETURN_VECTORS, TARGETS, TEACHER_LOGITS, WEIGHTS,
}  # fmt: skip


def batch_by_length(features: Features, batch_size: int) -> list[np.ndarray]:
    """Group examples of similar length, and return the example indices of each batch.

    The batch of the longest examples is first, so that memory runs out at the first batch or never.
    """
    order = np.argsort(-features.length_keys, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def collate_on_device(
    features: Features, examples: np.ndarray, collator: Collator, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the batch of these examples on a device."""
    batch = collator([features[index] for index in examples])
    return {name: tensor.to(device) for name, tensor in batch.items()}


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
        batch: The output of `PaddingCollator`. The model does not get the labels, because bertkit's losses
            are not averaged like the losses of transformers' models. If the batch has a `BatchShape`, the
            forward pass does not wait for a GPU.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name not in NON_INPUT_KEYS}
    shape: BatchShape | None = batch.get(BATCH_SHAPE)
    lengths, sequences_per_example = (shape.lengths, shape.sequences_per_example) if shape else (None, None)
    if "choice" in batch:
        return _score_choices(model, inputs, batch["choice"], lengths, sequences_per_example)
    has_masked_positions = ORIGINAL_IDS not in inputs and MASKED_POSITIONS in inputs
    if has_masked_positions:
        set_masked_positions(model, inputs.pop(MASKED_POSITIONS))
    with provide_lengths(model, lengths):
        output = model(**inputs)
    if ORIGINAL_IDS in inputs:
        return output
    if has_masked_positions:  # the names of the logits depend on the architecture
        pair_logits = output.get("seq_relationship_logits", output.get("sop_logits"))
        return PretrainingLogits(output.get("prediction_logits", output.get("logits")), pair_logits)
    if "start_logits" in output:
        # The softmax then excludes padding, which it includes in the losses of transformers' models.
        mask = inputs["attention_mask"]
        logits = torch.stack([output.start_logits, output.end_logits], 1)[..., : mask.shape[1]]
        positions = torch.arange(mask.shape[1], device=mask.device)
        return logits.masked_fill((positions >= mask.sum(1, keepdim=True)).unsqueeze(1), -torch.inf)
    logits = output.vectors if RETURN_VECTORS in batch else output.logits
    if "position" in batch:
        return logits[batch["sequence"], batch["position"]]
    if "document" in batch:
        counts = _count_per_example(batch["document"], sequences_per_example)
        sums = logits.new_zeros(len(counts), logits.shape[-1]).index_add(0, batch["document"], logits)
        return sums / counts.unsqueeze(-1).to(logits.dtype)
    return logits


def _score_choices(
    model: Any, inputs: dict[str, torch.Tensor], example: torch.Tensor, lengths: Sequence[int] | None,
    choices_per_example: Sequence[int] | None,
) -> torch.Tensor:  # fmt: skip
    """Return the scores of the choices of each example, `[examples, max_choices]`, -inf for missing choices.

    transformers' multiple-choice heads score each choice independently. The choices of all examples can thus
    be passed as choices of one example, which needs no padding choices. The sequences run in two groups of
    similar length, so that short sequences are not padded to the longest one.
    """
    mask = inputs["attention_mask"]
    device, all_lengths = mask.device, np.array(mask.sum(1).tolist() if lengths is None else lengths)
    order = np.argsort(all_lengths, kind="stable")
    scores = []
    for group in np.array_split(order, 2):
        rows, seq_len = copy_to_device(torch.from_numpy(group), device), all_lengths[group].max()
        as_one_example = {name: tensor[rows, :seq_len].unsqueeze(0) for name, tensor in inputs.items()}
        group_lengths = None if lengths is None else all_lengths[group].tolist()
        with provide_lengths(model, group_lengths):
            scores.append(model(**as_one_example).logits.squeeze(0))
    scores_in_order = torch.cat(scores)[copy_to_device(torch.from_numpy(order.argsort()), device)]
    counts = _count_per_example(example, choices_per_example)
    choice = torch.arange(len(example), device=device) - (counts.cumsum(0) - counts)[example]
    max_choices = max(choices_per_example) if choices_per_example else int(counts.max())
    padded = scores_in_order.new_full((len(counts), max_choices), -torch.inf)
    return padded.index_put((example, choice), scores_in_order)


def _count_per_example(example: torch.Tensor, known_counts: Sequence[int] | None) -> torch.Tensor:
    """Return how often each number occurs in `example`; on a GPU, `bincount` would wait for pending work."""
    if known_counts is None:
        return torch.bincount(example)
    return copy_to_device(torch.tensor(known_counts), example.device)


# ---- inference

M = TypeVar("M", bound=nn.Module)


def prepare_for_inference(model: M) -> M:
    """Put a model into evaluation mode, on the accelerator if there is one, and return it.

    On a CPU, the weights are copied, oneDNN computes the linear layers, and freed memory is kept. Without
    dropout, PyTorch's own attention is a fused kernel already, with and without a mask.
    """
    compute_first_position_only(model)
    if devices.has_accelerator():
        return model.to(devices.select_device()).eval()
    # Loaded weights are memory-mapped. If another program writes into their file, predictions change, or the
    # process ends by SIGBUS. This matters for a server. All commands copy, because the position in memory can
    # change the last bit of a result, and a server predicts what `bertkit predict` does.
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.clone()
    keep_freed_memory()
    replace_modules(model, is_single_process=True)
    return model.eval()


class EnsembleModel(nn.Module):
    """Models that all score each batch; `combine` maps their logits `[members, ...]` to `[...]`."""

    def __init__(self, members: Sequence[nn.Module], combine: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.combine = combine
        self.config: Any = members[0].config

    @property
    def base_model(self) -> Any:
        """The encoder of the first member that takes token type ids, or else of the first member."""
        members: list[Any] = list(self.members)
        return next(filter(takes_token_type_ids, members), members[0]).base_model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """Refuse a single forward pass; the logits of members are combined after `compute_logits`."""
        raise NotImplementedError

    def compute_logits(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the logits of the ensemble, in the form of `bertkit.models.forward.compute_logits`.

        Those of a single member are returned unchanged.
        """
        logits = [
            compute_logits(type(member).forward.__get__(member), select_inputs(member, batch)).float()
            for member in self.members
        ]
        return logits[0] if len(logits) == 1 else self.combine(torch.stack(logits))


def average_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the mean softmax: [members, n, classes] to [n, classes]."""
    return torch.log_softmax(logits, -1).logsumexp(0) - torch.tensor(float(len(logits))).log().to(logits)


def average_log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean of the logarithms of the softmax: [members, n, classes] to [n, classes]."""
    return torch.log_softmax(logits, -1).mean(0)


def average_label_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the logit of the mean sigmoid of each label: [members, n, labels] to [n, labels]."""
    return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)


def average_outputs(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean: [members, ...] to [...]."""
    return logits.mean(0)


# Functions by `problem_type` of the model's config; the outputs of other problems have a softmax.
AVERAGES_BY_PROBLEM = {
    "regression": average_outputs,
    "multi_label_classification": average_label_probabilities,
}


# ---- attributions


def integrate_gradients(
    model: Any,
    batch: dict[str, torch.Tensor],
    score: Callable[[torch.Tensor], torch.Tensor],
    baseline_ids: torch.Tensor,
    num_steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Integrate the gradients along the straight path from the baseline to the input, in evaluation mode.

    The integral is approximated by Gauss-Legendre quadrature, which needs fewer steps than a Riemann sum.

    Args:
        score: Maps the logits [examples, outputs] to the score of each example [examples].
        baseline_ids: [sequences, seq_len] token ids of the baseline.

    Returns:
        [sequences, seq_len] attribution of each token, 0 for special tokens and padding; and [examples] score
        of the text minus score of the baseline.
    """
    embedding = model.get_input_embeddings()
    with torch.no_grad():
        baseline = embedding(baseline_ids)
        direction = embedding(batch["input_ids"]) - baseline

        def compute_score(fraction: float) -> torch.Tensor:
            with _replace_output(embedding, baseline + fraction * direction):
                return score(compute_logits(model, batch))

        difference = compute_score(1.0) - compute_score(0.0)
    gradient = torch.zeros_like(direction)
    nodes, weights = np.polynomial.legendre.leggauss(num_steps)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        point = (baseline + (node + 1) / 2 * direction).requires_grad_()
        with torch.enable_grad(), _replace_output(embedding, point):
            total = score(compute_logits(model, batch)).sum()
        gradient += weight / 2 * torch.autograd.grad(total, point)[0]
    tokens = (gradient * direction).sum(-1)
    return tokens.cpu().numpy(), difference.cpu().numpy()


@contextmanager
def _replace_output(module: torch.nn.Module, output: torch.Tensor) -> Iterator[None]:
    """Let an embedding return this tensor `[sequences, seq_len, size]` for the tokens of the batch.

    An encoder may add padding to the batch, or call its embedding again for padding only (Longformer).
    """

    def replace(_: Any, __: Any, own: torch.Tensor) -> torch.Tensor:
        if len(own) != len(output) or own.shape[1] < output.shape[1]:
            return own
        return torch.cat([output, own[:, output.shape[1] :]], 1)

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()

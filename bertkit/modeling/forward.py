"""One forward pass over a batch as the collator gives it: one row of logits for each thing decided."""

from typing import Any

import torch

from bertkit.modeling.pretraining import MASKED_POSITIONS, extract_logits, set_masked_positions

NON_INPUT_KEYS = {
    "labels", "document", "choice", "sequence", "position", "masked_lm_labels", "next_sentence_label",
}  # fmt: skip
NUM_LENGTH_GROUPS = 2  # of a batch of choices, by length


def compute_logits(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """Logits [examples, outputs], or [decisions, outputs] where pieces are decided one by one.

    Of a head for answers they are [sequences, 2, length], start and end at each place of the sequence;
    -inf where it has no such place.

    In pre-training they are `Predictions`, of the masked places alone.

    The windows of a document are averaged. Of the choices of an example each has its own output; an
    example with fewer choices than others has -inf in the rest, which is a mask: its share of a softmax
    and its gradient are exactly 0.

    Args:
        model: a model, or just its forward function.
        batch: `Pad`'s output; `labels` are not handed on, since stock losses do not follow our rule.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name not in NON_INPUT_KEYS}
    if "choice" in batch:
        return _spread(_scores(model, inputs), batch["choice"])
    if MASKED_POSITIONS in inputs:
        set_masked_positions(model, inputs.pop(MASKED_POSITIONS))
        return extract_logits(model(**inputs))
    output = model(**inputs)
    if "start_logits" in output:
        return _starts_and_ends(output, inputs["attention_mask"])
    logits = output.logits
    if "position" in batch:
        return logits[batch["sequence"], batch["position"]]
    return _averaged(logits, batch["document"]) if "document" in batch else logits


def _scores(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Scores [sequences] by a multiple-choice head.

    Stock heads score each choice by itself, so those of many examples are handed over as one example's,
    and no padded choice is computed. The choices of one example are of unlike length: the shorter half of
    all goes through the model apart, without the padding of the longer.
    """
    lengths = inputs["attention_mask"].sum(-1)
    order = lengths.argsort(stable=True)
    found = []
    for part in order.tensor_split(NUM_LENGTH_GROUPS):
        kept = inputs["attention_mask"][part].any(0)  # columns that are padding in all of the part
        as_one = {name: tensor[part][:, kept].unsqueeze(0) for name, tensor in inputs.items()}
        found.append(model(**as_one).logits.squeeze(0))
    return torch.cat(found)[order.argsort()]


def _averaged(logits: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(document)
    sums = logits.new_zeros(len(counts), logits.shape[-1]).index_add(0, document, logits)
    return sums / counts.unsqueeze(-1).to(logits.dtype)


def _spread(scores: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Scores [sequences] to [examples, most choices of any]."""
    counts = torch.bincount(example)
    first = counts.cumsum(0) - counts
    place = torch.arange(len(example), device=example.device) - first[example]
    table = scores.new_full((len(counts), int(counts.max())), -torch.inf)
    return table.index_put((example, place), scores)


def _starts_and_ends(output: Any, mask: torch.Tensor) -> torch.Tensor:
    """[sequences, 2, length]. The softmax over them has no share for padding, as that of stock losses has."""
    length = mask.shape[1]
    logits = torch.stack([output.start_logits, output.end_logits], 1)[..., :length]
    places = torch.arange(length, device=mask.device)
    return logits.masked_fill((places >= mask.sum(1, keepdim=True)).unsqueeze(1), -torch.inf)

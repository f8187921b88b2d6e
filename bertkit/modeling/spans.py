"""The best answers of each window, from the scores of starts and ends."""

import torch
import torch.nn.functional as F


def best_spans(
    logits: torch.Tensor, allowed: torch.Tensor, n: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `n` spans with the highest S·T_i + E·T_j, j >= i (Devlin et al. 2018, 4.2), best first.

    All spans compete. That is cheap, since the best n begin at the n starts whose best spans are best.

    Args:
        logits: [windows, 2, length] of starts and ends.
        allowed: [windows, length] bool, where an answer may begin and end.
        longest: the most pieces of an answer.

    Returns:
        Places [windows, 2, n] int, first and last, and their logits [windows, 2, n], which are -inf where
        there are fewer spans.
    """
    start, end = logits.masked_fill(~allowed.unsqueeze(1), -torch.inf).unbind(1)
    length = start.shape[1]
    longest, n_starts = min(longest, length), min(n, length)
    padded = F.pad(end, (0, longest - 1), value=-torch.inf)
    rows = (start + _sliding_max(padded, longest)).topk(n_starts).indices
    ends = padded.unfold(1, longest, 1).gather(1, rows.unsqueeze(-1).expand(-1, -1, longest))
    scores = (start.gather(1, rows).unsqueeze(-1) + ends).flatten(1)
    best, flat = scores.topk(min(n, scores.shape[1]))
    first = rows.gather(1, flat // longest)
    last = first + flat % longest
    found = torch.stack([start.gather(1, first), end.gather(1, last.clamp(max=length - 1))], 1)
    found = found.masked_fill((best == -torch.inf).unsqueeze(1), -torch.inf)
    missing = n - flat.shape[1]
    return F.pad(torch.stack([first, last], 1), (0, missing)), F.pad(found, (0, missing), value=-torch.inf)


def _sliding_max(values: torch.Tensor, size: int) -> torch.Tensor:
    """The greatest of each `size` values in a row: [windows, length] of [windows, length + size - 1].

    By stretches twice as long each time: a handful of operations, where pooling starts threads for each.
    """
    width = 1
    while 2 * width <= size:
        values = torch.maximum(values[:, :-width], values[:, width:])
        width *= 2
    rest = size - width
    return torch.maximum(values[:, :-rest], values[:, rest:]) if rest else values

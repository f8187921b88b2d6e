"""Attention with dropout on a CPU for long sequences, a few examples at a time."""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from bertkit.modeling.cpu.random_bits import KeepMasks, draw_seed, drop_, mask_dtype
from bertkit.utils.compat import Self

MAX_SCORES_PER_BLOCK = 2**20  # attention scores; 2 MB in bf16, which stay in the processor's cache
LOG2_E = math.log2(math.e)
MASKED_SCORE = -1e30  # added to the score of a masked pair: its exponential is 0, and products are finite
SAFE_SUM = 2.0**100  # sums of exponentials from its inverse to this neither overflow nor vanish


class BlockwiseAttention(torch.autograd.Function):
    """Scaled dot-product attention with dropout (Vaswani et al. 2017, 3.2.1), a few examples at a time.

    The forward pass saves no tensor of shape `[batch, heads, seq_len, seq_len]`. The backward pass recomputes
    the scores, and draws the same dropout masks again. As in FlashAttention (Dao et al. 2022, 3.1), the
    output of a block is divided by the sums of its exponentials after the product with the values.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        dropout: float, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention output `[batch, heads, seq_len, head_dim]`.

        Args:
            ctx: Autograd's context.
            q, k, v: `[batch, heads, seq_len, head_dim]`.
            mask: A bool mask that is true for pairs that attend, a float mask that is added to the scores,
                or None.
            dropout: Probability of dropping an attention weight.
            scaling: Factor that multiplies the scores.
        """
        ctx.dropout, ctx.scaling, ctx.seed = dropout, scaling, draw_seed()
        keep_masks = KeepMasks(dropout, ctx.seed)
        output = q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)
        scales, ctx.shifts = q.new_empty(*q.shape[:-1], 1, dtype=torch.float32), []
        inputs = ScoreInputs.build(q, k, mask, scaling)
        for block in _split_batch(q):
            exps, sums, shift = inputs.select(block).exponentiate()
            ctx.shifts.append(shift)
            scales[block] = (1 / (sums * keep_masks.keep_prob)).view_as(scales[block])
            block_output = torch.bmm(keep_masks.drop_(exps), v[block].flatten(0, 1))
            output[block] = block_output.view(q[block].shape).mul_(scales[block])
        ctx.save_for_backward(q, k, v, mask, output, scales)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of q, k and v, computed in the same blocks."""
        q, k, v, mask, output, scales = ctx.saved_tensors
        keep_masks = KeepMasks(ctx.dropout, ctx.seed)
        grads = tuple(torch.empty_like(tensor) for tensor in (q, k, v))
        inputs = ScoreInputs.build(q, k, mask, ctx.scaling)
        for block, shift in zip(_split_batch(q), ctx.shifts, strict=True):
            exps = inputs.select(block).compute_exponentials(shift)
            keep = keep_masks.draw(exps.shape, mask_dtype(exps))
            grad = (grad_output[block] * scales[block].to(q.dtype)).flatten(0, 1)
            mean_grads = torch.linalg.vecdot(grad_output[block], output[block]).unsqueeze(-1)
            mean_grads = (mean_grads * (scales[block] * keep_masks.keep_prob)).flatten(0, 1)
            grad_scores = drop_(torch.bmm(grad, v[block].flatten(0, 1).mT), keep)
            grad_scores.sub_(mean_grads).mul_(exps)
            block_grads = (
                torch.bmm(grad_scores, k[block].flatten(0, 1)).mul_(ctx.scaling),
                torch.bmm(grad_scores.mT, q[block].flatten(0, 1)).mul_(ctx.scaling),
                torch.bmm(drop_(exps, keep).mT, grad),
            )
            for grad_input, block_grad in zip(grads, block_grads, strict=True):
                grad_input[block] = block_grad.view(q[block].shape)
        return *grads, None, None, None


def _split_batch(q: torch.Tensor) -> list[slice]:
    """Split the batch into slices; the scores of one slice fit in the processor's cache."""
    batch, heads, seq_len, _ = q.shape
    size = max(1, MAX_SCORES_PER_BLOCK // (heads * seq_len * seq_len))
    return [slice(start, start + size) for start in range(0, batch, size)]


class ScoreInputs(NamedTuple):
    """Queries, keys and mask of attention scores.

    The scores are multiplied by log2(e), so that 2 ** score takes the place of e ** score. PyTorch computes
    powers of 2 several times as fast on a CPU.

    Attributes:
        queries, keys: `[batch, heads, seq_len, head_dim]`.
        mask: None, or a mask that is added to the scores. It is multiplied by log2(e) as well, and can be
            broadcast to `[batch, heads, seq_len, seq_len]`.
        factor: Factor that multiplies the products of queries and keys: the scaling times log2(e).
    """

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None
    factor: float

    @classmethod
    def build(cls, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> Self:
        """Convert the arguments of `BlockwiseAttention.forward`.

        A bool mask `[batch, 1, 1, seq_len]` becomes a further column of the keys, and the queries get a
        column of ones. The matrix product then adds the mask to the scores, faster than a broadcast addition.
        """
        factor = scaling * LOG2_E
        if mask is None:
            return cls(q, k, None, factor)
        if mask.dtype != torch.bool:
            return cls(q, k, (mask * LOG2_E).clamp_min(torch.finfo(q.dtype).min).to(q.dtype), factor)
        if mask.shape[1:3] != (1, 1):
            return cls(q, k, torch.where(mask, 0.0, torch.finfo(q.dtype).min).to(q.dtype), factor)
        column = torch.where(mask.mT, 0.0, MASKED_SCORE).to(q.dtype).expand(*k.shape[:-1], 1)
        return cls(F.pad(q, (0, 1), value=1.0), torch.cat([k, column], -1), None, factor)

    def select(self, block: slice) -> Self:
        """Return the inputs of a block of examples."""
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[block]
        return self._replace(queries=self.queries[block], keys=self.keys[block], mask=mask)

    def exponentiate(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Compute the exponentials of the scores.

        The maximum of each row is subtracted only if a sum of the block would overflow or vanish without it.

        Returns:
            The exponentials `[batch * heads, seq_len, seq_len]`, their sums over keys
            `[batch * heads, seq_len, 1]` in fp32, and the maxima that were subtracted, or None.
        """
        exps = self.compute_exponentials(None)
        sums = exps.sum(-1, keepdim=True, dtype=torch.float32)
        lowest, highest = sums.aminmax()
        if lowest > 1 / SAFE_SUM and highest < SAFE_SUM:
            return exps, sums, None
        shift = self._compute_scores().amax(-1, keepdim=True)
        exps = self.compute_exponentials(shift)
        return exps, exps.sum(-1, keepdim=True, dtype=torch.float32), shift

    def compute_exponentials(self, shift: torch.Tensor | None) -> torch.Tensor:
        """Return the exponentials of the scores minus `shift`, `[batch * heads, seq_len, seq_len]`.

        Args:
            shift: None, or the maximum of each row of scores, `[batch * heads, seq_len, 1]`.
        """
        scores = self._compute_scores()
        if shift is not None:
            scores.sub_(shift)
        return torch.exp2(scores, out=scores)

    def _compute_scores(self) -> torch.Tensor:
        batch, heads, seq_len, _ = self.queries.shape
        scores = self.queries.new_empty(batch * heads, seq_len, seq_len)
        q, k = self.queries.flatten(0, 1), self.keys.flatten(0, 1)
        torch.baddbmm(scores, q, k.mT, beta=0, alpha=self.factor, out=scores)
        if self.mask is not None:
            scores.view(batch, heads, seq_len, seq_len).add_(self.mask)
        return scores

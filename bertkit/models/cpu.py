"""Equivalents of PyTorch's modules that are faster on a CPU, and where a model gets them."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from bertkit.models.layers import list_submodels
from bertkit.models.packing import attends_causally, set_attention
from bertkit.utils.compat import Self

MAX_HEAD_SIZE = 1024  # outputs of a head in fp32; the output layer of a masked language model has more


def accelerate_on_cpu(model: Any, is_single_process: bool) -> None:
    """Replace attention, dropout, linear layers and embeddings of `model` by faster equivalents.

    On an accelerator, and in other number formats than fp32 and bf16, they do what the stock modules do. The
    names of the parameters do not change. `FastEmbedding` needs a single process.
    """
    for submodel in list_submodels(model):
        enable_fast_attention(submodel)
    replace_modules(model, is_single_process)
    # Small linear layers outside of the encoders compute in fp32, which takes hardly any time.
    encoders = [submodel.base_model for submodel in list_submodels(model)]
    in_encoder = {id(module) for encoder in encoders for module in encoder.modules()}
    for module in model.modules():
        is_head = isinstance(module, FastLinear) and id(module) not in in_encoder
        if is_head and module.out_features <= MAX_HEAD_SIZE:
            module.keeps_fp32 = True


def replace_modules(model: nn.Module, is_single_process: bool) -> None:
    """Replace the dropout, linear layers and embeddings of `model`; see `accelerate_on_cpu`.

    Subclasses of the stock modules stay, because they may compute something else.
    """
    uses = Counter(id(module.weight) for module in model.modules() if hasattr(module, "weight"))
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout
        elif type(module) is nn.Linear:
            module.__class__ = FastLinear
            vars(module).update(weight_copy=FormatCopy(), bias_copy=FormatCopy())
        elif type(module) is nn.Embedding and is_single_process:
            has_options = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
            is_tied = uses[id(module.weight)] > 1  # it is also the output layer
            if module.weight.numel() >= MIN_VALUES and not has_options and not is_tied:
                module.__class__ = FastEmbedding


# ---- embeddings, and the gradients of their tables

MIN_VALUES = 2**20  # in smaller tables, filling the gradient with zeros takes no time


class FastEmbedding(nn.Embedding):
    """`nn.Embedding` that writes its gradient into a buffer, and clears only the rows of the previous step.

    PyTorch fills a new gradient of the size of the table with zeros in each step, although a batch contains
    only a few hundred distinct tokens. The gradient is written to `weight.grad` directly, so hooks on
    `weight` do not see it (DDP): use this class in a single process only.
    """

    buffer: torch.Tensor | None = None
    used_rows: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        is_training = torch.is_grad_enabled() and self.weight.requires_grad
        if not is_training or self.weight.device.type != "cpu":
            return super().forward(input)
        output: torch.Tensor = EmbeddingFunction.apply(self.weight, input, self)  # type: ignore[no-untyped-call]
        return output

    def get_used_rows(self) -> torch.Tensor | None:
        """Return the sorted indices of the rows of the gradient that can differ from 0, or None for all."""
        if self.weight.grad is not self.buffer or self.used_rows is None:
            return None
        return torch.unique(self.used_rows)


class EmbeddingFunction(torch.autograd.Function):
    """Look up rows of a table; the backward pass adds the gradient to the table's `grad`."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor, module: FastEmbedding) -> torch.Tensor:
        ctx.module = module
        ctx.save_for_backward(ids)
        return torch.nn.functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[None, None, None]:
        (ids,), module = ctx.saved_tensors, ctx.module
        rows, positions = torch.unique(ids.flatten(), return_inverse=True)
        grad_output = grad_output.flatten(0, -2)
        sums = torch.ops.aten.embedding_dense_backward(grad_output, positions, len(rows), -1, False)
        if module.padding_idx is not None:
            sums[rows == module.padding_idx] = 0
        if module.weight.grad is None:
            if module.buffer is None:
                module.buffer = torch.zeros_like(module.weight)
            elif module.used_rows is not None:
                module.buffer[module.used_rows] = 0
            module.used_rows = None
            module.weight.grad = module.buffer
        if module.weight.grad is module.buffer:
            module.used_rows = rows if module.used_rows is None else torch.cat([module.used_rows, rows])
        module.weight.grad[rows] += sums
        return None, None, None


class GradientClipper:
    """Scale the gradients of a model so that their norm does not exceed a maximum.

    Of the gradient of a `FastEmbedding`, only the rows that can differ from 0 are read and scaled. If the
    norm is small enough, no gradient is changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.weights = list(model.parameters())
        self.tables = {
            id(module.weight): module for module in model.modules() if isinstance(module, FastEmbedding)
        }

    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients, and return their norm before that, as `torch.nn.utils.clip_grad_norm_` does."""
        gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # with the rows that can differ from 0
        for weight in self.weights:
            if weight.grad is not None:
                table = self.tables.get(id(weight))
                gradients.append((weight.grad, None if table is None else table.get_used_rows()))
        norms = [torch.linalg.vector_norm(grad if rows is None else grad[rows]) for grad, rows in gradients]
        total_norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        factor = max_norm / (float(total_norm) + 1e-6)  # 1e-6 as in PyTorch
        if factor < 1:
            for grad, rows in gradients:
                if rows is None:
                    grad.mul_(factor)
                else:
                    grad[rows] *= factor
        return total_norm


# ---- linear layers

HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
USES_ONEDNN_IN_FP32 = HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() != "AVX2"
MIN_PRODUCTS = 2**19  # multiplications; for fewer, preparing a call of oneDNN takes longer than MKL's product


class FormatCopy:
    """A copy of a tensor in another number format, made again only when the tensor has changed.

    PyTorch's fused optimizers do not increase the version of the weights that they change, so each step of
    any optimizer makes all copies outdated. The source is a weak reference, which does not keep the graph of
    the tensor in memory.
    """

    num_optimizer_steps = 0

    def __init__(self) -> None:
        self.source: Callable[[], torch.Tensor | None] = lambda: None
        self.state: tuple[int, int, torch.dtype] | None = None
        self.copy: torch.Tensor

    def get(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return `tensor` in the format `dtype`, detached from the graph."""
        if tensor.dtype == dtype:
            return tensor.detach()
        state = tensor._version, FormatCopy.num_optimizer_steps, dtype
        if self.source() is not tensor or self.state != state:
            self.source, self.state, self.copy = ref(tensor), state, tensor.detach().to(dtype)
        return self.copy


def _count_optimizer_step(*_: Any) -> None:
    FormatCopy.num_optimizer_steps += 1


register_optimizer_step_post_hook(_count_optimizer_step)


INPUT_COPY = FormatCopy()  # the projections of an attention layer share their input


class FastLinear(nn.Linear):
    """`nn.Linear` with faster matrix products on a CPU, in fp32 and under autocast to bf16.

    The bf16 copy of the weight is made once per optimizer step. Stock autocast makes it in each forward pass.
    """

    weight_copy: FormatCopy
    bias_copy: FormatCopy
    keeps_fp32 = False  # even under autocast

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return `input @ weight.T + bias`, `[..., out_features]`; in bf16 under autocast."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        dtype = torch.float32 if self.keeps_fp32 else dtype
        is_supported = dtype in (torch.float32, torch.bfloat16) and self.weight.dtype == torch.float32
        is_stock = dtype == torch.float32 and not (USES_ONEDNN_IN_FP32 or torch.is_autocast_enabled("cpu"))
        if self.weight.device.type != "cpu" or not is_supported or is_stock:
            return super().forward(input)
        output: torch.Tensor = LinearFunction.apply(  # type: ignore[no-untyped-call]
            input.reshape(-1, input.shape[-1]), self.weight, self.bias,
            INPUT_COPY.get(input, dtype).reshape(-1, input.shape[-1]),
            self.weight_copy.get(self.weight, dtype),
            None if self.bias is None else self.bias_copy.get(self.bias, dtype),
        )  # fmt: skip
        return output.view(*input.shape[:-1], self.out_features)


class LinearFunction(torch.autograd.Function):
    """`F.linear` on copies of its inputs in another format; autograd converts the gradients back.

    The products of the backward pass have the format of the copies, as under stock autocast.
    """

    @staticmethod
    def forward(
        ctx: Any, _rows: torch.Tensor, _weight: torch.Tensor, _bias: torch.Tensor | None,
        rows_copy: torch.Tensor, weight_copy: torch.Tensor, bias_copy: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Return `[num_rows, out_features]` for rows `[num_rows, in_features]`."""
        needs_weight = ctx.needs_input_grad[1]  # a frozen weight needs no inputs in the backward pass
        ctx.save_for_backward(rows_copy if needs_weight else None, weight_copy)
        return multiply(rows_copy, weight_copy, bias_copy)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        needs_rows, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        return (
            multiply(grad_output, weight.t()) if needs_rows else None,
            multiply(grad_output.t(), rows.t()) if needs_weight else None,
            grad_output.sum(0) if needs_bias else None,
            *(None, None, None),
        )


def multiply(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `rows @ weight.T + bias`, computed by oneDNN; in bf16, `F.linear` itself calls it."""
    # Under autocast, small products need oneDNN too: `F.linear` would compute in bf16 what must stay in fp32.
    is_small = rows.numel() * len(weight) < MIN_PRODUCTS and not torch.is_autocast_enabled("cpu")
    if HAS_ONEDNN and rows.dtype == torch.float32 and rows.numel() and not is_small:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return product
    return F.linear(rows, weight, bias)


# ---- dropout
#
# Random numbers take most of dropout's time: PyTorch draws them one after the other with a Mersenne Twister.
# NumPy's SFC64 takes half the time for a 64-bit number, and each 64-bit number decides on four values.

RANDOM_LEVELS = 2**16  # number of values that 16 random bits can have


class KeepMasks:
    """A reproducible sequence of dropout masks.

    Two instances with the same arguments draw the same masks. A backward pass can therefore repeat the masks
    of the forward pass, instead of keeping them in memory. The probability is rounded to a multiple of
    1 / RANDOM_LEVELS; values that are kept are divided by `keep_prob`, its complement.
    """

    def __init__(self, dropout: float, seed: int) -> None:
        dropped_levels = min(round(dropout * RANDOM_LEVELS), RANDOM_LEVELS - 1)  # keep_prob is not 0
        self.keep_prob = 1 - dropped_levels / RANDOM_LEVELS
        self.threshold = dropped_levels - RANDOM_LEVELS // 2  # for random numbers of the type int16
        self.bit_generator = np.random.SFC64(seed)

    def draw(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Draw the next mask: a tensor of this shape and type, 0 for dropped values and 1 for kept values."""
        n = shape.numel()
        random_int64 = torch.from_numpy(self.bit_generator.random_raw(math.ceil(n / 4)).view(np.int64))
        random_int16 = random_int64.view(torch.int16)[:n].view(shape)
        return torch.ge(random_int16, self.threshold, out=torch.empty(shape, dtype=dtype))

    def drop_(self, values: torch.Tensor) -> torch.Tensor:
        """Set the dropped values of a contiguous tensor to 0, in place, with the next mask."""
        return drop_(values, self.draw(values.shape, mask_dtype(values)))


def draw_seed() -> int:
    """Draw a seed from PyTorch's default generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def mask_dtype(values: torch.Tensor) -> torch.dtype:
    """Return the type of the mask for `drop`: integers for 16-bit values, else the type of the values."""
    return torch.int16 if values.element_size() == 2 else values.dtype


def drop(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Multiply a contiguous tensor by a mask of 0 and 1.

    PyTorch multiplies 16-bit integers three times as fast as bf16 numbers, and 0 has the same bits in both.
    """
    return torch.mul(values.view(mask.dtype), mask).view(values.dtype)


def drop_(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Multiply a contiguous tensor by a mask of 0 and 1 in place, and return it; see `drop`."""
    values.view(mask.dtype).mul_(mask)
    return values


class FastDropout(nn.Dropout):
    """`nn.Dropout` with faster random numbers in training on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not (self.training and 0 < self.p < 1 and input.device.type == "cpu"):
            return super().forward(input)
        output: torch.Tensor = FastDropoutFunction.apply(input, self.p)  # type: ignore[no-untyped-call]
        return output


class FastDropoutFunction(torch.autograd.Function):
    """Dropout that saves only its mask for the backward pass, two bytes per value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dropout: float) -> torch.Tensor:
        keep_masks = KeepMasks(dropout, draw_seed())
        mask = keep_masks.draw(x.shape, torch.int16)
        ctx.scale = 1 / keep_masks.keep_prob
        ctx.save_for_backward(mask)
        return drop_(x * ctx.scale, mask.to(mask_dtype(x)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return drop_(grad_output * ctx.scale, mask.to(mask_dtype(grad_output))), None


# ---- attention

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
        """Return the attention output `[batch, heads, seq_len, head_dim]`, like queries, keys and values.

        The mask is bool and true for pairs that attend, or float and added to the scores, or None.
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
        q, k, v, mask, output, scales = ctx.saved_tensors
        keep_masks = KeepMasks(ctx.dropout, ctx.seed)
        grads = tuple(torch.empty_like(tensor) for tensor in (q, k, v))
        inputs = ScoreInputs.build(q, k, mask, ctx.scaling)
        for block, shift in zip(_split_batch(q), ctx.shifts, strict=True):
            exps = inputs.select(block).compute_exponentials(shift)
            keep = keep_masks.draw(exps.shape, mask_dtype(exps))
            grad = (grad_output[block] * scales[block].to(q.dtype)).flatten(0, 1)
            # dS = P * (dP - D) with D = rowsum(dO * O); `grad` contains the divisor of P = exps / sums
            row_dots = torch.linalg.vecdot(grad_output[block], output[block]).unsqueeze(-1)
            row_dots = (row_dots * (scales[block] * keep_masks.keep_prob)).flatten(0, 1)
            grad_scores = drop_(torch.bmm(grad, v[block].flatten(0, 1).mT), keep)
            grad_scores.sub_(row_dots).mul_(exps)
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
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[block]
        return self._replace(queries=self.queries[block], keys=self.keys[block], mask=mask)

    def exponentiate(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the exponentials of the scores, their sums over keys in fp32, and the subtracted maxima.

        The shapes are `[batch * heads, seq_len, seq_len]`, and twice `[batch * heads, seq_len, 1]`. The
        maximum of each row is subtracted only if a sum of the block would overflow or vanish without it.
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
        """Return the exponentials of the scores minus `shift`, `[batch * heads, seq_len, 1]` or None."""
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


class ShortAttention(torch.autograd.Function):
    """Scaled dot-product attention with dropout (Vaswani et al. 2017, 3.2.1).

    The probabilities and the dropout mask are saved for the backward pass. For short sequences, they are
    small, and reading them takes less time than the many small operators of `BlockwiseAttention`.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        dropout: float, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        ctx.shape, ctx.scaling = q.shape, scaling
        q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
        if mask is None:
            scores = torch.bmm(q, k.mT).mul_(scaling)
        else:
            if mask.dtype == torch.bool:
                mask = torch.where(mask, 0.0, MASKED_SCORE)
            batch, heads, seq_len, _ = ctx.shape
            added = mask.clamp_min(MASKED_SCORE).to(q.dtype).expand(batch, heads, -1, seq_len).flatten(0, 1)
            scores = torch.baddbmm(added, q, k.mT, alpha=scaling)
        probs = torch.softmax(scores, -1)  # PyTorch computes it in fp32, also for bf16
        keep_masks = KeepMasks(dropout, draw_seed())
        ctx.keep_prob = keep_masks.keep_prob
        keep = keep_masks.draw(probs.shape, mask_dtype(probs))
        dropped_probs = drop(probs, keep)
        ctx.save_for_backward(q, k, v, probs, keep, dropped_probs)
        return torch.bmm(dropped_probs, v).mul_(1 / ctx.keep_prob).view(ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, probs, keep, dropped_probs = ctx.saved_tensors
        grad = (grad_output * (1 / ctx.keep_prob)).flatten(0, 1)
        grad_probs = drop_(torch.bmm(grad, v.mT), keep)
        grad_scores = torch.ops.aten._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
        grad_scores.mul_(ctx.scaling)
        products = ((grad_scores, k), (grad_scores.mT, q), (dropped_probs.mT, grad))
        return *(torch.bmm(*factors).view(ctx.shape) for factors in products), None, None, None


# ---- in a model of transformers

FAST_SDPA = "sdpa_fast"
# Scores of a batch up to which `ShortAttention` is faster. In bf16, it saves 6 bytes for each score.
MAX_SHORT_SCORES = 2**21


def enable_fast_attention(model: Any) -> None:
    """Make `model` compute attention faster when it trains with dropout on a CPU.

    PyTorch's fused CPU kernel does not support dropout. The fallback keeps several tensors of shape
    `[batch, heads, seq_len, seq_len]` until the backward pass. These tensors dominate the memory, and reading
    them dominates the time. Architectures with an attention of their own (DeBERTa, Longformer) do not change.
    """
    from transformers import PreTrainedModel

    stock_model = model if isinstance(model, PreTrainedModel) else model.base_model
    if stock_model.config._attn_implementation == "sdpa" and stock_model._can_set_attn_implementation():
        set_attention(stock_model, FAST_SDPA, attend_fast, make_mask)


def make_mask(**kwargs: Any) -> torch.Tensor | None:
    """Return the bool mask of transformers' `sdpa_mask`, or None if nothing is masked.

    It is `[batch, 1, seq_len, seq_len]`; `[batch, 1, 1, seq_len]` if only padding is masked, for all queries
    alike.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    mask = sdpa_mask(**kwargs)
    masks_only_padding = kwargs.get("mask_function") is bidirectional_mask_function
    return mask[:, :, :1] if mask is not None and masks_only_padding else mask


def attend_fast(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Compute attention as transformers' `sdpa_attention_forward` does, faster where possible.

    Query, key and value are `[batch, heads, seq_len, head_dim]`. The output is
    `[batch, seq_len, heads, head_dim]`, with None instead of attention weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_self_attention = query.shape == key.shape and kwargs.get("position_bias") is None
    # Models that rotate queries and keys in fp32 pass mixed formats under autocast, which PyTorch converts.
    has_one_dtype = query.dtype == key.dtype == value.dtype
    is_cpu = query.device.type == "cpu"
    is_supported = is_cpu and has_one_dtype and query.dtype in (torch.float32, torch.bfloat16)
    if not (is_self_attention and 0 < dropout < 1 and is_supported):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if attention_mask is None and attends_causally(module, kwargs):
        attention_mask = query.new_ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()[None, None]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = attend_with_dropout(query, key, value, attention_mask, dropout, scaling)
    return output.transpose(1, 2), None


def attend_with_dropout(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    scaling: float,
) -> torch.Tensor:  # fmt: skip
    """Return the attention output; see `BlockwiseAttention.forward` for the arguments and shapes."""
    batch, heads, seq_len, _ = q.shape
    is_short = batch * heads * seq_len**2 <= MAX_SHORT_SCORES
    function = ShortAttention if is_short else BlockwiseAttention
    output: torch.Tensor = function.apply(q, k, v, mask, dropout, scaling)  # type: ignore[no-untyped-call]
    return output

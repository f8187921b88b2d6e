"""Fast random numbers for dropout on a CPU.

Random numbers take most of dropout's time: PyTorch draws them one after the other with a Mersenne Twister.
NumPy's SFC64 takes half the time for a 64-bit number, and each 64-bit number decides on four values.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

RANDOM_LEVELS = 2**16  # number of values that 16 random bits can have


class KeepMasks:
    """A reproducible sequence of dropout masks.

    Two instances with the same arguments draw the same masks. A backward pass can therefore repeat the masks
    of the forward pass, instead of keeping them in memory.

    Args:
        dropout: Probability of dropping a value, below 1. It is rounded to a multiple of 1 / RANDOM_LEVELS.
        seed: Seed of the masks; see `draw_seed`.

    Attributes:
        keep_prob: Probability of keeping a value, after rounding. Values that are kept are divided by it.
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
        """Zero each value with probability `dropout`, and divide the values kept by `KeepMasks.keep_prob`."""
        keep_masks = KeepMasks(dropout, draw_seed())
        mask = keep_masks.draw(x.shape, torch.int16)
        ctx.scale = 1 / keep_masks.keep_prob
        ctx.save_for_backward(mask)
        return drop_(x * ctx.scale, mask.to(mask_dtype(x)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient with respect to `x`; it is 0 for dropped values."""
        (mask,) = ctx.saved_tensors
        return drop_(grad_output * ctx.scale, mask.to(mask_dtype(grad_output))), None


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

    def add_gradient(self, ids: torch.Tensor, grad_output: torch.Tensor) -> None:
        """Add the gradient of a lookup to `weight.grad`.

        Args:
            ids: `[n]` looked up rows.
            grad_output: `[n, embedding_dim]` gradient of their vectors.
        """
        rows, positions = torch.unique(ids, return_inverse=True)
        sums = torch.ops.aten.embedding_dense_backward(grad_output, positions, len(rows), -1, False)
        if self.padding_idx is not None:
            sums[rows == self.padding_idx] = 0
        if self.weight.grad is None:
            self.weight.grad = self._clear_buffer()
        if self.weight.grad is self.buffer:
            self.used_rows = rows if self.used_rows is None else torch.cat([self.used_rows, rows])
        self.weight.grad[rows] += sums

    def get_used_rows(self) -> torch.Tensor | None:
        """Return the sorted indices of the rows of the gradient that can differ from 0, or None for all."""
        if self.weight.grad is not self.buffer or self.used_rows is None:
            return None
        return torch.unique(self.used_rows)

    def _clear_buffer(self) -> torch.Tensor:
        """Return the gradient buffer, filled with zeros."""
        if self.buffer is None:
            self.buffer = torch.zeros_like(self.weight)
        elif self.used_rows is not None:
            self.buffer[self.used_rows] = 0
        self.used_rows = None
        return self.buffer


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
        (ids,) = ctx.saved_tensors
        ctx.module.add_gradient(ids.flatten(), grad_output.flatten(0, -2))
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
        gradients = list(self._select_gradients())
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

    def _select_gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield each gradient with the indices of its rows that can differ from 0, or None for all rows."""
        for weight in self.weights:
            if weight.grad is not None:
                table = self.tables.get(id(weight))
                yield weight.grad, None if table is None else table.get_used_rows()


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

    @classmethod
    def convert(cls, module: nn.Linear) -> None:
        """Turn a linear layer into an instance of this class."""
        module.__class__ = cls
        vars(module).update(weight_copy=FormatCopy(), bias_copy=FormatCopy())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return `input @ weight.T + bias`, `[..., out_features]`; in bf16 under autocast."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        dtype = torch.float32 if self.keeps_fp32 else dtype
        is_supported = dtype in (torch.float32, torch.bfloat16) and self.weight.dtype == torch.float32
        is_stock = dtype == torch.float32 and not (USES_ONEDNN_IN_FP32 or torch.is_autocast_enabled("cpu"))
        if self.weight.device.type != "cpu" or not is_supported or is_stock:
            return super().forward(input)
        bias_copy = None if self.bias is None else self.bias_copy.get(self.bias, dtype)
        copies = _to_rows(INPUT_COPY.get(input, dtype)), self.weight_copy.get(self.weight, dtype), bias_copy
        rows: torch.Tensor = LinearFunction.apply(_to_rows(input), self.weight, self.bias, *copies)  # type: ignore[no-untyped-call]
        return rows.view(*input.shape[:-1], self.out_features)


def _to_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


class LinearFunction(torch.autograd.Function):
    """`F.linear` on copies of its inputs in another format; autograd converts the gradients back.

    The products of the backward pass have the format of the copies, as under stock autocast.
    """

    @staticmethod
    def forward(
        ctx: Any, _rows: torch.Tensor, _weight: torch.Tensor, _bias: torch.Tensor | None,
        rows_copy: torch.Tensor, weight_copy: torch.Tensor, bias_copy: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Return `[num_rows, out_features]`.

        Args:
            rows_copy: `[num_rows, in_features]`.
            weight_copy: `[out_features, in_features]`.
            bias_copy: `[out_features]`, or None.
        """
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

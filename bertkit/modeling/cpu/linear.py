"""Linear layers for a CPU: oneDNN's matrix products, and bf16 copies of the weights.

PyTorch computes fp32 matrix products with MKL. On AMD's processors with AVX-512, oneDNN is more than twice as
fast. It is also part of PyTorch, and `torch.compile` uses the same operator for the layers that it compiles.
On processors with AVX2 only, MKL is as fast in the forward pass. In the backward pass, which multiplies
transposed matrices, oneDNN takes twice as long.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

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
            ctx: Autograd's context.
            _rows, _weight, _bias: The original tensors, which receive the gradients.
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
        """Return the gradients of rows, weight and bias."""
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

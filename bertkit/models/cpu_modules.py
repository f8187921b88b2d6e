"""Equivalents of PyTorch's modules that are faster on a CPU, and where a model gets them."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from bertkit.models.cpu_dropout import FastDropout, enable_fast_attention
from bertkit.models.layers import list_submodels

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
            FastLinear.convert(module)
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

    def add_gradient(self, ids: torch.Tensor, grad_output: torch.Tensor) -> None:
        """Add the gradient `[n, embedding_dim]` of a lookup of rows `[n]` to `weight.grad`."""
        rows, positions = torch.unique(ids, return_inverse=True)
        sums = torch.ops.aten.embedding_dense_backward(grad_output, positions, len(rows), -1, False)
        if self.padding_idx is not None:
            sums[rows == self.padding_idx] = 0
        if self.weight.grad is None:
            if self.buffer is None:
                self.buffer = torch.zeros_like(self.weight)
            elif self.used_rows is not None:
                self.buffer[self.used_rows] = 0
            self.used_rows = None
            self.weight.grad = self.buffer
        if self.weight.grad is self.buffer:
            self.used_rows = rows if self.used_rows is None else torch.cat([self.used_rows, rows])
        self.weight.grad[rows] += sums

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

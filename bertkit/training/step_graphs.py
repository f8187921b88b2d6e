"""Forward and backward passes as CUDA graphs.

A training step of BERT-BASE starts more than a thousand kernels. On a current GPU, most of them end before
Python has started the next one, so that the GPU is idle for most of the step. A CUDA graph records the
kernels of a pass once, and starts all of them with one call. A graph is valid for tensors of fixed shapes and
addresses. Therefore, batches are padded to a short list of lengths, and each shape has a graph.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from bertkit.data.collators import BATCH_SHAPE, BatchShape
from bertkit.data.features import TEACHER_LOGITS
from bertkit.training.failures import is_out_of_memory

MAX_GRAPHS = 48  # batches of further shapes run without a graph


class CaptureError(Exception):
    """A pass cannot be recorded, because it reads a value from the device or from pageable memory."""


class CudaGraph:
    """The kernels that a function starts, recorded without running them; the function must read no values."""

    def __init__(self, function: Callable[[], Any], pool: Any, stream: Any) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # while a graph is recorded, PyTorch cannot free cached memory
        self._graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # other threads of this process may copy to pinned memory meanwhile
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.outputs = function()  # each replay overwrites its tensors
                self._graph.capture_end()
            except BaseException as error:
                self._abandon(pool)
                if not isinstance(error, RuntimeError) or is_out_of_memory(error):
                    raise
                raise CaptureError(str(error).splitlines()[0]) from error
        torch.cuda.current_stream().wait_stream(stream)

    def _abandon(self, pool: Any) -> None:
        """End a recording that failed.

        Its `capture_end` fails, too. Without the calls below, PyTorch would keep cached memory for the
        recording. It would also refuse to draw random numbers, because the state of the generator belongs to
        the recording; a copy replaces it.
        """
        with suppress(RuntimeError):
            self._graph.capture_end()
        with suppress(RuntimeError):  # if `capture_end` came as far as this
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())

    def replay(self) -> None:
        self._graph.replay()


def make_recorder() -> Callable[[Callable[[], Any]], CudaGraph]:
    """Return a function that records what a function does; all recordings share memory."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return partial(CudaGraph, pool=torch.cuda.graph_pool_handle(), stream=stream)


class StepGraphs:
    """Runs forward and backward passes, with a CUDA graph for each shape of a batch.

    The gradients are accumulated in buffers that belong to the graphs. `zero_grad` of the model only detaches
    them; the first pass of a step fills them with zeros and attaches them again.

    Args:
        run_pass: Computes the loss of a batch and its gradients without reading values of tensors. Its
            arguments are the batch and the number of items by part of the loss.
        is_compiled: Whether layers are compiled. Another shape can compile them again, which a graph cannot.
    """

    def __init__(
        self, run_pass: Callable[..., Any], parameters: Sequence[torch.nn.Parameter],
        is_compiled: bool = False,
    ) -> None:  # fmt: skip
        self.run_pass = run_pass
        self.is_compiled = is_compiled
        # By the shapes of a batch: the recorded pass, and the tensors that it reads, inputs and counts.
        self.graphs: dict[Any, tuple[CudaGraph, dict[str, torch.Tensor], dict[str, torch.Tensor]]] = {}
        self._record = make_recorder()
        self._seen: set[Any] = set()  # shapes that have run without a graph
        self._parameters = list(parameters)
        # The parameters that get a gradient (a head may not use the pooler), and their gradients.
        self._trained: list[torch.nn.Parameter] = []
        self._gradients: list[torch.Tensor] = []

    def run(self, batch: dict[str, Any], counts: dict[str, torch.Tensor]) -> Any:
        """Run the pass of a batch on the device, and return what `run_pass` returns.

        The next pass of the same shape overwrites the returned tensors.

        Raises:
            CaptureError: The pass cannot be recorded. The gradients have not changed.
        """
        self._attach_gradients()
        key = describe_shapes(batch, counts)
        if key not in self.graphs:
            # The first pass compiles layers, chooses kernels, and shows which parameters get a gradient.
            if not self._trained:
                outputs = self.run_pass(batch, counts)
                self._trained = [parameter for parameter in self._parameters if parameter.grad is not None]
                return outputs
            is_new = (self.is_compiled or TEACHER_LOGITS in batch) and key not in self._seen
            if is_new or len(self.graphs) == MAX_GRAPHS:  # the number of a teacher's logits varies
                self._seen.add(key)
                return self.run_pass(batch, counts)
            if not self._gradients:
                # between two passes of a step, the gradients exist already
                self._gradients = [
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    for parameter in self._trained
                ]
                self._attach_gradients()
            own_inputs = {name: value.clone() for name, value in batch.items() if torch.is_tensor(value)}
            own_counts = {part: count.clone() for part, count in counts.items()}
            run = partial(self.run_pass, {**batch, **own_inputs}, dict(own_counts))
            self.graphs[key] = self._record(run), own_inputs, own_counts
        recording, own_inputs, own_counts = self.graphs[key]
        for name, tensor in own_inputs.items():
            tensor.copy_(batch[name])
        for part, count in own_counts.items():
            count.copy_(counts[part])
        recording.replay()
        return recording.outputs

    def _attach_gradients(self) -> None:
        """Attach the gradient buffers, filled with zeros, unless a previous pass of this step did."""
        if self._gradients and self._trained[0].grad is None:
            torch._foreach_zero_(self._gradients)
            for parameter, gradient in zip(self._trained, self._gradients, strict=True):
                parameter.grad = gradient


def can_record(batch: Mapping[str, Any]) -> bool:
    """Return whether the pass of a batch depends on nothing but its tensors and their shapes.

    Batches with several sequences per example are grouped by numbers on the host, which a graph would keep.
    """
    shape: BatchShape | None = batch.get(BATCH_SHAPE)
    return shape is not None and shape.sequences_per_example is None


def describe_shapes(batch: Mapping[str, Any], counts: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return a key that is equal for batches whose passes run the same kernels on the same shapes."""
    shape: BatchShape = batch[BATCH_SHAPE]
    has_padding = min(shape.lengths) < batch["attention_mask"].shape[1]  # without it, there is no mask
    tensors = ((name, value.shape, value.dtype) for name, value in batch.items() if torch.is_tensor(value))
    return has_padding, *tensors, *counts

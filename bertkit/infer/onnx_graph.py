"""From a PyTorch model to an ONNX graph of any batch and length, and to one in 8 bits."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError
from bertkit.modeling.loading import get_max_positions, takes_token_type_ids

OPSET = 18  # what PyTorch's exporter writes without a conversion
TRACE_SHAPE = (3, 4, 7)  # sequences, choices, pieces: unlike each other, and none 1, which would stay fixed
MAX_SINGLE_FILE_BYTES = 2**31 - 2**27  # bytes: what an ONNX file cannot hold lies beside it
# Why an architecture cannot be exported, where it is known; others are found out.
UNSUPPORTED_ARCHITECTURES = {
    "longformer": "its attention cuts a text into chunks by its length, which PyTorch cannot trace",
    "big_bird": "its attention draws blocks of the text at random",
}


class TupleOutputModel(nn.Module):
    """A model with a tuple of tensors for an output, by `names`."""

    def __init__(self, model: Any, output_names: list[str]) -> None:
        super().__init__()
        self.model, self.output_names = model, output_names

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """The inputs as the collator gives them."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = self.model(**inputs)
        return tuple(output[name] for name in self.output_names)


def check_architecture(config: Any) -> None:
    """Refuse a model that is known not to export.

    Raises:
        UserError: naming it and the reason.
    """
    full = getattr(config, "attention_type", "") == "original_full"
    if config.model_type in UNSUPPORTED_ARCHITECTURES and not full:
        raise UserError(
            f"{config.model_type} cannot be exported: {UNSUPPORTED_ARCHITECTURES[config.model_type]}"
        )


def write_graph(model: Any, has_choices: bool, path: Path, metadata: Mapping[str, str]) -> None:
    """Write an ONNX file whose batch, choices and length are free.

    Args:
        model: in evaluation mode, in fp32.
        choices: whether its inputs are [examples, choices, length] instead of [sequences, length].
        told: what the file says of itself.

    Raises:
        UserError: PyTorch cannot export the model, or only for inputs of one size.
    """
    inputs, dims = _example(model, has_choices)
    with torch.no_grad():
        names = [name for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)]
    kind = model.config.model_type
    with _quiet():
        try:
            program = torch.onnx.export(
                TupleOutputModel(model, names), (), kwargs=inputs, dynamo=True, opset_version=OPSET, verbose=False,
                dynamic_shapes={name: dict(enumerate(dims)) for name in inputs},
                input_names=list(inputs), output_names=names,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            raise UserError(f"{kind} cannot be exported: {_reason(error)}") from error
    assert program is not None
    fixed = [dim for one in program.model.graph.inputs for dim in one.shape or () if isinstance(dim, int)]
    if fixed:  # the exporter takes that upon itself
        raise UserError(f"{kind} cannot be exported: its graph would hold for inputs of one size alone")
    program.model.metadata_props.update(metadata)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    program.save(path, external_data=size > MAX_SINGLE_FILE_BYTES)


def _example(model: Any, choices: bool) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Inputs to trace with, and what their dimensions are called."""
    dims = [torch.export.Dim("batch"), torch.export.Dim("choices")]
    dims = [*dims[: 1 + choices], torch.export.Dim("length", max=get_max_positions(model.config))]
    shape = TRACE_SHAPE if choices else TRACE_SHAPE[::2]
    inputs = {
        "input_ids": torch.full(shape, model.config.vocab_size - 1),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }
    inputs["attention_mask"][..., -1] = 0
    if takes_token_type_ids(model):
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    return inputs, dims


def _reason(error: BaseException) -> str:
    """What is at the bottom of an exporter's error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0]


def quantize(source: Path, target: Path) -> None:
    """Write the graph in `source` with weights in 8 bits; activations are rounded as they come.

    A scale for each output of a layer, and 7 of the 8 bits: without VNNI a processor adds up products in
    16 bits, which would overflow.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # weights that the exporter turned over have their old shapes there
    with _quiet():
        quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporter and quantizer talk of their steps, the latter through the root of all loggers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

"""Export a PyTorch model to an ONNX graph with dynamic batch size and length, and quantize it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError
from bertkit.modeling.loading import get_max_positions, takes_token_type_ids

TESTED_TORCH = "2.13"  # torch 2.6 to 2.9 cannot export some or all models
OPSET = 18  # the version that PyTorch's exporter writes without conversion
# Example inputs: examples, choices, tokens. All sizes differ, and none is 1, which would become static.
TRACE_SHAPE = (3, 4, 7)
MAX_SINGLE_FILE_BYTES = 2**31 - 2**27  # larger weights are stored in a second file
# Architectures that are known to fail, with the reason; other failures are detected during the export.
UNSUPPORTED_ARCHITECTURES = {
    "longformer": "its attention splits a text into chunks by its length, which PyTorch cannot trace",
    "big_bird": "its attention selects random blocks of the text",
}


class TupleOutputModel(nn.Module):
    """A model that returns its outputs as a tuple, in the order of `output_names`."""

    def __init__(self, model: Any, output_names: list[str]) -> None:
        super().__init__()
        self.model, self.output_names = model, output_names

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Return the outputs of a batch."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = self.model(**inputs)
        return tuple(output[name] for name in self.output_names)


def check_architecture(config: Any) -> None:
    """Check that the export of an architecture is not known to fail.

    Raises:
        UserError: The export is known to fail; the message has the reason.
    """
    has_full_attention = getattr(config, "attention_type", "") == "original_full"
    if config.model_type in UNSUPPORTED_ARCHITECTURES and not has_full_attention:
        raise UserError(
            f"{config.model_type}: cannot be exported; {UNSUPPORTED_ARCHITECTURES[config.model_type]}"
        )


def write_graph(model: Any, has_choices: bool, path: Path, metadata: Mapping[str, str]) -> None:
    """Write an ONNX file whose batch size, number of choices and length are dynamic.

    Args:
        model: Model in evaluation mode, in fp32.
        has_choices: Whether inputs are `[batch, choices, seq_len]` instead of `[batch, seq_len]`.
        path: File to write.
        metadata: Strings to store in the file.

    Raises:
        UserError: PyTorch cannot export the model, or can export it only for inputs of one size.
    """
    inputs, dims = _build_example_inputs(model, has_choices)
    with torch.no_grad():
        names = [name for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)]
    with _silence_logging():
        try:
            program = torch.onnx.export(
                TupleOutputModel(model, names), (), kwargs=inputs, dynamo=True, opset_version=OPSET,
                verbose=False,
                dynamic_shapes={name: dict(enumerate(dims)) for name in inputs},
                input_names=list(inputs), output_names=names,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            raise _make_error(model, _get_root_cause(error)) from error
    assert program is not None
    static_dims = [
        dim for value in program.model.graph.inputs for dim in value.shape or () if isinstance(dim, int)
    ]
    if static_dims:  # the exporter may make a dimension static without an error
        raise _make_error(model, "its graph would accept inputs of one size only")
    program.model.metadata_props.update(metadata)
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())  # fp32
    program.save(path, external_data=num_bytes > MAX_SINGLE_FILE_BYTES)


def _make_error(model: Any, reason: str) -> UserError:
    """Return the error of a model that PyTorch cannot export."""
    name = model.config.model_type
    version = torch.__version__
    if version >= TESTED_TORCH:
        return UserError(f"{name}: cannot be exported; {reason}")
    fix = f"install torch {TESTED_TORCH} or later"
    return UserError(f"{name}: cannot be exported with torch {version} ({reason}); {fix}")


def _build_example_inputs(model: Any, has_choices: bool) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Return example inputs for tracing, and their dynamic dimensions."""
    num_examples, _, length = TRACE_SHAPE
    batch_dim = torch.export.Dim("batch")
    length_dim = torch.export.Dim("length", max=get_max_positions(model.config))
    shape: tuple[int, ...] = TRACE_SHAPE
    dims = [batch_dim, torch.export.Dim("choices"), length_dim]
    if not has_choices:
        shape = (num_examples, length)
        dims = [batch_dim, length_dim]
    inputs = {
        "input_ids": torch.full(shape, model.config.vocab_size - 1),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }
    inputs["attention_mask"][..., -1] = 0
    if takes_token_type_ids(model):
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    return inputs, dims


def _get_root_cause(error: BaseException) -> str:
    """Return the first line of the error at the end of the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0]


def quantize(source: Path, target: Path) -> None:
    """Write the graph in `source` to `target` with 8-bit weights and dynamically quantized activations.

    Each output channel has its own scale. Weights use 7 of the 8 bits, because processors without VNNI
    accumulate products in 16 bits, which would overflow.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # has outdated shapes of weights that the exporter transposed
    with _silence_logging():
        quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Silence the exporter and the quantizer, which logs through the root logger."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous_level)

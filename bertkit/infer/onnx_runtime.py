"""Run an exported model with onnxruntime in place of the PyTorch model."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError
from bertkit.modeling.loading import ONNX_FILE, ModelSource
from bertkit.modeling.pretraining import MASKED_POSITIONS
from bertkit.utils.extras import require_extra

VOCABULARY_OUTPUTS = ("prediction_logits", "logits")  # output names of language modeling heads
LOG_SEVERITY_ERROR = 3  # onnxruntime's log level for errors


class OnnxOutput(dict[str, torch.Tensor]):
    """Output tensors that, as in transformers, are both items and attributes."""

    __getattr__ = dict.__getitem__


class OnnxModel(nn.Module):
    """A model for inference whose forward pass runs an ONNX graph.

    The graph runs on the CPU with as many threads as PyTorch uses.

    Args:
        path: ONNX file. Inputs of `forward` that the graph does not have are ignored.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = LOG_SEVERITY_ERROR
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input_names = [value.name for value in self.session.get_inputs()]
        self.output_names = [value.name for value in self.session.get_outputs()]
        # Callers read the device of a model from its parameters.
        self.device_anchor = nn.Parameter(torch.empty(0), requires_grad=False)

    @property
    def base_model(self) -> "OnnxModel":
        """The model itself, because the graph includes the encoder."""
        return self

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None, **_: Any,
    ) -> OnnxOutput:  # fmt: skip
        """Compute the outputs; if masked positions are set, vocabulary logits are reduced to them."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        inputs = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
        }  # fmt: skip
        arrays = self.session.run(
            self.output_names, {name: inputs[name].numpy() for name in self.input_names}
        )
        output = OnnxOutput(zip(self.output_names, map(torch.from_numpy, arrays), strict=True))
        positions = self.__dict__.pop(MASKED_POSITIONS, None)
        if positions is not None:
            name = next(name for name in VOCABULARY_OUTPUTS if name in output)
            logits = output[name]
            output[name] = logits.gather(1, positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        return output


def find_onnx_model(folder: Path) -> ModelSource | None:
    """Return the exported model in a directory; None if there is none."""
    is_exported = (folder / ONNX_FILE).is_file()
    return ModelSource(folder.resolve().name, folder, is_run=True) if is_exported else None


def load_onnx_model(source: ModelSource) -> OnnxModel:
    """Load the model that `find_onnx_model` returned.

    Raises:
        UserError: The package onnxruntime is not installed, or cannot read the file.
    """
    require_extra("onnx", ["onnxruntime"], f"{source.folder}")
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    path = source.folder / ONNX_FILE
    try:
        return OnnxModel(path)
    except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, errors.NoSuchFile) as error:
        raise UserError(
            f"{path}: onnxruntime cannot read the file ({str(error).splitlines()[0]}); export the run again"
        ) from error

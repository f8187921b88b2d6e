"""What was exported of a run, in the place of the PyTorch model: onnxruntime computes."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError, format_list
from bertkit.modeling.loading import ModelSource
from bertkit.modeling.pretraining import MASKED_POSITIONS

ONNX_FILE = "model.onnx"
VOCABULARY_OUTPUTS = ("prediction_logits", "logits")  # what heads over the vocabulary call their output
LOG_SEVERITY_ERROR = 3  # of onnxruntime's levels


class OnnxOutput(dict[str, torch.Tensor]):
    """Tensors by the names that stock heads give them, also as attributes."""

    __getattr__ = dict.__getitem__


class OnnxModel(nn.Module):
    """A model whose forward pass is an ONNX graph's; all that uses a model's logits works as with any other.

    It computes on the CPU, with as many threads as PyTorch.

    Args:
        path: the graph. Inputs that it has not are not read.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = LOG_SEVERITY_ERROR
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input_names = [one.name for one in self.session.get_inputs()]
        self.output_names = [one.name for one in self.session.get_outputs()]
        self.device_anchor = nn.Parameter(
            torch.empty(0), requires_grad=False
        )  # by which others know the device

    @property
    def base_model(self) -> "OnnxModel":
        """The encoder is in the graph too."""
        return self

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None, **_: Any,
    ) -> OnnxOutput:  # fmt: skip
        """The graph's outputs; of logits over the vocabulary those at the places that were told, if any."""
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": kinds}
        found = self.session.run(self.output_names, {name: given[name].numpy() for name in self.input_names})
        output = OnnxOutput(zip(self.output_names, map(torch.from_numpy, found), strict=True))
        places = self.__dict__.pop(MASKED_POSITIONS, None)
        if places is not None:
            name = next(name for name in VOCABULARY_OUTPUTS if name in output)
            words = output[name]
            output[name] = words.gather(1, places.unsqueeze(-1).expand(-1, -1, words.shape[-1]))
        return output


def find_onnx_model(folder: Path) -> ModelSource | None:
    """The exported model in a folder; None where there is none."""
    return ModelSource(folder.resolve().name, folder) if (folder / ONNX_FILE).is_file() else None


def load_onnx_model(source: ModelSource) -> OnnxModel:
    """The model in a folder that `find_onnx` found.

    Raises:
        UserError: onnxruntime is not installed, or cannot read the file.
    """
    require_packages(["onnxruntime"], f"{source.folder}")
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    path = source.folder / ONNX_FILE
    try:
        return OnnxModel(path)
    except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, errors.NoSuchFile) as error:
        raise UserError(f"{path}: onnxruntime cannot read it ({str(error).splitlines()[0]})") from error


def require_packages(packages: list[str], purpose: str) -> None:
    """Refuse, before any work, to go on without some packages, which `what` needs."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{purpose}: needs {format_list(missing)}, not installed; pip install 'bertkit[onnx]'"
        )

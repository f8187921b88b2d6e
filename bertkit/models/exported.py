"""Exported models: ONNX graphs that replace the model of a run in prediction."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError
from bertkit.models.loading import ONNX_FILE
from bertkit.models.pretraining import MASKED_POSITIONS
from bertkit.utils import devices
from bertkit.utils.compat import require_extra
from bertkit.utils.reporting import report_info, report_warning

CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"  # of onnxruntime
VOCABULARY_OUTPUTS = ("prediction_logits", "logits")  # output names of language modeling heads
SCOPE_OUTPUT = "scope_logit"  # separate from the logits, of which other programs take the highest


class OnnxOutput(dict[str, torch.Tensor]):
    """Output tensors that, as in transformers, are both items and attributes."""

    __getattr__ = dict.__getitem__


class OnnxModel(nn.Module):
    """A model for inference whose forward pass runs an ONNX graph.

    The graph runs on the GPU of this number, if onnxruntime can use it, or else on the CPU with as many
    threads as PyTorch uses. Inputs and outputs of `forward` are on the CPU. Inputs that the graph does not
    have are ignored.
    """

    def __init__(self, path: Path, gpu: int | None = None) -> None:
        import onnxruntime

        super().__init__()
        providers: list[Any] = [CPU_PROVIDER]
        if gpu is not None and CUDA_PROVIDER in onnxruntime.get_available_providers():
            providers.insert(0, (CUDA_PROVIDER, {"device_id": gpu, "use_tf32": 0}))  # as in PyTorch
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        self.input_names = [value.name for value in self.session.get_inputs()]
        self.output_names = [value.name for value in self.session.get_outputs()]
        # Callers read the device of a model from its parameters.
        self.device_anchor = nn.Parameter(torch.empty(0), requires_grad=False)

    @property
    def uses_gpu(self) -> bool:
        """Whether the graph runs on a GPU. onnxruntime falls back to the CPU if it cannot load CUDA."""
        return CUDA_PROVIDER in self.session.get_providers()

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
        if SCOPE_OUTPUT in output:  # the last output of the PyTorch model
            output["logits"] = torch.cat([output["logits"], output.pop(SCOPE_OUTPUT)], dim=-1)
        positions = self.__dict__.pop(MASKED_POSITIONS, None)
        if positions is not None:
            name = next(name for name in VOCABULARY_OUTPUTS if name in output)
            logits = output[name]
            output[name] = logits.gather(1, positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        return output


def load_onnx_model(folder: Path) -> OnnxModel:
    require_extra("onnx", ["onnxruntime"], f"{folder}")
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    path, device = folder / ONNX_FILE, devices.get_device()
    try:
        model = OnnxModel(path, device.index if device.type == "cuda" else None)
    except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, errors.NoSuchFile) as error:
        raise UserError(
            f"{path}: onnxruntime cannot read the file ({str(error).splitlines()[0]}); export the run again"
        ) from error
    if model.uses_gpu:
        report_info(f"device: {devices.describe_device()}, with onnxruntime's CUDA provider")
    elif device.type == "cuda" or (devices.is_requested() and device.type != "cpu"):
        report = report_warning if devices.is_requested() else report_info
        report(
            f"{path}: runs on the CPU, because this onnxruntime has no provider for {device}; on an NVIDIA "
            "GPU, install onnxruntime-gpu in place of onnxruntime"
        )
    return model.eval()

"""A model repository for the Triton Inference Server, with an exported model.

The configuration is written from the signature of the ONNX file:
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertkit.infer.onnx_runtime import OnnxModel
from bertkit.modeling.loading import ONNX_FILE

CONFIG_FILE = "config.pbtxt"
MAX_BATCH_SIZE = 32
MAX_QUEUE_DELAY = 10_000  # microseconds, like the default --max-delay-ms of `serve`
DATA_TYPES = {"tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}  # by type in onnxruntime


def write_model_repository(folder: Path, onnx_files: Mapping[str, Path]) -> None:
    """Write `NAME/config.pbtxt` and `NAME/1/model.onnx` for each model.

    Args:
        folder: The repository to create.
        onnx_files: Exported models by name.
    """
    for name, onnx_file in onnx_files.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        for part in onnx_file.parent.glob(f"{ONNX_FILE}*"):  # large weights are in a second file
            shutil.copyfile(part, version / part.name)
        config = format_config(name, OnnxModel(onnx_file).session)
        (folder / name / CONFIG_FILE).write_text(config, "utf-8", newline="\n")


def format_config(name: str, session: Any) -> str:
    """Return the configuration of a model in the text format of protobuf.

    Args:
        name: Name of the model.
        session: Session of onnxruntime; the inputs and outputs of the model are `[batch, ...]`.
    """
    return "\n".join([
        f"name: {json.dumps(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {MAX_BATCH_SIZE}",
        f"input [\n{_format_tensors(session.get_inputs())}\n]",
        f"output [\n{_format_tensors(session.get_outputs())}\n]",
        f"dynamic_batching {{ max_queue_delay_microseconds: {MAX_QUEUE_DELAY} }}",
        "",
    ])  # fmt: skip


def _format_tensors(tensors: Iterable[Any]) -> str:
    """Format inputs or outputs. Triton adds the dimension of the batch, and -1 is a variable dimension."""
    lines = []
    for tensor in tensors:
        dims = ", ".join(str(dim if isinstance(dim, int) else -1) for dim in tensor.shape[1:])
        data_type = DATA_TYPES[tensor.type]
        lines.append(f'  {{ name: "{tensor.name}" data_type: {data_type} dims: [ {dims} ] }}')
    return ",\n".join(lines)

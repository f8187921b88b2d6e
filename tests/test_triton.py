"""The model repository for Triton has the signature of the exported model."""

import shutil

import onnxruntime
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

import bertkit
from bertkit.commands import export

pytestmark = [pytest.mark.usefixtures("onnx_exporter"), pytest.mark.slow]

# The fields of Triton's model_config.proto that the configuration uses: name, type, and whether it repeats.
MESSAGES = {
    "Tensor": {"name": ("string", False), "data_type": ("DataType", False), "dims": ("int64", True)},
    "Batching": {"max_queue_delay_microseconds": ("uint64", False)},
    "ModelConfig": {
        "name": ("string", False), "backend": ("string", False), "max_batch_size": ("int32", False),
        "input": ("Tensor", True), "output": ("Tensor", True), "dynamic_batching": ("Batching", False),
    },
}  # fmt: skip
TYPE_NAMES = {"TYPE_INT64": "tensor(int64)", "TYPE_FP32": "tensor(float)"}


def parse_config(text):
    """Parse the text format of protobuf; unknown fields and wrong types are errors."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", syntax="proto3")
    enum = file.enum_type.add(name="DataType")
    for number, name in enumerate(["TYPE_INVALID", *TYPE_NAMES]):
        enum.value.add(name=name, number=number)
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, (name, (kind, repeats)) in enumerate(fields.items(), 1):
            label = kinds.LABEL_REPEATED if repeats else kinds.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if kind in MESSAGES or kind == "DataType":
                field.type_name = kind
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    config = message_factory.GetMessageClass(pool.FindMessageTypeByName("ModelConfig"))()
    return text_format.Parse(text, config)


def list_tensors(tensors):
    """Return name, type and dimensions without the batch, from onnxruntime."""
    dims = [[dim if isinstance(dim, int) else -1 for dim in tensor.shape[1:]] for tensor in tensors]
    return [(tensor.name, tensor.type, sizes) for tensor, sizes in zip(tensors, dims, strict=True)]


@pytest.fixture(scope="module", autouse=True)
def _trace_once(tmp_path_factory):
    """Trace the graph of each task once; later exports of the task copy it."""
    folder, write_graph = tmp_path_factory.mktemp("graphs"), export.write_graph

    def write(model, has_choices, path, metadata, *_):
        copy = folder / f"{metadata['task']}.onnx"
        if not copy.exists():
            write_graph(model, has_choices, copy, metadata)
        shutil.copy(copy, path)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(export, "write_graph", write)
        yield


@pytest.mark.parametrize("task", ["swag", "qa"])
def test_the_configuration_has_the_signature_of_the_graph(task, runs, tmp_path):
    exported = bertkit.export(runs / task, output_dir=str(tmp_path / "onnx"), triton=True).output_dir
    (model,) = (exported / "triton").iterdir()
    config = parse_config((model / "config.pbtxt").read_text("utf-8"))
    assert (config.name, config.backend, config.max_batch_size) == (task, "onnxruntime", 32)
    assert config.dynamic_batching.max_queue_delay_microseconds == 10_000
    session = onnxruntime.InferenceSession(model / "1" / "model.onnx")
    for configured, tensors in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        names = type(configured[0]).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
        described = [
            (tensor.name, TYPE_NAMES[names[tensor.data_type].name], list(tensor.dims))
            for tensor in configured
        ]
        assert described == list_tensors(tensors)
    assert len(config.input[0].dims) == (2 if task == "swag" else 1)


def test_both_variants_are_in_the_repository_and_replaced_together(runs, tmp_path):
    settings = {"output_dir": str(tmp_path / "onnx"), "max_eval_samples": 2}
    exported = bertkit.export(runs / "qa", quantize="int8", triton=True, **settings).output_dir
    for name, source in (("qa", exported), ("qa-int8", exported / "int8")):
        copy = exported / "triton" / name / "1" / "model.onnx"
        assert copy.read_bytes() == (source / "model.onnx").read_bytes()
    bertkit.export(runs / "qa", overwrite=True, **settings)
    assert not (exported / "triton").exists()

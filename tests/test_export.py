"""An exported model computes what PyTorch computes, for every head and size; exports are atomic."""

import asyncio
import functools
import json
import os
import re
import shutil
import signal
import time
import types

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_document_rows,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from test_architectures import tiny_of
from torch.torch_version import TorchVersion

import bertkit
from bertkit.commands import export as export_module
from bertkit.commands.configs import ExportConfig, ServeConfig
from bertkit.data.table import Rows
from bertkit.models.exported import OnnxModel
from bertkit.run.predictor import load_predictor
from bertkit.serve.models import Metrics, load_served_model
from bertkit.tasks import task_class, task_definition
from bertkit.tasks.base import Outputs
from bertkit.tasks.text.label_types import SingleLabel
from bertkit.utils import devices
from bertkit.utils.reporting import Reporter, use_reporter

pytestmark = [pytest.mark.usefixtures("onnx_exporter"), pytest.mark.slow]

TRAIN = {name: getattr(bertkit, name) for name in ROW_MAKERS}


def train_briefly(tmp_path, model, task="classify", rows=None, **settings):
    """Train for a few steps, so that the weights are not at their initial values, and return the run."""
    data = write_rows(tmp_path / "toy.jsonl", rows or ROW_MAKERS[task](40))
    given = {"max_steps": 3, "batch_size": 8, "learning_rate": 3e-3, "max_length": 32, "bf16": False}
    given |= {"data": str(data), "model": str(model), "output_dir": str(tmp_path / "run")}
    return TRAIN[task](**given | settings).output_dir


def assert_same_records(run, exported, rows):
    """Assert that predictions are equal, with a tolerance for numbers."""
    ours, theirs = (list(bertkit.load(folder).predict(rows)) for folder in (run, exported))
    assert len(ours) == len(rows)
    for our, their in zip(ours, theirs, strict=True):
        assert is_close(our, their), (our, their)


def is_close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_close, one, other))
    return one == pytest.approx(other, abs=1e-4) if isinstance(one, float) else one == other


MULTI_LABEL = [
    row | {"label": [row["label"], "seen"][: 1 + n % 2]} for n, row in enumerate(make_toy_rows(40))
]
NUMBERS = [row | {"label": len(row["text"]) / 10} for row in make_toy_rows(40)]
# The models have one layer each, because tracing takes time in proportion to the layers.
MODELS = {
    "bert": lambda folder: save_tiny_model(folder, num_hidden_layers=1),
    "bert of two layers": save_tiny_model,
    "causal bert": lambda folder: save_tiny_model(folder, num_hidden_layers=1, is_decoder=True),
    "roberta": lambda folder: tiny_of("roberta", folder, num_hidden_layers=1)[0],
    "electra": lambda folder: tiny_of("electra", folder, num_hidden_layers=1)[0],
    "distilbert": lambda folder: tiny_of("distilbert", folder, n_layers=1)[0],
    "albert": lambda folder: tiny_of("albert", folder)[0],  # two layers, which share their weights
}
# Each head, and each architecture with one of them.
HEADS = {
    "classify": ("bert", "classify", {}),
    "label sets with mean pooling in windows": (
        "electra", "classify",
        {"rows": MULTI_LABEL, "long_texts": "windows", "max_length": 8, "pooling": "mean"},
    ),
    "regression with a BiLSTM": ("causal bert", "classify", {"rows": NUMBERS, "head": "bilstm"}),
    "nli": ("albert", "nli", {}),
    "ner in windows": ("roberta", "ner", {"max_length": 8}),
    "ner on a frozen encoder": ("bert of two layers", "ner", {"features": "sum-all", "head": "bilstm"}),
    "qa": ("bert", "qa", {"rows": ROW_MAKERS["qa"](40, unanswerable=10)}),
    "swag": ("bert", "swag", {}),
    "swag with mean pooling of a BiLSTM": ("distilbert", "swag", {"head": "bilstm", "pooling": "mean"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def export_head(tmp_path_factory):
    """Return a function that trains and exports a head once, and returns the result of the export."""

    @functools.cache
    def export(head):
        folder, (model, task, settings) = tmp_path_factory.mktemp("heads"), HEADS[head]
        run = train_briefly(folder, MODELS[model](folder / "model"), task, **settings)
        return bertkit.export(run, triton=True)

    return export


@pytest.mark.parametrize("head", HEADS)
def test_every_head_and_architecture_predicts_as_in_pytorch(head, export_head, tmp_path):
    _, task, settings = HEADS[head]
    made = export_head(head)
    run, scores = made.output_dir.parent, made.measurements["scores"]
    assert made.output_dir == run / "onnx"
    assert not list(made.output_dir.glob("*.safetensors"))
    assert scores["metrics.json"] == pytest.approx(scores["onnx"], abs=1e-4)
    assert scores["pytorch"] == pytest.approx(scores["onnx"], abs=1e-4)
    assert made.measurements["greatest_difference"]["onnx"] < 1e-5
    assert_same_records(run, made.output_dir, (settings.get("rows") or ROW_MAKERS[task](40))[:7])
    assert_graph_in_fp16_agrees(made.output_dir, task, tmp_path)
    assert_triton_has_the_signature(made.output_dir, task)
    for assert_more in FURTHER_FACTS.get(head, ()):
        assert_more(made.output_dir, task)


def assert_graph_in_fp16_agrees(folder, task, tmp_path):
    import onnx

    export_module.convert_to_fp16(folder / "model.onnx", tmp_path / "model.onnx")
    graphs = [onnx.load(path / "model.onnx").graph for path in (folder, tmp_path)]
    kinds, halves = ({tensor.data_type for tensor in graph.initializer} for graph in graphs)
    assert onnx.TensorProto.FLOAT in kinds
    assert onnx.TensorProto.FLOAT16 in halves
    assert onnx.TensorProto.FLOAT not in halves
    weights = [sum(len(tensor.raw_data) for tensor in graph.initializer) for graph in graphs]
    assert weights[1] < 0.55 * weights[0]
    types = [[value.type.tensor_type.elem_type for value in graph.output] for graph in graphs]
    assert types[0] == types[1]
    ids = torch.randint(5, 40, (3, 4, 7) if task == "swag" else (3, 7))
    mask = torch.ones_like(ids)
    mask[0, ..., -3:] = 0  # padding
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    expected, found = (OnnxModel(path / "model.onnx")(**inputs) for path in (folder, tmp_path))
    for name, logits in expected.items():
        np.testing.assert_allclose(found[name], logits, atol=0.01)


def assert_any_batch_size_and_length_with_and_without_padding(folder, task):
    model, onnx = bertkit.load(folder.parent).model, OnnxModel(folder / "model.onnx")
    for batch, choices, length in [(1, 1, 1), (1, 2, 3), (5, 4, 3), (5, 1, 128), (2, 7, 40)]:
        shape = (batch, choices, length) if task == "swag" else (batch, length)
        ids = torch.randint(5, 40, shape)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids % 2}
        with torch.no_grad():
            expected, found = model(**inputs).logits, onnx(**inputs).logits
            longer = {name: torch.nn.functional.pad(value, (0, 5)) for name, value in inputs.items()}
            padded = onnx(**longer).logits if length < 100 else expected
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(padded, expected, atol=1e-5)


def assert_the_onnx_file_has_metadata(folder, task):
    import onnx

    model = onnx.load(folder / "model.onnx")
    metadata = {item.key: item.value for item in model.metadata_props}
    threshold = json.loads((folder.parent / "config.json").read_text())["null_odds_threshold"]
    assert float(metadata["null_odds_threshold"]) == threshold
    assert (metadata["task"], metadata["max_length"], metadata["bertkit_version"]) == (
        task,
        "32",
        bertkit.__version__,
    )
    assert int(metadata["opset"]) == model.opset_import[0].version >= 17
    assert [[dim.dim_param for dim in one.type.tensor_type.shape.dim] for one in model.graph.input] == [
        ["batch", "length"]
    ] * 3


# Of one head each, except those of graphs with and without choices.
FURTHER_FACTS = {
    "classify": [assert_any_batch_size_and_length_with_and_without_padding],
    "swag": [assert_any_batch_size_and_length_with_and_without_padding],
    "qa": [assert_the_onnx_file_has_metadata],
}


@pytest.mark.parametrize("objective", ["mlm+nsp", "ltr"])
def test_a_pre_trained_model_is_scored_at_masked_positions(objective, tiny, tmp_path):
    data = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    run = bertkit.pretrain_mlm_nsp(
        data=str(data), objective=objective, num_layers=1, hidden_size=16, num_heads=2, tokenizer=str(tiny),
        max_steps=2,
        max_length=32, batch_size=8, bf16=False, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    made = bertkit.export(run.output_dir)
    scores = made.measurements["scores"]
    assert made.measurements["greatest_difference"]["onnx"] < 1e-5
    assert scores["onnx"] == pytest.approx(run.metrics["validation"], rel=1e-4)
    assert scores["pytorch"] == pytest.approx(run.metrics["validation"], rel=1e-4)


@pytest.fixture
def run(export_head, tmp_path, monkeypatch):
    """A copy of the run of `classify`. Its graph is copied instead of traced again."""
    exported_graph = export_head("classify").output_dir / "model.onnx"
    monkeypatch.setattr(
        export_module,
        "write_graph",
        lambda _model, _has_choices, path, *_: shutil.copy(exported_graph, path),
    )
    data = shutil.copy(exported_graph.parents[2] / "toy.jsonl", tmp_path)
    run = shutil.copytree(exported_graph.parents[1], tmp_path / "run", ignore=shutil.ignore_patterns("onnx"))
    for name in ("run.yaml", "metrics.json"):
        text = (run / name).read_text("utf-8")
        (run / name).write_text(text.replace(str(exported_graph.parents[2]), str(tmp_path)), "utf-8")
    assert str(data) in (run / "run.yaml").read_text("utf-8")
    return run


def test_int8_is_a_separate_model_and_is_measured(run, cli):
    import onnx

    status, out, _ = cli("export", run, "--quantize", "int8", "--max-drop", 100, "--json")
    measurements = json.loads(out)
    assert status == 0
    for key in ("scores", "rows_per_second", "megabytes"):
        assert {"pytorch", "onnx", "int8"} <= set(measurements[key])
    assert measurements["megabytes"]["int8"] < measurements["megabytes"]["onnx"]
    assert measurements["greatest_difference"]["int8"] > measurements["greatest_difference"]["onnx"]
    drop = measurements["drop"]["accuracy"]
    assert drop["points"] <= drop["bound"] < measurements["max_drop"] == 100
    labels = json.loads(
        {p.key: p.value for p in onnx.load(run / "onnx" / "model.onnx").metadata_props}["labels"]
    )
    assert labels == {"0": "negative", "1": "positive"}
    assert json.loads((run / "onnx" / "metrics.json").read_text())["export"]["rows"] == measurements["rows"]
    assert len(list(bertkit.load(run / "onnx" / "int8").predict(make_toy_rows(3)))) == 3
    status, out, _ = cli("export", run, "--quantize", "int8", "--overwrite")
    assert status == 0
    assert "times the speed" in out


def test_a_drop_that_too_few_rows_exclude_is_refused_with_the_number_of_rows(run, cli, tmp_path):
    data = write_rows(tmp_path / "new.jsonl", make_toy_rows(30, seed=8))
    args = ["export", run, "--quantize", "int8", "--max-drop", 0.5, "--data", data]
    status, _, err = cli(*args)
    [line] = [line for line in err.splitlines() if line.startswith("bertkit:")]
    assert status == 3
    assert re.search(r"accuracy drops by 0.00 points on 30 rows, and by up to 1\d\.\d+ at a", line)
    needed = re.search(r"about ([\d,]+) rows may show at most 0.5: pass them with --data", line)[1]
    assert 700 < int(needed) < 800
    assert not (run / "onnx").exists()


@pytest.mark.parametrize(
    ("wrong", "limit", "message"),
    [
        ([], 0.5, None),
        (range(3), 0.5, None),
        (range(80), 0.5, "drops by 1.00 points on 8,000 rows.*export without --quantize, or pass a larger"),
        (range(30), 0.5, r"drops by 0.38 points .* about [\d,]+ rows may show at most 0.5"),
        (range(30), 1.0, None),
    ],
)
def test_the_gate_needs_rows_that_show_a_small_drop(tmp_path, wrong, limit, message):
    task = task_class("classify")(task_definition("classify").config(label_column="label"))
    task.state.label_type = SingleLabel(["a", "b"])
    gold = np.zeros(8000, int)
    evaluations = {}
    for name, errors in (("pytorch", []), ("int8", list(wrong))):
        logits = np.tile([[2.0, 0.0]], (8000, 1))
        logits[errors] = [0.0, 2.0]
        features = types.SimpleNamespace(labels=gold, targets=None)
        rows = Rows.from_columns({"text": [""] * 8000}, "")
        evaluations[name] = task.evaluate(Outputs(logits, features, rows))
    config = ExportConfig(run="run", quantize="int8", max_drop=limit)
    if message is None:
        found = export_module._require_small_drop(tmp_path, task, evaluations, config)
        assert found["drop"]["accuracy"]["points"] == pytest.approx(len(wrong) / 80)
        return
    with pytest.raises(export_module.QualityGateError, match=message) as caught:
        export_module._require_small_drop(tmp_path, task, evaluations, config)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--max-drop", 1], "--max-drop: applies only to --quantize"),
        (["--quantize", "int8", "--max-drop", -1], "--max-drop"),
        (["--quantize", "int8", "--encoding", "cp949"], "--encoding"),
    ],
)
def test_gates_that_do_not_apply_are_refused(runs, cli, tmp_path, args, words):
    assert_refused(cli, tmp_path, [runs / "classify", "-o", tmp_path / "new", *args], [words], "export")


def test_fp16_is_a_separate_model_which_is_measured_and_refused_if_it_differs(run, cli, monkeypatch):
    status, out, _ = cli("export", run, "--quantize", "fp16", "--triton")
    assert status == 0
    assert "ONNX fp16" in out
    assert "fp16 compared with ONNX fp32" in out
    exported = run / "onnx"
    measurements = json.loads((exported / "metrics.json").read_text())["export"]
    assert measurements["greatest_difference"]["onnx"] < measurements["greatest_difference"]["fp16"] < 0.01
    assert measurements["scores"]["fp16"] == pytest.approx(measurements["scores"]["onnx"], abs=0.01)
    assert (exported / "triton" / "run-fp16" / "config.pbtxt").exists()
    records = [list(bertkit.load(folder).predict(make_toy_rows(3))) for folder in (run, exported / "fp16")]
    for one, other in zip(*records, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=0.01)
    monkeypatch.setattr(export_module, "FP16_TOLERANCE", 0.0)
    status, out, err = cli("export", run, "--quantize", "fp16", "--overwrite")
    assert status == 2
    assert re.search(r"in fp16, its logits differ by .*; nothing was written; omit --quantize fp16", err)


class Messages(Reporter):
    def __init__(self):
        self.texts = []

    def info(self, message):
        self.texts.append(message)

    warn = info


CUDA = "CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("available", "loaded", "message"),
    [
        ([], [], "runs on the CPU, because this onnxruntime has no provider for cuda:1; on an NVIDIA GPU,"),
        ([CUDA], [], "runs on the CPU"),  # the libraries of CUDA are missing
        ([CUDA], [CUDA], "device: cuda:1 (GPU), with onnxruntime's CUDA provider"),
    ],
)
def test_an_exported_model_uses_cuda_if_onnxruntime_has_it(
    export_head, monkeypatch, available, loaded, message
):
    """There is no CUDA provider in the test environment, so the session says which ones it has."""
    create, requested = onnxruntime.InferenceSession, []

    def create_session(path, options, providers):
        requested.extend(providers)
        session = create(path, options, providers=["CPUExecutionProvider"])
        session.get_providers = lambda: [*loaded, "CPUExecutionProvider"]
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", create_session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*available, "CPUExecutionProvider"])
    monkeypatch.setattr(devices, "get_device", lambda: torch.device("cuda", 1))
    monkeypatch.setattr(devices, "describe_device", lambda: "cuda:1 (GPU)")
    reporter = Messages()
    with use_reporter(reporter):
        model = load_predictor(export_head("classify").output_dir).model
    assert len(reporter.texts) == 1
    assert message in reporter.texts[0]
    cuda = [(CUDA, {"device_id": 1, "use_tf32": 0})]
    assert requested == (cuda if available else []) + ["CPUExecutionProvider"]
    assert model.uses_gpu == bool(loaded)
    assert next(model.parameters()).device.type == "cpu"


def test_an_export_that_differs_is_refused_and_removed(run, cli, monkeypatch):
    monkeypatch.setattr(export_module, "TOLERANCE", 0.0)
    before = sorted(run.rglob("*"))
    status, out, err = cli("export", run)
    assert (status, out) == (1, "")
    assert "differ from PyTorch's by" in err.splitlines()[-1]
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_a_finalizer_is_not_lost(run, cli, monkeypatch, name):
    class SignalInFinalizer:
        def __del__(self):
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(0)  # the handler raises here, where Python discards exceptions

    def run_slowly(*_):
        SignalInFinalizer()
        for _ in range(500):  # the signal that is sent again does not interrupt a single long sleep
            time.sleep(0.01)

    monkeypatch.setattr(export_module, "compare_variants", run_slowly)
    before = sorted(run.rglob("*"))
    status, out, err = cli("export", run)
    assert (status, out, err.splitlines()[-1]) == (130, "", "bertkit: interrupted; nothing was saved")
    assert "Exception ignored" not in err
    assert sorted(run.rglob("*")) == before


def test_an_export_is_replaced_only_with_overwrite_and_refused_by_other_commands(run, cli, tmp_path):
    bertkit.export(run, quantize="int8")
    assert_refused(cli, run, [run], ["onnx", "--overwrite"], "export")
    assert_refused(cli, run, [run, "-o", run], ["not part of an exported model"], "export")
    assert_refused(cli, run, [run / "onnx"], ["exported model"], "export")
    assert_refused(cli, run, [tmp_path / "none"], ["not a finished run"], "export")
    words = ["--explain", "is an exported model, which has no gradients"]
    assert_refused(cli, run, [run / "onnx", "--text", "a b", "--explain"], words, "predict")
    bertkit.export(run, overwrite=True)
    assert not (run / "onnx" / "int8").exists()
    assert not list((run / "onnx").glob(".*"))


def test_without_the_data_the_export_is_compared_on_the_predicted_texts(run, cli, tmp_path):
    (tmp_path / "toy.jsonl").unlink()
    status, out, err = cli("export", run, "--json")
    measurements = json.loads(out)
    assert (status, measurements["rows_from"]) == (0, "predictions.jsonl")
    assert "cannot load the validation rows" in err
    assert measurements["rows"] == len(read_predictions(run))
    assert measurements["scores"] == {"pytorch": {}, "onnx": {}}
    assert measurements["greatest_difference"]["onnx"] < 1e-5


def test_without_onnx_the_extra_to_install_is_named(run, cli, monkeypatch):
    bertkit.export(run)
    monkeypatch.setattr("bertkit.utils.compat.is_installed", lambda _: False)
    assert_refused(cli, run, [run, "--overwrite"], ["pip install 'bertkit[onnx]'"], "export")
    with pytest.raises(bertkit.UserError, match=r"needs onnxruntime, which is not installed"):
        bertkit.load(run / "onnx")


def test_an_error_of_the_exporter_names_the_tested_torch_if_an_older_one_is_installed(monkeypatch):
    model = types.SimpleNamespace(config=types.SimpleNamespace(model_type="bert"))
    assert str(export_module._make_error(model, "no reason")) == "bert: cannot be exported; no reason"
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1+cpu"))
    assert str(export_module._make_error(model, "no reason")) == (
        "bert: cannot be exported with torch 2.9.1+cpu (no reason); install torch 2.13 or later"
    )


def test_an_architecture_that_cannot_be_exported_is_refused(tmp_path, cli):
    run = train_briefly(tmp_path, tiny_of("longformer", tmp_path / "model")[0])
    assert_refused(cli, run, [run], ["longformer: cannot be exported", "chunks"], "export")


def test_the_server_runs_an_exported_model(run):
    exported, rows = bertkit.export(run).output_dir, [{"text": "good"}]
    config = ServeConfig(run=["RUN"], max_batch_size=4, max_delay_ms=0.0, max_request_tokens=1000)
    model = load_served_model(str(exported), "onnx", config, Metrics())
    assert model.info["backend"] == "onnxruntime"
    assert asyncio.run(model.batcher.predict(rows)) == list(bertkit.predict(exported, data=rows))


# ---- the model repository of Triton

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


def assert_triton_has_the_signature(folder, task):
    (model,) = (folder / "triton").iterdir()
    config = parse_config((model / "config.pbtxt").read_text("utf-8"))
    assert (config.name, config.backend, config.max_batch_size) == (folder.parent.name, "onnxruntime", 32)
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


def test_both_variants_are_in_the_repository_and_replaced_together(run):
    exported = bertkit.export(run, quantize="int8", triton=True, max_eval_samples=2).output_dir
    for name, source in (("run", exported), ("run-int8", exported / "int8")):
        copy = exported / "triton" / name / "1" / "model.onnx"
        assert copy.read_bytes() == (source / "model.onnx").read_bytes()
    bertkit.export(run, overwrite=True, max_eval_samples=2)
    assert not (exported / "triton").exists()

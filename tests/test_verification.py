"""`serve --verify`: an exported model whose files were damaged or changed is refused."""

import json
import shutil

import numpy as np
import pytest
from conftest import make_toy_rows, slow_fixture, write_rows

import bertkit
from bertkit.commands import export
from bertkit.commands.configs import ServeConfig
from bertkit.errors import UserError
from bertkit.run.predictor import load_predictor
from bertkit.run.verification import NUM_ROWS, RECORD_FILE, verify_outputs
from bertkit.serve.models import Metrics, load_served_model

pytestmark = [pytest.mark.usefixtures("onnx_exporter"), pytest.mark.slow]


@slow_fixture
def exported(tmp_path_factory, tiny):
    """The folder of an exported model of mean vectors over windows, with an int8 model in it."""
    folder = tmp_path_factory.mktemp("verified")
    data = write_rows(folder / "rows.jsonl", make_toy_rows(120, longest=30))
    bertkit.classify(
        data=data, model=tiny, output_dir=folder / "run", epochs=4, learning_rate=5e-3, max_length=16,
        long_texts="windows", validation_fraction=0.6,
    )  # fmt: skip
    bertkit.calibrate(folder / "run", coverage=0.8)
    return bertkit.export(folder / "run", quantize="int8").output_dir


@pytest.fixture
def copied(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "exported")


def edit_json(path, change):
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def edit_graph(folder, change):
    import onnx

    model = onnx.load(folder / "model.onnx")
    change(model.graph)
    onnx.save(model, folder / "model.onnx")


def replace_text(name, old, new):
    def damage(folder):
        text = (folder / name).read_text("utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), "utf-8")

    return damage


def edit_tokenizer(change):
    return lambda folder: edit_json(folder / "tokenizer.json", change)


def edit_config(change):
    return lambda folder: edit_json(folder / "config.json", change)


def scale_weights(factor, index=0):
    """Multiply a matrix of the graph by a factor."""

    def damage(folder):
        from onnx import numpy_helper

        def change(graph):
            matrices = [tensor for tensor in graph.initializer if len(tensor.dims) == 2]
            values = numpy_helper.to_array(matrices[index])
            matrices[index].CopyFrom(numpy_helper.from_array(values * factor, matrices[index].name))

        edit_graph(folder, change)

    return damage


def drop_mask(folder):
    """Replace the mask by ones wherever the graph reads it."""
    from onnx import TensorProto, helper

    def change(graph):
        for node in graph.node:
            for position, name in enumerate(node.input):
                if name == "attention_mask":
                    node.input[position] = "no_mask"
        shape = helper.make_node("Shape", ["input_ids"], ["size_of_ids"])
        one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
        ones = helper.make_node("ConstantOfShape", ["size_of_ids"], ["no_mask"], value=one)
        graph.node.insert(0, ones)
        graph.node.insert(0, shape)

    edit_graph(folder, change)


def swap_outputs(folder):
    """Exchange the outputs of the classes."""
    from onnx import numpy_helper

    def change(graph):
        for tensor in graph.initializer:
            if 2 in tensor.dims and len(tensor.dims) <= 2 and tensor.dims[0] == 2:
                values = numpy_helper.to_array(tensor)[::-1].copy()
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    edit_graph(folder, change)


def truncate_vocabulary(content):
    vocabulary = content["model"]["vocab"]
    known = [word for word in vocabulary if not word.startswith(("[", "#"))]
    for word in known[::3]:
        del vocabulary[word]


def change_normalizer(content):
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "o"}, "content": "0"}


def add_prefix(content):
    content["normalizer"] = {"type": "Prepend", "prepend": "x "}


def swap_labels(content):
    content["id2label"]["0"], content["id2label"]["1"] = content["id2label"]["1"], content["id2label"]["0"]


FAULTS = {
    "mask dropped": drop_mask,
    "windows dropped": replace_text("run.yaml", "long_texts: windows", "long_texts: head"),
    "texts cut at the other end": replace_text("run.yaml", "long_texts: windows", "long_texts: tail"),
    "shorter sequences": replace_text("run.yaml", "max_length: 16", "max_length: 8"),
    "labels in another order": edit_config(swap_labels),
    "outputs in another order": swap_outputs,
    "another threshold of abstention": edit_config(
        lambda content: content["bertkit_confidence"].update(min_confidence=0.99)
    ),
    "prefix added": edit_tokenizer(add_prefix),
    "another normalizer": edit_tokenizer(change_normalizer),
    "truncated vocabulary": edit_tokenizer(truncate_vocabulary),
    "other special tokens": edit_tokenizer(lambda content: content.update(post_processor=None)),
    "weights scaled": scale_weights(1.5),
    "weights that are not numbers": scale_weights(np.float32("nan")),
}  # fmt: skip


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_an_export_is_verified(exported, variant):
    folder = exported if variant == "fp32" else exported / "int8"
    assert verify_outputs(folder, load_predictor(folder)) == NUM_ROWS


def test_an_exported_model_has_the_calibrated_probabilities_abstains_and_has_sets(exported):
    data = exported.parents[1] / "rows.jsonl"
    predicted, found = (
        list(bertkit.predict(folder, data=data, all_scores=True)) for folder in (exported.parent, exported)
    )
    assert {record["abstained"] for record in predicted} == {False, True}
    for record, other in zip(predicted, found, strict=True):
        assert other["abstained"] == record["abstained"]
        assert other["prediction_set"] == record["prediction_set"]
        assert other["probabilities"] == pytest.approx(record["probabilities"], abs=1e-5)


def test_the_export_shows_a_score_that_only_calibrated_runs_have(exported, cli, tmp_path, monkeypatch):
    """The graph is copied instead of traced again."""
    graph = exported / "model.onnx"
    monkeypatch.setattr(export, "write_graph", lambda _model, _choices, path, *_: shutil.copy(graph, path))
    status, out, err = cli("export", exported.parent, "--output-dir", tmp_path / "exported")
    assert status == 0, err
    assert "set_coverage" in out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_export_is_refused(copied, fault):
    FAULTS[fault](copied)
    with pytest.raises(UserError) as caught:
        verify_outputs(copied, load_predictor(copied))
    assert "\n" not in str(caught.value)


def test_the_server_verifies_before_it_starts(copied, cli):
    config = ServeConfig(run=[str(copied)], verify=True)
    load_served_model(str(copied), "model", config, Metrics())
    swap_outputs(copied)
    with pytest.raises(UserError, match="outputs differ from those of the export"):
        load_served_model(str(copied), "model", config, Metrics())
    load_served_model(str(copied), "model", ServeConfig(run=[str(copied)]), Metrics())


def test_what_cannot_be_verified_is_named(copied, exported):
    (copied / RECORD_FILE).write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"verification.npz: cannot be read .*; export the run again"):
        verify_outputs(copied, load_predictor(copied))
    (copied / RECORD_FILE).unlink()
    with pytest.raises(
        UserError, match=r"has no verification.npz .*; export the run again, or omit --verify"
    ):
        verify_outputs(copied, load_predictor(copied))
    with pytest.raises(UserError, match=r"has no verification.npz"):  # a run that is not exported
        verify_outputs(exported.parent, load_predictor(exported.parent))
    shutil.copy(exported / RECORD_FILE, copied)
    data = exported.parents[1] / "rows.jsonl"
    rows = data.read_text("utf-8")
    try:
        data.write_text(rows.replace("good", "bad"), "utf-8")
        with pytest.raises(UserError, match=r"rows.jsonl|changed"):
            verify_outputs(copied, load_predictor(copied))
    finally:
        data.write_text(rows, "utf-8")

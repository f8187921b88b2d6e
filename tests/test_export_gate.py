"""The benchmark of the limit of `export`, on tiny data."""

import shutil

import pytest
from conftest import make_toy_rows

import export_gate
from bertkit.commands import export

pytestmark = [pytest.mark.usefixtures("onnx_exporter"), pytest.mark.slow]


def test_sound_exports_are_accepted_and_refused_ones_are_listed(tiny, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "DATA" / "SST-2"
    folder.mkdir(parents=True)
    lines = [f"{row['text']}\t{int(row['label'] == 'positive')}" for row in make_toy_rows(1500)]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    # Both runs train on the same rows, so that the graph of the first has the weights of the second.
    monkeypatch.setattr(export_gate, "TRAINING_ROWS", 600)
    graph, write_graph = tmp_path / "model.onnx", export.write_graph

    def write_first_graph(model, has_choices, path, *more):
        if not graph.exists():
            write_graph(model, has_choices, graph, *more)
        shutil.copy(graph, path)

    monkeypatch.setattr(export, "write_graph", write_first_graph)
    settings = {"learning_rate": 5e-3, "max_length": 32}
    monkeypatch.setattr(export_gate, "EXPORTS", {
        "sound": export_gate.Export("sst2", "sound", settings=settings),
        "few rows": export_gate.Export("sst2", "few", settings=settings, limit=50),
    })  # fmt: skip
    options = ["--data-dir", folder.parent, "--model", tiny, "--rows", 900, "--steps", 30]
    for _ in range(2):  # the second time, from the stored results
        export_gate.main(list(map(str, [*options, "--work", tmp_path / "work"])))
        table = capsys.readouterr().out
        assert "| sound | 900 | accuracy " in table
        assert "| yes | 2 of 2 |" in table
        assert "| few rows | 50 | accuracy | 0.00 | 7.13 | no |  |" in table

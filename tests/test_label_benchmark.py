"""The benchmark of label-issues: it flips labels, trains, lists them, and compares, on tiny data."""

import pytest
from conftest import make_toy_rows

import label_issues

pytestmark = pytest.mark.slow


def test_benchmark_lists_flipped_labels_and_compares_training(tiny, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "DATA" / "SST-2"
    folder.mkdir(parents=True)
    for name, seed, count in (("train", 0, 60), ("dev", 1, 20)):
        lines = [f"{row['text']}\t{int(row['label'] == 'positive')}" for row in make_toy_rows(count, seed)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    monkeypatch.setattr(label_issues, "NUM_FOLDS", 2)
    options = ["--data-dir", folder.parent, "--model", tiny, "--rows", 60, "--epochs", 1, "--compare", 2]
    label_issues.main(list(map(str, [*options, "--work", tmp_path / "work", "--out", tmp_path / "out.md"])))
    report = (tmp_path / "out.md").read_text()
    assert report == capsys.readouterr().out
    assert "| bertkit label-issues |" in report
    assert "Difference in accuracy on the validation rows:" in report

"""The benchmarks of label-issues and of rankings for labeling, on tiny data."""

import numpy as np
import pytest
from conftest import make_toy_rows

import label_issues
import label_ranking

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


def test_the_ranking_benchmark_counts_the_rows_that_reach_an_accuracy(tiny, tmp_path, monkeypatch, capsys):
    """A curve that falls is made monotonic, and the number is interpolated between two sizes."""
    curves = np.array([[0.5, 0.7, 0.6, 0.9]])
    assert label_ranking.interpolate_rows(curves[0], 0.6) == pytest.approx(50 + 50 * 0.1 / 0.15)
    assert label_ranking.interpolate_rows(curves[0], 0.775) == pytest.approx(175)
    assert label_ranking.interpolate_rows(curves[0], 0.95) == np.inf
    counts = label_ranking.count_rows(np.array([0.775]), curves)
    assert counts == pytest.approx((175, 175, 175))
    assert label_ranking.format_rows((175.0, 150.0, np.inf), 200) == "175 (150 to > 200)"
    pairs = [(row["text"], row["label"]) for row in make_toy_rows(120)]
    monkeypatch.setitem(label_ranking.DATASETS, "ag_news", ("", lambda _: (pairs[:80], pairs[80:])))
    monkeypatch.setattr(label_ranking, "START", 10)
    monkeypatch.setattr(label_ranking, "STEP", 10)
    options = ["--data-dir", tmp_path, "--model", tiny, "--rows", 30, "--seeds", 2, "--work", "ag_news"]
    label_ranking.main(list(map(str, options)))
    assert "| ag_news |" in capsys.readouterr().out

"""The benchmarks of label-issues and of rankings for labeling, on tiny data."""

import numpy as np
import pytest
from conftest import make_toy_rows

import label_issues
import label_ranking

pytestmark = pytest.mark.slow


def test_benchmark_measures_the_first_listed_labels(tiny, tmp_path, monkeypatch, capsys):
    """One set has exchanged labels, and the other the votes of annotators."""
    data = tmp_path / "DATA"
    (data / "SST-2").mkdir(parents=True)
    rows = make_toy_rows(60)
    lines = [f"{row['text']}\t{int(row['label'] == 'positive')}" for row in rows]
    (data / "SST-2" / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    (data / "hate-speech").mkdir()
    votes = [f"{row['text']}," + ("2,1,0,0" if row["label"] == "positive" else "0,0,3,2") for row in rows]
    head = "tweet,hate_speech,offensive_language,neither,class"
    (data / "hate-speech" / "labeled_data.csv").write_text("\n".join([head, *votes]) + "\n")
    monkeypatch.setattr(label_issues, "NUM_FOLDS", {"study": 2, "ladder": 2})
    monkeypatch.setattr(label_issues, "NUM_SEEDS", 1)
    options = ["--data-dir", data, "--model", tiny, "--rows", 60, "--epochs", 1, "--noise", 0.1]
    options += ["--work", tmp_path / "work", "--out", tmp_path / "out.md", "--only", "SST-2", "hate speech"]
    options += ["--by", "study"]
    label_issues.main(list(map(str, options)))
    report = (tmp_path / "out.md").read_text()
    assert report == capsys.readouterr().out
    assert "| SST-2, study | 60 | 6 |" in report
    assert "| hate speech, study | 60 |" in report


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
    monkeypatch.setattr(label_ranking, "NUM_RESAMPLES", 20)
    options = ["--data-dir", tmp_path, "--model", tiny, "--rows", 30, "--seeds", 2, "--work", "ag_news"]
    label_ranking.main(list(map(str, options)))
    assert "| ag_news |" in capsys.readouterr().out

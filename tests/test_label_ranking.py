"""`bertkit predict --rank-for-labeling` orders rows by what to label next."""

import csv
import io
import json

import numpy as np
import pytest
from conftest import ROW_MAKERS, assert_refused, make_toy_rows, write_rows
from test_calibrate import train_on_label_sets

import bertkit
from bertkit.commands import label_ranking
from bertkit.commands.label_ranking import order_by_facility_location, rank_rows
from bertkit.stats.calibration import Decisions

GOLD = {"classify": "label", "nli": "label", "ner": "tags", "qa": "answers", "swag": "label"}


def rank(run, rows, **settings):
    return list(bertkit.predict(run, data=rows, rank_for_labeling=True, **settings))


# ---- the order


def test_the_order_by_facility_location_is_the_greedy_one():
    """The oracle computes the gain of every row at every step."""
    rng = np.random.default_rng(0)
    weights, vectors = rng.random(30), rng.normal(size=(30, 4)) + 3
    order = order_by_facility_location(weights, vectors)
    centered = vectors - vectors.mean(0)
    centered /= np.linalg.norm(centered, axis=1, keepdims=True)
    similarity = np.maximum(centered @ centered.T, 0) ** 2
    chosen = []
    for _ in range(30):
        covered = similarity[chosen].max(0) if chosen else np.zeros(30)
        gains = np.maximum(similarity - covered, 0) @ weights
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
    assert order.tolist() == chosen


def test_each_topic_is_chosen_once_before_any_is_chosen_twice():
    rng = np.random.default_rng(0)
    topic = np.repeat([0, 1, 2], [40, 20, 10])
    vectors = np.eye(3)[topic] + rng.normal(scale=0.05, size=(70, 3))
    uncertainty = rng.uniform(0.8, 0.9, 70)
    order = rank_rows(uncertainty, vectors.__getitem__)
    assert sorted(order.tolist()) == list(range(70))
    assert set(topic[order[:3]]) == {0, 1, 2}
    # By uncertainty alone, it would not be so.
    assert set(topic[np.argsort(-uncertainty)[:3]]) != {0, 1, 2}


def test_beyond_the_candidates_and_in_higher_tiers_rows_are_ordered_by_uncertainty(monkeypatch):
    monkeypatch.setattr(label_ranking, "MAX_CANDIDATES", 5)
    rng = np.random.default_rng(0)
    uncertainty, vectors = rng.random(20), rng.normal(size=(20, 4))
    tier = np.array([0] * 15 + [2] * 3 + [1] * 2)
    order = rank_rows(uncertainty, vectors.__getitem__, tier)
    by_uncertainty = np.argsort(-uncertainty)
    expected = [row for level in (0, 1, 2) for row in by_uncertainty if tier[row] == level]
    assert set(order[:5]) == set(expected[:5])
    assert order[5:].tolist() == expected[5:]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_rows_that_are_all_equal_are_ordered_by_uncertainty(count):
    uncertainty = np.linspace(0.1, 0.9, count)
    order = rank_rows(uncertainty, lambda rows: np.ones((len(rows), 4)))
    assert order.tolist() == list(range(count))[::-1]


def test_the_uncertainty_of_a_row_is_that_of_its_most_uncertain_decision():
    logits = np.log([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05], [0.6, 0.4, 1e-9]])
    decisions = Decisions(logits, np.full(3, -1), np.array([0, 0, 2]), 3)
    assert decisions.compute_row_uncertainty() == pytest.approx([0.8, 0.0, 0.8])


# ---- the command


@pytest.mark.slow
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_every_task_ranks_rows(runs, cli, tmp_path, monkeypatch, task):
    """The order depends neither on the chunks nor on labels, and each row has a place for its label."""
    rows = [json.loads(line) for line in (runs / f"{task}.jsonl").read_text("utf-8").splitlines()][:20]
    unlabeled = [{name: value for name, value in row.items() if name != GOLD[task]} for row in rows]
    file = tmp_path / "ranked.jsonl"
    data = write_rows(tmp_path / "new.jsonl", unlabeled)
    status, out, err = cli("predict", runs / task, "--data", data, "--rank-for-labeling", "-o", file)
    assert (status, out) == (0, ""), err
    assert "scores measured on rows that are chosen like this are biased" in err
    ranked = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [row["rank"] for row in ranked] == list(range(1, 21))
    assert all(0 <= row["uncertainty"] <= 1 for row in ranked)
    assert all(row[GOLD[task]] is None for row in ranked)
    predicted = {str(record["id"]): record for record in bertkit.predict(runs / task, data=unlabeled)}
    for row in ranked:
        expected = predicted.pop(str(row["id"]))
        answer = "answer" if task == "qa" else "predicted"
        assert row[answer] == expected[answer]
    assert not predicted
    monkeypatch.setattr("bertkit.commands.predict.align_chunks_to_groups", lambda _, chunks: split(chunks, 7))
    assert [row["id"] for row in rank(runs / task, rows)] == [row["id"] for row in ranked]


def split(chunks, size):
    return (part for chunk in chunks for part in chunk.iter_chunks(size))


def test_repeated_labeled_and_empty_rows_are_last(runs, cli, tmp_path):
    texts = [row["text"] for row in make_toy_rows(6, seed=3)]
    rows = [{"text": text, "label": ""} for text in [texts[0], "", *texts, texts[0], texts[5]]]
    rows[3]["label"] = rows[9]["label"] = "positive"
    rows[4]["label"] = "-1"  # no label
    data = write_rows(tmp_path / "new.jsonl", rows)
    status, out, err = cli("predict", runs / "classify", "--data", data, "--rank-for-labeling")
    assert status == 0, err
    ids = [json.loads(line)["id"] for line in out.splitlines()]
    assert set(ids[:4]) == {0, 4, 5, 6}
    assert (set(ids[4:7]), set(ids[7:9]), ids[9]) == ({2, 7, 8}, {3, 9}, 1)  # row 7 equals row 9
    assert "last: 3 rows with the input of another row, 2 rows with a label, 1 row without text" in err


def test_a_ranked_table_can_be_ranked_again_after_some_rows_are_labeled(runs, cli, tmp_path):
    """The label column comes after the inputs; columns of the earlier ranking are replaced."""
    texts = [row["text"] for row in make_toy_rows(8, seed=3)]
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    data = write_rows(tmp_path / "new.jsonl", [{"text": text, "source": "web"} for text in texts])
    cli("predict", runs / "classify", "--data", data, "--rank-for-labeling", "-o", first)
    rows = list(csv.DictReader(io.StringIO(first.read_text("utf-8"))))
    columns = ["id", "text", "source", "label", "predicted", "probability", "rank", "uncertainty"]
    assert list(rows[0]) == columns
    rows[0]["label"] = rows[1]["label"] = "positive"
    with first.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    status, _, err = cli("predict", runs / "classify", "--data", first, "--rank-for-labeling", "-o", second)
    assert status == 0, err
    assert "replacing the columns of an earlier ranking: id, predicted" in err
    again = list(csv.DictReader(io.StringIO(second.read_text("utf-8"))))
    assert list(again[0]) == columns
    assert {row["text"] for row in again[-2:]} == {row["text"] for row in rows[:2]}


def test_single_texts_and_objects(runs, cli, monkeypatch):
    status, out, _ = cli(
        "predict", runs / "classify", "--text", "a good film", "--rank-for-labeling", "--json"
    )
    assert status == 0
    [record] = json.loads(out)["predictions"]
    assert (record["rank"], record["label"]) == (1, None)
    clashing = rank(runs / "classify", [{"text": "a good film", "rank": "first"}])
    assert [(row["rank"], row["input_rank"]) for row in clashing] == [(1, "first")]


def test_an_ensemble_of_one_run_ranks_like_the_run(runs, tmp_path):
    rows = [{"text": row["text"]} for row in make_toy_rows(12)]
    members = {"members": [str(runs / "classify")]}
    (tmp_path / "ensemble.json").write_text(json.dumps(members), "utf-8")
    ranks = [[row["id"] for row in rank(run, rows)] for run in (tmp_path, runs / "classify")]
    assert ranks[0] == ranks[1]


@pytest.mark.slow
def test_label_sets_and_named_columns(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_on_label_sets(tiny, tmp_path)
    ranked = rank("run", [{"body": row["text"], "tags": ""} for row in make_toy_rows(6)], text_column="body")
    assert [row["rank"] for row in ranked] == [1, 2, 3, 4, 5, 6]
    labeled = rank(
        "run", [{"text": "a good film", "kind": "x"}, {"text": "a bad film", "kind": ""}], label_column="kind"
    )
    assert [row["text"] for row in labeled] == ["a bad film", "a good film"]
    assert "label" not in labeled[0]


@pytest.mark.slow
def test_columns_that_the_task_reads_are_kept_whatever_their_names(runs, tmp_path):
    """`score` and `answer` are keys of predictions of other tasks, and usual names of labels and of texts."""
    rows = [
        {"answer": row["text"], "score": "positive" if number else None, "rank": number, "uncertainty": 0.5}
        for number, row in enumerate(make_toy_rows(2))
    ]
    ranked = rank(runs / "classify", rows, text_column="answer", label_column="score")
    assert [(row["answer"], row["score"]) for row in ranked] == [
        (row["answer"], row["score"]) for row in rows
    ]


@pytest.mark.slow
def test_what_cannot_be_ranked_is_refused(runs, cli, tmp_path, tiny, monkeypatch):
    flags = ["--text", "a film", "--rank-for-labeling"]
    assert_refused(
        cli, tmp_path, [runs / "pretrain-mlm-nsp", *flags], ["does not predict rows"], command="predict"
    )
    assert_refused(
        cli,
        tmp_path,
        [runs / "ner", *flags, "-o", tmp_path / "out.conll"],
        ["has no ranks"],
        command="predict",
    )
    rows = [{**row, "label": len(row["text"]) / 7} for row in make_toy_rows(12)]
    run = bertkit.classify(
        data=rows, problem="regression", model=tiny, max_steps=1, max_length=16, output_dir=tmp_path / "run"
    )
    assert_refused(cli, tmp_path, [run.output_dir, *flags], ["predicts numbers"], command="predict")
    monkeypatch.setattr("bertkit.run.predictor.Predictor.loaded_models", [])  # as of an exported model
    assert_refused(
        cli, tmp_path, [runs / "classify", *flags], ["is an exported or a linear model"], command="predict"
    )

"""`bertkit label-issues`: each kind of labels, near-duplicates, the printed table, and errors."""

import json

import pytest
from conftest import (
    make_ner_rows,
    make_nli_rows,
    make_qa_rows,
    make_swag_rows,
    make_toy_rows,
    read_predictions,
    write_rows,
)

import bertkit

SURE = 0.95  # probability of the label that the simulated models predict


def write_study(folder, task, rows, predictions, **settings):
    """Write the files of a study that label-issues reads; data of the study is `rows.jsonl`."""
    data = write_rows(folder / "rows.jsonl", rows)
    run = folder / "folds" / "fold0-seed0"
    run.mkdir(parents=True)
    (run / "run.yaml").write_text(json.dumps({"task": task, "settings": {"data": str(data), **settings}}))
    inputs = ({name: value for name, value in row.items() if name not in ("label", "tags")} for row in rows)
    records = [
        {"id": number, **values, **prediction, "fold": number % 5}
        for number, (values, prediction) in enumerate(zip(inputs, predictions, strict=True))
    ]
    write_rows(folder / "out_of_fold.jsonl", records)
    return folder


def predict_label(label, labels):
    """Return a confident prediction."""
    other = (1 - SURE) / (len(labels) - 1)
    return {"predicted": label, "probabilities": {name: SURE if name == label else other for name in labels}}


def find(study):
    """Return file, row, label or word, given and suggested label of each issue."""
    records = bertkit.label_issues(study).records
    assert records == read_predictions(study, "label_issues.jsonl")
    return [
        (record["row"], record.get("word", record.get("label")), record["given"], record["suggested"])
        for record in records
    ]


@pytest.fixture
def study(tmp_path):
    """A study of 60 rows, in which the labels of rows 4 and 21 are wrong."""
    rows = make_toy_rows(60)
    predictions = [predict_label(row["label"], ["negative", "positive"]) for row in rows]
    rows[3]["label"], rows[20]["label"] = "negative", "positive"
    return write_study(tmp_path / "study", "classify", rows, predictions)


def test_labels_that_contradict_the_predictions_are_found(study):
    assert sorted(find(study)) == [(4, None, "negative", "positive"), (21, None, "positive", "negative")]


def test_command_prints_a_table_and_the_page(study, cli):
    status, out, err = cli("label-issues", study)
    assert (status, err) == (0, "")
    assert "rows.jsonl: 4" in out
    assert "predicted positive (0.95)" in out
    assert out.endswith(f"2 label issues in 2 rows of 60\nreview: {study / 'label_issues.html'}\n")
    assert (study / "label_issues.html").is_file()


def test_json_has_the_issues_with_their_inputs(study, cli):
    status, out, _ = cli("label-issues", study, "--json")
    result = json.loads(out)
    assert (status, result["rows"], result["rows_with_issues"]) == (0, 60, 2)
    issue = next(issue for issue in result["issues"] if issue["row"] == 4)
    assert issue["inputs"]["text"] == make_toy_rows(60)[3]["text"]
    assert (issue["file"], issue["score"]) == ("rows.jsonl", 0.05)


def test_rows_that_the_study_left_out_are_skipped(study):
    lines = (study / "out_of_fold.jsonl").read_text().splitlines(keepends=True)
    (study / "out_of_fold.jsonl").write_text("".join(lines[:1] + lines[2:50]))
    assert {row for row, *_ in find(study)} == {4, 21}


def test_of_copies_with_different_labels_the_predicted_one_is_meant(tmp_path):
    """The study left out row 1, which has the same text as row 2, and another label."""
    rows = make_toy_rows(60)
    rows[0]["label"], rows[1] = "positive", {"text": rows[0]["text"], "label": "negative"}
    predictions = [
        {"gold": row["label"], **predict_label(row["label"], ["negative", "positive"])} for row in rows
    ]
    predictions[1] |= predict_label("positive", ["negative", "positive"])
    study = write_study(tmp_path / "study", "classify", rows, predictions)
    lines = (study / "out_of_fold.jsonl").read_text().splitlines(keepends=True)
    (study / "out_of_fold.jsonl").write_text("".join(lines[1:]))
    assert find(study) == [(2, None, "negative", "positive")]


def test_text_column_may_have_the_name_of_a_prediction(tmp_path):
    rows = [{"predicted": row["text"], "label": row["label"]} for row in make_toy_rows(60)]
    predictions = [
        predict_label(row["label"], ["negative", "positive"]) | {"input_predicted": row["predicted"]}
        for row in rows
    ]
    rows[3]["label"] = "negative"
    study = write_study(tmp_path / "study", "classify", rows, predictions, text_column="predicted")
    assert find(study) == [(4, None, "negative", "positive")]


def test_near_duplicates_with_other_labels_are_found(tmp_path):
    rows = [
        *make_toy_rows(40),
        *({"text": text, "label": label} for text, label in (
            ("A fine film!", "positive"), ("a fine film", "positive"), ("a FINE, film", "negative"),
        )),
    ]  # fmt: skip
    predictions = [predict_label(row["label"], ["negative", "positive"]) for row in rows]
    study = write_study(tmp_path / "study", "classify", rows, predictions)
    assert find(study) == [(43, None, "negative", "positive")]
    [record] = read_predictions(study, "label_issues.jsonl")
    assert record["reason"] == "near-duplicates have positive"


def test_label_sets_are_checked_label_by_label(tmp_path, cli):
    rows = [
        {"text": f"text {n}", "label": [name for name, size in (("a", 2), ("b", 3)) if n % size == 0]}
        for n in range(60)
    ]
    predictions = [
        {"probabilities": {name: SURE if name in row["label"] else 1 - SURE for name in "ab"}} for row in rows
    ]
    rows[6]["label"], rows[7]["label"] = ["a"], ["b"]
    study = write_study(tmp_path / "study", "classify", rows, predictions, problem="multi-label")
    assert sorted(find(study)) == [(7, "b", False, True), (8, "b", True, False)]
    status, out, _ = cli("label-issues", study)
    assert (status, "absent" in out, "False" in out) == (0, True, False)


def test_numbers_far_from_the_prediction_are_found(tmp_path):
    rows = [{"text": f"text {n}", "label": n / 10} for n in range(50)]
    predictions = [{"predicted": n / 10 + (-1) ** n * 0.02 * (n % 3)} for n in range(50)]
    rows[30]["label"] = 0.5
    study = write_study(tmp_path / "study", "classify", rows, predictions, problem="regression")
    assert find(study) == [(31, None, 0.5, 3.0)]


def test_words_are_checked_tag_by_tag(tmp_path):
    rows = make_ner_rows(40)
    tags = sorted({tag for row in rows for tag in row["tags"]})
    predictions = [
        {"probabilities": [predict_label(tag, tags)["probabilities"] for tag in row["tags"]]} for row in rows
    ]
    index = next(index for index, row in enumerate(rows) if "I-NICE" not in row["tags"])
    word = rows[index]["tags"].index("B-NICE")
    rows[index]["tags"][word] = "B-MEAN"
    study = write_study(tmp_path / "study", "ner", rows, predictions)
    assert find(study) == [(index + 1, word, "B-MEAN", "B-NICE")]
    page = (study / "label_issues.html").read_text("utf-8")
    assert '"choices":["O","B-MEAN","I-MEAN","B-NICE","I-NICE"]' in page


def test_pairs_are_checked_like_texts(tmp_path):
    rows = make_nli_rows(60)
    predictions = [predict_label(row["label"], sorted({row["label"] for row in rows})) for row in rows]
    rows[10]["label"] = "entailment"
    study = write_study(tmp_path / "study", "nli", rows, predictions)
    assert find(study) == [(11, None, "entailment", "neutral")]


def test_endings_are_checked_by_their_index(tmp_path):
    rows = make_swag_rows(60)
    predictions = [
        {"probabilities": [SURE if n == row["label"] else 0.01 for n in range(len(row["endings"]))]}
        for row in rows
    ]
    right = rows[9]["label"]
    rows[9]["label"] = wrong = (right + 1) % len(rows[9]["endings"])
    study = write_study(tmp_path / "study", "swag", rows, predictions)
    assert find(study) == [(10, None, wrong, right)]


def test_answers_without_a_common_word_are_ranked_by_their_odds(tmp_path):
    rows = make_qa_rows(20, unanswerable=2)
    predictions = [
        {"answer": row["answers"][0]["text"] if row["answers"] else "", "null_odds": -3.0} for row in rows
    ]
    predictions[0] |= {"answer": "the", "null_odds": -2.0}
    predictions[5] |= {"answer": "", "null_odds": 4.0}
    predictions[9] |= {"answer": "nowhere", "null_odds": -7.0}
    study = write_study(tmp_path / "study", "qa", rows, predictions)
    assert [(row, suggested) for row, _, _, suggested in find(study)] == [
        (10, "nowhere"),
        (6, ""),
        (1, "the"),
    ]


def test_directory_without_out_of_fold_predictions_is_refused(tmp_path, cli):
    status, out, err = cli("label-issues", tmp_path)
    problem = "does not contain out_of_fold.jsonl; pass the directory of a study with --folds"
    assert (status, out, err) == (2, "", f"bertkit: {tmp_path}: {problem}\n")


def edit_predictions(study, edit):
    """Edit the out-of-fold predictions of a study that predicted 60 rows."""
    path = study / "out_of_fold.jsonl"
    path.write_text(edit(path.read_text()))
    (study / "metrics.json").write_text(json.dumps({"task": "study", "predicted_rows": 60}))


WITHOUT_PREDICTION = json.dumps({"text": make_toy_rows(1)[0]["text"]})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda study: (study / "out_of_fold.jsonl").write_text("{"), "cannot parse it as JSON"),
        (lambda study: (study / "out_of_fold.jsonl").write_text(""), "has no predictions"),
        (
            lambda study: (study / "out_of_fold.jsonl").write_text(WITHOUT_PREDICTION),
            "required field `probabilities`",
        ),
        (
            lambda study: edit_predictions(study, lambda text: text.replace(str(SURE), "NaN")),
            "NaN is not a number",
        ),
        (
            lambda study: edit_predictions(study, lambda text: "\n".join(text.split("\n")[:-2])),
            "has 59 lines",
        ),
        (lambda study: (study / "folds" / "fold0-seed0" / "run.yaml").unlink(), "does not contain fold runs"),
        (lambda study: write_rows(study / "rows.jsonl", make_toy_rows(60, seed=1)), "restore the data"),
    ],
)
def test_damaged_study_gives_one_line(study, cli, damage, words):
    damage(study)
    status, _, err = cli("label-issues", study)
    assert (status, err.count("\n")) == (2, 1)
    assert words in err
    assert not (study / "label_issues.html").exists()

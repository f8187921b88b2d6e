"""`bertkit evaluate` scores rows as training does, and tests differences between runs."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_document_rows,
    make_toy_rows,
    read_predictions,
    write_rows,
)

import bertkit
from bertkit.reports.terminal import print_scores
from bertkit.run_directory import RunDir

pytestmark = pytest.mark.slow  # most tests train a model

ROW_OPTIONS = {"qa": {"unanswerable": 5}}


@pytest.mark.linear_probe
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_rows_of_the_run_give_its_scores_again(runs, cli, tmp_path, task):
    status, out, err = cli("evaluate", runs / task, "-o", tmp_path / "again", "--json")
    assert status == 0, err
    found, was = json.loads(out), RunDir(runs / task).read_metrics()
    for part in ("validation", "baselines"):
        assert found[part].keys() == was[part].keys()
    assert found["validation"] == pytest.approx(was["validation"], abs=1e-6)
    assert found["baselines"] == was["baselines"]
    assert {name: pytest.approx(bounds) for name, bounds in found["intervals"].items()} == was["intervals"]
    expected, again = (
        [record.get("predicted", record.get("answer")) for record in read_predictions(folder)]
        for folder in (runs / task, tmp_path / "again")
    )
    assert again == expected


@pytest.mark.parametrize("task", ROW_MAKERS)
def test_rows_of_another_file_are_scored(runs, cli, tmp_path, task):
    data = write_rows(tmp_path / "new.jsonl", ROW_MAKERS[task](30, seed=5, **ROW_OPTIONS.get(task, {})))
    status, out, err = cli("evaluate", runs / task, "--data", data, "-o", tmp_path / "scored", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["data"]["validation"] == 30
    assert found["baselines"]
    assert set(found["validation"]) >= set(RunDir(runs / task).read_metrics()["validation"])
    assert len(read_predictions(tmp_path / "scored")) == 30
    files = {path.name for path in (tmp_path / "scored").iterdir()}
    assert {"metrics.json", "run.yaml", "report.html"} <= files
    assert "checkpoints" not in files


def test_overlap_with_training_rows_is_reported(runs, cli, tmp_path):
    rows = [json.loads(line) for line in (runs / "classify.jsonl").read_text("utf-8").splitlines()]
    _, _, err = cli("evaluate", runs / "classify", "--data", write_rows(tmp_path / "new.jsonl", rows))
    assert "54 of 60 rows are also training rows" in err


def test_labels_are_matched_by_name(runs, cli, tmp_path):
    rows = [row for row in make_toy_rows(40, seed=5) if row["label"] == "positive"]
    status, out, err = cli(
        "evaluate", runs / "classify", "--data", write_rows(tmp_path / "new.jsonl", rows), "--json"
    )
    assert status == 0, err
    predictions = read_predictions(tmp_path / json.loads(out)["output_dir"])
    num_correct = sum(row["predicted"] == "positive" for row in predictions)
    assert json.loads(out)["validation"]["accuracy"] == num_correct / len(rows)


def test_nli_accepts_numbers_for_label_names(runs, cli, tmp_path):
    from conftest import make_nli_rows

    names = ["entailment", "neutral", "contradiction"]
    rows = make_nli_rows(30, seed=5)
    numbered = [row | {"label": names.index(row["label"])} for row in rows]
    found = []
    for number, some in enumerate((rows, numbered)):
        flags = ["--data", write_rows(tmp_path / f"{number}.jsonl", some), "--json"]
        found.append(json.loads(cli("evaluate", runs / "nli", *flags)[1])["validation"])
    assert found[0] == found[1]


def test_label_sets_with_a_separator_are_scored(cli, tmp_path, tiny):
    rows = [
        row | {"label": f"{row['label']}|seen" if n % 3 else "seen"}
        for n, row in enumerate(make_toy_rows(60))
    ]
    data = write_rows(tmp_path / "sets.jsonl", rows)
    bertkit.classify(data=data, model=tiny, output_dir="run", max_steps=4, problem="multi-label")
    status, out, err = cli(
        "evaluate", "run", "--data", write_rows(tmp_path / "new.jsonl", rows[:9]), "--json"
    )
    assert (status, "micro_f1" in json.loads(out)["validation"]) == (0, True), err


def test_two_runs_are_compared_on_the_same_rows(runs, cli, tmp_path, tiny):
    worse, data = tmp_path / "worse", write_rows(tmp_path / "new.jsonl", make_toy_rows(100, seed=5))
    rows = runs / "classify.jsonl"
    bertkit.classify(data=rows, model=tiny, output_dir=worse, max_steps=1, learning_rate=1e-9)
    bertkit.classify(
        data=rows, model=tiny, output_dir="better", epochs=6, learning_rate=5e-3, max_length=32,
        batch_size=8, metric_for_best_model="f1",
    )  # fmt: skip
    flags = ["--data", data, "--compare", worse, "-o", tmp_path / "both"]
    status, out, err = cli("evaluate", "better", *flags)
    metrics = RunDir(tmp_path / "both").read_metrics()
    assert status == 0, err
    compared, judgement = metrics["compared"], metrics["judgement"]
    accuracy = compared["difference"]["accuracy"]
    assert accuracy["test"] == "mcnemar"
    ours = metrics["validation"]["accuracy"]
    assert accuracy["difference"] == pytest.approx(ours - compared["validation"]["accuracy"])
    shown = f"{accuracy['difference']:+.3f}"
    assert shown in out
    page = (tmp_path / "both" / "report.html").read_text("utf-8")
    assert f"{shown}</td>" in page.split(f'Compared with <span dir="auto">{worse}</span>')[1]
    assert (judgement["verdict"], judgement["metric"]) == ("better", "f1")
    assert judgement["text"].endswith("Prefer better.")
    assert judgement["text"] in out.replace("\n", " ")
    status, out, _ = cli("evaluate", worse, "--data", data, "--compare", "better", "--json")
    assert (status, json.loads(out)["judgement"]["verdict"]) == (4, "worse")


def test_a_run_without_the_score_that_judges_the_other_one_is_refused(cli, tmp_path, tiny):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(60))
    options = {"data": data, "model": tiny, "max_steps": 1, "max_length": 32}
    bertkit.classify(**options, output_dir=tmp_path / "a", metric_for_best_model="positive_f1")
    bertkit.classify(**options, output_dir=tmp_path / "b", problem="multi-class")
    args = [tmp_path / "a", "--compare", tmp_path / "b", "-o", tmp_path / "both"]
    assert_refused(cli, tmp_path, args, ["--compare", "has no positive_f1, which judges"], "evaluate")


def test_the_path_of_a_run_leaves_space_for_intervals(capsys):
    metrics = json.loads((Path(__file__).parent / "finished_runs/classify/metrics.json").read_text())
    print_scores(metrics | {"model": "/home/me/projects/a-long-path/runs/reviews"}, "a")
    printed = capsys.readouterr().out
    assert "/runs/reviews" in printed
    assert " reviews ┃ " in printed


def test_a_run_does_not_differ_from_its_copy(runs, cli, tmp_path):
    words = ["--compare", "is the same run, which equals itself; pass another one"]
    assert_refused(cli, tmp_path, [runs / "ner", "--compare", f"{runs}/ner/."], words, "evaluate")
    copy = shutil.copytree(runs / "ner", tmp_path / "copy")
    status, out, _ = cli("evaluate", runs / "ner", "--compare", copy, "--json")
    found = json.loads(out)["compared"]["difference"]["f1"]
    assert (status, json.loads(out)["judgement"]["verdict"]) == (3, "no_difference")
    assert (found["difference"], found["interval"], found["p"]) == (0.0, [0.0, 0.0], 1.0)


def test_runs_with_different_column_names_are_compared(runs, cli, tmp_path, tiny):
    rows = [{"review": row["text"], "verdict": row["label"]} for row in make_toy_rows(60)]
    data = write_rows(tmp_path / "other.jsonl", rows)
    flags = {"text_column": "review", "label_column": "verdict"}
    bertkit.classify(data=data, model=tiny, output_dir="other", max_steps=2, **flags)
    status, _, err = cli("evaluate", runs / "classify", "--compare", "other")
    assert status in (0, 3, 4), err


def test_without_the_training_rows_no_baselines_are_computed(runs, cli, tmp_path):
    run = shutil.copytree(runs / "classify", tmp_path / "moved")
    text = (run / "run.yaml").read_text("utf-8").replace("classify.jsonl", "gone.jsonl")
    (run / "run.yaml").write_text(text, "utf-8")
    assert_refused(cli, tmp_path, [run], ["gone.jsonl", "--data"], "evaluate")
    _, out, err = cli(
        "evaluate", run, "--data", write_rows(tmp_path / "new.jsonl", make_toy_rows(9)), "--json"
    )
    assert json.loads(out)["baselines"] == {}
    assert "no baselines" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data", "none.csv"], ["none.csv"]),
        (["--data", "unlabelled.jsonl"], ["unlabelled.jsonl", "no column 'label'"]),
        (["--data", "strange.jsonl"], ["strange.jsonl: row 2", "'odd'"]),
        (["--compare", "RUNS/ner"], ["--compare", "ner", "classify"]),
        (["--compare", "nowhere"], ["nowhere: is not a finished run"]),
        (
            ["-o", "RUNS/classify", "--overwrite"],
            ["model.safetensors", "not part of an evaluation", "another directory"],
        ),
    ],
)
def test_invalid_input_is_refused(runs, cli, tmp_path, flags, words):
    write_rows(tmp_path / "unlabelled.jsonl", [{"text": "a"}])
    write_rows(
        tmp_path / "strange.jsonl", [{"text": "a", "label": "positive"}, {"text": "b", "label": "odd"}]
    )
    flags = [flag.replace("RUNS", str(runs)) for flag in flags]
    assert_refused(cli, tmp_path, [runs / "classify", *flags], words, "evaluate")


def test_columns_with_common_names_are_mapped(runs, cli, tmp_path):
    rows = make_toy_rows(30, seed=5)
    called = [{"sentence": row["text"], "sentiment": row["label"]} for row in rows]
    found = []
    for name, some in (("same", rows), ("other", called)):
        flags = ["--data", write_rows(tmp_path / f"{name}.jsonl", some), "--json"]
        _, out, err = cli("evaluate", runs / "classify", *flags)
        found.append(json.loads(out))
    assert "reading columns sentence in place of the training columns text" in err
    assert [found[0][part] for part in ("validation", "baselines")] == [
        found[1][part] for part in ("validation", "baselines")
    ]


def test_choice_columns_with_common_names_are_mapped(runs, cli, tmp_path):
    rows = ROW_MAKERS["swag"](30, seed=5)
    called = [{"question": r["context"], "choices": r["endings"], "target": r["label"]} for r in rows]
    flags = ["--data", write_rows(tmp_path / "new.jsonl", called), "--json"]
    status, out, err = cli("evaluate", runs / "swag", *flags)
    assert (status, len(json.loads(out)["baselines"])) == (0, 2), err


def test_a_pre_trained_model_is_scored_on_other_text(cli, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(120))
    settings = {"size": "tiny", "vocab_size": 200, "max_length": 32, "max_steps": 4, "batch_size": 8}
    bertkit.pretrain_mlm_nsp(data=text, output_dir="run", **settings)
    _, again, err = cli("evaluate", "run", "--json")
    was = RunDir(tmp_path / "run").read_metrics()
    assert json.loads(again)["validation"] == pytest.approx(was["validation"], abs=1e-5), err
    assert "Loading weights" not in err
    other = write_rows(tmp_path / "other.jsonl", make_document_rows(60, seed=5))
    status, out, err = cli("evaluate", "run", "--data", other, "--json")
    found = json.loads(out)
    assert (status, found["data"]["name"], found["data"]["validation"]) == (0, "other", 60), err
    assert found["baselines"]["unigram"]["loss"] > 0
    assert_refused(
        cli,
        tmp_path,
        ["run", "--compare", "run"],
        ["--compare", "predict different masked tokens"],
        "evaluate",
    )
    words = ["run: is a run of pretrain-mlm-nsp", "bertkit fill-mask run", "bertkit embed run"]
    assert_refused(cli, tmp_path, ["run", "--text", "a"], words, "predict")


def test_a_suite_directory_is_refused(cli, tmp_path):
    RunDir(tmp_path).write_metrics({"task": "glue"})
    for command in ("evaluate", "predict"):
        assert_refused(cli, tmp_path, [tmp_path], ["several runs"], command)


def test_an_evaluation_is_replaced_only_with_overwrite(runs, cli, tmp_path):
    assert cli("evaluate", runs / "classify", "-o", tmp_path / "e")[0] == 0
    flags = [runs / "classify", "-o", tmp_path / "e"]
    message = assert_refused(cli, tmp_path, flags, ["contains an evaluation", "--overwrite"], "evaluate")
    assert "--resume" not in message
    assert cli("evaluate", *flags, "--overwrite")[0] == 0


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_run_is_refused(runs, cli, tmp_path, content):
    run = shutil.copytree(runs / "classify", tmp_path / "damaged")
    (run / "metrics.json").write_text(content)
    for command in ("evaluate", "predict", "report"):
        assert_refused(cli, tmp_path, [run], ["metrics.json"], command)


def test_a_report_replaces_only_html_pages(runs, cli, tmp_path):
    mine, pipe = tmp_path / "mine.csv", tmp_path / "pipe"
    mine.write_text("text,label\n")
    os.mkfifo(pipe)
    assert_refused(cli, tmp_path, [runs / "classify", "-o", mine], ["mine.csv", "not an HTML page"], "report")
    assert_refused(cli, tmp_path, [runs / "classify", "-o", pipe], ["pipe", "not an HTML page"], "report")
    assert (mine.read_text(), pipe.is_fifo()) == ("text,label\n", True)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (lambda row: int(row["label"] == "positive"), ["--compare numbered: ", "same labels"]),
        (lambda row: len(row["text"]) / 7, ["--compare numbered: ", "same labels"]),
    ],
    ids=["other labels", "numbers"],
)
def test_runs_with_different_labels_are_not_compared(runs, cli, tmp_path, tiny, label, words):
    rows = [row | {"label": label(row)} for row in make_toy_rows(40)]
    data = write_rows(tmp_path / "numbered.jsonl", rows)
    bertkit.classify(data=data, model=tiny, output_dir="numbered", max_steps=1)
    assert_refused(cli, tmp_path, [runs / "classify", "--compare", "numbered"], words, "evaluate")


def test_rows_without_labels_are_refused_before_other_messages(runs, cli, tmp_path):
    run = shutil.copytree(runs / "classify", tmp_path / "moved")
    text = (run / "run.yaml").read_text("utf-8").replace("classify.jsonl", "gone.jsonl")
    (run / "run.yaml").write_text(text, "utf-8")
    data = write_rows(tmp_path / "unlabelled.jsonl", [{"text": "a"}])
    assert_refused(cli, tmp_path, [run, "--data", data], ["no column 'label'"], "evaluate")
    assert len(cli("evaluate", run, "--data", data)[2].splitlines()) == 1

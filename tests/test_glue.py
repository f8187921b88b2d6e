"""`glue`: all nine tasks in the original files, the table, and the files of the leaderboard."""

import json
import shutil
import statistics
import zipfile
from pathlib import Path

import pytest
from conftest import costly_parts, make_nli_rows, read_predictions, save_tiny_model, slow_fixture
from test_architectures import make_easy_rows

import bertkit
from bertkit.data.sources import load_dataset_specs
from bertkit.experiments.suites import build_score_rows, load_table, write_submission
from bertkit.settings.recipes import read_recipe
from bertkit.tasks import task_definition

GLUE = load_table("glue")
GOLDEN = Path(__file__).parent / "golden" / "submission"
# The leaderboard's format: file -> labels, or None for scores.
NAMES3, NAMES2, NUMBERS = (
    {"entailment", "neutral", "contradiction"},
    {"entailment", "not_entailment"},
    {"0", "1"},
)
LEADERBOARD = {
    "AX.tsv": NAMES3, "CoLA.tsv": NUMBERS, "MNLI-m.tsv": NAMES3, "MNLI-mm.tsv": NAMES3, "MRPC.tsv": NUMBERS,
    "QNLI.tsv": NAMES2, "QQP.tsv": NUMBERS, "RTE.tsv": NAMES2, "SST-2.tsv": NUMBERS, "STS-B.tsv": None,
    "WNLI.tsv": NUMBERS,
}  # fmt: skip
MRPC = ["#1 ID", "#2 ID", "#1 String", "#2 String"]
PAIR = ["index", "sentence1", "sentence2"]
# How GLUE distributes each set: folder -> (columns of train and dev, columns of test); of CoLA, no header.
COLUMNS = {
    "CoLA": (["source", "label", "star", "sentence"], ["index", "sentence"]),
    "SST-2": (["sentence", "label"], ["index", "sentence"]),
    "MRPC": (["Quality", *MRPC], ["index", *MRPC]),
    "STS-B": ([*PAIR, "score"], PAIR),
    "QQP": (["id", "question1", "question2", "is_duplicate"], ["id", "question1", "question2"]),
    "QNLI": (["index", "question", "sentence", "label"], ["index", "question", "sentence"]),
    "RTE": ([*PAIR, "label"], PAIR),
    "WNLI": ([*PAIR, "label"], PAIR),
    "MNLI": ([*PAIR, "gold_label"], PAIR),
}
SPLITS = {"MNLI": (["train", "dev_matched", "dev_mismatched"], ["test_matched", "test_mismatched"])}
FIRST = {"sentence", "#1 String", "sentence1", "question1", "question"}
SECOND = {"#2 String", "sentence2", "question2"}
LABELS = {"label", "Quality", "is_duplicate", "gold_label", "score"}
LABEL_NAMES = {
    "QNLI": sorted(NAMES2),
    "RTE": sorted(NAMES2),
    "MNLI": ["entailment", "neutral", "contradiction"],
}


def write_split(path, columns, folder, seed, header=True):
    """Write twelve separable rows in the columns of the original file."""
    names = LABEL_NAMES.get(folder, ["0", "1"])
    table = []
    for number, row in enumerate(make_nli_rows(12, seed)):
        label = str(number % 6) if folder == "STS-B" else names[number % len(names)]
        values = dict.fromkeys(columns, "x") | {"index": str(number), "id": str(number)}
        values |= {name: row["premise"] for name in columns if name in FIRST}
        values |= {name: row["hypothesis"] for name in columns if name in SECOND}
        values |= {name: label for name in columns if name in LABELS}
        if folder == "QNLI":
            values["sentence"] = row["hypothesis"]
        table.append([values[name] for name in columns])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(record) + "\n" for record in ([columns] if header else []) + table))


@pytest.fixture(scope="module")
def glue_data(tmp_path_factory):
    """Write all nine datasets and the diagnostic set in the original files."""
    root = tmp_path_factory.mktemp("glue_data")
    for folder, (columns, test_columns) in COLUMNS.items():
        labeled, unlabeled = SPLITS.get(folder, (["train", "dev"], ["test"]))
        for seed, name in enumerate(labeled):
            write_split(root / folder / f"{name}.tsv", columns, folder, seed, header=folder != "CoLA")
        for seed, name in enumerate(unlabeled):
            write_split(root / folder / f"{name}.tsv", test_columns, folder, 7 + seed)
    write_split(root / "diagnostic" / "diagnostic.tsv", PAIR, "MNLI", 11)
    return root


@slow_fixture
def complete_run(glue_data, tiny, tmp_path_factory):
    """Run all nine tasks for one epoch of two steps each."""
    folder = tmp_path_factory.mktemp("glue") / "run"
    options = {"epochs": 1, "batch_size": 8, "bf16": False}
    with costly_parts("linear_probe"):
        return bertkit.glue(model=str(tiny), data_dir=str(glue_data), output_dir=str(folder), **options)


def check_submission(text, labels):
    """Check that a file has the format of the leaderboard."""
    header, *lines = text.splitlines()
    records = [line.split("\t") for line in lines]
    assert header == "index\tprediction"
    assert [index for index, _ in records] == [str(number) for number in range(len(records))]
    for _, value in records:
        assert (0 <= float(value) <= 5) if labels is None else value in labels


def test_all_tasks_are_run_and_all_leaderboard_files_written(complete_run):
    folder = complete_run.output_dir / "submission"
    assert (
        {path.name for path in folder.iterdir()}
        == set(LEADERBOARD)
        == set(complete_run.metrics["submission"])
    )
    for name, labels in LEADERBOARD.items():
        text = (folder / name).read_text()
        assert len(text.splitlines()) == 13
        check_submission(text, labels)
    with zipfile.ZipFile(complete_run.output_dir / "submission.zip") as archive:
        assert set(archive.namelist()) == set(LEADERBOARD)
        assert archive.read("RTE.tsv").decode() == (folder / "RTE.tsv").read_text()


def test_the_table_has_every_score_and_the_papers_averages(complete_run):
    rows = build_score_rows(GLUE, complete_run.metrics)
    table = {(title, metric): cells for title, metric, *cells in rows}  # dev, baseline, test, published
    assert len(table) == len(rows) == 14
    assert table["MNLI-mm", "accuracy"][3] == "83.4"
    assert table["CoLA", "matthews"][4] == "60.5"
    average = table.pop(("average", "without WNLI"))
    assert average[3:] == ["79.6", "82.1"]  # as in the paper
    ours = [float(dev) for dev, _, _, *published in table.values() if any(published)]
    assert len(ours) == 9
    assert float(average[0]) == pytest.approx(sum(ours) / 9, abs=0.06)
    baselines = complete_run.metrics["tasks"]["sst2"]["baselines"]
    assert baselines.keys() >= {"majority", "tfidf", "linear_probe"}
    best = max(baselines, key=lambda name: baselines[name]["accuracy"])
    assert float(table["SST-2", "accuracy"][1]) == pytest.approx(100 * baselines[best]["accuracy"], abs=0.06)
    assert f", best baseline: {best}" in (complete_run.output_dir / "README.md").read_text()
    assert "| average | without WNLI |" in (complete_run.output_dir / "README.md").read_text()


def test_each_run_is_a_complete_run_directory(complete_run):
    for task in GLUE.tasks:
        run = complete_run.output_dir / task.name / "seed0"
        metrics = json.loads((run / "metrics.json").read_text())
        for reported in task.scores:
            score = complete_run.metrics["tasks"][task.name][reported.split][reported.metric]
            assert score == metrics[reported.split][reported.metric]
        assert complete_run.metrics["tasks"][task.name]["learning_rate"] == 3e-4  # chosen by model size
        assert not (run / "checkpoints").exists()
        assert (run / "model.safetensors").exists()
        assert "diagnostic" not in (run / "metrics.json").read_text() or task.name == "mnli"


def write_predictions(folder):
    """Write three predictions for each test set, with scores outside of 0 to 5; return tasks and runs."""
    for task in GLUE.tasks:
        labels = load_dataset_specs()[task.name].labels
        for split in task.submission_files:
            records = []
            for number in range(3):
                value = (-0.25, 3.14159, 5.5)[number] if not labels else labels[number % len(labels)]
                index = {"index": str(number)} if split != "diagnostic" else {}
                records.append({"id": number, **index, "predicted": value})
            path = folder / task.name / f"predictions-{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [(task, folder / task.name) for task in GLUE.tasks]


def test_the_submission_equals_the_golden_one(tmp_path):
    names = write_submission(tmp_path, write_predictions(tmp_path))
    assert set(names) == {path.name for path in GOLDEN.iterdir()} == set(LEADERBOARD)
    for name, labels in LEADERBOARD.items():
        assert (tmp_path / "submission" / name).read_bytes() == (GOLDEN / name).read_bytes(), name
        check_submission((GOLDEN / name).read_text(), labels)
    with pytest.raises(AssertionError):
        check_submission((GOLDEN / "RTE.tsv").read_text(), NUMBERS)


def test_no_archive_is_written_if_a_dataset_is_missing(tmp_path):
    runs = [entry for entry in write_predictions(tmp_path) if entry[0].name != "wnli"]
    assert len(write_submission(tmp_path, runs)) == 10
    assert not (tmp_path / "submission.zip").exists()


@pytest.fixture
def command(tiny, glue_data):
    return ["glue", "--model", tiny, "--data-dir", glue_data, "--batch-size", 8, "--no-bf16"]


def test_an_interrupted_suite_is_resumed(cli, complete_run, command, tmp_path, monkeypatch, stop_at):
    args = [*command, "--tasks", "sst2,rte", "--epochs", 1]
    stop_at(3)  # SST-2 has two steps
    status, _, err = cli(*args, "-o", tmp_path / "interrupted")
    assert status == 130
    assert f"interrupted; resume with: bertkit glue --resume --output-dir {tmp_path / 'interrupted'}" in err
    assert (tmp_path / "interrupted" / "sst2" / "seed0" / "metrics.json").exists()
    assert not (tmp_path / "interrupted" / "rte" / "seed0" / "metrics.json").exists()
    monkeypatch.chdir(tmp_path)
    status, out, _ = cli("glue", "--resume", "-o", tmp_path / "interrupted", "--json")
    assert status == 0
    assert set(json.loads(out)["tasks"]) == {"sst2", "rte"}
    for task in ("sst2", "rte"):
        folders = complete_run.output_dir, tmp_path / "interrupted"
        one, two = (folder / task / "seed0" / "model.safetensors" for folder in folders)
        assert one.read_bytes() == two.read_bytes()
    status, again, err = cli("glue", "--resume", "-o", tmp_path / "interrupted", "--json")
    assert (again, "finished" in err) == (out, True)


@pytest.mark.slow
def test_the_best_learning_rate_is_selected(cli, tmp_path):
    folder = tmp_path / "data" / "SST-2"
    folder.mkdir(parents=True)
    rows = make_easy_rows(232)
    for name, part in (("train", rows[:208]), ("dev", rows[208:])):
        lines = "".join(f"{r['text']}\t{int(r['label'] == 'positive')}\n" for r in part)
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + lines)
    quick = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    model = save_tiny_model(tmp_path / "model", **quick)
    args = ["glue", "--tasks", "sst2", "--model", model, "--data-dir", tmp_path / "data", "--batch-size", 8]
    args += ["--epochs", 1, "--learning-rates", "1e-9,8e-3", "--seeds", 2, "--no-bf16"]
    status, out, err = cli(*args, "-o", tmp_path / "run", "--json")
    assert status == 0
    summary = json.loads(out)["tasks"]["sst2"]
    assert (summary["learning_rate"], summary["seeds"]) == (8e-3, [0, 1])
    assert summary["validation"]["accuracy"] > 0.9
    assert "the best learning rate is 0.008" in err
    names = sorted(path.name for path in (tmp_path / "run" / "sst2").iterdir())
    assert names == ["lr0.008-seed0", "lr0.008-seed1", "lr1e-09-seed0"]


@pytest.mark.slow
def test_seeds_are_averaged_over_the_same_rows(cli, tiny, tmp_path):
    rows = "".join(
        f"{n % 2}\t1\t2\t{r['premise']}\t{r['hypothesis']}\n" for n, r in enumerate(make_nli_rows(60))
    )
    (tmp_path / "data" / "MRPC").mkdir(parents=True)
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    (tmp_path / "data" / "MRPC" / "msr_paraphrase_train.txt").write_text(header + rows)  # no validation file
    args = ["glue", "--tasks", "mrpc", "--model", tiny, "--data-dir", tmp_path / "data", "--max-steps", 3]
    status, out, _ = cli(*args, "--lr", 0.01, "--seeds", 3, "--seed", 5, "-o", tmp_path / "run", "--json")
    assert status == 0
    runs = [tmp_path / "run" / "mrpc" / f"seed{seed}" for seed in (5, 6, 7)]
    scores = [json.loads((run / "metrics.json").read_text())["validation"]["accuracy"] for run in runs]
    summary = json.loads(out)["tasks"]["mrpc"]
    assert summary["validation"]["accuracy"] == pytest.approx(statistics.fmean(scores))
    assert summary["validation_std"]["accuracy"] == pytest.approx(statistics.stdev(scores))
    low, high = summary["validation_interval"]["accuracy"]
    assert low <= summary["validation"]["accuracy"] <= high
    note = "over 3 seeds, 95 % interval of the mean positive_f1 "
    assert note in (tmp_path / "run" / "README.md").read_text()
    texts = [[record["sentence1"] for record in read_predictions(run)] for run in runs]
    assert texts[0] == texts[1] == texts[2]
    assert len({(run / "model.safetensors").read_bytes() for run in runs}) == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tasks", "rte,sst"], ["--tasks sst", "did you mean"]),
        (["--tasks", ","], ["--tasks: is empty"]),
        (["--learning-rates", "papr"], ["--learning-rates papr", "paper"]),
        (["--learning-rates", "3"], ["--learning-rates 3"]),
        (["--learning-rates", "paper", "--lr", "1e-4"], ["pass one of them"]),
        (["--fp16", "--device", "cpu"], ["--fp16"]),
        (["--set", "nonsense=1"], ["nonsense"]),
        (["--tasks", "rte", "--max-length", 999], ["--max-length 999"]),
        (["--resume"], ["--resume", "does not contain a run"]),
    ],
)
def test_errors_are_reported_before_anything_is_written(cli, command, tmp_path, args, words):
    status, _, err = cli(*command, "-o", tmp_path / "run", *args)
    assert status == 2
    assert [word for word in words if word not in err.splitlines()[-1]] == []
    assert not (tmp_path / "run").exists()


def test_missing_data_is_reported_before_the_first_run(cli, no_hub, tiny, glue_data, tmp_path):
    for name in ("RTE", "SST-2"):
        shutil.copytree(glue_data / name, tmp_path / "some" / name)
    args = ["glue", "--model", tiny, "--data-dir", tmp_path / "some", "-o", tmp_path / "run"]
    status, _, err = cli(*args, "--tasks", "rte,sst2,wnli")
    assert status == 2
    assert "no data for wnli; run the others with --tasks sst2,rte" in err
    assert f"{tmp_path / 'some'}/wnli/" in err
    assert not (tmp_path / "run").exists()


def test_a_directory_with_runs_is_not_changed(cli, command, complete_run):
    before = sorted(complete_run.output_dir.rglob("*"))
    status, _, err = cli(*command, "-o", complete_run.output_dir)
    assert (status, "pass --overwrite to replace it, or --resume to resume it" in err) == (2, True)
    assert sorted(complete_run.output_dir.rglob("*")) == before


def read_files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_overwrite_replaces_only_the_runs(cli, command, tmp_path):
    args = [*command, "--max-steps", 1, "-o", tmp_path / "run"]
    assert cli(*args, "--tasks", "rte")[0] == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    before = read_files(tmp_path / "run")
    assert cli(*args, "--tasks", "cola", "--overwrite", "--max-length", 999)[0] == 2
    assert read_files(tmp_path / "run") == before
    assert cli(*args, "--tasks", "cola", "--overwrite")[0] == 0
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "cola",
        "submission",
        "run.yaml",
        "metrics.json",
        "README.md",
        "report.html",
        "notes.txt",
    }
    assert [path.name for path in (tmp_path / "run" / "submission").iterdir()] == ["CoLA.tsv"]


@pytest.mark.slow
def test_a_dry_run_lists_the_runs_and_writes_nothing(cli, command, glue_data, tmp_path):
    args = [*command, "--tasks", "rte,sst2", "--learning-rates", "1e-4,5e-5", "--seeds", 2, "--dry-run"]
    status, out, _ = cli(*args, "-o", tmp_path / "run", "--json")
    plan = json.loads(out)
    assert (status, plan["task"], list(tmp_path.iterdir())) == (0, "glue", [])
    names = ["lr0.0001-seed0", "lr5e-05-seed0", "lrBEST-seed1"]
    assert [run["folder"] for run in plan["runs"]] == [f"{t}/{n}" for t in ("sst2", "rte") for n in names]
    assert plan["runs"][0]["recipe"] == "glue/sst2"
    assert plan["runs"][0]["data"] == str(glue_data / "SST-2")
    status, out, _ = cli(*args)
    assert ("6 runs" in out, "rte/lrBEST-seed1" in out, list(tmp_path.iterdir())) == (True, True, [])
    assert cli(*args, "--tasks", "nothing")[0] == 2


@pytest.mark.slow
def test_no_leaderboard_files_are_written_for_a_sample_of_the_test_rows(cli, command, tmp_path):
    args = [*command, "--tasks", "rte", "--max-steps", 1, "--max-eval-samples", 4, "-o", tmp_path / "run"]
    status, out, err = cli(*args)
    assert (status, "no leaderboard files were written" in err) == (0, True)
    assert not (tmp_path / "run" / "submission").exists()
    assert "RTE" in out


def test_recipes_and_learning_rates_follow_the_paper():
    from transformers import BertConfig

    from bertkit.training.arguments import suggest_hyperparameters

    for task in GLUE.tasks:
        kind = "nli" if task.name in ("mnli", "qnli", "rte", "wnli") else "classify"
        recipe = read_recipe(f"glue/{task.name}", kind, task_definition(kind).config)
        assert recipe.settings == {"data": task.name, "max_length": 128, "batch_size": 32, "epochs": 3.0}
    base, large = BertConfig(), BertConfig(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16)
    for config in (base, large):
        for rows in (500, 50_000, 500_000):
            assert suggest_hyperparameters(rows, config)[0]["learning_rate"] in GLUE.learning_rates

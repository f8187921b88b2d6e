"""`feature-based`: one run on a frozen encoder for each row of the paper's table."""

import json

import pytest
import yaml
from conftest import assert_refused, choose_cpu, make_ner_rows, save_tiny_model, slow_fixture, write_rows

import bertkit
from bertkit.experiments.config import FeatureBasedConfig
from bertkit.experiments.suites import FeatureBased, load_table
from bertkit.models.tagger import FEATURE_LAYERS
from bertkit.settings.declaration import get_settings
from bertkit.settings.recipes import list_shipped_recipes, read_recipe
from bertkit.tasks.ner.config import NerConfig

ROWS = {row.name: row.recipe for row in load_table("feature-based").tasks}
FAST = {"epochs": 1, "batch_size": 16, "max_length": 32, "bf16": False}
FLAGS = ["--epochs", 1, "--batch-size", 16, "--max-length", 32, "--no-bf16"]


@pytest.fixture(scope="module")
def four_layer_model(tmp_path_factory):
    """Save a tiny BERT with four layers."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "four", num_hidden_layers=4)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Write all three splits, in documents of five sentences."""
    folder = tmp_path_factory.mktemp("data") / "toy"
    for seed, (name, size) in enumerate({"train": 80, "validation": 30, "test": 20}.items()):
        sentences = enumerate(make_ner_rows(size, seed))
        write_rows(folder / f"{name}.jsonl", [row | {"document": number // 5} for number, row in sentences])
    return folder


@slow_fixture
def complete_run(four_layer_model, toy, tmp_path_factory):
    """Run all six rows, on the CPU, because an LSTM on a GPU is not deterministic."""
    folder = tmp_path_factory.mktemp("feature-based") / "run"
    settings = {"data": str(toy), "model": str(four_layer_model), "output_dir": str(folder), **FAST}
    with choose_cpu(True):
        return bertkit.feature_based(**settings)


def read_run_settings(folder):
    return yaml.safe_load((folder / "run.yaml").read_text())["settings"]


def build_table(metrics):
    [table] = FeatureBased.build_tables(metrics, None)
    return table


def test_the_table_has_all_six_rows_the_baseline_and_the_papers_scores(complete_run):
    *rows, baseline = build_table(complete_run.metrics).rows
    paper_scores = {features: float(paper) for features, *_, paper in rows}
    assert paper_scores == {
        "embeddings": 91.0, "second-to-last": 95.6, "last": 94.9, "sum-last-4": 95.9, "concat-last-4": 96.1,
        "sum-all": 95.5,
    }  # fmt: skip
    for features, dev, interval, test, _ in rows:
        summary = complete_run.metrics["features"][features]
        low, high = summary["intervals"]["f1"]
        assert dev == f"{100 * summary['validation']['f1']:.1f}"
        assert interval == f"{100 * low:.1f} to {100 * high:.1f}"
        assert test == f"{100 * summary['test']['f1']:.1f}"
    f1 = complete_run.metrics["baselines"]["frequent_tag"]["f1"]
    assert 0 < f1 < 1
    assert baseline == ("frequent_tag", f"{100 * f1:.1f}", "", "", "")


def test_the_page_has_the_table_and_names_another_dataset(complete_run):
    page = (complete_run.output_dir / "README.md").read_text()
    assert "| " + " | ".join(build_table(complete_run.metrics).rows[0]) + " |" in page
    assert "on the development set of CoNLL-2003; our scores are on toy." in page
    paper_metrics = {**complete_run.metrics, "data": {"name": "conll2003"}}
    assert "ours" not in build_table(paper_metrics).caption


def test_each_run_is_a_complete_run_directory(complete_run):
    for features in ROWS:
        run = complete_run.output_dir / features
        metrics = json.loads((run / "metrics.json").read_text())
        assert metrics["validation"] == complete_run.metrics["features"][features]["validation"]
        saved = read_run_settings(run)
        assert (saved["features"], saved["head"], saved["context"]) == (features, "bilstm", "document")
        assert (saved["learning_rate"], saved["epochs"], saved["batch_size"]) == (1e-3, 1, 16)
        assert not (run / "checkpoints").exists()


@pytest.mark.slow
def test_flags_override_the_recipes(cli, four_layer_model, toy, tmp_path):
    flags = ["--context", "sentence", "--lr", 0.01, "--features", "LAST, sum_all"]
    args = [
        "feature-based",
        "--data",
        toy,
        "--model",
        four_layer_model,
        *FLAGS,
        *flags,
        "-o",
        tmp_path / "run",
    ]
    status, out, _ = cli(*args)
    saved = read_run_settings(tmp_path / "run" / "last")
    assert status == 0
    assert "context" not in saved  # the default of ner is not saved
    assert (saved["learning_rate"], saved["batch_size"]) == (0.01, 16)
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir()) == ["last", "sum-all"]
    assert [name for name in ("last", "sum-all", "frequent_tag", "95.5") if name not in out] == []
    assert "95.9" not in out


def test_recipes_and_settings_agree():
    assert list(ROWS) == [recipe.split("/")[-1] for recipe in ROWS.values()]
    assert set(ROWS) == set(FEATURE_LAYERS)
    assert set(ROWS.values()) <= list_shipped_recipes().keys()
    settings_by_name = get_settings(FeatureBasedConfig)
    recipes = [read_recipe(recipe, "ner", NerConfig).settings for recipe in ROWS.values()]
    assert [settings.pop("features") for settings in recipes] == list(ROWS)
    assert all(settings == recipes[0] for settings in recipes)
    for key, value in recipes[0].items():  # a default that differs from the recipes would not be passed on
        assert key == "head" or settings_by_name[key].default in (None, value)
    for key in ("data", "model"):
        assert settings_by_name[key].metadata.default_text == recipes[0][key]


@pytest.mark.cpu
def test_an_interrupted_suite_is_resumed(cli, complete_run, four_layer_model, toy, tmp_path, stop_at):
    args = ["feature-based", "--data", toy, "--model", four_layer_model, *FLAGS]
    args += ["--features", "embeddings", "--features", "last"]
    stop_at(7)  # each run has five steps
    status, _, err = cli(*args, "-o", tmp_path / "interrupted")
    assert status == 130
    assert (
        f"interrupted; resume with: bertkit feature-based --resume --output-dir {tmp_path / 'interrupted'}"
        in err
    )
    assert (tmp_path / "interrupted" / "embeddings" / "metrics.json").exists()
    assert not (tmp_path / "interrupted" / "last" / "metrics.json").exists()
    status, out, err = cli("feature-based", "--resume", "-o", tmp_path / "interrupted", "--json")
    assert "already finished" in err
    assert "scores" not in err
    assert (status, list(json.loads(out)["features"])) == (0, ["embeddings", "last"])
    for features in ("embeddings", "last"):
        folders = complete_run.output_dir, tmp_path / "interrupted"
        one, two = (folder / features / "model.safetensors" for folder in folders)
        assert one.read_bytes() == two.read_bytes()
    status, again, err = cli("feature-based", "--resume", "-o", tmp_path / "interrupted", "--json")
    assert (again, "finished" in err) == (out, True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--features", "last,sum-last-3"], ["--features sum-last-3", "did you mean 'sum-last-4'"]),
        (["--features", ","], ["--features: is empty"]),
        (["--data", "nowhere.conll"], ["--data nowhere.conll", "no such file"]),
        (["--test", "nowhere.conll"], ["nowhere.conll"]),
        (["--fp16", "--device", "cpu"], ["--fp16"]),
        (["--resume"], ["--resume", "does not contain a run"]),
        (["--recipe", "ner/feature-based/last"], ["a recipe for ner"]),
    ],
)
def test_errors_are_reported_before_anything_is_written(cli, four_layer_model, toy, tmp_path, args, words):
    args = ["--data", toy, "--model", four_layer_model, *FLAGS, "-o", tmp_path / "run", *args]
    assert_refused(cli, tmp_path, args, words, "feature-based")


def test_a_dry_run_lists_the_rows_and_writes_nothing(cli, four_layer_model, toy, tmp_path):
    args = [
        "feature-based",
        "--data",
        toy,
        "--model",
        four_layer_model,
        "--features",
        "last,embeddings",
        "--dry-run",
    ]
    status, out, _ = cli(*args, "-o", tmp_path / "run", "--json")
    runs = json.loads(out)["runs"]
    assert (status, [run["folder"] for run in runs]) == (0, ["embeddings", "last"])
    assert (runs[1]["recipe"], runs[1]["data"]) == ("ner/feature-based/last", str(toy))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_overwrite_replaces_the_rows(cli, four_layer_model, toy, tmp_path):
    args = ["feature-based", "--data", toy, "--model", four_layer_model, *FLAGS, "-o", tmp_path / "run"]
    assert cli(*args, "--features", "last")[0] == 0
    assert cli(*args, "--features", "embeddings", "--overwrite")[0] == 0
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"embeddings", "run.yaml", "metrics.json", "README.md", "report.html"}


def test_a_model_with_too_few_layers_is_refused_before_the_first_run(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--model", tiny, "-o", tmp_path / "run"]
    words = ["--features sum-last-4: requires 4 layers, and the model has 2"]
    assert_refused(cli, tmp_path, args, words, "feature-based")


@pytest.mark.parametrize(
    "flag", ["--freeze 1", "--layer-decay 0.9", "--pack", "--compile", "--attention-dropout 0"]
)
def test_flags_of_the_encoder_are_refused_for_a_frozen_encoder(cli, four_layer_model, toy, tmp_path, flag):
    args = ["--data", toy, "--model", four_layer_model, "--features", "last", "-o", tmp_path / "run"]
    words = [f"{flag.split()[0]}", "--features freezes the whole encoder"]
    assert_refused(cli, tmp_path, [*args, *flag.split()], words, "ner")


def test_an_unknown_setting_from_python_is_named():
    with pytest.raises(bertkit.UserError, match=r"feature_based\(\): unknown setting 'head'"):
        bertkit.feature_based(head="linear")

"""`ablation`: variants pre-trained on the same text and fine-finetuning on the same tasks."""

import json

import pytest
import yaml
from conftest import assert_refused, costly_parts, make_document_rows, make_qa_rows, slow_fixture, write_rows
from test_glue import COLUMNS, write_split

import bertkit
from bertkit.experiments import ablation
from bertkit.experiments.ablation import (
    build_ablation_table,
    build_difference_table,
    compare_rows,
    load_tables,
)
from bertkit.settings.recipes import list_shipped_recipes, read_recipe
from bertkit.tasks.pretrain.task import Pretrain

FAST = {"max_steps": 2, "batch_size": 8, "max_length": 32, "vocab_size": 60, "bf16": False}
FLAGS = ["--max-steps", 2, "--batch-size", 8, "--max-length", 32, "--vocab-size", 60, "--no-bf16"]
MODEL_SIZE = {"size": "tiny", "num_layers": 1, "hidden_size": 16, "num_heads": 2}
SIZE_FLAGS = ["--size", "tiny", "--num-layers", 1, "--hidden-size", 16, "--num-heads", 2]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("text") / "text.jsonl", make_document_rows(60))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Return a directory with SST-2 and SQuAD."""
    root = tmp_path_factory.mktemp("data_dir")
    for seed, name in enumerate(("train", "dev")):
        write_split(root / "SST-2" / f"{name}.tsv", COLUMNS["SST-2"][0], "SST-2", seed)
        write_squad(root / "squad" / f"{name}-v1.1.json", seed)
    return root


def write_squad(path, seed):
    """Write twelve questions in the format of SQuAD."""
    paragraphs = [
        {"context": row.pop("context"), "qas": [{**row, "id": f"{seed}-{row['id']}"}]}
        for row in make_qa_rows(12, seed)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))


@slow_fixture
def complete_run(text, data_dir, tmp_path_factory):
    """Run all rows of the first table."""
    folder = tmp_path_factory.mktemp("ablation") / "run"
    settings = {
        "data": str(text),
        "data_dir": str(data_dir),
        "tasks": ["sst2,squad"],
        "task_pooling": "mean",
        "embedding_init": "ppmi",
        "output_dir": str(folder),
    }
    return bertkit.ablation(**settings, **FAST | {"max_steps": 1}, **MODEL_SIZE)


def read_run_settings(folder):
    return yaml.safe_load((folder / "run.yaml").read_text())["settings"]


def test_the_table_has_all_rows_and_the_papers_scores(complete_run):
    table = build_ablation_table(complete_run.metrics)
    *rows, baseline = table.rows
    assert table.headings == ["row", "perplexity", "nsp accuracy", "SST-2", "SQuAD"]
    paper = {"mlm+nsp": (92.7, 88.5), "mlm": (92.6, 87.9), "ltr": (92.1, 77.8), "ltr+bilstm": (91.6, 84.9)}
    assert [name for name, *_ in rows] == [*paper, "mlm+sop", "none"]
    for name, perplexity, nsp_accuracy, *scores in rows:
        runs = complete_run.metrics["rows"][name]
        pretraining = runs["pretrained"]["validation"]
        assert perplexity == f"{pretraining['perplexity']:.2f}"
        assert bool(nsp_accuracy) == (name in ("mlm+nsp", "mlm+sop"))
        ours = [100 * runs["sst2"]["validation"]["accuracy"], runs["squad"]["validation"]["f1"]]
        paper_cells = [f" ({score})" for score in paper.get(name, ())] or ["", ""]
        assert scores == [
            f"{score:.1f}{paper_cell}" for score, paper_cell in zip(ours, paper_cells, strict=True)
        ]
    assert baseline[:3] == ["baseline", "", ""]
    page = (complete_run.output_dir / "README.md").read_text()
    assert "| " + " | ".join(rows[0]) + " |" in page
    assert "table 5 (BERT-BASE)" in page


def test_rows_differ_only_in_their_objective(complete_run):
    pretraining = {
        path.name: read_run_settings(path) for path in (complete_run.output_dir / "pretrained").iterdir()
    }
    assert pretraining.pop("none").keys() >= {"epochs"}
    assert len(pretraining) == 4
    assert {settings.pop("objective", "mlm+nsp") for settings in pretraining.values()} == {
        "mlm+nsp",
        "mlm",
        "ltr",
        "mlm+sop",
    }
    assert len({json.dumps(settings, sort_keys=True) for settings in pretraining.values()}) == 1
    finetuning = {
        row: read_run_settings(complete_run.output_dir / row / "sst2" / "seed0")
        for row in complete_run.metrics["rows"]
    }
    assert (
        finetuning["ltr"]["model"]
        == finetuning["ltr+bilstm"]["model"]
        == str(complete_run.output_dir / "pretrained" / "objective-ltr")
    )
    assert [row for row, settings in finetuning.items() if settings.pop("head", None) == "bilstm"] == [
        "ltr+bilstm"
    ]
    assert [settings.pop("model") for settings in finetuning.values()]
    assert len({json.dumps(settings, sort_keys=True) for settings in finetuning.values()}) == 1


def test_the_row_without_pretraining_has_new_weights(complete_run):
    pretrained = complete_run.output_dir / "pretrained"
    tokenizers = [(pretrained / name / "tokenizer.json").read_text() for name in ("none", "objective-mlm")]
    assert tokenizers[0] == tokenizers[1]
    settings = read_run_settings(pretrained / "none")
    assert settings["epochs"] == 0
    assert "max_steps" not in settings
    assert settings.get("embedding_init", "random") == "random"
    assert read_run_settings(pretrained / "objective-mlm")["embedding_init"] == "ppmi"
    assert json.loads((pretrained / "none" / "metrics.json").read_text())["training"]["steps"] == 0


def test_only_heads_for_whole_texts_get_the_pooling(complete_run):
    folder = complete_run.output_dir / "mlm"
    assert read_run_settings(folder / "sst2" / "seed0")["pooling"] == "mean"
    assert "pooling" not in read_run_settings(folder / "squad" / "seed0")


@slow_fixture
def seeds_run(text, data_dir, tmp_path_factory):
    """Fine-tune the models of two rows with three seeds; only the page of the suite has charts."""
    plot_scores = ablation._plot_scores

    def plot_with_charts(*args):
        with costly_parts("charts"):
            return plot_scores(*args)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ablation, "_plot_scores", plot_with_charts)
        return bertkit.ablation(
            data=str(text), data_dir=str(data_dir), tasks=["sst2"], rows=["mlm,none"], seeds=3,
            task_learning_rate=1e-3, **FAST, **MODEL_SIZE,
            output_dir=str(tmp_path_factory.mktemp("seeds") / "run"),
        )  # fmt: skip


def test_rows_are_compared_over_the_seeds(seeds_run):
    rows = seeds_run.metrics["rows"]
    scores = {
        name: [
            json.loads((seeds_run.output_dir / name / "sst2" / f"seed{seed}" / "metrics.json").read_text())[
                "validation"
            ]["accuracy"]
            for seed in range(3)
        ]
        for name in rows
    }
    expected = [none - mlm for none, mlm in zip(scores["none"], scores["mlm"], strict=True)]
    for name, values in scores.items():
        assert list(rows[name]["sst2"]["scores"].values()) == values
        assert rows[name]["sst2"]["validation"]["accuracy"] == pytest.approx(sum(values) / 3)
    assert "difference" not in rows["mlm"]["sst2"]
    difference = rows["none"]["sst2"]["difference"]
    assert (difference["row"], difference["difference"]) == ("mlm", pytest.approx(sum(expected) / 3))
    settings = [
        read_run_settings(seeds_run.output_dir / "none" / "sst2" / f"seed{seed}") for seed in range(3)
    ]
    assert [run.get("seed", 0) for run in settings] == [0, 1, 2]
    assert {run["learning_rate"] for run in settings} == {1e-3}
    assert read_run_settings(seeds_run.output_dir / "pretrained" / "objective-mlm")["learning_rate"] != 1e-3
    assert {run.get("split_seed", run.get("seed", 0)) for run in settings} == {0}


def test_the_page_has_the_differences_the_charts_and_links_to_the_runs(seeds_run):
    page = (seeds_run.output_dir / "report.html").read_text()
    assert "95 % interval" in page
    assert "minus that of mlm" in page
    assert 'aria-label="SST-2"' in page
    for run in ("pretrained/none", "mlm/sst2/seed0", "none/sst2/seed2"):
        assert f'href="{run}/report.html"' in page
        assert (seeds_run.output_dir / run / "report.html").exists()
    lines = (seeds_run.output_dir / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("#")][1:] == ["## Runs", "## Differences"]


def test_a_significant_difference_is_marked():
    task = {"scores": {"0": 0.61, "1": 0.62, "2": 0.63}, "interval": [0.6, 0.64], "intervals": {},
            "validation": {"accuracy": 0.62}, "baselines": {"majority": {"accuracy": 0.5}},
            "rows": 9, "seconds": 60.0}  # fmt: skip
    pretrained = {"validation": {"perplexity": 9.0}, "seconds": 60.0}
    rows = {name: {"pretrained": pretrained, "sst2": dict(task)} for name in ("mlm+nsp", "mlm", "none")}
    rows["none"]["sst2"] |= {
        "scores": {"0": 0.51, "1": 0.525, "2": 0.53},
        "validation": {"accuracy": 0.521667},
    }
    rows["mlm"]["sst2"] |= {
        "scores": {"0": 0.64, "1": 0.60, "2": 0.63},
        "validation": {"accuracy": 0.623333},
    }
    compare_rows(rows, ["sst2"])
    metrics = {"table": "objectives", "data": {"name": "imdb"}, "seeds": [0, 1, 2], "rows": rows}
    table = build_ablation_table(metrics)
    assert [cells[-1] for cells in table.rows] == [
        "62.0 ± 1.0 (92.7)", "62.3 ± 2.1 (92.6)", "52.2 ± 1.0*", "50.0",
    ]  # fmt: skip
    assert "differs from mlm+nsp" in table.caption
    assert "over 3 seeds" in table.caption
    assert "standard deviation" not in build_ablation_table(metrics | {"seeds": [0]}).caption
    assert build_difference_table(metrics).rows[1][:3] == ["none", "SST-2", "-9.8"]


def test_recipes_match_their_rows():
    for table in load_tables().tables.values():
        for row in table.rows:
            assert row.recipe in list_shipped_recipes()
    for row in load_tables().tables["sizes"].rows:
        recipe = read_recipe(row.recipe, Pretrain.definition.name, Pretrain.definition.config).settings
        assert row.name == f"{recipe['num_layers']}-{recipe['hidden_size']}-{recipe['num_heads']}"
    objectives = [read_recipe(name, Pretrain.definition.name, Pretrain.definition.config).settings
            for name in list_shipped_recipes() if name.startswith("pretrain/objective-")]  # fmt: skip
    assert len({settings.pop("objective", "mlm+nsp") for settings in objectives}) == len(objectives) == 4
    assert all(settings == objectives[0] for settings in objectives)


def make_sst2_args(text, data_dir):
    return ["--data", text, "--data-dir", data_dir, "--tasks", "sst2", *FLAGS]


@pytest.mark.slow
def test_rows_of_sizes_are_run(cli, text, data_dir, tmp_path):
    args = ["--table", "sizes", "--rows", "2-128-2", *make_sst2_args(text, data_dir)]
    status, out, _ = cli("ablation", *args, "-o", tmp_path / "run", "--json")
    metrics = json.loads(out)
    assert (status, metrics["table"], list(metrics["rows"]["2-128-2"])) == (
        0,
        "sizes",
        ["pretrained", "sst2"],
    )
    saved = read_run_settings(tmp_path / "run" / "pretrained" / "size-2-128-2")
    assert (saved["num_layers"], saved["hidden_size"], saved["num_heads"]) == (2, 128, 2)


@pytest.mark.slow
def test_an_interrupted_suite_is_resumed(cli, text, data_dir, tmp_path, stop_at):
    folder = tmp_path / "interrupted"
    resume = f"interrupted; resume with: bertkit ablation --resume --output-dir {folder}"
    stop_at(1)  # pre-training has two steps, fine-tuning follows
    stop_at(3)
    args = ["ablation", "--rows", "mlm", *make_sst2_args(text, data_dir), *SIZE_FLAGS]
    status, _, err = cli(*args, "-o", folder)
    assert (status, resume in err) == (130, True)
    assert not (folder / "pretrained" / "objective-mlm" / "metrics.json").exists()
    status, _, err = cli("ablation", "--resume", "-o", folder)
    assert (status, resume in err) == (130, True)
    assert (folder / "pretrained" / "objective-mlm" / "metrics.json").exists()
    status, out, _ = cli("ablation", "--resume", "-o", folder, "--json")
    assert (status, list(json.loads(out)["rows"]["mlm"])) == (0, ["pretrained", "sst2"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rows", "mlm,rtl"], ["--rows rtl", "is not a row of the table"]),
        (["--tasks", "sst2,qnli"], ["--tasks sst2,qnli: no data for QNLI"]),
        (["--tasks", "swag"], ["--tasks swag", "is not a task of the table"]),
        (["--table", "sizes", "--num-layers", 3], ["--num-layers", "select rows with --rows"]),
        (["--data", "nowhere.txt"], ["nowhere.txt"]),
        (["--rows", "mlm,ltr", "--whole-word-masking"], ["row ltr: --whole-word-masking: --objective ltr"]),
        (["--rows", "mlm,ltr", "--whole-word-masking", "--dry-run"], ["row ltr: --whole-word-masking"]),
    ],
)
def test_errors_are_reported_before_anything_is_written(cli, text, data_dir, tmp_path, args, words):
    args = ["--data", text, "--data-dir", data_dir, *FLAGS, "-o", tmp_path / "run", *args]
    assert_refused(cli, tmp_path, args, words, "ablation")


def test_a_dry_run_lists_each_run_without_wrapping(cli, text, data_dir, tmp_path):
    args = [
        "--data",
        text,
        "--data-dir",
        data_dir,
        "--rows",
        "ltr+bilstm",
        "--dry-run",
        "-o",
        tmp_path / "run",
    ]
    status, out, _ = cli("ablation", *args)
    assert status == 0
    lines = [line.split("  ") for line in out.splitlines()]
    assert [cells[0] for cells in lines[2:]] == [
        "pretrained/objective-ltr",
        "ltr+bilstm/sst2/seed0",
        "ltr+bilstm/squad/seed0",
    ]
    assert [cells[-1].strip() for cells in lines[2:]] == [
        str(text),
        f"{data_dir}/SST-2",
        f"{data_dir}/squad",
    ]


@pytest.mark.slow
def test_tasks_without_data_are_left_out_and_reported(cli, text, data_dir, tmp_path):
    args = ["--data", text, "--data-dir", data_dir, "--rows", "mlm", *FLAGS, *SIZE_FLAGS]
    samples = ["--task-train-samples", 8]
    status, out, err = cli("ablation", *args, *samples, "-o", tmp_path / "run", "--json")
    assert status == 0
    assert "no data for MNLI-m" in err
    assert {"sst2", "squad"} <= json.loads(out)["rows"]["mlm"].keys()
    assert json.loads(out)["rows"]["mlm"]["sst2"]["rows"] == 8

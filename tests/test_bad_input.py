"""Every way to be refused: one line that names what is wrong and the way out, exit 2, nothing written."""

import gzip
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from conftest import assert_refused, make_toy_rows, save_tiny_model, write_rows

from bertkit import UserError
from bertkit.infer.predictor import Predictor
from bertkit.tasks import task_class
from bertkit.utils.reporting import Reporter

GOOD_ROWS = make_toy_rows(60)
Disk = namedtuple("Disk", "total used free")


def with_row(change, at=7):
    """The good rows with one of them changed."""
    return [{**row, **change} if n == at else row for n, row in enumerate(GOOD_ROWS)]


def csv_of(rows):
    return "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows)


# name: (content of data.csv, further arguments, words the line must hold)
FILES = {
    "empty file": (b"", [], ["data.csv", "empty", "name another"]),
    "missing column": (csv_of(GOOD_ROWS), ["--text-column", "txt"],
                       ["txt", "did you mean 'text'", "--text-column"]),
    "no text column": ("a,label\nx,y\nz,w\n", [], ["looks like the text", "--text-column", "a, label"]),
    "no label column": ("text,b\nx,y\nz,w\n", [], ["looks like the label", "--label-column", "text, b"]),
    "one class only": ("text,label\nx,y\nz,y\n", [], ["only the class 'y'", "at least two"]),
    "no labels": ("text,label\nx,\nz,\n", [], ["no labels"]),
    "a label missing": (csv_of(with_row({"label": ""})), [], ["row 8", "no label"]),
    "a non-number in regression": (
        csv_of([{**row, "label": "three" if n == 4 else n / 7} for n, row in enumerate(GOOD_ROWS)]),
        ["--problem", "regression"], ["row 5", "'three'", "not a number"],
    ),
    "a broken CSV row": (csv_of(GOOD_ROWS) + "a,b,c\n", [], ["row 61", "3 fields"]),
    "an open quote": (csv_of(GOOD_ROWS) + '"a,b\n', [], ["row 61", "broken CSV", "twice in it"]),
    "lines that end in CR": ("text,label\ra,b\rc,d\r", [], ["end in CR alone", "tr '\\r' '\\n'"]),
    "a broken JSON row": (json.dumps(GOOD_ROWS[0]) + "\n{broken\n", [], ["row 2", "broken JSON"]),
    "a text that is a number": (json.dumps(with_row({"text": 5})), [], ["row 8", "holds 5, not a text"]),
    "a text missing": (json.dumps(with_row({"text": None})), [], ["row 8", "has no text"]),
    "binary rubbish": (bytes(range(256)) * 20, [], ["data.csv", "not a text file"]),
    "not utf-8": ("text,label\ncaf\xe9,x\n".encode("latin1"), [], ["line 2", "not UTF-8", "iconv"]),
    "cut gzip": (gzip.compress(csv_of(GOOD_ROWS).encode())[:-20], [], ["data.csv", "cannot be read"]),
    "too few rows": ("text,label\nx,y\nz,w\n", [], ["2 rows", "too few", "--validation"]),
    "labels that are texts": (csv_of([{**r, "label": n} for n, r in enumerate(GOOD_ROWS)]),
                              ["--problem", "multi-class"], ["60 different labels", "is it the label"]),
    "unknown positive label": (csv_of(GOOD_ROWS), ["--positive-label", "nice"],
                               ["--positive-label", "negative, positive"]),
    "max-length beyond the positions": (csv_of(GOOD_ROWS), ["--max-length", 129],
                                        ["--max-length 129", "128 positions"]),
    "fp16 with no accelerator": (csv_of(GOOD_ROWS), ["--fp16"], ["--fp16", "accelerator"]),
    "fp16 and bf16": (csv_of(GOOD_ROWS), ["--fp16", "--bf16"], ["--fp16 and --bf16"]),
    "freeze too many": (csv_of(GOOD_ROWS), ["--freeze", 9], ["--freeze 9", "2 layers"]),
    "smoothed regression": (csv_of([{**r, "label": n + 0.5} for n, r in enumerate(GOOD_ROWS)]),
                            ["--label-smoothing", 0.1], ["--label-smoothing", "no classes"]),
    "set without value": (csv_of(GOOD_ROWS), ["--set", "adam_beta1"], ["--set adam_beta1", "KEY=VALUE"]),
    "set what has a flag": (csv_of(GOOD_ROWS), ["--set", "learning_rate=1"],
                           ["learning_rate", "--learning-rate"]),
    "set what is ours": (csv_of(GOOD_ROWS), ["--set", "save_strategy=no"],
                         ["save_strategy", "bertkit keeps"]),
    "set what is not": (csv_of(GOOD_ROWS), ["--set", "adam_beta=1"],
                        ["adam_beta", "did you mean 'adam_beta"]),
    "set to a wrong value": (csv_of(GOOD_ROWS), ["--set", "optim_target_modules=[1", "--epochs", 1],
                             ["--set optim_target_modules"]),
    "a scheduler that is none": (csv_of(GOOD_ROWS), ["--lr-scheduler", "liner"], ["liner"]),
    "number out of bounds": (csv_of(GOOD_ROWS), ["--batch-size", 0], ["--batch-size", "at least 1"]),
    "misspelt flag": (csv_of(GOOD_ROWS), ["--epoch", 3], ["--epoch", "--epochs"]),
    "word for a number": (csv_of(GOOD_ROWS), ["--epochs", "three"], ["--epochs"]),
    "choice that is none": (csv_of(GOOD_ROWS), ["--long-texts", "middle"], ["--long-texts", "head+tail"]),
    "resume of nothing": (csv_of(GOOD_ROWS), ["--resume"], ["--resume", "holds none"]),
    "unknown recipe": (csv_of(GOOD_ROWS), ["--recipe", "imbd"], ["imbd", "recipes ls"]),
    "validation file that is not": (csv_of(GOOD_ROWS), ["--validation", "no.csv"],
                                    ["no.csv", "no such file"]),
    "unknown model": (csv_of(GOOD_ROWS), ["--model", "./nowhere"], ["--model ./nowhere", "no such folder"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_refused(cli, tiny, tmp_path, name):
    content, args, words = FILES[name]
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    model = [] if "--model" in args else ["--model", tiny]
    assert_refused(cli, tmp_path, ["--data", path, *model, "--output-dir", tmp_path / "run", *args], words)


@pytest.mark.parametrize(
    "typed",
    [
        "classify --data",
        "check classify --data",
        "classify --data sample --validation",
        "train-tokenizer --data",
        "check pretrain-mlm-nsp --data sample --validation",
    ],
)
def test_what_is_no_file_is_said_to_be_what_it_is(cli, tmp_path, typed):
    os.mkfifo(tmp_path / "pipe")
    command, *args = typed.split()
    for path, what in ((tmp_path / "pipe", "a pipe"), ("/dev/null", "a device")):
        words = [f"{path}: is {what}, no file; write what it gives to a file"]
        assert_refused(cli, tmp_path, [*args, path], words, command)


def test_no_data_named(cli, tmp_path):
    assert_refused(cli, tmp_path, [], ["--data is missing"])


def test_empty_names_are_not_the_current_folder(cli, toy, tmp_path):
    assert_refused(cli, tmp_path, ["--data", ""], ["bertkit: --data: is empty"])
    assert_refused(cli, tmp_path, ["--data", toy, "--model", ""], ["bertkit: --model: is empty"])


def test_rows_drawn_that_have_one_label(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--model", tiny, "--max-train-samples", 1]
    assert_refused(cli, tmp_path, args, ["only one label in the 1 row to train on"])


def test_trainer_refusing_a_value_of_set(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", "--set", "fsdp=full_shard"]
    assert_refused(cli, tmp_path, args, ["fsdp"])


MISTYPED = {  # command: words the line must hold, beside the flag or the command
    "qa --squad v3": ["bertkit: --squad: 'v3' is not one of 'v1', 'v2'"],
    "export run --quantize int4": ["bertkit: --quantize: 'int4'", "did you mean 'int8'"],
    "ablation --table foo": ["bertkit: --table: 'foo' is not one of 'objectives', 'sizes'"],
    "classify --data sample --text-column": ["bertkit: --text-column: is empty"],
    "check classify --data sample --text-column": ["bertkit: --text-column: is empty"],
    "train-tokenizer --data": ["bertkit: --data: is empty"],
    "export": ["bertkit: RUN: is empty"],
    "classify --recipe": ["--recipe '': neither a file nor"],
    "classify --tokens-per-batch 1e3": ["bertkit: --tokens-per-batch: is not a whole number"],
    "classify --data imdb --output-dir ./imdb": ["imdb: is what --data says; name another directory"],
    "qa --squad v2 --output-dir squad_v2": ["--output-dir squad_v2: is what --data says; name another"],
    "classify --data sample --lr nan": ["bertkit: --learning-rate", "out of bounds; it must be at least 0"],
    "check clasify": ["bertkit check clasify: no such command; did you mean 'classify'", "nli", "swag"],
    "trian": ["bertkit trian: no such command", "classify", "export"],
    "predict run --nproc 2": [
        "bertkit: --nproc: no such option of bertkit predict; it is a flag of classify"
    ],
    "classify --epoch 3": ["bertkit: --epoch: no such option of bertkit classify; did you mean '--epochs'?"],
    "recipes ls --foo": ["bertkit: --foo: no such option of bertkit recipes ls"],
    "recipes cp imdb": ["bertkit: FILE: is empty", "name the file"],
    "export nosuch": ["nosuch: not a finished run (no such folder)", "runs/classify-imdb-minilm"],
}


@pytest.mark.parametrize("typed", MISTYPED)
def test_what_was_typed_wrong_is_named_as_it_was_typed(cli, tmp_path, typed):
    words = typed.split()
    empty = [""] if any("empty" in word or "''" in word for word in MISTYPED[typed]) else []
    line = assert_refused(cli, tmp_path, [*words[1:], *empty], MISTYPED[typed], words[0])
    assert "Value error" not in line


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("no/such/file.csv", ["no/such/file.csv", "no such file"]),
        ("imbd", ["imbd", "did you mean 'imdb'", "bertkit data ls"]),
        ("xyzzy", ["neither a file nor a known data set"]),
    ],
)
def test_unknown_data(cli, tmp_path, data, words):
    assert_refused(cli, tmp_path, ["--data", data], words)


def test_a_label_in_validation_that_training_lacks(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "train.jsonl", GOOD_ROWS)
    more = write_rows(tmp_path / "dev.jsonl", [{"text": "new", "label": "positiv"}])
    words = ["dev.jsonl: row 1", "'positiv'", "did you mean 'positive'"]
    assert_refused(cli, tmp_path, ["--data", data, "--validation", more, "--model", tiny], words)


def test_an_empty_folder_and_a_folder_without_training_rows(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(cli, tmp_path, ["--data", tmp_path / "empty"], ["no data files"])
    write_rows(tmp_path / "part" / "test.jsonl", GOOD_ROWS)
    assert_refused(cli, tmp_path, ["--data", tmp_path / "part"], ["no training file", "test.jsonl"])


def test_a_data_directory_that_is_none(cli, tmp_path, monkeypatch):
    assert_refused(
        cli, tmp_path, ["--data", "sst2", "--data-dir", "nowhere"], ["--data-dir nowhere", "no such folder"]
    )
    monkeypatch.setenv("BERTKIT_DATA_DIR", "elsewhere")
    assert_refused(cli, tmp_path, ["--data", "sst2"], ["BERTKIT_DATA_DIR elsewhere"])


RECIPES = {
    "misspelt key": ("settings: {epoch: 3}", ["unknown setting 'epoch'", "did you mean 'epochs'"]),
    "wrong type": ("settings: {epochs: many}", ["epochs", "'many' is not a number"]),
    "a bool for a number": ("settings: {batch_size: true}", ["batch_size", "not a whole number"]),
    "out of bounds": ("settings: {batch_size: 0}", ["batch_size", "at least 1"]),
    "wrong choice": ("settings: {long_texts: middle}", ["long_texts", "one of head, tail"]),
    "no settings": ("epochs: 3", ["'task' and 'settings'"]),
    "key beside": ("settings: {}\nsetings: {}", ["unknown key 'setings'"]),
    "another task": ("task: nli\nsettings: {}", ["a recipe for nli"]),
    "not yaml": ("settings: {a", ["not YAML", "recipes show imdb"]),
    "no key": (":", ["no recipe", "recipes show imdb"]),
    "processes": ("settings: {nproc: 2}", ["nproc", "on the command line alone", "--nproc"]),
    "no mapping": ("a, b", ["no recipe", "recipes show imdb"]),
    "a day that is none": ("settings: {data: 2026-99-99}", ["not YAML", "recipes show imdb"]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_checked(cli, tmp_path, name):
    content, words = RECIPES[name]
    path = tmp_path / "my.yaml"
    path.write_text(content)
    assert_refused(cli, tmp_path, ["--recipe", path, "--data", "sample"], ["my.yaml", *words])


def test_python_calls_are_checked_like_recipes():
    import bertkit

    with pytest.raises(bertkit.UserError, match=r"classify\(\): unknown setting 'learning'"):
        bertkit.classify(data="sample", learning=3)


@pytest.mark.parametrize(
    ("task", "column"),
    {"classify": "text", "nli": "premise", "ner": "token", "qa": "question", "swag": "context"}.items(),
)
def test_a_row_without_any_column_is_not_passed_over(task, column):
    kind = task_class(task)
    learned = kind(kind.spec.config(data="sample"))
    learned.parse_dataset(learned.load_data(Reporter()))
    for rows in ([{}], [{}, {}], [{"label": "kept from it"}]):
        with pytest.raises(UserError, match=rf"^rows: .*no column .*\b{column}\b"):
            list(Predictor(learned, None, None).predict(rows))
    assert list(Predictor(learned, None, None).predict([])) == []


def test_models_that_are_none(cli, toy, tmp_path, tiny):
    def model(name, change):
        shutil.copytree(tiny, tmp_path / name)
        change(tmp_path / name)
        return ["--data", toy, "--model", tmp_path / name]

    assert_refused(cli, tmp_path, model("a", lambda f: (f / "config.json").unlink()), ["not a model folder"])
    assert_refused(
        cli,
        tmp_path,
        model("b", lambda f: (f / "model.safetensors").unlink()),
        ["no weights", "*.safetensors"],
    )
    assert_refused(
        cli,
        tmp_path,
        model("c", lambda f: (f / "config.json").write_text('{"model_type": "x"}')),
        ["config.json"],
    )
    assert_refused(
        cli, tmp_path, model("d", lambda f: (f / "tokenizer.json").write_text("{}")), ["tokenizer"]
    )
    assert_refused(
        cli, tmp_path, model("e", lambda f: (f / "model.safetensors").write_bytes(b"no")), ["weights"]
    )


def test_output_directories(cli, tiny, toy, tmp_path, monkeypatch):
    args = ["--data", toy, "--model", tiny, "--output-dir"]
    (tmp_path / "file").write_text("x")
    assert_refused(cli, tmp_path, [*args, tmp_path / "file"], ["is a file"])
    assert_refused(cli, tmp_path, [*args, tmp_path / "file" / "run"], ["cannot be written"])
    assert_refused(cli, tmp_path, [*args, tmp_path / "n" / ("x" * 300)], ["cannot be made", "too long"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert_refused(cli, tmp_path, [*args, tmp_path / "mine", "--overwrite"], ["files that are no run"])
    monkeypatch.setattr("os.access", lambda *_: False)
    assert_refused(cli, tmp_path, [*args, tmp_path / "run"], ["cannot be written"])


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no such place")
@pytest.mark.parametrize("further", [[], ["--dry-run"]])
def test_a_place_where_no_directory_can_be_made(cli, tiny, toy, tmp_path, further):
    args = ["--data", toy, "--model", tiny, "--output-dir", "/proc/x", *further]
    assert_refused(cli, tmp_path, args, ["/proc/x: cannot be made there", "name another directory"])


def test_a_share_to_set_aside_beside_validation_rows(cli, tiny, toy, tmp_path):
    dev = write_rows(tmp_path / "dev.jsonl", make_toy_rows(20, seed=1))
    args = ["--model", tiny, "--validation-fraction", 0.2, "--output-dir", tmp_path / "run"]
    given = [*args, "--data", toy, "--validation", dev]
    assert_refused(cli, tmp_path, given, ["--validation-fraction", "--validation", "leave one"])
    own = write_rows(tmp_path / "folder" / "dev.jsonl", make_toy_rows(20, seed=1)).parent
    shutil.copy(toy, own / "train.jsonl")
    status, _, err = cli("classify", *args, "--data", own, "--dry-run")
    assert (status, "--validation-fraction is not used" in err) == (0, True)


def test_a_run_is_replaced_only_with_overwrite_and_only_what_is_its(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", "--max-steps", 1]
    assert cli("classify", *args)[0] == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert_refused(cli, tmp_path, args, ["holds a run", "--overwrite", "--resume"])
    assert cli("classify", *args, "--overwrite")[0] == 0
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_refused_overwrite_leaves_the_old_run(cli, tiny, toy, tmp_path):
    run = tmp_path / "run"
    args = ["--data", toy, "--model", tiny, "--output-dir", run, "--max-steps", 1]
    assert cli("classify", *args)[0] == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert_refused(cli, tmp_path, [*args, "--overwrite", "--max-length", 999], ["--max-length"])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_disk_too_full_for_the_run(cli, tiny, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(10, 9, 1))
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["0 MB are free", "another disk"])


def test_a_disk_that_fills_up_while_a_checkpoint_is_written(cli, tiny, toy, tmp_path, monkeypatch):
    import torch

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["No space left", "start again: there was none before", "step 5"])


def test_a_loss_that_is_no_number(cli, toy, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    folder = save_tiny_model(tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    args = ["--data", toy, "--model", folder, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["loss is nan at step 1", "--learning-rate"])


def test_texts_the_model_cannot_read(cli, tiny, tmp_path, monkeypatch):
    rows = [{**row, "text": "한국어 " * (n + 3)} for n, row in enumerate(GOOD_ROWS)]
    data = write_rows(tmp_path / "korean.jsonl", rows)
    monkeypatch.setattr("bertkit.modeling.loading.choose_default_model", lambda: str(tiny))
    assert_refused(cli, tmp_path, ["--data", data], ["does not know 100% of the pieces", "--model"])
    status, _, err = cli("classify", "--data", data, "--model", tiny, "--max-steps", 1)
    assert (status, "warning:" in err) == (0, True)


def test_an_overwrite_that_fails_puts_the_old_run_back(cli, tiny, toy, tmp_path):
    run = tmp_path / "run"
    args = ["--data", toy, "--model", tiny, "--output-dir", run, "--batch-size", 8]
    assert cli("classify", *args, "--max-steps", 1)[0] == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    args += ["--overwrite", "--lr", "1e30", "--warmup", 0]
    assert_refused(cli, tmp_path, args, ["--learning-rate"])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_every_training_text_also_evaluated_on(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--validation", toy, "--model", tiny]
    assert_refused(cli, tmp_path, args, ["every training text is also evaluated on", "--validation"])


@pytest.mark.parametrize("value", ["adam_beta2=abc", "label_smoothing_factor=0.5", "optim_args=x"])
def test_values_of_set_are_refused_before_anything_is_written(cli, tiny, toy, tmp_path, value):
    assert_refused(
        cli, tmp_path, ["--data", toy, "--model", tiny, "--set", value], ["--set", value.split("=")[0]]
    )


def test_optimizers_that_are_not_installed(cli, tiny, toy, tmp_path):
    assert_refused(
        cli, tmp_path, ["--data", toy, "--model", tiny, "--optim", "galore_adamw"], ["--optim galore_adamw"]
    )

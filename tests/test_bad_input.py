"""Errors that the user can fix: one line with the problem and the fix, exit status 2, nothing written."""

import gzip
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from conftest import assert_refused, make_toy_rows, save_tiny_model, write_rows

from bertkit.errors import UserError
from bertkit.run.predictor import Predictor
from bertkit.tasks import task_class

GOOD_ROWS = make_toy_rows(60)
Disk = namedtuple("Disk", "total used free")


def with_row(change, at=7):
    """Return the good rows with one row changed."""
    return [{**row, **change} if n == at else row for n, row in enumerate(GOOD_ROWS)]


def to_csv(rows):
    return "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows)


# name: (content of data.csv, further arguments, words of the error line)
FILES = {
    "empty file": (b"", [], ["data.csv", "empty", "pass another file"]),
    "missing column": (to_csv(GOOD_ROWS), ["--text-column", "txt"],
                       ["txt", "did you mean 'text'", "--text-column"]),
    "label as text": (to_csv(GOOD_ROWS), ["--text-column", "label", "--label-column", "label"],
                      ["--text-column label: is already the column of --label-column"]),
    "no text column": ("a,label\nx,y\nz,w\n", [], ["looks like the text", "--text-column", "a, label"]),
    "no label column": ("text,b\nx,y\nz,w\n", [], ["looks like the label", "--label-column", "text, b"]),
    "neither text nor label column": (
        "a,b\nx,y\nz,w\n", [], ["looks like the text or the label (it has a, b)",
        "name them with --text-column and --label-column"],
    ),
    "one class only": ("text,label\nx,y\nz,y\n", [], ["only the class 'y'", "at least two"]),
    "no labels": ("text,label\nx,\nz,\n", [], ["no labels"]),
    "a label missing": (to_csv(with_row({"label": ""})), [], ["row 8", "no label"]),
    "a non-number in regression": (
        to_csv([{**row, "label": "three" if n == 4 else n / 7} for n, row in enumerate(GOOD_ROWS)]),
        ["--problem", "regression"], ["row 5", "'three'", "not a number"],
    ),
    "a broken CSV row": (
        to_csv(GOOD_ROWS) + "a,b,c\n", [], ["row 61", "expected 2 fields (text, label), found 3"],
    ),
    "an unclosed quote": (to_csv(GOOD_ROWS) + '"a,b\n', [], ["row 61", "broken CSV", "a quote in it twice"]),
    "lines that end in CR": ("text,label\ra,b\rc,d\r", [], ["end in CR only", "tr '\\r' '\\n'"]),
    "a broken JSON row": (json.dumps(GOOD_ROWS[0]) + "\n{broken\n", [], ["row 2", "broken JSON"]),
    "a text that is a number": (json.dumps(with_row({"text": 5})), [], ["row 8", "holds 5, not a text"]),
    "a text missing": (json.dumps(with_row({"text": None})), [], ["row 8", "has no text"]),
    "binary rubbish": (bytes(range(256)) * 20, [], ["data.csv", "not a text file"]),
    "not utf-8": ("text,label\ncaf\xe9,x\n".encode("latin1"), [], ["not UTF-8", 'cp1252: "café,x"']),
    "a truncated gzip": (gzip.compress(to_csv(GOOD_ROWS).encode())[:-20], [], ["data.csv", "cannot be read"]),
    "too few rows": ("text,label\nx,y\nz,w\n", [], ["2 rows", "too few", "--validation"]),
    "too many labels": (to_csv([{**r, "label": n} for n, r in enumerate(GOOD_ROWS)]),
                              ["--problem", "multi-class"], ["60 different labels", "--label-column"]),
    "unknown positive label": (to_csv(GOOD_ROWS), ["--positive-label", "nice"],
                               ["--positive-label", "negative, positive"]),
    "max-length beyond the positions": (to_csv(GOOD_ROWS), ["--max-length", 129],
                                        ["--max-length 129", "128 positions"]),
    "fp16 with no accelerator": (to_csv(GOOD_ROWS), ["--fp16", "--device", "cpu"], ["--fp16", "GPU"]),
    "fp16 and bf16": (to_csv(GOOD_ROWS), ["--fp16", "--bf16"], ["--fp16 and --bf16"]),
    "freeze too many": (to_csv(GOOD_ROWS), ["--freeze", 9], ["--freeze 9", "2 layers"]),
    "smoothed regression": (to_csv([{**r, "label": n + 0.5} for n, r in enumerate(GOOD_ROWS)]),
                            ["--label-smoothing", 0.1], ["--label-smoothing", "no classes"]),
    "set without value": (to_csv(GOOD_ROWS), ["--set", "adam_beta1"], ["--set adam_beta1", "KEY=VALUE"]),
    "set without key": (to_csv(GOOD_ROWS), ["--set", "=1"],
                        ["--set : TrainingArguments has no such field; omit it"]),
    "set a field with a flag": (to_csv(GOOD_ROWS), ["--set", "learning_rate=1"],
                           ["learning_rate", "--learning-rate"]),
    "set a field that bertkit sets": (to_csv(GOOD_ROWS), ["--set", "save_strategy=no"],
                         ["save_strategy", "by bertkit"]),
    "set an unknown field": (to_csv(GOOD_ROWS), ["--set", "adam_beta=1"],
                        ["adam_beta", "did you mean 'adam_beta"]),
    "set to a text instead of a number": (to_csv(GOOD_ROWS), ["--set", "max_grad_norm=abc"],
        ["--set max_grad_norm: expected a number, found 'abc'"]),
    "set to a fraction instead of an integer": (to_csv(GOOD_ROWS), ["--set", "dataloader_num_workers=1.5"],
        ["--set dataloader_num_workers: expected an integer, found 1.5"]),
    "set to a number instead of a boolean": (to_csv(GOOD_ROWS), ["--set", "use_cache=2"],
        ["--set use_cache: expected true or false, found 2"]),
    "set to a wrong value": (to_csv(GOOD_ROWS), ["--set", "optim_target_modules=[1", "--epochs", 1],
                             ["--set optim_target_modules"]),
    "unknown scheduler": (to_csv(GOOD_ROWS), ["--lr-scheduler", "liner"], ["liner"]),
    "number out of bounds": (to_csv(GOOD_ROWS), ["--batch-size", 0], ["--batch-size", "at least 1"]),
    "misspelled flag": (to_csv(GOOD_ROWS), ["--epoch", 3], ["--epoch", "--epochs"]),
    "word for a number": (to_csv(GOOD_ROWS), ["--epochs", "three"], ["--epochs"]),
    "unknown choice": (to_csv(GOOD_ROWS), ["--long-texts", "middle"], ["--long-texts", "head+tail"]),
    "resume without a run": (to_csv(GOOD_ROWS), ["--resume"], ["--resume", "does not contain a run"]),
    "unknown recipe": (to_csv(GOOD_ROWS), ["--recipe", "imbd"], ["imbd", "did you mean 'imdb'"]),
    "missing validation file": (to_csv(GOOD_ROWS), ["--validation", "no.csv"],
                                    ["no.csv", "no such file"]),
    "unknown model": (to_csv(GOOD_ROWS), ["--model", "./nowhere"], ["--model ./nowhere", "does not exist"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_bad_data_and_flags_are_reported_in_one_line(cli, tiny, tmp_path, name):
    content, args, words = FILES[name]
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    model = [] if "--model" in args else ["--model", tiny]
    assert_refused(cli, tmp_path, ["--data", path, *model, "--output-dir", tmp_path / "run", *args], words)


@pytest.mark.slow
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
def test_pipes_and_devices_are_named_as_such(cli, tmp_path, typed):
    os.mkfifo(tmp_path / "pipe")
    command, *args = typed.split()
    for path, kind in ((tmp_path / "pipe", "a pipe"), ("/dev/null", "a device")):
        words = [f"{path}: is {kind}, not a file; write its content to a file"]
        assert_refused(cli, tmp_path, [*args, path], words, command)


def test_missing_data_flag_is_reported(cli, tmp_path):
    assert_refused(cli, tmp_path, [], ["--data: is required"])


def test_empty_values_are_not_the_current_directory(cli, toy, tmp_path):
    assert_refused(cli, tmp_path, ["--data", ""], ["bertkit: --data: is empty"])
    assert_refused(cli, tmp_path, ["--data", toy, "--model", ""], ["bertkit: --model: is empty"])


def test_sampled_rows_with_one_label_are_refused(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--model", tiny, "--max-train-samples", 1]
    assert_refused(cli, tmp_path, args, ["only one label in the 1 row to train on"])


def test_a_value_of_set_that_trainer_refuses_is_reported(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", "--set", "fsdp=full_shard"]
    assert_refused(cli, tmp_path, args, ["fsdp"])


USAGE_ERRORS = {  # command line: words of the error line
    "qa --squad v3": ["bertkit: --squad: 'v3' is not one of v1, v2"],
    "export run --quantize int4": ["bertkit: --quantize: 'int4'", "did you mean 'int8'"],
    "ablation --table foo": ["bertkit: --table: 'foo' is not one of objectives, sizes"],
    "classify --data sample --text-column": ["bertkit: --text-column: is empty"],
    "check classify --data sample --text-column": ["bertkit: --text-column: is empty"],
    "train-tokenizer --data": ["bertkit: --data: is empty"],
    "export": ["bertkit: RUN: is empty"],
    "classify --recipe": ["--recipe '': is neither a file nor"],
    "classify --tokens-per-batch 1e3": ["bertkit: --tokens-per-batch: '1e3' is not a whole number"],
    "classify --data imdb --output-dir ./imdb": [
        "imdb: is also the value of --data; choose another directory"
    ],
    "qa --squad v2 --output-dir squad_v2": [
        "--output-dir squad_v2: is also the value of --data; choose another"
    ],
    "classify --data sample --lr nan": [
        "bertkit: --learning-rate",
        "out of bounds; it must be finite and at least 0",
    ],
    "check clasify": ["bertkit check clasify: no such command; did you mean 'classify'", "nli", "swag"],
    "trian": ["bertkit trian: no such command", "classify", "export"],
    "calibrate run --nproc 2": [
        "bertkit: --nproc: no such option of bertkit calibrate; it is a flag of classify"
    ],
    "classify --epoch 3": ["bertkit: --epoch: no such option of bertkit classify; did you mean '--epochs'?"],
    "recipes ls --foo": ["bertkit: --foo: no such option of bertkit recipes ls"],
    "serve": ["bertkit: bertkit serve: missing argument 'RUN'; see bertkit serve --help"],
    "classify imdb": [
        "bertkit: bertkit classify: got unexpected extra argument",
        "; see bertkit classify --help",
    ],
    "recipes cp imdb": ["bertkit: FILE: is empty", "pass a file"],
    "export nosuch": [
        "nosuch: is not a finished run (the directory does not exist)",
        "runs/classify-imdb-minilm",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("typed", USAGE_ERRORS)
def test_usage_errors_name_the_argument_as_typed(cli, tmp_path, typed):
    words = typed.split()
    empty = [""] if any("empty" in word or "''" in word for word in USAGE_ERRORS[typed]) else []
    line = assert_refused(cli, tmp_path, [*words[1:], *empty], USAGE_ERRORS[typed], words[0])
    assert "Value error" not in line


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("no/such/file.csv", ["no/such/file.csv", "no such file"]),
        ("imbd", ["imbd", "did you mean 'imdb'", "bertkit data ls"]),
        ("xyzzy", ["neither a file nor a known dataset"]),
    ],
)
def test_unknown_data_is_reported_with_a_suggestion(cli, tmp_path, data, words):
    assert_refused(cli, tmp_path, ["--data", data], words)


def test_a_validation_label_that_training_lacks_is_reported(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "train.jsonl", GOOD_ROWS)
    more = write_rows(tmp_path / "dev.jsonl", [{"text": "new", "label": "positiv"}])
    words = ["dev.jsonl: row 1", "'positiv'", "did you mean 'positive'"]
    assert_refused(cli, tmp_path, ["--data", data, "--validation", more, "--model", tiny], words)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("classify", ["--data", "~no-such-user/rows.csv"]),
        ("classify", ["--data", "sample", "--model", "~no-such-user/model"]),
        ("classify", ["--recipe", "~no-such-user/recipe.yaml"]),
        ("classify", ["--data", "sst2", "--data-dir", "~no-such-user/data"]),
        ("serve", ["~no-such-user/run"]),
        ("report", ["~no-such-user/run"]),
        ("export", ["~no-such-user/run"]),
        ("distill", ["~no-such-user/run", "--num-layers", 1]),
    ],
)
def test_the_home_directory_of_an_unknown_user_is_reported(cli, tmp_path, command, args):
    if command == "serve":
        pytest.importorskip("starlette")
    assert_refused(cli, tmp_path, args, ["~no-such-user/"], command)


def test_folders_without_training_files_are_reported(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(cli, tmp_path, ["--data", tmp_path / "empty"], ["no data files"])
    write_rows(tmp_path / "part" / "test.jsonl", GOOD_ROWS)
    assert_refused(cli, tmp_path, ["--data", tmp_path / "part"], ["no training file", "test.jsonl"])


def test_a_missing_data_directory_is_reported(cli, tmp_path, monkeypatch):
    assert_refused(
        cli,
        tmp_path,
        ["--data", "sst2", "--data-dir", "nowhere"],
        ["--data-dir nowhere", "is not a directory"],
    )
    monkeypatch.setenv("BERTKIT_DATA_DIR", "elsewhere")
    assert_refused(cli, tmp_path, ["--data", "sst2"], ["BERTKIT_DATA_DIR elsewhere"])


RECIPES = {
    "misspelled key": ("settings: {epoch: 3}", ["unknown setting 'epoch'", "did you mean 'epochs'"]),
    "wrong type": ("settings: {epochs: many}", ["epochs", "'many' is not a number"]),
    "a bool for a number": ("settings: {batch_size: true}", ["batch_size", "not a whole number"]),
    "out of bounds": ("settings: {batch_size: 0}", ["batch_size", "at least 1"]),
    "wrong choice": ("settings: {long_texts: middle}", ["long_texts", "one of head, tail"]),
    "no settings": ("epochs: 3", ["'task' and 'settings'"]),
    "unknown top-level key": ("settings: {}\nsetings: {}", ["unknown key 'setings'"]),
    "another task": ("task: nli\nsettings: {}", ["a recipe for nli"]),
    "not yaml": ("settings: {a", ["cannot parse it as YAML", "recipes show imdb"]),
    "empty key": (":", ["is not a recipe", "recipes show imdb"]),
    "number of processes": ("settings: {nproc: 2}", ["nproc", "is not a setting of recipes", "--nproc"]),
    "not a mapping": ("a, b", ["is not a recipe", "recipes show imdb"]),
    "invalid date": ("settings: {data: 2026-99-99}", ["cannot parse it as YAML", "recipes show imdb"]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_errors_in_recipes_are_reported(cli, tmp_path, name):
    content, words = RECIPES[name]
    path = tmp_path / "my.yaml"
    path.write_text(content)
    assert_refused(cli, tmp_path, ["--recipe", path, "--data", "sample"], ["my.yaml", *words])


def test_unknown_settings_from_python_are_reported():
    import bertkit

    with pytest.raises(bertkit.UserError, match=r"classify\(\): unknown setting 'learning'"):
        bertkit.classify(data="sample", learning=3)


@pytest.mark.parametrize(
    ("task", "column"),
    {"classify": "text", "nli": "premise", "ner": "token", "qa": "question", "swag": "context"}.items(),
)
def test_predicting_rows_without_the_needed_columns_is_an_error(task, column):
    task_type = task_class(task)
    fitted = task_type(task_type.definition.config(data="sample"))
    fitted.parse_dataset(fitted.load_data())
    for rows in ([{}], [{}, {}], [{"label": "kept from it"}]):
        with pytest.raises(UserError, match=rf"^rows: .*column .*\b{column}\b"):
            list(Predictor(fitted, None, None).predict(rows))
    assert list(Predictor(fitted, None, None).predict([])) == []


@pytest.mark.slow
def test_unusable_models_are_reported(cli, toy, tmp_path, tiny):
    def break_model(name, change):
        shutil.copytree(tiny, tmp_path / name)
        change(tmp_path / name)
        return ["--data", toy, "--model", tmp_path / name]

    assert_refused(
        cli, tmp_path, break_model("a", lambda f: (f / "config.json").unlink()), ["not a model folder"]
    )
    assert_refused(
        cli,
        tmp_path,
        break_model("b", lambda f: (f / "model.safetensors").unlink()),
        ["no weights", "*.safetensors"],
    )
    assert_refused(
        cli,
        tmp_path,
        break_model("c", lambda f: (f / "config.json").write_text('{"model_type": "x"}')),
        ["config.json"],
    )
    assert_refused(
        cli, tmp_path, break_model("d", lambda f: (f / "tokenizer.json").write_text("{}")), ["tokenizer"]
    )
    assert_refused(
        cli, tmp_path, break_model("e", lambda f: (f / "model.safetensors").write_bytes(b"no")), ["weights"]
    )


@pytest.mark.slow
def test_unusable_output_directories_are_reported(cli, tiny, toy, tmp_path, monkeypatch):
    args = ["--data", toy, "--model", tiny, "--output-dir"]
    (tmp_path / "file").write_text("x")
    assert_refused(cli, tmp_path, [*args, tmp_path / "file"], ["is a file"])
    assert_refused(cli, tmp_path, [*args, tmp_path / "file" / "run"], ["is not writable"])
    assert_refused(cli, tmp_path, [*args, tmp_path / "n" / ("x" * 300)], ["cannot be created", "too long"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert_refused(
        cli, tmp_path, [*args, tmp_path / "mine", "--overwrite"], ["files that are not part of a run"]
    )
    monkeypatch.setattr("os.access", lambda *_: False)
    assert_refused(cli, tmp_path, [*args, tmp_path / "run"], ["is not writable"])


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="/proc does not exist")
@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_an_output_directory_that_cannot_be_created_is_reported(cli, tiny, toy, tmp_path, flags):
    args = ["--data", toy, "--model", tiny, "--output-dir", "/proc/x", *flags]
    assert_refused(cli, tmp_path, args, ["/proc/x: cannot be created", "choose another directory"])


@pytest.mark.slow
def test_validation_fraction_with_validation_rows_is_reported(cli, tiny, toy, tmp_path):
    dev = write_rows(tmp_path / "dev.jsonl", make_toy_rows(20, seed=1))
    args = ["--model", tiny, "--validation-fraction", 0.2, "--output-dir", tmp_path / "run"]
    both = [*args, "--data", toy, "--validation", dev]
    assert_refused(cli, tmp_path, both, ["--validation-fraction", "--validation", "omit one"])
    own = write_rows(tmp_path / "folder" / "dev.jsonl", make_toy_rows(20, seed=1)).parent
    shutil.copy(toy, own / "train.jsonl")
    status, _, err = cli("classify", *args, "--data", own, "--dry-run")
    assert (status, "--validation-fraction has no effect" in err) == (0, True)


@pytest.mark.slow
def test_overwrite_is_needed_to_replace_a_run_and_keeps_other_files(cli, runs, tiny, toy, tmp_path):
    run = shutil.copytree(runs / "classify", tmp_path / "run")
    args = ["--data", toy, "--model", tiny, "--output-dir", run, "--max-steps", 1]
    (run / "notes.txt").write_text("mine")
    assert_refused(cli, tmp_path, args, ["contains a run", "--overwrite", "--resume"])
    assert cli("classify", *args, "--overwrite")[0] == 0
    assert (run / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_an_overwrite_with_a_bad_flag_keeps_the_old_run(cli, runs, tiny, toy, tmp_path):
    run = shutil.copytree(runs / "classify", tmp_path / "run")
    args = ["--data", toy, "--model", tiny, "--output-dir", run, "--max-steps", 1]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert_refused(cli, tmp_path, [*args, "--overwrite", "--max-length", 999], ["--max-length"])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_disk_with_too_little_space_is_reported(cli, tiny, toy, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(10, 9, 1))
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["0 MB are free", "another disk"])


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_checkpoint_is_reported(cli, tiny, toy, tmp_path, monkeypatch):
    import torch

    def raise_disk_full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", raise_disk_full)
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(
        cli, tmp_path, args, ["No space left", "start again: there is no earlier checkpoint", "step 5"]
    )


@pytest.mark.slow
def test_a_nan_loss_is_reported(cli, toy, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    folder = save_tiny_model(tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    args = ["--data", toy, "--model", folder, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["loss is nan at step 1", "--learning-rate"])


@pytest.mark.slow
def test_texts_in_a_script_that_the_vocabulary_lacks_are_reported(cli, tiny, tmp_path, monkeypatch):
    rows = [{**row, "text": "한국어 " * (n + 3)} for n, row in enumerate(GOOD_ROWS)]
    data = write_rows(tmp_path / "korean.jsonl", rows)
    monkeypatch.setattr("bertkit.models.loading.choose_default_model", lambda: str(tiny))
    assert_refused(
        cli, tmp_path, ["--data", data], ["100% of the tokens of these texts are [UNK]", "--model"]
    )
    status, _, err = cli("classify", "--data", data, "--model", tiny, "--max-steps", 1)
    assert (status, "warning:" in err) == (0, True)


@pytest.mark.slow
def test_a_failed_overwrite_restores_the_old_run(cli, runs, tiny, toy, tmp_path):
    run = shutil.copytree(runs / "classify", tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    args = ["--data", toy, "--model", tiny, "--output-dir", run, "--batch-size", 8]
    args += ["--overwrite", "--lr", "1e30", "--warmup", 0]
    assert_refused(cli, tmp_path, args, ["--learning-rate"])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_validation_on_the_training_texts_is_reported(cli, tiny, toy, tmp_path):
    args = ["--data", toy, "--validation", toy, "--model", tiny]
    assert_refused(cli, tmp_path, args, ["every training row is also in an evaluation split", "--validation"])


@pytest.mark.parametrize("value", ["adam_beta2=abc", "label_smoothing_factor=0.5", "optim_args=x"])
def test_bad_values_of_set_are_reported_before_anything_is_written(cli, tiny, toy, tmp_path, value):
    assert_refused(
        cli, tmp_path, ["--data", toy, "--model", tiny, "--set", value], ["--set", value.split("=")[0]]
    )


def test_an_optimizer_that_is_not_installed_is_reported(cli, tiny, toy, tmp_path):
    assert_refused(
        cli, tmp_path, ["--data", toy, "--model", tiny, "--optim", "galore_adamw"], ["--optim galore_adamw"]
    )


ARGUMENTS_AFTER_RUN = {
    "predict": ["--text", "a good film"],
    "evaluate": [],
    "calibrate": [],
    "export": [],
    "distill": ["--num-layers", 1],
    "embed": ["--text", "a good film", "--output", "a.npy"],
}


@pytest.mark.slow
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    ("task", "command"),
    [*(("classify", command) for command in ARGUMENTS_AFTER_RUN), ("pretrain-mlm-nsp", "evaluate")],
)
def test_errors_about_the_model_of_a_run_name_the_run(runs, cli, tmp_path, monkeypatch, task, command, file):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(runs / task, tmp_path / "run")
    (run / file).write_text("{}")
    line = assert_refused(cli, tmp_path, [run, *ARGUMENTS_AFTER_RUN[command]], [], command)
    assert line.startswith("bertkit: MODEL run: " if command == "embed" else f"bertkit: {run}: ")
    assert "--model" not in line


def test_a_model_with_a_typing_error_is_suggested(cli, tmp_path, no_hub, toy):
    assert_refused(cli, tmp_path, ["--data", toy, "--model", "minlm"], ["minlm", "did you mean 'minilm'?"])

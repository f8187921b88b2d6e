"""`bertkit predict` predicts new rows as training predicted the validation rows, in every format."""

import csv
import io
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
from conftest import ROW_MAKERS, assert_refused, read_predictions, slow_fixture, write_rows

import bertkit
from bertkit.api import load
from bertkit.commands import inputs, predict
from bertkit.data.readers.formats import stream_rows
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.run.predictor import align_chunks_to_groups
from bertkit.tasks.base import InputSchema
from bertkit.utils import system, worker_processes

GOLD = {"classify": "label", "nli": "label", "ner": "tags", "qa": "answers", "swag": "label"}


def pipe(monkeypatch, text):
    raw = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


def close(found, wanted):
    """Return whether values are equal up to float rounding, which depends on the batch."""
    if isinstance(wanted, dict):
        return set(found) == set(wanted) and all(close(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return found == (pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else wanted)


def get_text(row):
    return next(str(row[name]) for name in ("context", "premise", "tokens", "text") if name in row)


@pytest.mark.parametrize("task", ROW_MAKERS)
def test_predictions_match_predictions_jsonl(runs, cli, tmp_path, task):
    expected = read_predictions(runs / task)
    rows = map(json.loads, (runs / f"{task}.jsonl").read_text("utf-8").splitlines())
    by_text = {get_text(row): row for row in rows}
    kept = [by_text[get_text(record)] for record in expected]
    data = write_rows(tmp_path / "new.jsonl", kept)
    status, out, err = cli("predict", runs / task, "--data", data, "--all-scores")
    assert (status, len(lines(out))) == (0, len(expected)), err
    for found, wanted, row in zip(lines(out), expected, kept, strict=True):
        for key in set(wanted) - {"gold", "id", *row}:
            assert close(found[key], wanted[key]), key
        assert "gold" not in found
        assert task == "qa" or found[GOLD[task]] == row[GOLD[task]]  # an input column like any other


def test_input_columns_are_kept_in_order_and_clashing_names_get_a_prefix(runs, cli, tmp_path):
    rows = [{"text": f"{word} film", "id": "x", "predicted": 1, "n": n} for n, word in enumerate("abc")]
    _, out, _ = cli("predict", runs / "classify", "--data", write_rows(tmp_path / "new.jsonl", rows))
    found = lines(out)
    assert [row["n"] for row in found] == [0, 1, 2]
    assert [(row["id"], row["input_id"], row["input_predicted"]) for row in found] == [
        (0, "x", 1), (1, "x", 1), (2, "x", 1),
    ]  # fmt: skip


@pytest.mark.slow
def test_only_the_predicted_label_has_a_probability_without_all_scores(runs, cli):
    _, out, _ = cli("predict", runs / "classify", "--text", "a good film")
    [record] = lines(out)
    assert list(record["probabilities"]) == [record["predicted"]]
    _, out, _ = cli("predict", runs / "classify", "--text", "a good film", "--all-scores")
    assert sum(lines(out)[0]["probabilities"].values()) == pytest.approx(1)


INPUTS = {
    "classify": (["--text", "a good film"], "a good film"),
    "nli": (["--text", "a film", "--text-pair", "it was good"], "a film\tit was good"),
    "ner": (["--text", "we saw warm food"], "we saw warm food"),
    "qa": (["--question", "was it good", "--context", "the food was warm"], "was it good\tthe food was warm"),
    "swag": (["--context", "a film", "--ending", "good", "--ending", "bad"], "a film\tgood\tbad"),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_flags_lines_and_json_objects_give_equal_predictions(runs, cli, monkeypatch, task):
    flags, line = INPUTS[task]
    status, by_flag, err = cli("predict", runs / task, *flags)
    assert status == 0, err
    pipe(monkeypatch, f"{line}\n")
    _, by_line, _ = cli("predict", runs / task)
    assert by_line == by_flag
    names = ("text", "premise", "hypothesis", "question", "context", "endings")
    inputs = {name: value for name, value in lines(by_flag)[0].items() if name in names}
    pipe(monkeypatch, json.dumps(inputs) + "\n")
    _, by_object, _ = cli("predict", runs / task)
    assert by_object == by_flag


def test_one_context_is_used_for_all_questions(runs, cli):
    flags = ["--question", "was it good", "--question", "was it warm", "--context", "the food was warm"]
    _, out, _ = cli("predict", runs / "qa", *flags)
    assert [row["context"] for row in lines(out)] == ["the food was warm"] * 2


def test_answers_are_at_their_offsets(runs, cli):
    _, out, _ = cli("predict", runs / "qa", "--data", runs / "qa.jsonl", "--all-scores")
    for row in lines(out):
        assert not row["answer"] or row["context"][row["start"] : row["end"]] == row["answer"]
        assert sum(entry["probability"] for entry in row["nbest"]) == pytest.approx(1)


def test_output_as_csv(runs, cli, tmp_path):
    file = tmp_path / "out.csv"
    status, out, err = cli("predict", runs / "classify", "--data", runs / "classify.jsonl", "-o", file)
    assert (status, out) == (0, ""), err
    rows = list(csv.DictReader(file.read_text("utf-8").splitlines()))
    assert list(rows[0]) == ["id", "text", "label", "predicted", "probability"]
    assert len(rows) == 60
    assert "60 predictions" in err


def test_output_as_conll(runs, cli, tmp_path):
    file = tmp_path / "out.conll"
    cli("predict", runs / "ner", "--data", runs / "ner.jsonl", "-o", file)
    sentences = [some.split("\n") for some in file.read_text("utf-8").strip().split("\n\n")]
    rows = map(json.loads, (runs / "ner.jsonl").read_text("utf-8").splitlines())
    wanted = [row["predicted"] for row in load(runs / "ner").predict(rows)]
    assert [[line.split("\t")[-1] for line in some] for some in sentences] == wanted


@pytest.mark.slow
def test_output_as_one_json_object(runs, cli, tmp_path):
    _, out, _ = cli("predict", runs / "classify", "--text", "good", "--json")
    assert json.loads(out)["predictions"][0]["text"] == "good"
    file = tmp_path / "out.jsonl"
    _, out, _ = cli("predict", runs / "classify", "--text", "good", "--json", "-o", file)
    assert json.loads(out) == {"output": str(file), "rows": 1}


@pytest.mark.slow
def test_streamed_rows_give_the_predictions_of_rows_loaded_at_once(runs, cli, monkeypatch):
    _, at_once, _ = cli("predict", runs / "classify", "--data", runs / "classify.jsonl")
    monkeypatch.setattr(
        "bertkit.commands.inputs.stream_rows",
        lambda path, _: stream_rows(path, chunk_size=7, stream_above_bytes=0),
    )
    _, streamed, _ = cli("predict", runs / "classify", "--data", runs / "classify.jsonl")
    assert close(lines(streamed), lines(at_once))
    assert [row["id"] for row in lines(streamed)] == list(range(60))


# ---- in several processes


@pytest.fixture
def in_chunks(monkeypatch):
    """Read files in chunks of 8 rows, and let two processes run on every machine."""
    monkeypatch.setattr(inputs, "stream_rows", partial(stream_rows, chunk_size=8, stream_above_bytes=0))
    monkeypatch.setattr(system, "count_cores", lambda: 2)


@slow_fixture
def linear(tmp_path_factory):
    """A linear model of texts, and 60 rows: worker processes load it without torch."""
    folder = tmp_path_factory.mktemp("linear")
    data = write_rows(folder / "rows.jsonl", ROW_MAKERS["classify"](60))
    bertkit.classify(data=data, method="tfidf", output_dir=folder / "run")
    return folder / "run", data


@pytest.mark.parametrize("flags", [["--all-scores"], ["--format", "csv"], ["--json"]])
def test_two_processes_write_what_one_writes(linear, cli, in_chunks, flags):
    args = ["predict", linear[0], "--data", linear[1], *flags]
    expected = cli(*args)
    assert (expected[0], len(expected[1]) > 0) == (0, True)
    assert cli(*args, "--nproc", 2) == expected
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_two_processes_with_an_encoder_write_the_tags_and_the_messages_of_one(runs, cli, in_chunks):
    args = ["predict", runs / "ner", "--data", runs / "ner.jsonl", "--format", "conll"]
    expected = cli(*args)
    assert cli(*args, "--nproc", 2) == expected


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize(
    ("stop", "status", "words"),
    [(lambda: multiprocessing.active_children()[0].kill(), 2, "--nproc: a worker process was killed"),
     (lambda: os.kill(os.getpid(), signal.SIGTERM), 130, "interrupted")],
    ids=["a killed process", "a signal"],
)  # fmt: skip
def test_a_killed_process_or_a_signal_leaves_neither_files_nor_processes(
    linear, cli, in_chunks, tmp_path, monkeypatch, stop, status, words
):
    read = inputs.stream_rows
    monkeypatch.setattr(inputs, "stream_rows", lambda *args: itertools.cycle(list(read(*args))))

    def wait_and_stop():
        while not any(path.stat().st_size for path in tmp_path.rglob("p.jsonl")):
            time.sleep(0.02)
        stop()

    thread = threading.Thread(target=wait_and_stop, daemon=True)
    thread.start()
    args = ["predict", linear[0], "--data", linear[1], "--nproc", 2]
    found, _, err = cli(*args, "-o", tmp_path / "p.jsonl")
    thread.join()
    lines = [line for line in err.splitlines() if line.startswith("bertkit:")]
    assert (found, len(lines), words in lines[0]) == (status, 1, True), err
    assert (list(tmp_path.rglob("*")), multiprocessing.active_children()) == ([], [])


def test_a_pattern_predicts_each_file_and_resume_leaves_out_what_is_done(linear, cli, tmp_path):
    rows = linear[1].read_text("utf-8").splitlines(keepends=True)
    for number in range(3):
        (tmp_path / f"rows-{number}.jsonl").write_text("".join(rows[number::3]), "utf-8")
    out, args = tmp_path / "out", ["predict", linear[0], "--data", tmp_path / "rows-*.jsonl"]
    (tmp_path / "rows-1.jsonl").write_text("{broken\n", "utf-8")
    assert cli(*args, "-o", out)[0] == 2
    assert sorted(path.name for path in out.iterdir()) == ["predicted-with.json", "rows-0.jsonl"]
    done = (out / "rows-0.jsonl").stat().st_mtime_ns
    (tmp_path / "rows-1.jsonl").write_text("".join(rows[1::3]), "utf-8")
    assert_refused(cli, tmp_path, [*args[1:], "-o", out], ["--output", "pass --resume"], "predict")
    more = [*args[1:], "-o", out, "--resume", "--all-scores"]
    assert_refused(cli, tmp_path, more, ["other settings"], "predict")
    status, _, err = cli(*args, "-o", out, "--resume")
    assert status == 0, err
    assert (out / "rows-0.jsonl").stat().st_mtime_ns == done
    for number in range(3):
        expected = cli(*args[:3], tmp_path / f"rows-{number}.jsonl")[1]
        assert (out / f"rows-{number}.jsonl").read_text("utf-8") == expected


def test_predictions_of_other_settings_rows_or_models_are_never_mixed(linear, cli, tmp_path):
    folder, out, run = tmp_path / "rows", tmp_path / "out", tmp_path / "run"
    shutil.copytree(linear[0], run)
    folder.mkdir()
    rows = linear[1].read_text("utf-8").splitlines(keepends=True)
    for number in range(2):
        (folder / f"{number}.jsonl").write_text(rows[number], "utf-8")
    args = [run, "--data", folder / "*.jsonl", "-o", out]
    assert cli("predict", *args)[0] == 0
    (folder / "1.jsonl").write_text("{broken\n", "utf-8")
    assert cli("predict", *args, "--overwrite", "--all-scores")[0] == 2
    (folder / "1.jsonl").write_text(rows[1], "utf-8")
    assert cli("predict", *args, "--resume", "--all-scores", "--format", "jsonl")[0] == 0
    records = [json.loads((out / f"{number}.jsonl").read_text("utf-8")) for number in range(2)]
    assert [len(record["probabilities"]) for record in records] == [2, 2]
    args += ["--resume", "--all-scores"]
    (folder / "0.jsonl").write_text(rows[2] * 2, "utf-8")
    assert_refused(cli, tmp_path, args, ["0.jsonl has predictions of other rows"], "predict")
    (run / "calibration.json").write_text("{}", "utf-8")
    assert_refused(cli, tmp_path, args, ["predictions of another model"], "predict")
    (out / "predicted-with.json").write_text("[]", "utf-8")
    assert_refused(cli, tmp_path, args, ["predicted-with.json", "is damaged"], "predict")
    (out / "predicted-with.json").unlink()
    assert_refused(cli, tmp_path, args, ["no predicted-with.json; pass another directory"], "predict")


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--data", "no-*.csv", "-o", "out"], ["matches no file"]),
     (["--data", "a.csv", "--resume"], ["--resume: applies only to several files"]),
     (["--data", "*.jsonl"], ["pass a directory with --output"]),
     (["--data", "*.jsonl", "-o", ".", "--overwrite"], ["--output .: has the rows of --data"]),
     (["--data", "*.jsonl", "-o", "out", "--overwrite", "--resume"], ["--resume: cannot be combined"]),
     (["--data", "*.jsonl", "-o", "out", "--format", "conll"], ["does not tag words"]),
     (["--data", "*.jsonl", "-o", "out", "--text", "x"], ["cannot be combined with --text"]),
     (["--data", "*.jsonl", "-o", "out", "--question-column", "q"], ["does not apply"]),
     (["--data", "*.jsonl", "-o", "out.csv"], ["--output out.csv: is the name of a file"]),
     (["--data", "b.*", "-o", "out"], ["b.csv, b.txt would all be written to out/b.jsonl"]),
     (["--data", "*.jsonl", "-o", "out"], ["a.jsonl: the file is empty"])],
)  # fmt: skip
def test_wrong_patterns_are_refused(runs, cli, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.csv", "b.txt"):
        (tmp_path / name).touch()
    assert_refused(cli, tmp_path, [runs / "classify", *flags], words, "predict")


def test_several_processes_are_refused_where_they_do_not_apply(runs, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(system, "count_cores", lambda: 2)
    monkeypatch.setattr(worker_processes, "count_gpus", lambda: 0)
    args = [runs / "classify", "--text", "one", "--nproc"]
    assert_refused(cli, tmp_path, [*args, 3], ["--nproc 3: this machine has 2 cores"], "predict")
    assert_refused(cli, tmp_path, [*args, 2, "--rank-for-labeling"], ["--rank-for-labeling"], "predict")


def test_a_process_that_cannot_start_ends_the_others(linear, monkeypatch):
    killed = []

    def start(modules, variables, initialize):
        if started:
            raise OSError("out of memory")
        started.append(0)
        return SimpleNamespace(kill=lambda: killed.append(0))

    started = []
    monkeypatch.setattr(predict, "WorkerProcess", start)
    monkeypatch.setattr(system, "count_cores", lambda: 2)
    with pytest.raises(OSError, match="out of memory"):
        list(bertkit.predict(linear[0], data=[{"text": "one"}], nproc=2))
    assert killed == [0]


def test_a_model_without_gpu_support_has_processes_for_the_cores(linear, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(system, "count_cores", lambda: 2)
    monkeypatch.setattr(worker_processes, "count_gpus", lambda: 1)
    run_predict = partial(bertkit.predict, data=[{"text": "one"}], nproc=2)
    run_predict(linear[0])
    with pytest.raises(UserError, match="this machine has 1 GPU"):
        run_predict(runs / "classify")


def test_documents_are_never_split_across_chunks():
    task = SimpleNamespace(input_schema=InputSchema(text_columns=("text",), group_columns=("document",)))
    names = ["a", "a", "a", "b", "c", "c"]
    parts = [Rows.from_columns({"document": names[at : at + 2]}, "f", at + 1) for at in range(0, 6, 2)]
    assert [part["document"] for part in align_chunks_to_groups(task, parts)] == [
        ["a", "a", "a"],
        ["b"],
        ["c", "c"],
    ]
    assert {part.files for part in align_chunks_to_groups(task, parts)} == {("f",)}


@pytest.mark.parametrize(
    ("task", "flags", "words"),
    [
        ("classify", [], ["standard input: contains no texts; pass --data", "--text"]),
        ("classify", ["--question", "x"], ["--question", "classify", "--text"]),
        ("nli", ["--text", "x"], ["--text-pair", "missing"]),
        ("qa", ["--question", "a", "--question", "b", "--question", "c", "--context", "d", "--context", "e"],
         ["3 of --question", "2 of --context"]),
        ("swag", ["--context", "a", "--ending", "b"], ["--ending", "2 or more"]),
        ("classify", ["--text", "x", "--data", "y"], ["--data y", "--text"]),
        ("classify", ["--data", "none.csv"], ["none.csv", "no such file"]),
        ("classify", ["--text", "x", "-o", "out.txt"], ["out.txt", ".jsonl"]),
        ("classify", ["--text", "x", "-o", "no/out.csv"], ["no/out.csv", "does not exist"]),
        (
            "classify",
            ["--text", "x", "--format", "conll", "-o", "out.jsonl"],
            ["conll", "does not tag words"],
        ),
    ],
)  # fmt: skip
def test_invalid_input_is_refused(runs, cli, tmp_path, monkeypatch, task, flags, words):
    monkeypatch.setattr("sys.stdin", None)
    assert_refused(cli, tmp_path, [runs / task, *flags], words, "predict")


def test_an_existing_file_is_replaced_only_with_overwrite(runs, cli, tmp_path):
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    assert_refused(cli, tmp_path, [runs / "classify", "--text", "x", "-o", file], ["--overwrite"], "predict")
    assert file.read_text() == "mine"
    assert cli("predict", runs / "classify", "--text", "x", "-o", file, "--overwrite")[0] == 0
    assert lines(file.read_text())[0]["text"] == "x"


def test_an_invalid_row_leaves_no_partial_file(runs, cli, tmp_path):
    data = write_rows(tmp_path / "new.jsonl", [{"text": "a"}, {"text": None}])
    words = ["new.jsonl: row 2", "has no text; fill in a text, or remove the row"]
    assert_refused(
        cli, tmp_path, [runs / "classify", "--data", data, "-o", tmp_path / "out.csv"], words, "predict"
    )


@pytest.mark.slow
def test_paths_may_begin_with_the_home_directory(runs, cli, tmp_path, monkeypatch):
    (tmp_path / "run").symlink_to(runs / "classify")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    [record] = load("~/run").predict([{"text": "very good"}])
    status, _, err = cli("predict", "~/run", "--text", "very good", "--output", "~/out.jsonl")
    assert status == 0, err
    assert read_predictions(tmp_path, "out.jsonl")[0]["predicted"] == record["predicted"]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs / "classify", tmp_path / "copy")
    status, _, err = cli("evaluate", "~/run", "--compare", "~/copy", "--output-dir", "~/scores")
    assert status == 3, err  # no difference
    assert (tmp_path / "scores" / "metrics.json").exists()
    assert not (tmp_path / "~").exists()


def test_a_directory_without_a_run_is_refused(cli, tmp_path):
    assert_refused(cli, tmp_path, [tmp_path, "--text", "x"], ["not a finished run"], "predict")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["standard input"]),
        (b"good\nb\xe9d\n", ["standard input: line 2", "UTF-8"]),
        (b'{"text": "a"}\nplain\n', ["standard input: row 2", "JSON"]),
    ],
)
def test_invalid_standard_input_is_refused(runs, cli, tmp_path, monkeypatch, raw, words):
    pipe(monkeypatch, raw)
    assert_refused(cli, tmp_path, [runs / "classify", "-o", "x.csv"], words, "predict")


@pytest.mark.slow
def test_an_empty_line_is_a_row(runs, cli, monkeypatch):
    for task in ("classify", "ner"):
        pipe(monkeypatch, "good film\n\nbad\n")
        assert [row["text"] for row in lines(cli("predict", runs / task)[1])] == ["good film", "", "bad"]


def test_the_python_function_yields_records_and_refuses_output(runs):
    [record] = bertkit.predict(runs / "classify", text=["a good film"])
    assert record["text"] == "a good film"
    with pytest.raises(UserError, match="output: only the command accepts this setting"):
        bertkit.predict(runs / "classify", text=["a good film"], output="x.csv")


def test_the_longest_cells_of_a_table_are_shortened(monkeypatch):
    from bertkit.utils import console

    wide = {"id": 0, "text": "a film that was good", "predicted": '["a", "b"]', "probabilities": "x" * 300}
    table = io.StringIO()
    monkeypatch.setattr(console, "out_console", console.SafeConsole(file=table, width=80))
    console.print_records([wide])
    assert "a film that was good" in table.getvalue()
    assert table.getvalue().count("\n") == 5


@pytest.mark.cpu
def test_standard_error_is_empty_without_a_terminal(runs, cli):
    assert cli("predict", runs / "classify", "--text", "a good film")[2] == ""


LONE_SURROGATE = {"text": "a good \ud800 film"}


@pytest.mark.slow
def test_a_lone_surrogate_is_kept_in_json(runs, cli, tmp_path):
    data = tmp_path / "half.jsonl"
    data.write_text(json.dumps(LONE_SURROGATE))
    args = ["predict", runs / "classify", "--data", data]
    assert cli(*args, "-o", tmp_path / "out.jsonl")[0] == 0
    for output in ((tmp_path / "out.jsonl").read_text(), cli(*args)[1]):
        assert lines(output)[0]["text"] == LONE_SURROGATE["text"]


@pytest.mark.cpu
def test_the_number_of_truncated_texts_is_reported(runs, cli, tmp_path):
    rows = [{"text": "good " * 40}, {"text": "bad"}]
    _, _, err = cli("predict", runs / "classify", "--data", write_rows(tmp_path / "long.jsonl", rows))
    assert err == "1 of 2 texts truncated to 32 tokens (longest: 42)\n"


@pytest.mark.parametrize("task", ROW_MAKERS)
def test_a_loaded_predictor_predicts_like_the_command(runs, task):
    rows = [json.loads(line) for line in (runs / f"{task}.jsonl").read_text("utf-8").splitlines()[:3]]
    data = write_rows(runs.parent / "three.jsonl", rows)
    for found, wanted in zip(
        load(runs / task).predict(rows), bertkit.predict(runs / task, data=data), strict=True
    ):
        assert list(found) == list(wanted)
        assert close({**found, "probabilities": 0}, {**wanted, "probabilities": 0})


TABLE = "text\tlabel\ngood film\tpositive\n"


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("lines.txt", "good film, really\n\nbad\r\n", ["good film, really", "", "bad"]),
        ("table.txt", TABLE, ["good film"]),
        ("objects.txt", '{"text": "good film"}\n', ["good film"]),
    ],
)
def test_a_text_file_is_read_line_by_line_unless_it_is_a_table(
    runs, cli, tiny, tmp_path, name, content, wanted
):
    data = tmp_path / name
    data.write_bytes(content.encode())
    _, out, err = cli("predict", runs / "classify", "--data", data)
    assert [row["text"] for row in lines(out)] == wanted, err
    assert ("one text per line" in err) == (name == "lines.txt")
    embedded = bertkit.embed(model=tiny, data=data, query=["good"])
    assert sorted(hit["text"] for hit in embedded.results[0]["hits"]) == sorted(wanted)


@pytest.mark.slow
def test_a_choice_with_fewer_endings_has_no_empty_columns(cli, tiny, tmp_path):
    rows = [{"context": f"a film {n}", **{f"ending{e}": f"good {e}" for e in range(4)}, "label": n % 4}
            for n in range(20)]  # fmt: skip
    data = write_rows(tmp_path / "four.jsonl", rows)
    bertkit.swag(data=data, model=tiny, output_dir="run", max_steps=1)
    _, out, err = cli("predict", "run", "--context", "a film", "--ending", "good", "--ending", "bad")
    wanted = {"id", "context", "ending0", "ending1", "predicted", "scores", "probabilities"}
    assert set(lines(out)[0]) == wanted, err
    assert len(lines(out)[0]["scores"]) == 2
    few = [{name: value for name, value in row.items() if name != "ending3"} for row in rows]
    data = write_rows(tmp_path / "few.jsonl", few)
    assert_refused(cli, tmp_path, ["run", "--data", data], ["no column 'ending3'"], "evaluate")


def test_the_predicted_split_is_reported(runs, cli, tmp_path):
    for split in ("train", "test"):
        write_rows(tmp_path / "set" / f"{split}.jsonl", [{"text": split}])
    _, _, err = cli("predict", runs / "classify", "--data", tmp_path / "set")
    assert "predicting the test split (splits: test, train)" in err


def test_columns_keep_their_order_including_the_label(runs, cli, tmp_path):
    (tmp_path / "new.csv").write_text("zeta,label,text,alpha\n1,positive,good film,2\n")
    status, out, err = cli("predict", runs / "classify", "--data", tmp_path / "new.csv", "--format", "jsonl")
    assert status == 0, err
    assert list(lines(out)[0])[:6] == ["id", "zeta", "label", "text", "alpha", "predicted"]

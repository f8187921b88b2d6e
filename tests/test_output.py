"""Output that cannot be written: one error line for a full device, silence for a closed reader."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.utils.durations import format_duration

PRINTERS = [
    ["--help"],
    ["recipes", "ls"],
    ["recipes", "show", "imdb"],
]  # written by rich, line by line, at once


def run_bertkit(args, buffered, **streams):
    command = [sys.executable, "-m", "bertkit", *args]
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    return subprocess.run(command, env=environment, text=True, **streams)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(45, "45 s"), (720, "12 min"), (3.4 * 3600, "3.4 h"), (47.9 * 3600, "47.9 h"), (360 * 3600, "15 days")],
)
def test_durations_have_the_largest_fitting_unit(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", PRINTERS)
def test_a_full_device_is_reported_in_one_line(args, buffered):
    with Path("/dev/full").open("w") as full:
        done = run_bertkit(args, buffered, stdout=full, stderr=subprocess.PIPE)
    line = "bertkit: standard output: cannot be written (No space left on device)\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", PRINTERS)
def test_a_closed_reader_ends_the_program_silently(args, buffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = run_bertkit(args, buffered, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_exit_status_is_kept_if_the_error_cannot_be_printed():
    with Path("/dev/full").open("w") as full:
        done = run_bertkit(["nonsense"], True, stdout=full, stderr=full)
    assert done.returncode == 2


# ---- control characters in the data


HOSTILE = "a \x1b[31mred\x1b]0;title\x07 b\x9b2J [bold]\tfilm"
VISIBLE = "a \u241b[31mred\u241b]0;title\u2407 b\ufffd2J [bold] film"


@pytest.mark.parametrize("task", ["predict", "query", "word", "fill-mask", "error"])
def test_control_characters_of_the_data_are_not_printed(task, runs, cli, tiny, tmp_path):
    from conftest import write_rows
    from test_fill_mask import saved
    from transformers import BertConfig, BertForPreTraining

    data = write_rows(tmp_path / "hostile.jsonl", [{"text": HOSTILE, "label": HOSTILE}])
    if task == "predict":
        args = ["predict", runs / "classify", "--data", data, "--format", "table"]
    elif task == "error":
        data = write_rows(tmp_path / "named.jsonl", [{HOSTILE: "a"}])
        args = ["embed", tiny, "--data", data, "--query", "a"]
    elif task == "fill-mask":
        config = BertConfig(vocab_size=150, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        args = ["fill-mask", saved(BertForPreTraining(config), tmp_path / "bert"), HOSTILE + " [MASK]"]
    elif task == "query":
        args = ["embed", tiny, "--data", data, "--query", HOSTILE]
    elif task == "word":
        args = ["embed", tiny, "--data", data, "--word", "film"]
    _, out, err = cli(*args)
    assert VISIBLE in out + err
    assert not set("\x1b\x07\x9b") & set(out + err)


def test_a_line_break_in_the_output_directory_keeps_run_yaml_valid(cli, tiny, toy, tmp_path):
    folder = tmp_path / "two\nlines"
    args = ["--data", toy, "--model", tiny, "--max-steps", 1, "--warmup", 0, "-o", folder]
    assert cli("classify", *args)[0] == 0
    assert cli("predict", folder, "--text", "a good film")[0] == 0

"""Output that cannot be written: one error line for a full device, silence for a closed reader."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.utils.text import format_duration, format_signed

PRINTERS = [
    ["--help"],
    ["recipes", "ls"],
    ["recipes", "show", "imdb"],
]  # written by rich, line by line, at once


# Each command runs in a fork of one process, with its own standard output and standard error. It ends as the
# process of the command does, because the interpreter writes what is still buffered when it ends.
RUN_EACH = """
import gc, json, os, sys, tempfile
import typer.rich_utils
from bertkit.cli.app import app, main

table = typer.main.get_command(app)
table.commands["env"].make_context("env", [], resilient_parsing=True)  # imports what parsing needs
typer.main.get_command = lambda _: table
gc.freeze()
outcomes = []
for args, target in json.loads(sys.argv[1]):
    error = tempfile.TemporaryFile()
    if not (pid := os.fork()):
        if target == "full device":
            writer = os.open("/dev/full", os.O_WRONLY)
        else:
            reader, writer = os.pipe()
            os.close(reader)
        os.dup2(writer, 1)
        os.dup2(error.fileno(), 2)
        sys.argv = ["bertkit", *args]
        main()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    error.seek(0)
    outcomes.append([args, target, status, error.read().decode()])
print(json.dumps(outcomes))
"""


def start_python(args, buffered, **streams):
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    return subprocess.run([sys.executable, *args], env=environment, text=True, **streams)


@pytest.fixture(scope="module")
def outcomes():
    """The exit status and standard error of each command, for each target of its output."""
    targets = ("full device", "closed reader")
    commands = json.dumps([(args, target) for args in PRINTERS for target in targets])
    found = {}
    for buffered in (True, False):
        done = start_python(["-c", RUN_EACH, commands], buffered, capture_output=True, check=True)
        for args, target, *outcome in json.loads(done.stdout):
            found[tuple(args), buffered, target] = tuple(outcome)
    return found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (45, "45 s"),
        (720, "12 min"),
        (3.4 * 3600, "3.4 h"),
        (47.9 * 3600, "47.9 h"),
        (48 * 3600, "2 days"),
        (360 * 3600, "15 days"),
    ],
)
def test_durations_have_the_largest_fitting_unit(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.slow
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", PRINTERS)
def test_a_full_device_is_reported_in_one_line(outcomes, args, buffered):
    line = "bertkit: standard output: cannot be written (No space left on device)\n"
    assert outcomes[tuple(args), buffered, "full device"] == (2, line)


@pytest.mark.slow
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", PRINTERS)
def test_a_closed_reader_ends_the_program_silently(outcomes, args, buffered):
    assert outcomes[tuple(args), buffered, "closed reader"] == (141, "")


@pytest.mark.slow
def test_what_a_plugin_prints_is_not_lost_silently():
    program = "from bertkit.cli import app; app.app = lambda **_: print('scores'); app.main()"
    with Path("/dev/full").open("w") as full:
        done = start_python(["-c", program], True, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, "standard output: cannot be written" in done.stderr) == (2, True)


@pytest.mark.slow
def test_the_exit_status_is_kept_if_the_error_cannot_be_printed():
    with Path("/dev/full").open("w") as full:
        done = start_python(["-m", "bertkit", "nonsense"], True, stdout=full, stderr=full)
    assert done.returncode == 2


# ---- control characters in the data


HOSTILE = "a \x1b[31mred\x1b]0;title\x07 b\x9b2J [bold]\tfilm"
VISIBLE = "a \u241b[31mred\u241b]0;title\u2407 b\ufffd2J [bold] film"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_line_break_in_the_output_directory_keeps_run_yaml_valid(cli, tiny, toy, tmp_path):
    folder = tmp_path / "two\nlines"
    args = ["--data", toy, "--model", tiny, "--max-steps", 1, "--warmup", 0, "-o", folder]
    assert cli("classify", *args)[0] == 0
    assert cli("predict", folder, "--text", "a good film")[0] == 0


def test_a_number_that_is_rounded_to_0_has_no_minus_sign():
    assert [format_signed(number, ".2f") for number in (-0.0, -0.004, -0.006)] == ["0.00", "0.00", "-0.01"]
    assert [format_signed(number, "+.3f") for number in (-0.0001, 0.002)] == ["+0.000", "+0.002"]

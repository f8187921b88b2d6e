"""Where output cannot be written: one line for a full device, silence for a reader that went away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTERS = [["--help"], ["recipes", "ls"], ["recipes", "show", "imdb"]]  # by rich, by lines, in one piece


def bertkit(args, buffered, **streams):
    command = [sys.executable, "-m", "bertkit", *args]
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    return subprocess.run(command, env=environment, text=True, **streams)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", PRINTERS)
def test_a_full_output_is_told_in_one_line(args, buffered):
    with Path("/dev/full").open("w") as full:
        done = bertkit(args, buffered, stdout=full, stderr=subprocess.PIPE)
    line = "bertkit: standard output cannot be written (No space left on device)\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("args", PRINTERS)
def test_a_reader_that_went_away_ends_it_quietly(args, buffered):
    reader, writer = os.pipe()
    os.close(reader)
    done = bertkit(args, buffered, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_is_refused_keeps_its_status_where_nothing_can_be_told():
    with Path("/dev/full").open("w") as full:
        done = bertkit(["nonsense"], True, stdout=full, stderr=full)
    assert done.returncode == 2


# ---- texts of the data


HOSTILE = "a \x1b[31mred\x1b]0;title\x07 b\x9b2J [bold]\tfilm"
VISIBLE = "a \u241b[31mred\u241b]0;title\u2407 b\ufffd2J [bold] film"


@pytest.mark.parametrize("task", ["predict", "query", "word", "fill-mask", "refusal"])
def test_a_text_orders_nothing_at_a_terminal(task, runs, cli, tiny, tmp_path):
    from conftest import write_rows
    from test_fill_mask import saved
    from transformers import BertConfig, BertForPreTraining

    data = write_rows(tmp_path / "hostile.jsonl", [{"text": HOSTILE, "label": HOSTILE}])
    if task == "predict":
        args = ["predict", runs / "classify", "--data", data, "--format", "table"]
    elif task == "refusal":
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

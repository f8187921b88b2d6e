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

"""Of two runs in one directory the second is refused; the lock leaves nothing and ends with its process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import assert_refused

from bertkit import run_directory
from bertkit.errors import UserError
from bertkit.utils import locks
from bertkit.utils.files import open_atomic

HOLDER = "import sys, pathlib\nfrom bertkit.utils import locks\n" + (
    "with locks.lock_directory(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


@pytest.fixture
def other(tmp_path):
    """Another process that holds the directory `run`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def finished(cli, tiny, toy, tmp_path):
    """The arguments of a finished run in `run`."""
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", "--max-steps", 1]
    assert cli("classify", *args)[0] == 0
    return args


@pytest.mark.parametrize("further", [[], ["--overwrite"], ["--dry-run"]])
def test_a_second_run_is_refused(cli, tiny, toy, tmp_path, other, further):
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", *further]
    line = assert_refused(cli, tmp_path, args, ["another run is using this directory"])
    assert str(tmp_path / "run") in line


@pytest.mark.parametrize("command", ["glue", "feature-based"])
def test_suites_are_refused_in_a_locked_directory(cli, tiny, tmp_path, other, command):
    args = ["--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["another run is using this directory"], command)


def test_train_tokenizer_is_refused_in_a_locked_directory(cli, tmp_path, other):
    data = tmp_path / "text.txt"
    data.write_text("warm food\n" * 50)
    args = ["--data", data, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["another run is using this directory"], "train-tokenizer")


def test_a_run_locks_its_directory_also_the_default_one(cli, tiny, toy, tmp_path, monkeypatch):
    """From within the training, the same directory is refused to `--resume`."""
    seen = []
    write_metrics = run_directory.write_metrics

    def look(folder, metrics):
        with pytest.raises(UserError, match="another run is using"), locks.lock_directory(Path(folder)):
            pass
        seen.append(cli("classify", "--resume", "--output-dir", folder)[0])
        write_metrics(folder, metrics)

    monkeypatch.setattr(run_directory, "write_metrics", look)
    args = ["--data", toy, "--model", tiny, "--max-steps", 1]
    assert cli("classify", *args)[0] == cli("classify", *args, "--output-dir", tmp_path / "run")[0] == 0
    assert seen == [2, 2]


def test_the_lock_ends_with_its_process(cli, finished, other, tmp_path):
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert cli("classify", *finished, "--overwrite")[0] == 0


def test_an_empty_created_directory_is_removed_and_others_are_not(tmp_path):
    with locks.lock_directory(tmp_path / "a" / "b"):
        assert list(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "b"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with locks.lock_directory(tmp_path / "mine" / "run"):
        (tmp_path / "mine" / "run" / "x").touch()
    with locks.lock_directory(tmp_path / "mine"):
        pass
    assert [*tmp_path.rglob("*")] == [
        tmp_path / "mine",
        tmp_path / "mine" / "run",
        tmp_path / "mine" / "run" / "x",
    ]


def test_a_refused_run_keeps_the_locked_directory(tmp_path):
    with locks.lock_directory(tmp_path / "run"):
        with (
            pytest.raises(UserError, match="is using this directory"),
            locks.lock_directory(tmp_path / "run"),
        ):
            pass
        assert (tmp_path / "run").is_dir()


def test_partial_files_of_a_killed_process_are_removed(tmp_path):
    if not (pid := os.fork()):
        with open_atomic(tmp_path / "metrics.json") as file:
            file.write("half")
            os._exit(9)
    os.waitpid(pid, 0)
    [left] = tmp_path.iterdir()
    (tmp_path / ".notes-of-mine").write_text("kept")
    with locks.lock_directory(tmp_path):
        pass
    assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".notes-of-mine"]

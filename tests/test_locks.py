"""Test locks: a second run in a directory is refused, and the lock ends with its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import assert_refused

import bertkit
from bertkit.errors import UserError
from bertkit.run_directory import RunDir
from bertkit.utils import locks
from bertkit.utils.files import open_atomic

pytestmark = pytest.mark.slow

LOCK_AND_WAIT = "import sys, pathlib\nfrom bertkit.utils import locks\n" + (
    "with locks.lock_directory(pathlib.Path(sys.argv[1])):\n    print('locked', flush=True)\n"
    "    sys.stdin.read()\n"
)


@pytest.fixture
def lock_holder(tmp_path):
    """Start another process that locks the directory `run`."""
    command = [sys.executable, "-c", LOCK_AND_WAIT, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def finished_run_args(cli, tiny, toy, tmp_path):
    """Finish a run in the directory `run`, and return its arguments."""
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", "--max-steps", 1]
    assert cli("classify", *args)[0] == 0
    return args


@pytest.mark.parametrize("options", [[], ["--overwrite"], ["--dry-run"]])
def test_a_second_run_is_refused_in_a_locked_directory(cli, tiny, toy, tmp_path, lock_holder, options):
    args = ["--data", toy, "--model", tiny, "--output-dir", tmp_path / "run", *options]
    line = assert_refused(cli, tmp_path, args, ["another run is using this directory"])
    assert str(tmp_path / "run") in line


@pytest.fixture
def before_lock(monkeypatch):
    """Return a function that arranges what another process does just before this one locks a directory."""

    def arrange(lock_name, action):
        lock = getattr(locks, lock_name)

        def act_and_lock(folder, *args):
            monkeypatch.setattr(locks, lock_name, lock)
            action()
            return lock(folder, *args)

        monkeypatch.setattr(locks, lock_name, act_and_lock)

    return arrange


@pytest.mark.parametrize("is_finished", [False, True])
def test_resume_uses_the_settings_of_the_run_that_it_has_locked(
    before_lock, tiny, toy, tmp_path, is_finished
):
    settings = {"data": toy, "model": tiny, "output_dir": tmp_path / "run"}
    bertkit.classify(**settings, max_steps=1, batch_size=2)
    metrics = tmp_path / "run" / RunDir.METRICS_FILE
    metrics.unlink()  # as if the run had been interrupted

    def replace_run():
        bertkit.classify(**settings, max_steps=1, batch_size=4, overwrite=True)
        if not is_finished:
            metrics.unlink()

    before_lock("lock_directory", replace_run)
    run = bertkit.classify(output_dir=tmp_path / "run", resume=True)
    assert run.metrics["training"]["batch_size"] == 4


@pytest.mark.parametrize("command", ["glue", "feature-based"])
def test_suites_are_refused_in_a_locked_directory(cli, tiny, tmp_path, lock_holder, command):
    args = ["--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["another run is using this directory"], command)


def test_train_tokenizer_is_refused_in_a_locked_directory(cli, tmp_path, lock_holder):
    data = tmp_path / "text.txt"
    data.write_text("warm food\n" * 50)
    args = ["--data", data, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["another run is using this directory"], "train-tokenizer")


def test_a_run_locks_its_default_or_given_directory_until_it_ends(cli, tiny, toy, tmp_path, monkeypatch):
    """While a run writes its metrics, `--resume` in the same directory is refused."""
    statuses = []
    write_metrics = RunDir.write_metrics

    def resume_and_write(run, metrics):
        with pytest.raises(UserError, match="another run is using"), locks.lock_directory(Path(run.folder)):
            pass
        statuses.append(cli("classify", "--resume", "--output-dir", run.folder)[0])
        write_metrics(run, metrics)

    monkeypatch.setattr(RunDir, "write_metrics", resume_and_write)
    args = ["--data", toy, "--model", tiny, "--max-steps", 1]
    assert cli("classify", *args)[0] == cli("classify", *args, "--output-dir", tmp_path / "run")[0] == 0
    assert statuses == [2, 2]


def test_a_lock_is_released_when_its_process_is_killed(cli, finished_run_args, lock_holder, tmp_path):
    lock_holder.kill()
    lock_holder.wait()
    assert cli("classify", *finished_run_args, "--overwrite")[0] == 0


def test_a_directory_created_for_the_lock_is_removed_if_it_stays_empty(tmp_path):
    with locks.lock_directory(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
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


def test_a_refused_run_does_not_remove_the_locked_directory(tmp_path):
    with locks.lock_directory(tmp_path / "run"):
        with (
            pytest.raises(UserError, match="is using this directory"),
            locks.lock_directory(tmp_path / "run"),
        ):
            pass
        assert (tmp_path / "run").is_dir()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_partial_files_of_a_killed_process_are_removed(tmp_path):
    if not (pid := os.fork()):
        with open_atomic(tmp_path / "metrics.json") as file:
            file.write("half")
            os._exit(9)
    os.waitpid(pid, 0)
    [partial] = tmp_path.iterdir()
    (tmp_path / ".notes-of-mine").write_text("kept")
    with locks.lock_directory(tmp_path):
        pass
    assert not partial.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".notes-of-mine"]


def test_a_directory_of_the_caller_is_removed_if_it_stays_empty(tmp_path):
    (tmp_path / "runs" / "new").mkdir(parents=True)
    with locks.lock_directory(tmp_path / "runs" / "new", is_new=True):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_lock_file_is_left_in_a_run(finished_run_args, tmp_path):
    assert (tmp_path / "run" / "metrics.json").exists()
    assert not list(tmp_path.rglob(".bertkit-lock*"))


def test_the_lock_file_of_a_killed_process_is_no_obstacle(tmp_path, lock_holder):
    lock_holder.kill()
    lock_holder.wait()
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".bertkit-lock"]
    locks.require_unlocked(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_directory_that_is_removed_before_it_is_locked_is_created_again(tmp_path, monkeypatch):
    acquire, failures = locks._acquire, iter([True, False, False])

    def remove_and_acquire(path):
        if next(failures):
            path.parent.rmdir()
            raise FileNotFoundError
        return acquire(path)

    monkeypatch.setattr(locks, "_acquire", remove_and_acquire)
    with locks.lock_directory(tmp_path / "run"), pytest.raises(UserError):
        locks.require_unlocked(tmp_path / "run")


def test_the_lock_file_of_another_user_is_respected(tmp_path, monkeypatch):
    (tmp_path / locks.LOCK_FILE).touch()

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with pytest.raises(locks.DirectoryInUse):
        locks.require_unlocked(tmp_path)
    assert (tmp_path / locks.LOCK_FILE).exists()


def test_a_lock_file_that_another_process_created_meanwhile_is_kept(tmp_path):
    path = tmp_path / "run" / locks.LOCK_FILE
    with locks.lock_directory(path.parent):
        path.rename(tmp_path / "old")  # keeps its inode in use
        path.write_text("other")
    assert path.read_text() == "other"


def test_a_read_only_directory_is_reported_by_the_first_write(tmp_path, monkeypatch):
    """The lock itself does not fail: other errors describe the problem better."""

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with locks.lock_directory(tmp_path / "run") as folder:
        assert folder.is_dir()

"""The directory of several runs, which one or several processes train."""

import dataclasses
from contextlib import ExitStack

import pytest

from bertkit.errors import UserError
from bertkit.run_directory import RunDir
from bertkit.studies.config import make_study_config
from bertkit.studies.runs_directory import RunsDirectory


@pytest.fixture
def config():
    """The settings of a study."""
    return make_study_config("classify")(data="toy.jsonl", folds=2)


@pytest.fixture
def directory(tmp_path):
    """The directory of a study."""
    return RunsDirectory(tmp_path / "study", "study classify", ["folds"])


def start_run(directory, config):
    """Write what a run writes first, so that the directory is kept."""
    run = directory.folder / "folds" / "fold0-seed0"
    run.mkdir(parents=True)
    RunDir(run).write_settings("classify", config, {})


@pytest.mark.parametrize("is_resumed", [False, True])
def test_runs_that_another_process_works_on_are_not_replaced(directory, config, is_resumed):
    """Also if the other process is between two runs, and has locked none of their directories."""
    with ExitStack() as other_process:
        other_process.enter_context(directory.open(config, {}))
        start_run(directory, config)
        if is_resumed:
            other_process.close()
            other_process.enter_context(directory.open(dataclasses.replace(config, resume=True), {}))
        with (
            pytest.raises(UserError, match=f"{directory.folder}: another run is using this directory"),
            directory.open(dataclasses.replace(config, overwrite=True), {}),
        ):
            pass
        assert list((directory.folder / "folds").iterdir())
    with directory.open(dataclasses.replace(config, overwrite=True), {}):
        assert not (directory.folder / "folds").exists()


def test_several_processes_work_on_the_same_runs(directory, config):
    with directory.open(config, {}):
        start_run(directory, config)
        with directory.open(dataclasses.replace(config, resume=True), {}):
            assert (directory.folder / "folds" / "fold0-seed0").is_dir()
    assert (directory.folder / "folds" / "fold0-seed0").is_dir()

"""The directory of several runs, which one command at a time may use."""

import pytest
from conftest import assert_refused

from bertkit.experiments.config import make_task_config
from bertkit.run_directory import RunDir
from bertkit.utils import locks


@pytest.fixture
def folder(tmp_path):
    """The directory of a study that was interrupted in its first run."""
    config = make_task_config("study", "classify")(data="toy.jsonl", folds=2)
    run = tmp_path / "study" / "folds" / "fold0-seed0"
    run.mkdir(parents=True)
    RunDir(tmp_path / "study").write_settings("study classify", config, {})
    RunDir(run).write_settings("classify", config, {})
    return tmp_path / "study"


@pytest.mark.parametrize("flag", ["--overwrite", "--resume"])
def test_runs_that_another_process_works_on_are_neither_replaced_nor_resumed(
    cli, toy, tiny, tmp_path, folder, flag
):
    args = ["classify", "-o", folder, flag]
    args += ["--data", toy, "--model", tiny, "--folds", 2] if flag == "--overwrite" else []
    with locks.lock_directory(folder):  # also between two runs, when none of their directories is locked
        assert_refused(cli, tmp_path, args, ["another run is using this directory"], "study")


def test_a_study_is_not_replaced_while_one_of_its_runs_is_resumed_by_itself(cli, toy, tiny, tmp_path, folder):
    args = ["classify", "-o", folder, "--overwrite", "--data", toy, "--model", tiny, "--folds", 2]
    with locks.lock_directory(folder / "folds" / "fold0-seed0"):
        assert_refused(cli, tmp_path, args, ["fold0-seed0: another run is using this directory"], "study")
    assert (folder / "folds" / "fold0-seed0" / "run.yaml").exists()

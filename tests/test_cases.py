"""Files as people have them: the commands of each case print what `cases/expected.yaml` says."""

import shutil

import pytest
from cases.run import CASES, read_expected, run_case


@pytest.mark.slow
@pytest.mark.parametrize("name", read_expected())
def test_a_case_is_read_as_expected(name, tmp_path, monkeypatch):
    """Run the case in a copy, where a run directory cannot disturb other tests."""
    shutil.copytree(CASES / "files" / name, tmp_path / name)
    assert run_case(tmp_path / name, read_expected()[name]) == []

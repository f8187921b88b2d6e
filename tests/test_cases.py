"""Files as people have them: the commands of each case print what `cases/expected.yaml` says."""

import functools
import shutil

import pytest
from cases.run import CASES, read_expected, run_case

from bertkit.models import loading


@pytest.fixture(scope="module")
def expected():
    """What is expected of each case."""
    return read_expected()


@pytest.fixture(autouse=True, scope="module")
def _one_tokenizer():
    """Load the tokenizer of the default model once, not for each command."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(loading, "load_tokenizer", functools.cache(loading.load_tokenizer))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", read_expected())
def test_a_case_is_read_as_expected(name, expected, tmp_path):
    """Run the case in a copy, where a run directory cannot disturb other tests."""
    shutil.copytree(CASES / "files" / name, tmp_path / name)
    assert run_case(tmp_path / name, expected[name]) == []

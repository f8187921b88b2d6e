"""A few fixed examples of each fuzz target; `make fuzz` generates many."""

import fuzz
import pytest
from hypothesis import Phase, settings
from malformed import CASES, RUN_DAMAGES

pytestmark = pytest.mark.slow  # many examples
TWO_EXAMPLES = settings(fuzz.BASE_SETTINGS, max_examples=2, derandomize=True)


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_fuzzed_input_raises_only_user_errors(tiny, target):
    fuzz.run_target(target, settings(fuzz.BASE_SETTINGS, max_examples=6, derandomize=True), tiny)


def test_other_exceptions_are_reported(tiny, monkeypatch):
    def broken(path, model):
        raise KeyError(path)

    monkeypatch.setitem(fuzz.READERS, "index", broken)
    with pytest.raises(KeyError):
        fuzz.run_target("files: index", settings(TWO_EXAMPLES, phases=[Phase.generate]), tiny)


def test_every_reader_has_a_target():
    assert {f"files: {reader}" for reader in CASES} | {f"runs: {use}" for use in RUN_DAMAGES} <= set(
        fuzz.TARGETS
    )


def test_edits_change_their_input():
    content = bytes(range(100))
    edits = [("put", 0.5, b"x"), ("over", 0.5, b"x"), ("drop", 0.5, 3), ("twice", 0.5, 3), ("cut", 0.5, None)]
    assert [len(fuzz.apply_edits(content, [edit])) for edit in edits] == [101, 100, 97, 103, 50]

"""Every type of encoder and every kind of tokenizer: a task works, or is refused as documented.

`make matrix` tries the other tasks and commands.
"""

from itertools import cycle

import pytest
from conftest import read_predictions
from matrix import OPERATIONS, PAGE, Case, try_operation
from model_types import MODEL_TYPES, TOKENIZERS, list_known_types, save_model_of

pytestmark = pytest.mark.slow
# The types take turns, so that each operation is tried with several of them.
TRIED = dict(zip(MODEL_TYPES, cycle(["pairs", "loss", "ner (characters and spaces)", "qa"]), strict=False))


def read_table():
    """The last cell of the rows in the documentation, by type."""
    rows = PAGE.read_text("utf-8").partition("<!-- models -->")[2].splitlines()
    return {row.split(" | ")[0][2:]: row.split(" | ")[2] for row in rows if row.count(" | ") == 2}


def test_the_table_has_every_type():
    assert read_table().keys() - {"`model_type`"} == MODEL_TYPES.keys()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_each_type_works_or_is_refused_as_documented(model_type, tmp_path):
    if model_type not in list_known_types():
        pytest.skip(f"the installed version of transformers has no {model_type}")
    name = TRIED[model_type]
    result = try_operation(Case(save_model_of(model_type, tmp_path / model_type), tmp_path), name)
    documented = read_table()[model_type]
    if result == "works":
        assert "everything: " not in documented
        assert f"{name}: " not in documented
        assert f"{name}, " not in documented
    else:
        assert not result.startswith("FAILS"), result
        assert result in documented


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_kind_of_tokenizer_tags_characters_and_spaces(kind, tmp_path):
    case = Case(save_model_of("electra", tmp_path / "model", kind, type_vocab_size=4), tmp_path)
    for name, folder in (("ner (characters and spaces)", "characters"), ("ner (Chinese)", "chinese")):
        OPERATIONS[name](case)
        for record in read_predictions(tmp_path / folder):
            assert len(record["predicted"]) == len(record["gold"]) == len(record["tokens"])
    assert not [warning for warning in case.reporter.warnings if "cannot be predicted" in warning]

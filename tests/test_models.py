"""Every type of encoder and every kind of tokenizer: a task works, or is refused as documented.

`make matrix` tries the other tasks and commands.
"""

from itertools import cycle

import pytest
from conftest import read_predictions, write_rows
from matrix import PAGE, Case, try_operation
from model_types import (
    CHINESE_PLACES,
    CHINESE_WORDS,
    KOREAN_PEOPLE,
    KOREAN_WORDS,
    MODEL_TYPES,
    TOKENIZERS,
    list_known_types,
    make_character_rows,
    save_model_of,
)

pytestmark = pytest.mark.slow
# The types take turns, so that each operation is tried with several of them.
TRIED = dict(zip(MODEL_TYPES, cycle(["pairs", "loss", "ner (characters and spaces)", "qa"]), strict=False))


class OneStep(Case):
    """Runs of one step."""

    def train(self, task, rows, name, **settings):
        return super().train(task, rows, name, **{"max_steps": 1} | settings)


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
    result = try_operation(OneStep(save_model_of(model_type, tmp_path / model_type), tmp_path), name)
    documented = read_table()[model_type]
    if result == "works":
        assert "everything: " not in documented
        assert f"{name}: " not in documented
        assert f"{name}, " not in documented
    else:
        assert not result.startswith("FAILS"), result
        assert result in documented


def make_rows_of_both_languages(count):
    """Words that are characters: Korean ones with the spaces as words, Chinese ones without spaces."""
    korean = make_character_rows(count, KOREAN_PEOPLE, KOREAN_WORDS, " ")
    return korean + make_character_rows(count, CHINESE_PLACES, CHINESE_WORDS, "")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_kind_of_tokenizer_tags_characters_and_spaces(kind, tmp_path):
    case = OneStep(save_model_of("electra", tmp_path / "model", kind, type_vocab_size=4), tmp_path)
    rows = make_rows_of_both_languages(12)
    validation = write_rows(tmp_path / "validation.jsonl", rows[9:15])
    case.train("ner", rows[:9] + rows[15:], "run", validation=str(validation))
    records = read_predictions(tmp_path / "run")
    assert [record["tokens"] for record in records] == [row["tokens"] for row in rows[9:15]]
    for record in records:
        assert len(record["predicted"]) == len(record["gold"]) == len(record["tokens"])
    assert not [warning for warning in case.reporter.warnings if "cannot be predicted" in warning]

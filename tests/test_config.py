"""Settings: declared once, filled from below, saved and read back."""

import dataclasses

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bertkit.config import fill_unset, get_flag, get_settings, serialize_settings
from bertkit.errors import UserError
from bertkit.suites.config import AblationConfig, FeatureBasedConfig
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.classify import ClassifyConfig
from bertkit.tasks.pretrain_config import PretrainConfig
from bertkit.utils.files import dump_yaml
from bertkit.validation import validate_settings


def test_lower_layers_fill_only_what_was_not_said():
    config = fill_unset(ClassifyConfig(epochs=7.0), {"epochs": 3.0, "batch_size": 16})
    assert (config.epochs, config.batch_size) == (7.0, 16)


def test_flags_are_unique_and_arguments_are_trainers():
    from transformers import TrainingArguments

    known = get_settings(ClassifyConfig)
    flags = [get_flag(name, about) for name, (_, about, _) in known.items()]
    arguments = [about.argument for _, about, _ in known.values() if about.argument]
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert len(set(flags)) == len(flags)
    assert len(arguments) > 10
    assert set(arguments) <= fields


some = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.floats(0.01, 99),
        "batch_size": st.integers(1, 999),
        "long_texts": st.sampled_from(["head", "tail", "head+tail", "windows"]),
        "fp16": st.booleans(),
        "bf16": st.booleans(),
        "learning_rate": st.floats(1e-9, 1),
        "set": st.lists(st.sampled_from(["a=1", "b=x"])),
        "text_column": st.text(min_size=1),
    },
)


@given(values=some)
@example(values={"text_column": "\x85"})
def test_saved_settings_read_back_as_they_were(values):
    config = ClassifyConfig(data="imdb", **values)
    text = dump_yaml(serialize_settings(config))
    again = ClassifyConfig(**validate_settings(ClassifyConfig, yaml.safe_load(text), "x"))
    same = [field for field in dataclasses.fields(config) if field.name != "set"]
    assert all(getattr(again, field.name) == getattr(config, field.name) for field in same)
    assert list(again.set) == list(config.set)


def test_what_names_files_is_saved_so_that_it_names_them_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "pieces").mkdir()
    monkeypatch.chdir(tmp_path)
    said = {"data": "texts/*.txt", "validation": "a.txt", "model": "org/pieces", "tokenizer": "pieces"}
    found = serialize_settings(PretrainConfig(**said))
    assert found == said | {"data": f"{tmp_path}/texts/*.txt", "tokenizer": f"{tmp_path}/pieces"}


@pytest.mark.parametrize(
    "config", [task_class(name).spec.config for name in TASKS] + [AblationConfig, FeatureBasedConfig]
)
def test_the_same_settings_name_files_everywhere(config):
    paths = {name for name, (_, about, _) in get_settings(config).items() if about.path}
    named = {"data", "validation", "test", "data_dir", "model", "tokenizer"}
    assert paths == named & get_settings(config).keys()


def test_an_empty_setting_is_told_with_what_it_is():
    with pytest.raises(
        UserError, match=r"r: phases: is empty; .* Lengths and their shares .* 128:0.9,512:0.1"
    ):
        validate_settings(PretrainConfig, {"phases": ""}, "r")


@pytest.mark.parametrize(
    ("value", "words"),
    [("2e-5", None), (1, None), (True, "a number"), ("fast", "a number"), (-1.0, "at least 0")],
)
def test_numbers_are_read_as_yaml_writes_them(value, words):
    if words is None:
        assert validate_settings(ClassifyConfig, {"learning_rate": value}, "r")["learning_rate"] == float(
            value
        )
    else:
        with pytest.raises(UserError, match=f"r: learning_rate: .*{words}"):
            validate_settings(ClassifyConfig, {"learning_rate": value}, "r")


def test_one_of_a_thing_is_told_as_one():
    from bertkit.errors import format_count

    assert [format_count(n, "row") for n in (0, 1, 1500)] == ["0 rows", "1 row", "1,500 rows"]
    assert format_count(2, "stretch", "stretches") == "2 stretches"

"""Settings: declared once, filled from below, saved and read back."""

import dataclasses

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from bertkit.errors import UserError
from bertkit.experiments.config import AblationConfig, FeatureBasedConfig
from bertkit.settings.declaration import fill_unset, get_flag, get_settings
from bertkit.settings.recipes import serialize_settings
from bertkit.settings.validation import validate_settings
from bertkit.tasks import TASKS, task_definition
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.utils.compat import get_argument_name
from bertkit.utils.text import dump_yaml


def test_fill_unset_keeps_the_settings_of_the_user():
    config = fill_unset(ClassifyConfig(epochs=7.0), {"epochs": 3.0, "batch_size": 16})
    assert (config.epochs, config.batch_size) == (7.0, 16)


def test_flags_are_unique_and_training_arguments_exist():
    from transformers import TrainingArguments

    known = get_settings(ClassifyConfig)
    flags = [get_flag(name, about) for name, (_, about, _) in known.items()]
    arguments = [about.training_argument for _, about, _ in known.values() if about.training_argument]
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert len(set(flags)) == len(flags)
    assert len(arguments) > 10
    assert set(map(get_argument_name, arguments)) <= fields


settings_strategy = st.fixed_dictionaries(
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


@pytest.mark.slow
@given(values=settings_strategy)
@example(values={"text_column": "\x85"})
def test_saved_settings_read_back_as_they_were(values):
    config = ClassifyConfig(data="imdb", **values)
    text = dump_yaml(serialize_settings(config))
    again = ClassifyConfig(**validate_settings(ClassifyConfig, yaml.safe_load(text), "x"))
    same = [field for field in dataclasses.fields(config) if field.name != "set"]
    assert all(getattr(again, field.name) == getattr(config, field.name) for field in same)
    assert list(again.set) == list(config.set)


def test_paths_are_saved_as_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    values = {"data": "texts/*.txt", "validation": "a.txt", "model": "org/models", "tokenizer": "models"}
    serialized = serialize_settings(PretrainConfig(**values))
    assert serialized == values | {"data": f"{tmp_path}/texts/*.txt", "tokenizer": f"{tmp_path}/models"}


@pytest.mark.parametrize(
    "config", [task_definition(name).config for name in TASKS] + [AblationConfig, FeatureBasedConfig]
)
def test_the_same_settings_are_paths_in_all_commands(config):
    paths = {name for name, (_, about, _) in get_settings(config).items() if about.is_path}
    named = {
        "data",
        "validation",
        "test",
        "data_dir",
        "model",
        "tokenizer",
        "label_fixes",
        "out_of_scope",
        "teacher",
        "unlabeled",
        "probe",
    }
    assert paths == named & get_settings(config).keys()


def test_an_empty_value_is_refused_with_the_help_text():
    with pytest.raises(UserError, match=r"r: phases: is empty; pass a value or omit it .*128:0.9,512:0.1"):
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


def test_format_count_uses_singular_and_plural():
    from bertkit.errors import format_count

    assert [format_count(n, "row") for n in (0, 1, 1500)] == ["0 rows", "1 row", "1,500 rows"]
    assert format_count(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("batch_size", "x", "'x' is not a whole number"),
        ("batch_size", 0, "0 is out of bounds; it must be at least 1"),
        ("head", "lin", "'lin' is not one of linear, bilstm; did you mean 'linear'?"),
    ],
)
def test_flags_recipes_and_python_calls_report_the_same_problem(cli, tmp_path, name, value, problem):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"task": "classify", "settings": {"data": "sample", name: value}}))
    flag = get_flag(name, get_settings(ClassifyConfig)[name].metadata)
    assert cli("classify", flag, value)[2] == f"bertkit: {flag}: {problem}\n"
    assert cli("classify", "--recipe", recipe)[2] == f"bertkit: {recipe}: {name}: {problem}\n"
    with pytest.raises(UserError) as refused:
        validate_settings(ClassifyConfig, {name: value}, "classify()")
    assert str(refused.value) == f"classify(): {name}: {problem}"

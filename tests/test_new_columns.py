"""`predict` and `evaluate` on files that name their columns differently than in training."""

import json

import pytest
from conftest import ROW_MAKERS, assert_refused, make_ner_rows, make_toy_rows, write_rows

import bertkit
from bertkit.commands.configs import EvaluateConfig, PredictConfig
from bertkit.settings.declaration import get_settings, is_column_setting
from bertkit.tasks import TASKS, task_definition

# New names by the names of training, and the flags for the new names.
NAMES = {
    "classify": ({"text": "alpha", "label": "beta"}, {"text_column": "alpha", "label_column": "beta"}),
    "nli": (
        {"premise": "alpha", "hypothesis": "beta", "label": "gamma"},
        {"premise_column": "alpha", "hypothesis_column": "beta", "label_column": "gamma"},
    ),
    "ner": ({"tokens": "alpha", "tags": "beta"}, {"token_column": "alpha", "tag_column": "beta"}),
    "qa": (
        {"question": "alpha", "context": "beta", "answers": "gamma"},
        {"question_column": "alpha", "context_column": "beta", "answers_column": "gamma"},
    ),
    "swag": (
        {"context": "alpha", "endings": "beta", "label": "gamma"},
        {"context_column": "alpha", "ending_columns": "beta", "label_column": "gamma"},
    ),
}  # fmt: skip
GOLD_SETTINGS = {"label_column", "tag_column", "answers_column"}


def rename(rows, names, decoys=()):
    """Return the rows with other column names; decoys are columns with common names and useless texts."""
    return [
        {**dict.fromkeys(decoys, "useless"), **{names.get(key, key): value for key, value in row.items()}}
        for row in rows
    ]


def list_flags(columns):
    return [part for name, column in columns.items() for part in ("--" + name.replace("_", "-"), column)]


@pytest.mark.slow
@pytest.mark.parametrize("task", NAMES)
def test_renamed_columns_give_the_same_scores_and_predictions(runs, cli, tmp_path, task):
    names, columns = NAMES[task]
    rows = ROW_MAKERS[task](30, seed=5)
    same, other = (
        write_rows(tmp_path / f"{name}.jsonl", some)
        for name, some in (("same", rows), ("other", rename(rows, names)))
    )
    run = runs / task
    if task not in ("classify", "ner", "qa"):  # these guess columns by content or by position
        assert_refused(cli, tmp_path, [run, "--data", other, "--output-dir", tmp_path / "x"], [], "evaluate")
    scores = []
    for data, flags in ((same, []), (other, list_flags(columns))):
        status, out, err = cli("evaluate", run, "--data", data, *flags, "--json")
        assert status == 0, err
        scores.append(json.loads(out)["validation"])
    assert scores[0] == scores[1]
    inputs = {name: column for name, column in columns.items() if name not in GOLD_SETTINGS}
    predicted = [
        [record["answer" if task == "qa" else "predicted"] for record in records]
        for records in (bertkit.predict(run, data=same), bertkit.predict(run, data=other, **inputs))
    ]
    assert predicted[0] == predicted[1]


def test_a_named_column_is_preferred_to_common_names(runs, cli, tmp_path):
    rows = make_toy_rows(20)
    data = write_rows(tmp_path / "new.jsonl", rename(rows, {"text": "alpha"}, decoys=["text", "sentence"]))
    plain = write_rows(tmp_path / "plain.jsonl", rows)
    run = runs / "classify"
    wanted = [record["probabilities"] for record in bertkit.predict(run, data=plain)]
    found = [record["probabilities"] for record in bertkit.predict(run, data=data, text_column="alpha")]
    assert found == [pytest.approx(probabilities, abs=1e-5) for probabilities in wanted]


@pytest.mark.slow
def test_one_of_two_columns_can_be_named(runs, cli, tmp_path):
    rows = rename(ROW_MAKERS["nli"](12), {"premise": "alpha"})
    data = write_rows(tmp_path / "new.jsonl", rows)
    status, out, err = cli("evaluate", runs / "nli", "--data", data, "--premise-column", "alpha", "--json")
    assert (status, json.loads(out)["data"]["validation"]) == (0, 12), err


@pytest.mark.slow
def test_endings_in_separate_columns_are_named_with_commas(runs, cli, tmp_path):
    rows = [
        {"context": row["context"], "a": row["endings"][0], "b": row["endings"][1], "label": 0}
        for row in ROW_MAKERS["swag"](12)
    ]
    data = write_rows(tmp_path / "new.jsonl", rows)
    status, out, err = cli("evaluate", runs / "swag", "--data", data, "--ending-columns", "a,b", "--json")
    assert (status, json.loads(out)["data"]["validation"]) == (0, 12), err


@pytest.mark.slow
def test_columns_of_a_column_file_are_named_by_number(runs, cli, tmp_path):
    lines = ["\n".join(f"{t}\tX\t{w}\tX" for w, t in zip(r["tokens"], r["tags"], strict=True)) for r in
             make_ner_rows(12)]  # fmt: skip
    data = tmp_path / "new.conll"
    data.write_text("\n\n".join(lines) + "\n")
    flags = ["--token-column", "2", "--tag-column", "0"]
    status, out, err = cli("evaluate", runs / "ner", "--data", data, *flags, "--json")
    assert (status, json.loads(out)["data"]["validation"]) == (0, 12), err


REFUSED = {
    "of another task": ("classify", ["--premise-column", "text"], ["--premise-column", "--text-column"]),
    "of a pair": ("classify", ["--text-pair-column", "text"], ["--text-pair-column", "--label-column"]),
    "that does not exist": ("classify", ["--text-column", "txt"], ["'txt' (--text-column)", "text"]),
    "of both texts": (
        "nli", ["--premise-column", "hypothesis", "--hypothesis-column", "hypothesis"],
        ["--hypothesis-column hypothesis", "already"],
    ),
    "of text that is no row": ("pretrain-mlm-nsp", ["--text-column", "text"], ["--text-column", "pretrain"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_column_that_cannot_be_read_is_refused(runs, cli, tmp_path, name):
    task, flags, words = REFUSED[name]
    rows = ROW_MAKERS[task](12) if task in ROW_MAKERS else make_toy_rows(12)
    data = write_rows(tmp_path / "new.jsonl", rows)
    assert_refused(cli, tmp_path, [runs / task, "--data", data, *flags], words, "evaluate")
    if task in ROW_MAKERS:
        assert_refused(cli, tmp_path, [runs / task, "--data", data, *flags], words, "predict")


def test_column_flags_need_data(runs, cli, tmp_path):
    flags = [runs / "classify", "--text-column", "text"]
    assert_refused(cli, tmp_path, flags, ["--text-column: applies only to --data"], "evaluate")


@pytest.mark.parametrize("config", [EvaluateConfig, PredictConfig])
def test_the_flags_and_their_help_are_those_of_the_tasks(config):
    settings = get_settings(config)
    for task in TASKS:
        spec = task_definition(task)
        for name, (kind, metadata, _) in get_settings(spec.config).items():
            if is_column_setting(name) and spec.predicts_rows:
                assert settings[name].type == kind
                assert metadata.help.removesuffix(".") in settings[name].metadata.help
                assert task in settings[name].metadata.help

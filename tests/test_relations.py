"""Relation extraction: `classify` with markers around two entities."""

import asyncio
import json
import random
import re
import time

import pytest
from conftest import (
    NEGATIVE_WORDS,
    POSITIVE_WORDS,
    assert_refused,
    read_predictions,
    slow_fixture,
    write_rows,
)

import bertkit
from bertkit.commands.configs import ServeConfig
from bertkit.run.predictor import load_predictor
from bertkit.serve.models import Metrics, load_served_model
from bertkit.serve.requests import RequestError, RowDecoder
from bertkit.tasks.base import InputSchema
from bertkit.tasks.text.relations import Entity, has_markers, list_markers, mark_entities, parse_entity

COLUMNS = ["--subject-column", "subject_entity", "--object-column", "object_entity"]


def make_rows(count, seed=0):
    """Rows in the layout of KLUE-RE; the label depends on which entity is the subject."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        words = [rng.choice(POSITIVE_WORDS), rng.choice(NEGATIVE_WORDS)]
        rng.shuffle(words)
        text = f"the {words[0]} was {words[1]}"
        spans = []
        for word in words:
            start = text.index(f" {word}") + 1
            name = "PER" if word in POSITIVE_WORDS else "LOC"
            spans.append({"word": word, "start_idx": start, "end_idx": start + len(word) - 1, "type": name})
        rng.shuffle(spans)
        label = "first" if spans[0]["start_idx"] < spans[1]["start_idx"] else "second"
        rows.append({
            "guid": f"re-{number}", "sentence": text, "subject_entity": spans[0], "object_entity": spans[1],
            "label": label,
        })  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def relations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relations")
    path = folder / "klue-re-v1.1_train.json"
    path.write_text(json.dumps(make_rows(160), ensure_ascii=False), "utf-8")
    return path


@slow_fixture
def run(relations, tiny_without_dropout, tmp_path_factory):
    settings = {"epochs": 3, "batch_size": 8, "learning_rate": 5e-3, "max_length": 32, "bf16": False}
    return bertkit.classify(
        data=str(relations), model=str(tiny_without_dropout),
        output_dir=str(tmp_path_factory.mktemp("run") / "run"), subject_column="subject_entity",
        object_column="object_entity", **settings,
    )  # fmt: skip


# ---- entities


ENTITIES = {
    "KLUE": ({"word": "a", "start_idx": 2, "end_idx": 4, "type": "PER"}, Entity(2, 5, "PER")),
    "exclusive end": ({"start": 2, "end": 5}, Entity(2, 5, "")),
    "JSON in a CSV file": ('{"start": 0, "end": 1, "type": "X"}', Entity(0, 1, "X")),
    "Python in a CSV file": ("{'word': 'a', 'start_idx': 0, 'end_idx': 0, 'type': 'X'}", Entity(0, 1, "X")),
    "no end": ({"start": 2}, None),
    "text": ("Ann", None),
    "null": (None, None),
    "boolean": ({"start": True, "end": 5}, None),
}


@pytest.mark.parametrize("case", ENTITIES)
def test_entities_are_parsed(case):
    value, expected = ENTITIES[case]
    assert parse_entity(value) == expected


def test_markers_are_around_the_entities_in_any_order():
    text = "이순신은 조선의 장군이다."
    person, country = Entity(0, 3, "PER"), Entity(5, 7, "ORG")
    assert mark_entities(text, [person, country]) == "[S:PER]이순신[/S:PER]은 [O:ORG]조선[/O:ORG]의 장군이다."
    assert mark_entities(text, [country, person]) == "[O:PER]이순신[/O:PER]은 [S:ORG]조선[/S:ORG]의 장군이다."
    assert list_markers([["PER"], []]) == ["[S]", "[/S]", "[S:PER]", "[/S:PER]", "[O]", "[/O]"]


# ---- a run


def test_the_label_is_learned_from_the_markers(run):
    assert run.metrics["validation"]["accuracy"] > 0.9
    record = read_predictions(run.output_dir)[0]
    assert record["sentence"].startswith("the [")
    assert record["subject_entity"]["type"] in ("PER", "LOC")


def test_markers_are_tokens_of_the_saved_model(run, tiny):
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.output_dir)
    tokens = tokenizer.tokenize("the [S:PER]good[/S:PER] was [O:LOC]bad[/O:LOC]")
    assert tokens == ["the", "[S:PER]", "good", "[/S:PER]", "was", "[O:LOC]", "bad", "[/O:LOC]"]
    assert len(AutoModel.from_pretrained(run.output_dir).embeddings.word_embeddings.weight) == len(tokenizer)
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(tiny)) + 12


def test_marked_texts_and_entity_columns_give_equal_predictions(run):
    rows = [{key: value for key, value in row.items() if key != "label"} for row in make_rows(6, seed=1)]
    predictor = load_predictor(run.output_dir)
    from_columns = list(predictor.predict(rows))
    from_texts = list(predictor.predict([{"sentence": record["sentence"]} for record in from_columns]))
    for first, second in zip(from_columns, from_texts, strict=True):
        assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)
    assert {record["predicted"] for record in from_columns} == {"first", "second"}


def test_an_unknown_type_has_markers_without_type(run):
    [row] = make_rows(1, seed=2)
    row["subject_entity"]["type"] = "DAT"
    [record] = load_predictor(run.output_dir).predict([row])
    assert "[S]" in record["sentence"]
    assert "[O:" in record["sentence"]


def test_the_server_accepts_entities(run):
    decoder = RowDecoder(load_predictor(run.output_dir).task.input_schema, 10)
    [row] = make_rows(1)
    body = {"sentence": row["sentence"], "subject_entity": row["subject_entity"]}
    assert decoder.decode(json.dumps(body).encode()) == ([body], False)
    assert decoder.example == {"sentence": "[S]...[/S] ... [O]...[/O]"}
    with pytest.raises(RequestError, match="object_entity"):
        decoder.decode(json.dumps({**body, "object_entity": 3}).encode())


@pytest.mark.parametrize("depth", [20_000, 100_000])
def test_a_deeply_nested_entity_is_refused(depth):
    schema = InputSchema(text_columns=("sentence",), span_columns=("subject_entity",))
    body = b'{"sentence": "a", "subject_entity": {"type": ' + b"[" * depth + b"]" * depth + b"}}"
    with pytest.raises(RequestError, match="nested too deeply"):
        RowDecoder(schema, 10).decode(body)


@pytest.mark.parametrize(
    "cell", ["{[1]: 2}", "{1: 2", "[" * 100_000, '{"a": ' * 100_000, "(" * 100_000, "-" * 100_000 + "1"]
)
def test_a_cell_that_cannot_be_parsed_is_no_entity(cell):
    assert parse_entity(cell) is None


@pytest.mark.parametrize(("value", "expected"), [(" LOC ", "LOC"), (3, "3"), (None, ""), ("", "")])
def test_a_type_is_a_text_without_surrounding_spaces(value, expected):
    assert parse_entity({"start": 0, "end": 1, "type": value}) == Entity(0, 1, expected)


def test_a_server_starts_and_answers(run):
    config = ServeConfig(run=["RUN"], max_batch_size=4, max_delay_ms=0.0, max_request_tokens=1000)
    model = load_served_model(str(run.output_dir), "relations", config, Metrics())
    rows = [{"sentence": "the [S:PER]good[/S:PER] was [O:LOC]bad[/O:LOC]"}]
    assert asyncio.run(model.batcher.predict(rows)) == list(bertkit.predict(run.output_dir, data=rows))


def test_the_code_in_the_model_card_runs(run):
    card = (run.output_dir / "README.md").read_text("utf-8")
    [call] = re.findall(r"^model\((.*)\)$", card, re.MULTILINE)
    assert "'[S]...[/S] ... [O]...[/O]'" in call
    example = load_predictor(run.output_dir).task.input_schema.make_example_row()
    assert len(list(bertkit.predict(run.output_dir, data=[example]))) == 1


def test_predictions_can_be_predicted_again(run):
    records = read_predictions(run.output_dir)
    again = list(load_predictor(run.output_dir).predict(records))
    assert [record["sentence"] for record in again] == [record["sentence"] for record in records]
    assert [record["predicted"] for record in again] == [record["predicted"] for record in records]


def test_a_text_with_many_start_markers_is_searched_in_linear_time():
    started = time.perf_counter()
    assert not has_markers("[S:" * 100_000)
    assert not has_markers("[S][/S]" * 100_000)
    assert not has_markers("[/S][S] [O]a[/O]")
    assert has_markers("[O]a[/O] [S:PER]b[/S:PER]")
    assert time.perf_counter() - started < 5


@pytest.mark.slow
def test_truncated_markers_give_a_warning(relations, tiny, cli, tmp_path):
    args = ["--data", relations, "--model", tiny, *COLUMNS, "--max-length", 8, "--max-steps", 1, "--no-bf16"]
    status, _, err = cli("classify", *args, "-o", tmp_path / "run")
    assert status == 0, err
    assert re.search(r"\d+ of \d+ training texts lost markers of an entity", err)


@pytest.mark.slow
@pytest.mark.parametrize("flag", [["--lora", 2], ["--freeze", 1]])
def test_new_markers_with_frozen_embeddings_are_refused(flag, run, relations, tiny, cli, tmp_path):
    args = ["--data", relations, *COLUMNS, *flag]
    assert_refused(cli, tmp_path, [*args, "--model", tiny], [f"{flag[0]} {flag[1]}: freezes the embeddings"])
    options = ["--model", run.output_dir, "--max-steps", 1, "--no-bf16", "-o", tmp_path / "next"]
    status, _, err = cli("classify", *args, *options)  # the run has trained the markers
    assert status == 0, err


@pytest.mark.slow
def test_evaluate_and_predict_read_the_file(run, relations, cli, tmp_path):
    status, out, err = cli("evaluate", run.output_dir, "--data", relations, "--json")
    assert status == 0, err
    assert json.loads(out)["validation"]["accuracy"] > 0.9
    status, _, err = cli("predict", run.output_dir, "--data", relations, "-o", tmp_path / "p.jsonl")
    assert status == 0, err
    assert len((tmp_path / "p.jsonl").read_text("utf-8").splitlines()) == 160


def test_check_reports_only_the_copies(relations, tiny, cli):
    status, out, err = cli("check", "classify", "--data", relations, "--model", tiny, *COLUMNS, "--json")
    assert status == 0, err
    names = [finding["name"] for finding in json.loads(out)["findings"]]
    assert names == ["duplicates", "reading"]  # the made rows have few different texts


# ---- refusals


def change(rows, index, column, **values):
    rows[index][column] |= values
    return rows


REFUSED = {
    "no second column": (make_rows, COLUMNS[:2], ["subject_entity", "two entities", "--object-column"]),
    "one column for both": (
        make_rows, [*COLUMNS[:3], "subject_entity"],
        ["--object-column subject_entity: is already the column of --subject-column", "name another column"],
    ),
    "no such column": (make_rows, [*COLUMNS[:3], "obj"], ["no column 'obj'", "--object-column"]),
    "beyond the text": (
        lambda n: change(make_rows(n), 2, "subject_entity", end_idx=99), COLUMNS,
        ["row 3", "'subject_entity'", "are not in the text"],
    ),
    "overlap": (
        lambda n: change(make_rows(n), 4, "object_entity", start_idx=0, end_idx=15), COLUMNS,
        ["row 5", "the entities overlap"],
    ),
    "a list as type": (
        lambda n: change(make_rows(n), 1, "object_entity", type=["LOC"]), COLUMNS,
        ["row 2", "'object_entity'", "as an entity"],
    ),
    "a type with brackets": (
        lambda n: change(make_rows(n), 1, "object_entity", type="LOC [SEP]"), COLUMNS,
        ["row 2", "'object_entity'", "'LOC [SEP]' contains a bracket", "rename it"],
    ),
    "no position": (
        lambda n: change(make_rows(n), 1, "object_entity", start_idx=None), COLUMNS,
        ["row 2", "'object_entity'", "as an entity", "start_idx"],
    ),
    "windows": (make_rows, [*COLUMNS, "--long-texts", "windows"], ["--long-texts windows", "another value"]),
    "fitted head": (make_rows, [*COLUMNS, "--method", "linear-probe"], ["linear-probe", "--subject-column"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, cli, tiny, tmp_path):
    make, args, words = REFUSED[case]
    data = write_rows(tmp_path / "rows.jsonl", make(30))
    assert_refused(cli, tmp_path, ["--data", data, "--model", tiny, *args], words)


def test_unknown_types_in_marked_texts_have_markers_without_a_type(run):
    texts = ["[S:XYZ]good[/S:XYZ] was [O:LOC]bad[/O:LOC]", "[S]good[/S] was [O:LOC]bad[/O:LOC]"]
    unknown, untyped = bertkit.predict(run.output_dir, data=[{"sentence": text} for text in texts])
    assert unknown["sentence"] == texts[1]
    assert unknown["probabilities"] == untyped["probabilities"]


def test_a_text_without_markers_is_refused(run, cli, tmp_path):
    args = [run.output_dir, "--text", "the good was bad"]
    assert_refused(cli, tmp_path, args, ["has no marked entities", "[S]Ann[/S]"], "predict")

"""Question answering data: every format gives the same rows, and wrong offsets are fixed or reported."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.loading import SAMPLES_DIR
from bertkit.data.qa.answers import describe_location
from bertkit.data.qa.repair import fix_offsets
from bertkit.data.qa.rows import (
    NESTED_COLUMNS,
    choose_split_unit,
    compute_group_ids,
    find_unanswerable,
    normalize_questions,
    resolve_columns,
)
from bertkit.data.readers.files import read_file
from bertkit.data.rows import Rows
from bertkit.data.split import make_splits
from bertkit.errors import UserError
from bertkit.tasks.qa import Qa, QaConfig

RAIN = "It rained in Oslo, and in Oslo only."
TWO = [{"text": "Oslo", "answer_start": 13}, {"text": "rained", "answer_start": 3}]


def read(*records, file="train.json"):
    rows = Rows.from_dicts(records, file)
    return normalize_questions(rows, resolve_columns(rows, None, None, None))


def row(answers, context=RAIN, **more):
    return {"id": "a", "question": "Where?", "context": context, "answers": answers, **more}


def article(*qas, title="Rain", context=RAIN):
    return {"title": title, "paragraphs": [{"context": context, "qas": list(qas)}]}


def asked(name, answers=TWO, **more):
    return {"id": name, "question": "Where?", "answers": answers, **more}


def starts(rows):
    return [[answer["answer_start"] for answer in answers] for answers in rows["answers"]]


SAME = {
    "nested": article(asked("a")),
    "an object of lists": row({"text": ["Oslo", "rained"], "answer_start": [13, 3]}),
    "a list of objects": row(TWO),
    "start for short": row([{"text": "Oslo", "start": 13}, {"text": "rained", "start": 3}]),
    "lists side by side": row(["Oslo", "rained"], answer_start=[13, 3]),
    "JSON in a cell": row(json.dumps({"text": ["Oslo", "rained"], "answer_start": [13, 3]})),
    "a list as JSON in a cell": row(json.dumps(TWO)),
    "other names": {"guid": "a", "Query": "Where?", "passage": RAIN, "answer": TWO},
}


@pytest.mark.parametrize("form", SAME)
def test_each_form_gives_the_same_rows(form):
    rows = read(SAME[form])
    assert rows["answers"] == [TWO]
    assert (rows["id"], rows["question"], rows["context"]) == (["a"], ["Where?"], [RAIN])


@pytest.mark.parametrize("start", [13, "13", 13.0, "13.0", None, "", float("nan")])
def test_one_answer_in_a_cell_of_its_own(start):
    expected = [[13 if str(start).startswith("13") else None]]
    assert starts(read(row("Oslo", answer_start=start))) == expected
    assert starts(read(row({"text": "Oslo", "answer_start": start}))) == expected


@pytest.mark.parametrize("text", ["[13]", "{x}", '{"ship": 1}', "[Oslo]", '["a"]'])
def test_brackets_in_a_text_are_not_an_object(text):
    assert read(row(text))["answers"] == [[{"text": text, "answer_start": None}]]


def test_a_csv_without_ids(tmp_path):
    header = ["question", "text", "answer_text", "answer_start", "source"]
    path = tmp_path / "train.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [header, ["Where?", RAIN, "Oslo", "13", "web"], ["When?", RAIN, "", "", "book"]]
        )
    raw = read_file(path)
    names = resolve_columns(raw, None, None, None)
    rows = normalize_questions(raw, names)
    assert rows["id"] == ["0", "1"]  # as rows are counted elsewhere
    assert normalize_questions(raw.select([1]), names)["id"] == ["1"]  # a part of the file
    assert rows["answers"] == [TWO[:1], []]
    assert list(rows.columns) == ["id", "question", "context", "answers", "source"]


def test_flattened_articles_number_questions_and_reuse_contexts():
    rows = read(article(asked("a"), asked("b")), article(asked("c"), title="Oslo"), file="dev.json")
    assert rows["context"][0] is rows["context"][1]
    assert rows["title"] == ["Rain", "Rain", "Oslo"]
    assert describe_location(rows, 2) == "dev.json: row 3 (id c)"


def test_flat_rows_reuse_contexts():
    records = [json.loads(json.dumps(row(TWO) | {"id": name})) for name in "ab"]
    contexts = read(*records)["context"]
    assert contexts[0] is contexts[1]


def test_questions_of_several_files_are_counted_in_each():
    parts = [Rows.from_dicts([article(asked(name))], f"{name}.json") for name in "ab"]
    rows = normalize_questions(Rows.concatenate(parts), ("question", "context", "answers"))
    assert [describe_location(rows, index) for index in range(2)] == [
        "a.json: row 1 (id a)",
        "b.json: row 1 (id b)",
    ]


@pytest.mark.parametrize("none", [None, "", "[]", [], {"text": [], "answer_start": []}])
def test_a_question_without_answers_is_unanswerable(none):
    rows = read(row(TWO), row(none) | {"id": "b"})
    assert rows["answers"] == [TWO, []]
    assert find_unanswerable(rows) == 1


def test_impossible_questions_have_no_answers_however_plausible():
    nested = article(asked("a"), asked("b", is_impossible=True), asked("c", [], plausible_answers=TWO))
    assert read(nested)["answers"] == [TWO, [], []]
    assert read(row(TWO), row(TWO, is_impossible="True") | {"id": "b"})["answers"] == [TWO, []]


def test_a_split_without_any_answer_is_unlabelled():
    rows = read(row([]), row(None) | {"id": "b"})
    assert "answers" not in rows.columns
    assert find_unanswerable(rows) is None
    assert fix_offsets(rows, "test") == (rows, [])


IMPOSSIBLE = {
    "nested": [article(asked("a", [], is_impossible=True))],
    "nested, without answers": [article({"id": "a", "question": "Where?", "is_impossible": True})],
    "a row a question": [row({"text": [], "answer_start": []}, is_impossible=True)],
    "one of two": [row([], is_impossible=1), row([], is_impossible=0) | {"id": "b"}],
    "as CSV has it": [row("", Is_Impossible="TRUE")],
    "without answers": [{"question": "Where?", "context": RAIN, "is_impossible": "true"}],
}


@pytest.mark.parametrize("form", IMPOSSIBLE)
def test_a_split_of_impossible_questions_is_labelled(form):
    rows = normalize_questions(
        Rows.from_dicts(IMPOSSIBLE[form], "dev.json"), ("question", "context", "answers")
    )
    assert rows["answers"] == [[] for _ in range(len(rows))]
    assert find_unanswerable(rows) == 0


def test_without_answers_some_marks_do_not_make_the_others_unanswerable():
    bare = {"question": "Where?", "context": RAIN}
    rows = Rows.from_dicts([bare | {"is_impossible": mark} for mark in (True, False)], "test.json")
    assert "answers" not in normalize_questions(rows, ("question", "context", "answers")).columns


def test_columns_are_taken_as_named_and_others_kept():
    records = [{"q": "Where?", "text": RAIN, "gold": TWO, "question": 7, "level": "easy"}]
    rows = Rows.from_dicts(records, "train.json")
    found = normalize_questions(rows, resolve_columns(rows, "q", None, "gold"))
    assert found["question"] == ["Where?"]
    assert (found["input_question"], found["level"]) == ([7], ["easy"])


def test_another_split_may_have_another_form():
    names = resolve_columns(Rows.from_dicts([article(asked("a"))], "train.json"), None, None, None)
    flat = Rows.from_dicts([{"query": "Where?", "text": RAIN, "answer": "Oslo"}], "test.csv")
    assert normalize_questions(flat, names)["answers"] == [[{"text": "Oslo", "answer_start": None}]]


def test_a_split_of_another_form_keeps_columns_called_as_those_of_the_training_rows():
    flat = {"question": "Where?", "context": RAIN, "answers": TWO, "text": "easy", "gold": 7}
    rows = normalize_questions(Rows.from_dicts([flat], "dev.json"), ("query", "text", "gold"))
    assert rows["answers"] == [TWO]
    assert (rows["text"], rows["gold"]) == (["easy"], [7])


@pytest.mark.parametrize("column", ["answer", "Answers", "gold"])
def test_each_column_of_another_split_is_looked_for_by_itself(column):
    other = Rows.from_dicts([{"question": "Where?", "context": RAIN, column: "Oslo"}], "dev.csv")
    names = ("question", "context", "gold" if column == "gold" else "answers")
    assert normalize_questions(other, names)["answers"] == [[{"text": "Oslo", "answer_start": None}]]
    other = Rows.from_dicts([{"query": "Where?", "absatz": RAIN, column: "Oslo"}], "dev.csv")
    assert normalize_questions(other, ("question", "absatz", names[2]))["context"] == [RAIN]


def test_a_column_of_another_split_has_one_role():
    texts = Rows.from_dicts([{"question": "Where?", "context": RAIN, "text": "Oslo"}], "train.json")
    names = resolve_columns(texts, None, "context", "text")
    other = Rows.from_dicts([{"question": "Where?", "text": "Oslo", "document": RAIN}], "dev.json")
    assert normalize_questions(other, names)["context"] == [RAIN]
    other = Rows.from_dicts([{"question": "Where?", "text": RAIN}], "dev.json")
    message = r"dev\.json: no column looks like the context .*; name the column 'context'"
    with pytest.raises(UserError, match=message):
        normalize_questions(other, names)


def test_offsets_beside_no_answers_are_kept():
    rows = Rows.from_dicts([{"question": "Where?", "context": RAIN, "answer_start": 5}], "test.json")
    assert normalize_questions(rows, ("question", "context", "answers"))["answer_start"] == [5]


def test_normalized_rows_are_unchanged():
    names = ("context", "question", "answers")  # each called as the other
    rows = Rows.from_dicts([row(TWO, context="Where?", question=RAIN)], "train.json")
    task = Qa(QaConfig(question_column=names[0], context_column=names[1], answers_column=names[2]))
    assert task.parse_rows(rows)[0]["context"] == [RAIN]
    assert task.parse_rows(normalize_questions(rows, names))[0]["context"] == [RAIN]


@pytest.mark.parametrize("named", [("nope", None, None), (None, "nope", None), (None, None, "nope")])
def test_a_column_that_is_not_there_is_named_with_its_flag(named):
    flag = dict(zip(named, ("--question-column", "--context-column", "--answers-column"), strict=True))[
        "nope"
    ]
    with pytest.raises(UserError, match=f"train.json: no column 'nope' .{flag}.*it has id, question"):
        resolve_columns(Rows.from_dicts([row(TWO)], "train.json"), *named)


@pytest.mark.parametrize("role", ["question", "context", "answers"])
def test_columns_of_articles_cannot_be_named(role):
    rows = Rows.from_dicts([article(asked("a"))], "train.json")
    named = {name: "text" if name == role else None for name in ("question", "context", "answers")}
    with pytest.raises(UserError, match=f"--{role}-column text: train.json contains articles"):
        resolve_columns(rows, **named)
    assert resolve_columns(rows, *NESTED_COLUMNS) == NESTED_COLUMNS  # as a finished run repeats them


def test_a_column_cannot_have_two_roles():
    with pytest.raises(UserError, match="--question-column context: already has another role"):
        resolve_columns(Rows.from_dicts([row(TWO)], "train.json"), "context", None, None)
    with pytest.raises(UserError, match="--answers-column id: already has another role"):
        resolve_columns(Rows.from_dicts([row(TWO)], "train.json"), None, None, "id")


REFUSED = {
    "a number for answers": (row(5), "column 'answers': cannot parse answers 5; write"),
    "lists that do not fit": (row({"text": ["Oslo"], "answer_start": [1, 2]}), "cannot parse answers"),
    "columns of lists that do not fit": (row(["Oslo"], answer_start=[1, 2]), "cannot parse answers"),
    "an object without a text": (row([{"answer_start": 3}]), "cannot parse answers"),
    "an empty answer": (row([{"text": " ", "answer_start": 2}]), "column 'answers': an answer is empty"),
    "an answer that is no text": (row([{"text": 3, "answer_start": 2}]), "is 3, not a text"),
    "an offset that is no number": (
        row("Oslo", answer_start="x"),
        "offset 'x' of an answer is not a whole number",
    ),
    "neither true nor false": (
        row(TWO, is_impossible="maybe"),
        "column 'is_impossible': 'maybe' is neither true nor false",
    ),
    "a Python object in a cell": (
        row("{'text': ['Oslo'], 'answer_start': [13]}"),
        "an object that is not JSON; save the file as JSONL or Parquet",
    ),
    "JSON that broke off in a cell": (row('{"text": ["Os'), "not JSON; save the file as JSONL or Parquet"),
    "half an offset": (
        row([{"text": "Oslo", "answer_start": 1.5}]),
        "offset 1.5 of an answer is not a whole",
    ),
    "no question": (row(TWO) | {"question": None}, "column 'question': is empty"),
    "a white context": (row(TWO, context=" \n"), "column 'context': is empty"),
    "a question that is no text": (row(TWO) | {"question": 3}, "column 'question': 3 is not a text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_values_are_refused_with_row_and_id(case):
    record, message = REFUSED[case]
    with pytest.raises(UserError) as error:
        read(row(TWO) | {"id": "first"}, record)
    assert str(error.value).startswith("train.json: row 2 (id a): ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_duplicate_id_is_refused():
    with pytest.raises(UserError, match=r"train\.json: row 2: id 'a' is also the id of train\.json: row 1"):
        read(row(TWO), row(TWO))


def test_lone_surrogate_in_id_is_refused():
    with pytest.raises(
        UserError, match=r"train\.json: row 2: id '\\ud800' contains half of a surrogate pair"
    ):
        read(row(TWO), row(TWO) | {"id": "\ud800"})


def test_answers_of_impossible_questions_are_reported():
    rows = read(
        row(TWO),
        *(row(some, is_impossible=True, id=name) for name, some in zip("bc", (TWO, []), strict=True)),
    )
    assert rows.notes == (
        "train.json: 1 question has answers and is marked as impossible; its answers are ignored (ids b)",
    )
    assert read(row([], is_impossible=True)).notes == ()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"title": "Rain", "paragraphs": None}, "article 1: 'paragraphs': expected a list of objects"),
        (
            {"title": "Rain", "paragraphs": ["It rained."]},
            "article 1: 'paragraphs': expected a list of objects",
        ),
        ({"paragraphs": [{"context": RAIN}]}, "article 1: paragraph 1: 'qas': expected a list of objects"),
        ({"paragraphs": []}, "the articles contain no questions"),
    ],
)
def test_malformed_articles_are_refused(broken, message):
    with pytest.raises(UserError, match=message):
        read(broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "neither articles nor rows with a column"),
        ('{"data": {}}', "'data': expected a list of articles, found {}"),
        ('{"version": "2.0", "data": null}', "'data': expected a list of articles, found None"),
        ("null", "a header and no rows .it begins with neither { nor .,"),
        ('"abc"', "a header and no rows .it begins with neither { nor .,"),
    ],
)
def test_json_without_articles_is_refused(tmp_path, text, message):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"train\.json: .*{message}"):
        resolve_columns(read_file(path), None, None, None)
    with pytest.raises(UserError, match=rf"train\.json: .*{message}"):
        normalize_questions(read_file(path), NESTED_COLUMNS)


@pytest.mark.parametrize("squad", ["v1", "v2"])
def test_data_without_answers_is_refused_with_a_fix(squad):
    task = Qa(QaConfig(squad=squad, answers_column="answers"))
    with pytest.raises(UserError) as error:
        task.validate_splits({"train": read(row([]))})
    assert "no answers in column 'answers'" in str(error.value)
    assert ("is_impossible" in str(error.value)) is (squad == "v2")


@pytest.mark.parametrize("value", [3, "two", ["first", "second"], [], None])
def test_a_column_called_paragraphs_may_be_anything(value):
    rows = read(row(TWO, paragraphs=value))
    assert (rows["answers"], rows["paragraphs"]) == ([TWO], [value])


def test_offset_is_fixed_if_text_occurs_once():
    wrong = [{"text": "rained", "answer_start": 4}, {"text": "only", "answer_start": 34}]
    rows, notes = fix_offsets(read(row(wrong)), "train")
    assert starts(rows) == [[3, 31]]
    assert notes == [
        "2 answers of the train split are not at their offset but elsewhere in their context: fixed (ids a)"
    ]


def test_an_offset_may_be_missing():
    rows, notes = fix_offsets(read(row("rained")), "train")
    assert starts(rows) == [[3]]
    assert notes == ["1 answer of the train split has no offset: the offset of the text is used"]


def test_correct_offsets_are_unchanged():
    rows = read(row(TWO), row([]) | {"id": "b"})
    assert fix_offsets(rows, "train")[0]["answers"] == [TWO, []]
    assert fix_offsets(rows, "train")[1] == []


def test_unresolved_answers_are_removed_from_training_rows():
    records = [row(TWO), row(["Oslo", "rained"]) | {"id": "b"}, row("snow") | {"id": "c"}]
    rows, notes = fix_offsets(read(*records, row([]) | {"id": "d"}), "train")
    assert rows["id"] == ["a", "b", "d"]  # an unanswerable question is no question that lost its answers
    assert starts(rows) == [[13, 3], [3], []]
    assert "2 answers of the train split" in notes[-1]
    assert "removed (ids b, c)" in notes[-1]


def test_other_splits_keep_the_texts_of_all_their_answers():
    rows, notes = fix_offsets(read(row(["Oslo", "rained", "snow"])), "validation")
    assert [answer["text"] for answer in rows["answers"][0]] == ["Oslo", "rained", "snow"]
    assert starts(rows) == [[None, 3, None]]
    assert "kept for scoring" in notes[-1]
    assert "(ids a)" in notes[-1]


def test_places_that_overlap_are_two():
    assert starts(fix_offsets(read(row("ana", context="A banana.")), "validation")[0]) == [[None]]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("Oslo", -1),
        ("Oslo", -10),
        ("Oslo", 33),
        ("Oslo", 400),
        ("rained", -1),
        ("rained", 36),
        ("rained", 400),
    ],
)
def test_offset_outside_context_is_refused_however_often_text_occurs(text, start):
    message = rf"row 1 \(id a\): the answer at offset {start} .* exceeds its context of 36 characters"
    with pytest.raises(UserError, match=message):
        fix_offsets(read(row([{"text": text, "answer_start": start}])), "validation")


@pytest.mark.parametrize("more", [[], [row([], is_impossible=True) | {"id": "b"}]])
def test_no_training_question_with_an_answer_left(more):
    with pytest.raises(
        UserError, match=r"train\.json: row 1 \(id a\): 'snow' is not at its offset .*no other training"
    ):
        fix_offsets(read(row("snow"), *more), "train")


def test_a_paragraph_is_never_on_both_sides():
    twice = [article(asked("a")), article(asked("b"), title="Oslo")]
    rows = read(
        *twice, *(article(asked(name), title=name, context=f"{name} is dry.") for name in ("Oslo", "Rome"))
    )
    assert compute_group_ids(rows) == ["Rain", "Rain", "Oslo", "Rome"]
    assert choose_split_unit(rows) == "article"


def test_fewer_than_three_articles_are_split_by_paragraph():
    rows = read(article(asked("a")), article(asked("b"), title="Dry", context="Dry."))
    assert (compute_group_ids(rows), choose_split_unit(rows)) == ([RAIN, "Dry."], "paragraph")


@pytest.mark.parametrize(("titles", "what"), [("abc", "3 articles"), ("aab", "4 paragraphs")])
def test_too_few_groups_to_hold_out_are_counted_by_split_unit(titles, what):
    records = [row(TWO, title=titles[n % 3], context=f"{RAIN} {n % 4}", id=n) for n in range(12)]
    rows = read(*records)
    with pytest.raises(UserError, match=f"train.json: {what} are too few to hold out 10%"):
        make_splits({"train": rows}, Qa(QaConfig()).split_keys, None, 0)
    splits, notes = make_splits({"train": rows}, Qa(QaConfig()).split_keys, 0.5, 0)
    size = len(splits["validation"])
    assert notes == [f"{size} rows ({size / 12:.0%}, whole {what[2:]}) held out for validation (seed 0)"]


@pytest.mark.parametrize("blank", ["", " ", None])
def test_blank_titles_are_ignored(blank):
    titled = [row(TWO, title=name, context=name, id=name) for name in ("Rain", "Oslo", "Rome")]
    bare = [row([], title=blank, context=name, id=name) for name in ("Sun", "Snow")]
    assert compute_group_ids(read(*titled, *bare)) == ["Rain", "Oslo", "Rome", "Sun", "Snow"]


FRAGMENTS = st.text(st.sampled_from("ab 한국어中文😀é\r\n\t"), min_size=1, max_size=12).filter(str.strip)


@given(st.lists(FRAGMENTS, min_size=2, max_size=5), st.data())
def test_correct_answers_are_unchanged_in_every_format(fragments, data):
    context = "  ".join(fragments)
    place = data.draw(st.integers(0, len(fragments) - 1))
    text, start = fragments[place], len("  ".join([*fragments[:place], ""]))
    forms = [
        article(asked("a", [{"text": text, "answer_start": start}]), context=context),
        row({"text": [text], "answer_start": [start]}, context=context),
        row(text, context=context, answer_start=str(start)),
    ]
    for form in forms:
        rows, notes = fix_offsets(read(json.loads(json.dumps(form))), "train")
        assert (rows["context"], rows["answers"]) == ([context], [[{"text": text, "answer_start": start}]])
        assert notes == []


def test_the_sample():
    rows = read_file(SAMPLES_DIR / "qa" / "train.json")
    rows, notes = fix_offsets(normalize_questions(rows, resolve_columns(rows, None, None, None)), "train")
    answered = np.array([bool(answers) for answers in rows["answers"]])
    assert notes == []
    assert 0.15 < 1 - answered.mean() < 0.35
    assert len(set(compute_group_ids(rows))) == 10

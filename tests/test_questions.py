"""Test question answering data: formats, columns, answers, and the repair of wrong offsets."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.readers.formats import read_file
from bertkit.data.sources import SAMPLES_DIR
from bertkit.data.split import make_splits
from bertkit.data.table import Rows, hash_values
from bertkit.errors import UserError
from bertkit.tasks.qa.config import QaConfig
from bertkit.tasks.qa.rows import (
    NESTED_COLUMNS,
    describe_location,
    find_unanswerable,
    fix_offsets,
    group_questions,
    normalize_questions,
    resolve_columns,
)
from bertkit.tasks.qa.task import Qa

RAIN = "It rained in Oslo, and in Oslo only."
TWO_ANSWERS = [{"text": "Oslo", "answer_start": 13}, {"text": "rained", "answer_start": 3}]


def read_questions(*records, file="train.json"):
    rows = Rows.from_dicts(records, file)
    return normalize_questions(rows, resolve_columns(rows, None, None, None))


def make_row(answers, context=RAIN, **columns):
    return {"id": "a", "question": "Where?", "context": context, "answers": answers, **columns}


def make_article(*qas, title="Rain", context=RAIN):
    return {"title": title, "paragraphs": [{"context": context, "qas": list(qas)}]}


def make_question(name, answers=TWO_ANSWERS, **fields):
    return {"id": name, "question": "Where?", "answers": answers, **fields}


def get_offsets(rows):
    return [[answer["answer_start"] for answer in answers] for answers in rows["answers"]]


EQUIVALENT_ROWS = {
    "nested": make_article(make_question("a")),
    "an object of lists": make_row({"text": ["Oslo", "rained"], "answer_start": [13, 3]}),
    "a list of objects": make_row(TWO_ANSWERS),
    "offsets named start": make_row([{"text": "Oslo", "start": 13}, {"text": "rained", "start": 3}]),
    "columns of lists": make_row(["Oslo", "rained"], answer_start=[13, 3]),
    "an object as JSON in a cell": make_row(
        json.dumps({"text": ["Oslo", "rained"], "answer_start": [13, 3]})
    ),
    "a list as JSON in a cell": make_row(json.dumps(TWO_ANSWERS)),
    "other column names": {"guid": "a", "Query": "Where?", "passage": RAIN, "answer": TWO_ANSWERS},
}


@pytest.mark.parametrize("name", EQUIVALENT_ROWS)
def test_equivalent_rows_are_normalized_to_the_same_rows(name):
    rows = read_questions(EQUIVALENT_ROWS[name])
    assert rows["answers"] == [TWO_ANSWERS]
    assert (rows["id"], rows["question"], rows["context"]) == (["a"], ["Where?"], [RAIN])


@pytest.mark.parametrize("start", [13, "13", 13.0, "13.0", None, "", float("nan")])
def test_a_cell_may_contain_a_single_answer(start):
    expected = [[13 if str(start).startswith("13") else None]]
    assert get_offsets(read_questions(make_row("Oslo", answer_start=start))) == expected
    assert get_offsets(read_questions(make_row({"text": "Oslo", "answer_start": start}))) == expected


@pytest.mark.parametrize("text", ["[13]", "{x}", '{"ship": 1}', "[Oslo]", '["a"]'])
def test_answer_texts_with_brackets_are_not_parsed(text):
    assert read_questions(make_row(text))["answers"] == [[{"text": text, "answer_start": None}]]


def test_csv_rows_without_ids_get_row_numbers_as_ids(tmp_path):
    header = ["question", "text", "answer_text", "answer_start", "source"]
    path = tmp_path / "train.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [header, ["Where?", RAIN, "Oslo", "13", "web"], ["When?", RAIN, "", "", "book"]]
        )
    raw = read_file(path)
    names = resolve_columns(raw, None, None, None)
    rows = normalize_questions(raw, names)
    assert rows["id"] == ["0", "1"]  # the row index
    assert normalize_questions(raw.select([1]), names)["id"] == ["1"]  # a subset keeps its ids
    assert rows["answers"] == [TWO_ANSWERS[:1], []]
    assert list(rows.columns) == ["id", "question", "context", "answers", "source"]


def test_flattened_articles_number_questions_and_reuse_contexts():
    rows = read_questions(
        make_article(make_question("a"), make_question("b")),
        make_article(make_question("c"), title="Oslo"),
        file="dev.json",
    )
    assert rows["context"][0] is rows["context"][1]
    assert rows["title"] == ["Rain", "Rain", "Oslo"]
    assert describe_location(rows, 2) == "dev.json: row 3 (id c)"


def test_flat_rows_reuse_contexts():
    records = [json.loads(json.dumps(make_row(TWO_ANSWERS) | {"id": name})) for name in "ab"]
    contexts = read_questions(*records)["context"]
    assert contexts[0] is contexts[1]


def test_row_numbers_start_again_in_each_file():
    parts = [Rows.from_dicts([make_article(make_question(name))], f"{name}.json") for name in "ab"]
    rows = normalize_questions(Rows.concatenate(parts), ("question", "context", "answers"))
    assert [describe_location(rows, index) for index in range(2)] == [
        "a.json: row 1 (id a)",
        "b.json: row 1 (id b)",
    ]


@pytest.mark.parametrize("none", [None, "", "[]", [], {"text": [], "answer_start": []}])
def test_a_question_without_answers_is_unanswerable(none):
    rows = read_questions(make_row(TWO_ANSWERS), make_row(none) | {"id": "b"})
    assert rows["answers"] == [TWO_ANSWERS, []]
    assert find_unanswerable(rows) == 1


def test_impossible_questions_have_no_answers_even_if_plausible_ones_are_given():
    nested = make_article(
        make_question("a"),
        make_question("b", is_impossible=True),
        make_question("c", [], plausible_answers=TWO_ANSWERS),
    )
    assert read_questions(nested)["answers"] == [TWO_ANSWERS, [], []]
    assert read_questions(make_row(TWO_ANSWERS), make_row(TWO_ANSWERS, is_impossible="True") | {"id": "b"})[
        "answers"
    ] == [TWO_ANSWERS, []]


def test_a_split_without_any_answer_is_unlabeled():
    rows = read_questions(make_row([]), make_row(None) | {"id": "b"})
    assert "answers" not in rows.columns
    assert find_unanswerable(rows) is None
    assert fix_offsets(rows, "test") == (rows, [])


IMPOSSIBLE_QUESTIONS = {
    "nested": [make_article(make_question("a", [], is_impossible=True))],
    "nested, without answers": [make_article({"id": "a", "question": "Where?", "is_impossible": True})],
    "one row per question": [make_row({"text": [], "answer_start": []}, is_impossible=True)],
    "one of two is impossible": [make_row([], is_impossible=1), make_row([], is_impossible=0) | {"id": "b"}],
    "text values as in CSV": [make_row("", Is_Impossible="TRUE")],
    "without answers": [{"question": "Where?", "context": RAIN, "is_impossible": "true"}],
}


@pytest.mark.parametrize("name", IMPOSSIBLE_QUESTIONS)
def test_a_split_of_impossible_questions_is_labeled(name):
    rows = normalize_questions(
        Rows.from_dicts(IMPOSSIBLE_QUESTIONS[name], "dev.json"), ("question", "context", "answers")
    )
    assert rows["answers"] == [[] for _ in range(len(rows))]
    assert find_unanswerable(rows) == 0


def test_without_answers_some_is_impossible_values_do_not_label_a_split():
    bare = {"question": "Where?", "context": RAIN}
    rows = Rows.from_dicts([bare | {"is_impossible": mark} for mark in (True, False)], "test.json")
    assert "answers" not in normalize_questions(rows, ("question", "context", "answers")).columns


def test_given_columns_are_renamed_and_other_columns_kept():
    records = [{"q": "Where?", "text": RAIN, "gold": TWO_ANSWERS, "question": 7, "level": "easy"}]
    rows = Rows.from_dicts(records, "train.json")
    questions = normalize_questions(rows, resolve_columns(rows, "q", None, "gold"))
    assert questions["question"] == ["Where?"]
    assert (questions["input_question"], questions["level"]) == ([7], ["easy"])


def test_another_split_may_have_another_format():
    names = resolve_columns(
        Rows.from_dicts([make_article(make_question("a"))], "train.json"), None, None, None
    )
    flat = Rows.from_dicts([{"query": "Where?", "text": RAIN, "answer": "Oslo"}], "test.csv")
    assert normalize_questions(flat, names)["answers"] == [[{"text": "Oslo", "answer_start": None}]]


def test_a_split_of_another_format_keeps_columns_named_like_training_columns():
    flat = {"question": "Where?", "context": RAIN, "answers": TWO_ANSWERS, "text": "easy", "gold": 7}
    rows = normalize_questions(Rows.from_dicts([flat], "dev.json"), ("query", "text", "gold"))
    assert rows["answers"] == [TWO_ANSWERS]
    assert (rows["text"], rows["gold"]) == (["easy"], [7])


@pytest.mark.parametrize("column", ["answer", "Answers", "gold"])
def test_each_column_of_another_split_is_resolved_separately(column):
    other = Rows.from_dicts([{"question": "Where?", "context": RAIN, column: "Oslo"}], "dev.csv")
    names = ("question", "context", "gold" if column == "gold" else "answers")
    assert normalize_questions(other, names)["answers"] == [[{"text": "Oslo", "answer_start": None}]]
    other = Rows.from_dicts([{"query": "Where?", "absatz": RAIN, column: "Oslo"}], "dev.csv")
    assert normalize_questions(other, ("question", "absatz", names[2]))["context"] == [RAIN]


def test_a_column_of_another_split_has_only_one_role():
    texts = Rows.from_dicts([{"question": "Where?", "context": RAIN, "text": "Oslo"}], "train.json")
    names = resolve_columns(texts, None, "context", "text")
    other = Rows.from_dicts([{"question": "Where?", "text": "Oslo", "document": RAIN}], "dev.json")
    assert normalize_questions(other, names)["context"] == [RAIN]
    other = Rows.from_dicts([{"question": "Where?", "text": RAIN}], "dev.json")
    with pytest.raises(
        UserError, match=r"dev\.json: no column looks like the context .*; name the column 'context'"
    ):
        normalize_questions(other, names)


def test_an_offset_column_without_answers_is_kept():
    rows = Rows.from_dicts([{"question": "Where?", "context": RAIN, "answer_start": 5}], "test.json")
    assert normalize_questions(rows, ("question", "context", "answers"))["answer_start"] == [5]


def test_normalized_rows_are_unchanged():
    names = ("context", "question", "answers")  # question and context are swapped
    rows = Rows.from_dicts([make_row(TWO_ANSWERS, context="Where?", question=RAIN)], "train.json")
    task = Qa(QaConfig(question_column=names[0], context_column=names[1], answers_column=names[2]))
    assert task.parse_rows(rows)[0]["context"] == [RAIN]
    assert task.parse_rows(normalize_questions(rows, names))[0]["context"] == [RAIN]


@pytest.mark.parametrize("named", [("nope", None, None), (None, "nope", None), (None, None, "nope")])
def test_a_missing_column_is_reported_with_its_flag(named):
    flag = dict(zip(named, ("--question-column", "--context-column", "--answers-column"), strict=True))[
        "nope"
    ]
    with pytest.raises(UserError, match=f"train.json: no column 'nope' .{flag}.*it has id, question"):
        resolve_columns(Rows.from_dicts([make_row(TWO_ANSWERS)], "train.json"), *named)


@pytest.mark.parametrize("role", ["question", "context", "answers"])
def test_columns_of_articles_cannot_be_given(role):
    rows = Rows.from_dicts([make_article(make_question("a"))], "train.json")
    named = {name: "text" if name == role else None for name in ("question", "context", "answers")}
    with pytest.raises(UserError, match=f"--{role}-column text: train.json contains articles"):
        resolve_columns(rows, **named)
    # run.yaml of a finished run contains these names.
    assert resolve_columns(rows, *NESTED_COLUMNS) == NESTED_COLUMNS


def test_a_column_cannot_have_two_roles():
    with pytest.raises(UserError, match="--question-column context: already has another role"):
        resolve_columns(Rows.from_dicts([make_row(TWO_ANSWERS)], "train.json"), "context", None, None)
    with pytest.raises(UserError, match="--answers-column id: already has another role"):
        resolve_columns(Rows.from_dicts([make_row(TWO_ANSWERS)], "train.json"), None, None, "id")


INVALID_ROWS = {
    "answers is a number": (make_row(5), "column 'answers': cannot parse answers 5; write"),
    "lists of different lengths": (
        make_row({"text": ["Oslo"], "answer_start": [1, 2]}),
        "cannot parse answers",
    ),
    "columns of lists of different lengths": (
        make_row(["Oslo"], answer_start=[1, 2]),
        "cannot parse answers",
    ),
    "an object without a text": (make_row([{"answer_start": 3}]), "cannot parse answers"),
    "an empty answer": (make_row([{"text": " ", "answer_start": 2}]), "column 'answers': an answer is empty"),
    "an answer text is a number": (make_row([{"text": 3, "answer_start": 2}]), "is 3, not a text"),
    "an offset is a text": (
        make_row("Oslo", answer_start="x"),
        "offset 'x' of an answer is not a whole number",
    ),
    "neither true nor false": (
        make_row(TWO_ANSWERS, is_impossible="maybe"),
        "column 'is_impossible': 'maybe' is neither true nor false",
    ),
    "a Python object in a cell": (
        make_row("{'text': ['Oslo'], 'answer_start': [13]}"),
        "an object that is not JSON; save the file as JSONL or Parquet",
    ),
    "truncated JSON in a cell": (make_row('{"text": ["Os'), "not JSON; save the file as JSONL or Parquet"),
    "a fractional offset": (
        make_row([{"text": "Oslo", "answer_start": 1.5}]),
        "offset 1.5 of an answer is not a whole",
    ),
    "no question": (make_row(TWO_ANSWERS) | {"question": None}, "column 'question': is empty"),
    "a context of white space": (make_row(TWO_ANSWERS, context=" \n"), "column 'context': is empty"),
    "a question is a number": (make_row(TWO_ANSWERS) | {"question": 3}, "column 'question': 3 is not a text"),
}


@pytest.mark.parametrize("case", INVALID_ROWS)
def test_malformed_values_are_refused_with_row_and_id(case):
    record, message = INVALID_ROWS[case]
    with pytest.raises(UserError) as error:
        read_questions(make_row(TWO_ANSWERS) | {"id": "first"}, record)
    assert str(error.value).startswith("train.json: row 2 (id a): ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_duplicate_id_is_refused():
    with pytest.raises(UserError, match=r"train\.json: row 2: id 'a' is also the id of train\.json: row 1"):
        read_questions(make_row(TWO_ANSWERS), make_row(TWO_ANSWERS))


def test_lone_surrogate_in_id_is_refused():
    with pytest.raises(
        UserError, match=r"train\.json: row 2: id '\\ud800' contains half of a surrogate pair"
    ):
        read_questions(make_row(TWO_ANSWERS), make_row(TWO_ANSWERS) | {"id": "\ud800"})


def test_answers_of_impossible_questions_are_reported():
    rows = read_questions(
        make_row(TWO_ANSWERS),
        *(
            make_row(answers, is_impossible=True, id=name)
            for name, answers in zip("bc", (TWO_ANSWERS, []), strict=True)
        ),
    )
    assert rows.notes == (
        "train.json: 1 question has answers and is marked as impossible; its answers are ignored (ids b)",
    )
    assert read_questions(make_row([], is_impossible=True)).notes == ()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"title": "Rain", "paragraphs": None}, "article 1: 'paragraphs': expected a list of objects"),
        (
            {"title": "Rain", "paragraphs": ["It rained."]},
            "article 1: 'paragraphs': expected a list of objects",
        ),
        (
            {"paragraphs": [{"context": RAIN}]},
            "article 1: paragraph 1: 'qas': expected a list of objects",
        ),
        ({"paragraphs": []}, "the articles contain no questions"),
    ],
)
def test_malformed_articles_are_refused(broken, message):
    with pytest.raises(UserError, match=message):
        read_questions(broken)


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
        task.validate_splits({"train": read_questions(make_row([]))})
    assert "no answers in column 'answers'" in str(error.value)
    assert ("is_impossible" in str(error.value)) is (squad == "v2")


@pytest.mark.parametrize("value", [3, "two", ["first", "second"], [], None])
def test_a_column_named_paragraphs_may_have_any_value(value):
    rows = read_questions(make_row(TWO_ANSWERS, paragraphs=value))
    assert (rows["answers"], rows["paragraphs"]) == ([TWO_ANSWERS], [value])


def test_offset_is_fixed_if_text_occurs_once():
    wrong = [{"text": "rained", "answer_start": 4}, {"text": "only", "answer_start": 34}]
    rows, notes = fix_offsets(read_questions(make_row(wrong)), "train")
    assert get_offsets(rows) == [[3, 31]]
    assert notes == [
        "2 answers of the train split are not at their offset but elsewhere in their context: fixed (ids a)"
    ]


def test_a_missing_offset_is_found_by_the_answer_text():
    rows, notes = fix_offsets(read_questions(make_row("rained")), "train")
    assert get_offsets(rows) == [[3]]
    assert notes == ["1 answer of the train split has no offset: the offset of the text is used"]


def test_correct_offsets_are_unchanged():
    rows = read_questions(make_row(TWO_ANSWERS), make_row([]) | {"id": "b"})
    assert fix_offsets(rows, "train")[0]["answers"] == [TWO_ANSWERS, []]
    assert fix_offsets(rows, "train")[1] == []


def test_unresolved_answers_are_removed_from_training_rows():
    records = [
        make_row(TWO_ANSWERS),
        make_row(["Oslo", "rained"]) | {"id": "b"},
        make_row("snow") | {"id": "c"},
    ]
    rows, notes = fix_offsets(read_questions(*records, make_row([]) | {"id": "d"}), "train")
    assert rows["id"] == ["a", "b", "d"]  # the unanswerable question d is kept
    assert get_offsets(rows) == [[13, 3], [3], []]
    assert "2 answers of the train split" in notes[-1]
    assert "removed (ids b, c)" in notes[-1]


def test_other_splits_keep_the_texts_of_all_their_answers():
    rows, notes = fix_offsets(read_questions(make_row(["Oslo", "rained", "snow"])), "validation")
    assert [answer["text"] for answer in rows["answers"][0]] == ["Oslo", "rained", "snow"]
    assert get_offsets(rows) == [[None, 3, None]]
    assert "kept for scoring" in notes[-1]
    assert "(ids a)" in notes[-1]


def test_overlapping_occurrences_are_ambiguous():
    assert get_offsets(
        fix_offsets(read_questions(make_row("ana", context="A banana.")), "validation")[0]
    ) == [[None]]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("Oslo", -2),
        ("Oslo", -10),
        ("Oslo", 33),
        ("Oslo", 400),
        ("rained", -2),
        ("rained", 36),
        ("rained", 400),
    ],
)
def test_offset_outside_context_is_refused_however_often_text_occurs(text, start):
    with pytest.raises(
        UserError, match=rf"row 1 \(id a\): the answer at offset {start} .* exceeds its context of 36"
    ):
        fix_offsets(read_questions(make_row([{"text": text, "answer_start": start}])), "validation")


@pytest.mark.parametrize("other_rows", [[], [make_row([], is_impossible=True) | {"id": "b"}]])
def test_unresolved_answers_are_refused_if_no_training_question_keeps_an_answer(other_rows):
    with pytest.raises(
        UserError, match=r"train\.json: row 1 \(id a\): 'snow' is not at its offset .*no other training"
    ):
        fix_offsets(read_questions(make_row("snow"), *other_rows), "train")


def get_groups(rows):
    """Return the title or the context whose hash is the key of each question's group."""
    names = {
        int(hash_values([name])[0]): name
        for column in ("title", "context")
        for name in rows.columns.get(column, [])
    }
    return [names[key] for key in group_questions(rows)[0].tolist()]


def test_articles_with_the_same_paragraph_are_in_the_same_group():
    duplicates = [make_article(make_question("a")), make_article(make_question("b"), title="Oslo")]
    rows = read_questions(
        *duplicates,
        *(
            make_article(make_question(name), title=name, context=f"{name} is dry.")
            for name in ("Oslo", "Rome")
        ),
    )
    assert get_groups(rows) == ["Rain", "Rain", "Oslo", "Rome"]
    assert group_questions(rows)[1] == "article"


def test_fewer_than_three_articles_are_split_by_paragraph():
    rows = read_questions(
        make_article(make_question("a")), make_article(make_question("b"), title="Dry", context="Dry.")
    )
    assert (get_groups(rows), group_questions(rows)[1]) == ([RAIN, "Dry."], "paragraph")


@pytest.mark.parametrize(("titles", "what"), [("abc", "3 articles"), ("aab", "4 paragraphs")])
def test_too_few_groups_to_hold_out_are_counted_by_split_unit(titles, what):
    records = [make_row(TWO_ANSWERS, title=titles[n % 3], context=f"{RAIN} {n % 4}", id=n) for n in range(12)]
    rows = read_questions(*records)
    with pytest.raises(UserError, match=f"train.json: {what} are too few to hold out 10%"):
        make_splits({"train": rows}, Qa(QaConfig()).split_keys, None, 0)
    splits, notes = make_splits({"train": rows}, Qa(QaConfig()).split_keys, 0.5, 0)
    size = len(splits["validation"])
    assert notes == [f"{size} rows ({size / 12:.0%}, whole {what[2:]}) held out for validation (seed 0)"]


@pytest.mark.parametrize("blank", ["", " ", None])
def test_blank_titles_are_ignored(blank):
    titled = [make_row(TWO_ANSWERS, title=name, context=name, id=name) for name in ("Rain", "Oslo", "Rome")]
    bare = [make_row([], title=blank, context=name, id=name) for name in ("Sun", "Snow")]
    assert get_groups(read_questions(*titled, *bare)) == ["Rain", "Oslo", "Rome", "Sun", "Snow"]


FRAGMENTS = st.text(st.sampled_from("ab 한국어中文😀é\r\n\t"), min_size=1, max_size=12).filter(str.strip)


@pytest.mark.slow
@given(st.lists(FRAGMENTS, min_size=2, max_size=5), st.data())
def test_correct_answers_are_unchanged_in_every_format(fragments, data):
    context = "  ".join(fragments)
    place = data.draw(st.integers(0, len(fragments) - 1))
    text, start = fragments[place], len("  ".join([*fragments[:place], ""]))
    formats = [
        make_article(make_question("a", [{"text": text, "answer_start": start}]), context=context),
        make_row({"text": [text], "answer_start": [start]}, context=context),
        make_row(text, context=context, answer_start=str(start)),
    ]
    for record in formats:
        rows, notes = fix_offsets(read_questions(json.loads(json.dumps(record))), "train")
        assert (rows["context"], rows["answers"]) == ([context], [[{"text": text, "answer_start": start}]])
        assert notes == []


def test_the_sample_has_ten_articles_and_correct_offsets():
    rows = read_file(SAMPLES_DIR / "qa" / "train.json")
    rows, notes = fix_offsets(normalize_questions(rows, resolve_columns(rows, None, None, None)), "train")
    answered = np.array([bool(answers) for answers in rows["answers"]])
    assert notes == []
    assert 0.15 < 1 - answered.mean() < 0.35
    assert len(set(get_groups(rows))) == 10

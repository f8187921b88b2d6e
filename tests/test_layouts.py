"""Layouts of files: rows of annotation tools and datasets are converted, and others are left as they are."""

import json
from collections import Counter
from pathlib import Path

import pytest
from datasets import Dataset

from bertkit.data.columns import guess_label_column, guess_text_columns
from bertkit.data.readers.conll import iter_conll
from bertkit.data.readers.formats import Dialect, read_file
from bertkit.data.readers.layouts import LAYOUTS, convert_records, read_document
from bertkit.data.sources import load_dataset
from bertkit.errors import UserError
from bertkit.settings.validation import DataObject
from bertkit.tasks import TASKS
from bertkit.utils.text import parse_list

PAGE = Path(__file__).parents[1] / "docs" / "layouts.md"
BEGIN, END = "<!-- layouts: written by `python tests/test_layouts.py` -->\n", "<!-- end of layouts -->"
SPAN = {"start": 0, "end": 4, "label": "LOC"}

CASES = {
    "Label Studio, JSON": (
        {
            "data": {"text": "Oslo is cold"},
            "annotations": [
                {"was_cancelled": True, "result": []},
                {"result": [{"type": "labels", "value": {"start": 0, "end": 4, "labels": ["LOC"]}}]},
            ],
        },
        {"text": "Oslo is cold", "spans": [SPAN]},
    ),
    "Label Studio, JSON-MIN or CSV": (
        {
            "text": "Oslo",
            "annotation_id": 1,
            "annotator": 1,
            "label": [{"start": 0, "end": 4, "labels": ["LOC"]}],
        },
        {"text": "Oslo", "annotation_id": 1, "annotator": 1, "spans": [SPAN]},
    ),
    "Prodigy": (
        {"text": "Oslo", "tokens": [{"text": "Oslo"}], "spans": [SPAN], "answer": "accept"},
        {"text": "Oslo", "spans": [SPAN]},
    ),
    "doccano, relations": (
        {
            "text": "Oslo",
            "entities": [{"start_offset": 0, "end_offset": 4, "label": "LOC"}],
            "relations": [],
        },
        {"text": "Oslo", "spans": [SPAN]},
    ),
    "CLUENER": (
        {"text": "Oslo", "label": {"LOC": {"Oslo": [[0, 3]]}}},
        {"text": "Oslo", "spans": [SPAN | {"text": "Oslo"}]},
    ),
    "ARC, OpenBookQA and CommonsenseQA": (
        {"question": "Why?", "choices": {"text": ["so", "no"], "label": ["1", "2"]}, "answerKey": "2"},
        {"question": "Why?", "choices": ["so", "no"], "answerKey": "B"},
    ),
    "list of contexts with questions": (
        {"context": "Oslo", "qas": [{"id": "1", "question": "Where?", "answers": []}]},
        {
            "title": None,
            "paragraphs": [{"context": "Oslo", "qas": [{"id": "1", "question": "Where?", "answers": []}]}],
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_record_is_converted(name):
    record, expected = CASES[name]
    [task, *_] = next(layout.tasks for layout in LAYOUTS if layout.name == name)
    layout, rows = convert_records("", enumerate([record], start=1), Counter(), task)
    assert layout.name == name
    assert list(rows) == [(1, expected)]


@pytest.mark.parametrize(
    "record",
    [
        {"text": "a", "label": "b"},
        {"question": "a", "context": "b", "answers": {"text": ["c"], "answer_start": [0]}},
        {"context": "a", "question": "b", "answer": "accept it"},
        {"tokens": ["a"], "ner_tags": ["O"]},
        {"text": "a", "label": [[0, 1, "LOC"]]},
        {"question": "a", "choices": ["b", "c"], "label": 0},
        {"text": "a", "label": "x", "annotation_id": "1", "annotator": "me"},
        {"text": "a", "answer": "reject"},
        {"question": "a", "context": "b", "answer": {"text": "c", "answer_start": 0}},
    ],
)
def test_usual_rows_have_no_layout(record):
    for task in TASKS:
        layout, rows = convert_records("", enumerate([record], start=1), Counter(), task)
        assert (layout, list(rows)) == (None, [(1, record)])


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_another_structure_is_refused(name):
    """The other rows show the layout, and are not read as something else."""
    record = CASES[name][0]
    [task, *_] = next(layout.tasks for layout in LAYOUTS if layout.name == name)
    layout, rows = convert_records("a.json", enumerate([record, record, {"text": 7}]), Counter(), task)
    assert layout.name == name
    if name == "Label Studio, JSON-MIN or CSV":  # its columns have any names
        return
    with pytest.raises(UserError, match=r"^a\.json: row 2: .*correct or remove the row$"):
        list(rows)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[null, {"text": "Oslo"}]', "row 1: not a JSON object"),
        ('["Oslo", {"entities": []}]]', "broken JSON"),
    ],
)
def test_a_json_list_is_not_read_as_words(tmp_path, text, problem):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        read_file(path, Dialect(conll=True))


def test_rows_of_a_parquet_file_and_of_an_object_are_converted_like_those_of_a_file(tmp_path):
    rows = [
        {"text": f"text {n}", "label": "ab"[n % 2], "answer": ["accept", "reject"][n % 3 == 0]}
        for n in range(9)
    ]
    path = tmp_path / "rows.parquet"
    Dataset.from_list(rows).to_parquet(path)
    expected = [row["text"] for row in rows if row["answer"] == "accept"]
    assert list(read_file(path)["text"]) == expected
    for data in (rows, Dataset.from_list(rows)):
        dataset = load_dataset(DataObject.recognize(data), "classify")
        assert list(dataset.splits["train"]["text"]) == expected


def test_the_rows_of_a_long_file_are_converted_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    record, expected = CASES["Label Studio, JSON-MIN or CSV"]
    path.write_text((json.dumps(record) + "\n") * 2_100)
    rows = read_file(path, Dialect(task="ner"))
    assert list(rows["spans"]) == [expected["spans"]] * 2_100


def test_rows_that_are_left_out_are_counted_and_others_keep_their_number(tmp_path):
    answers = ["accept", "reject", "ignore", "accept"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "label": "b", "answer": key}) + "\n" for key in answers))
    rows = read_file(path)
    assert rows.notes == [
        "rows.jsonl is read as Prodigy: 2 rows, 1 rejected rows left out, 1 ignored rows left out"
    ]
    assert rows.row_numbers.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ([["Oslo", {"entities": [[0, 4, "LOC"]]}]], "spaCy, training tuples"),
        ({"annotations": [["Oslo", {"entities": []}], None], "classes": ["LOC"]}, "spaCy, training tuples"),
        ([["a", "x"], ["b", "y"]], "list of pairs"),
        ({"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}, "pandas, `to_json()`"),
        ({"columns": ["text"], "index": [0], "data": [["a"]]}, 'pandas, `to_json(orient="split")`'),
        ([{"text": "a"}], None),
        ({"data": [{"paragraphs": []}]}, None),
        ({"text": ["a", "b"], "label": ["x", "y"]}, None),
    ],
)
def test_documents_are_recognized(document, name):
    assert read_document(document)[0] == name


WORD_FILES = {
    "CoNLL-U": (
        "# text = du Rhin\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\tde\t_\tADP\t_\t_\t_\t_\t_\t_\n2\tRhin\t_\t_\t_\t_\t_\t_\t_\tx=1\n2.1\te\t_\tX\t_\t_\t_\t_\t_\t_\n",
        {"FORM": ["de", "Rhin"], "UPOS": ["ADP", "O"], "MISC": ["O", "x=1"]},
    ),
    "CoNLL-2012": (
        "#begin document (a)\n"
        + "".join(
            f"a 0 {n} {word} NN * - - - - {name} -\n"
            for n, (word, name) in enumerate(
                [("New", "(GPE*"), ("York", "*)"), ("is", "*"), ("Oslo", "(GPE)")]
            )
        )
        + "\n#end document\n",
        {"word": ["New", "York", "is", "Oslo"], "ner": ["B-GPE", "I-GPE", "O", "B-GPE"]},
    ),
    "WebAnno TSV 3 (INCEpTION)": (
        "#FORMAT=WebAnno TSV 3.3\n#T_SP=a.Other|x\n#T_SP=a.NamedEntity|identifier|value\n\n\n"
        "#Text=New York is\n"
        "1-1\t0-3\tNew\tq\t*\tGPE[1]\t\n1-2\t4-8\tYork\tq\t*\tGPE[1]\t\n1-3\t9-11\tis\t_\t_\t_\t\n",
        {"word": ["New", "York", "is"], "ner": ["B-GPE", "I-GPE", "O"]},
    ),
    "words with a header": (
        "token\tner\nNew\tB-GPE\nYork\tI-GPE\n",
        {"token": ["New", "York"], "ner": ["B-GPE", "I-GPE"]},
    ),
}


@pytest.mark.parametrize("name", WORD_FILES)
def test_lines_of_words_are_read(name, tmp_path):
    text, expected = WORD_FILES[name]
    [rows] = iter_conll(tmp_path / "a.conll", lambda: iter([text]))
    [row] = rows
    assert {column: row[column] for column in expected} == expected
    assert rows.notes[0].startswith(f"a.conll is read as {name}: 1 row")


def read_words(tmp_path, text):
    return next(iter_conll(tmp_path / "a.conll", lambda: iter([text])))


def test_a_word_with_too_few_fields_is_not_left_out(tmp_path):
    with pytest.raises(UserError, match="line 2: expected 3 columns, found 1"):
        read_words(tmp_path, WORD_FILES["CoNLL-2012"][0].replace("a 0 0 New NN", "a 0 New NN"))


def test_a_name_ends_with_its_sentence(tmp_path):
    lines = WORD_FILES["CoNLL-2012"][0].replace("*) -", "* -").split("\n")
    rows = read_words(tmp_path, "\n".join([*lines[:4], "", *lines[3:]]))
    assert rows["ner"][1] == ["O", "B-GPE"]


def test_a_word_of_conllu_without_its_number_is_read(tmp_path):
    rows = read_words(
        tmp_path, WORD_FILES["CoNLL-U"][0] + "".join(f"{n}\tw{n}" + "\t_" * 8 + "\n" for n in "345x")
    )
    assert rows["FORM"] == [["de", "Rhin", "w3", "w4", "w5", "wx"]]


@pytest.mark.parametrize("start", ["\n", "# a comment\n"])
def test_a_header_of_words_may_follow_lines_without_words(tmp_path, start):
    rows = read_words(tmp_path, start + WORD_FILES["words with a header"][0])
    assert rows["token"] == [["New", "York"]]


def test_a_sentence_of_a_layout_may_cross_lines_without_words(tmp_path):
    """The number of a row is that of its first word, also after lines that were skipped."""
    lines = ["# a", "1-2\tdu" + "\t_" * 8, "1\tde" + "\t_" * 8, "", "# b", "1\tRhin" + "\t_" * 8, ""]
    [rows] = iter_conll(tmp_path / "a.conllu", lambda: iter(["\n".join(lines)]))
    assert rows["FORM"] == [["de"], ["Rhin"]]
    assert rows.row_numbers.tolist() == [3, 6]


@pytest.mark.parametrize(
    ("cell", "items"),
    [
        ("['a', 'b']", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ("['a' 'b']", ["a", "b"]),
        ("['a'\n 'b']", ["a", "b"]),
        ("[0 3]", [0, 3]),
        ("{'b', 'a'}", ["a", "b"]),
        ("[]", []),
        ("['it\\'s']", ["it's"]),
        ("[UNK]", None),
        ("[a, b]", None),
        ("{'a': 1}", None),
        ("a", None),
        ("[", None),
        (3, None),
        (None, None),
    ],
)
def test_lists_in_cells(cell, items):
    assert parse_list(cell) == items


def read_table(tmp_path, text, **dialect):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    rows = read_file(path, Dialect(**dialect))
    return rows, [dict(row) for row in rows]


ROWS = [(f"a text, with a comma {number}", "xy"[number % 2]) for number in range(8)]


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_delimiters_are_detected(tmp_path, delimiter):
    text = f"text{delimiter}label\n" + "".join(f'"{text}"{delimiter}{label}\n' for text, label in ROWS)
    assert read_table(tmp_path, text)[1][0] == {"text": ROWS[0][0], "label": "x"}


def test_a_first_line_that_is_a_row_is_no_header(tmp_path):
    text = "".join(f"{label}\t{text}\n" for text, label in ROWS)
    rows, records = read_table(tmp_path, text)
    assert len(records) == len(ROWS)
    assert records[0] == {"0": "x", "1": ROWS[0][0]}
    assert "no header" in rows.notes[0]
    assert len(read_table(tmp_path, text, header=True)[1]) == len(ROWS) - 1


def test_two_columns_with_other_names_are_found_by_their_values(tmp_path):
    rows, _ = read_table(tmp_path, "mood,words\n" + "".join(f'{label},"{text}"\n' for text, label in ROWS))
    assert (guess_text_columns(rows, needs_label=True), guess_label_column(rows)) == (("words", None), "mood")
    other = "".join(f'{label},"{text}","{text}"\n' for text, label in ROWS)
    rows, _ = read_table(tmp_path, "mood,words,reply\n" + other)
    with pytest.raises(UserError, match="looks like the text or the label"):
        guess_text_columns(rows, needs_label=True)
    with pytest.raises(UserError, match=r"looks like the text .it has"):
        guess_text_columns(rows)


@pytest.mark.parametrize(
    "header", ["text,label", "0,1", "label_0,label_1", "name,2019", "A long question with many words?,Rating"]
)
def test_a_header_is_a_header(tmp_path, header):
    rows, records = read_table(tmp_path, header + "\n" + "".join(f"word{n},{n % 3}\n" for n in range(9)))
    assert (len(records), list(rows.columns), rows.notes) == (9, header.split(","), [])


def test_a_usual_name_is_a_header_also_if_it_is_a_label(tmp_path):
    text = "text,toxic\n" + "".join(f"a text {n},{['toxic', 'clean'][n % 2]}\n" for n in range(9))
    assert len(read_table(tmp_path, text)[1]) == 9


def test_a_repeated_header_is_refused(tmp_path):
    with pytest.raises(UserError, match="row 3: repeats the header"):
        read_table(tmp_path, "text,label\na,x\nb,y\ntext,label\nc,x\n")


def test_empty_rows_and_unnamed_columns_are_left_out_with_notes(tmp_path):
    rows, records = read_table(tmp_path, "text,label,,\na,x,,\nb,y,rest,\n,,,\n")
    assert records == [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert [note.partition(": ")[2] for note in rows.notes] == [
        "1 empty row left out", "2 columns without a name left out, with content in 1 row",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text,label\na,x\nb\n", "expected 2 fields (text, label), found 1; add the missing"),
        ("text,label\na,x\nb,c,d\n", "expected 2 fields (text, label), found 3; enclose"),
        (f"text,{'long ' * 20}\na,x\nb\n", f"(text, {'long ' * 7}lo...)"),
    ],
)
def test_the_error_of_a_row_says_what_to_do(tmp_path, text, problem):
    with pytest.raises(UserError) as error:
        read_table(tmp_path, text, header=True)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (
            {"rasa_nlu_data": {"common_examples": [{"text": "a b"}, {"text": "c"}]}},
            "rasa_nlu_data.common_examples",
        ),
        ({"schema": {}, "examples": [{"content": "a b"}, {"content": "c"}]}, "examples"),
    ],
)
def test_rows_within_an_object_are_named(tmp_path, content, path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"whose rows are the list in '{path}'"):
        read_file(file)


def test_a_single_row_with_objects_is_a_row(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(
        json.dumps({"text": "Oslo and Bergen", "entities": [SPAN, SPAN | {"start": 9, "end": 15}]})
    )
    assert len(read_file(file)) == 1


def test_a_wrong_path_suggests_a_file_beside_it(tmp_path, monkeypatch):
    (tmp_path / "reviews.csv").write_text("text,label\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"^--data review\.csv: no such file or folder; did you mean 'reviews\.csv'\?"
    ):
        load_dataset("review.csv", "classify")
    with pytest.raises(UserError, match=r"no such file or folder; check the path$"):
        load_dataset("nowhere/review.csv", "classify")


# ---- documentation


def format_table():
    """Return the table of layouts in Markdown."""
    rows = [
        f"| {layout.name} | {', '.join(layout.tasks) or '–'} | {layout.shape} | {layout.reading} |".replace(
            "`|`", "`\\|`"
        )
        for layout in LAYOUTS
    ]
    return "\n".join(["| layout | tasks | recognized by | read as |", "|---|---|---|---|", *rows, ""])


def test_the_page_has_the_table_of_layouts():
    assert f"{BEGIN}\n{format_table()}\n{END}" in PAGE.read_text("utf-8")


if __name__ == "__main__":
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{format_table()}\n{END}{rest.partition(END)[2]}", "utf-8")

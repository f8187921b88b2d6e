"""Test reading CoNLL files: words, sentence boundaries, comments, documents, and malformed lines."""

import gzip
import json
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data.readers import formats
from bertkit.data.readers.formats import Dialect, read_file
from bertkit.data.readers.text_files import read_text
from bertkit.data.sources import load_dataset
from bertkit.data.table import Rows
from bertkit.errors import UserError

CONLL = Dialect(conll=True)


def read_conll(folder, text, encoding="utf-8", dialect=CONLL):
    path = folder / "some.conll"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return read_file(path, dialect)


def get_sentences(rows):
    """Return the (word, ..., tag) tuples of each sentence."""
    columns = [rows[name] for name in rows.columns if name.isdigit()]
    return [list(zip(*fields, strict=True)) for fields in zip(*columns, strict=True)]


TWO_SENTENCES = [[("EU", "B-ORG"), ("rejects", "O")], [(".", "O")]]
EQUIVALENT_FILES = {
    "tabs": "EU\tB-ORG\nrejects\tO\n\n.\tO\n",
    "spaces": "EU B-ORG\nrejects O\n\n. O\n",
    "several spaces": "EU   B-ORG \nrejects O\n\n .  O\n",
    "no final newline": "EU\tB-ORG\nrejects\tO\n\n.\tO",
    "crlf": "EU\tB-ORG\r\nrejects\tO\r\n\r\n.\tO\r\n",
    "several blank lines": "\n\n\nEU\tB-ORG\nrejects\tO\n\n\n\n.\tO\n\n\n",
    "a line with only a tab": "EU\tB-ORG\nrejects\tO\n\t\n.\tO\n",
    "other white space": "EU\tB-ORG\nrejects\tO\n \t\v\f \n.\tO\n",
    "a byte order mark": "\ufeffEU\tB-ORG\nrejects\tO\n\n.\tO\n",
    "comments of CoNLL-U": "# id = 1\n# text = EU rejects\nEU\tB-ORG\nrejects\tO\n\n# id = 2\n.\tO\n",
    "comments with as many fields": "## one-1\tEU rejects\nEU\tB-ORG\nrejects\tO\n\n## one-2\t.\n.\tO\n",
    "comments and columns separated by spaces": "# a text\nEU B-ORG\nrejects O\n\n# . and . and .\n. O\n",
    "a comment at the top, no final newline": "# EU rejects .\nEU\tB-ORG\nrejects\tO\n\n.\tO",
    "a comment followed by a blank line": "# from somewhere\n\nEU\tB-ORG\nrejects\tO\n\n.\tO\n",
}


@pytest.mark.parametrize("name", EQUIVALENT_FILES)
def test_equivalent_files_give_the_same_sentences(tmp_path, name):
    rows = read_conll(tmp_path, EQUIVALENT_FILES[name])
    assert get_sentences(rows) == TWO_SENTENCES
    assert list(rows.columns) == ["0", "1"]


def test_a_comment_may_have_the_hash_as_a_separate_field(tmp_path):
    lines = "#\tn-tv.de [2005-02-26] \n1\tAn\tO\tO\n2\tUlm\tB-LOC\tO\n\n#\tx.de\n1\tJa\tO\tO\n"
    assert get_sentences(read_conll(tmp_path, lines)) == [
        [("1", "An", "O", "O"), ("2", "Ulm", "B-LOC", "O")],
        [("1", "Ja", "O", "O")],
    ]


def test_words_that_start_with_a_hash_are_not_comments(tmp_path):
    rows = read_conll(tmp_path, "#oslo\tB-LOC\n#\tO\n# 1\tO\n\n#\tO\n")
    assert rows["0"] == [["#oslo", "#", "# 1"], ["#"]]
    assert read_conll(tmp_path, "#a O\n#b O\n")["0"] == [["#a", "#b"]]


def test_comments_may_outnumber_the_words_of_a_sentence(tmp_path):
    rows = read_conll(tmp_path, "# id = 1\n# text = Ja\n# who = me\nJa\tO\n\n# id = 2\n# text = No\nNo\tO\n")
    assert get_sentences(rows) == [[("Ja", "O")], [("No", "O")]]


def test_spaces_and_empty_fields_are_words_between_tabs(tmp_path):
    assert read_conll(tmp_path, "a\tO\n \tO\n\tO\n\u3000\tO\n")["0"] == [["a", " ", "", "\u3000"]]


def test_non_ascii_white_space_is_a_word_and_not_a_separator(tmp_path):
    tokens = ["\u00a0", "\u2028", "\u0085", "\u3000", "\x1c"]
    assert read_conll(tmp_path, "".join(f"{token}\n" for token in tokens))["0"] == [tokens]
    assert read_conll(tmp_path, "".join(f"{token} O\n" for token in tokens))["0"] == [tokens]


def test_tabs_separate_columns_only_if_most_lines_have_them(tmp_path):
    assert read_conll(tmp_path, "a b\tO\nc d\tO\n")["0"] == [["a b", "c d"]]
    assert read_conll(tmp_path, "a\tb O\nc O\nd O\n")["0"] == [["a\tb", "c", "d"]]


def test_a_file_may_have_words_without_tags(tmp_path):
    rows = read_conll(tmp_path, "To\nOslo\n\n!\n")
    assert rows.columns == {"0": [["To", "Oslo"], ["!"]]}


def test_docstart_lines_start_a_document_and_are_not_words(tmp_path):
    rows = read_conll(tmp_path, "-DOCSTART- -X- O O\n\na O\n\nb O\n-DOCSTART- -Y- O O\nc O\n-DOCSTART-\n\n")
    assert rows["0"] == [["a"], ["b"], ["c"]]
    assert rows["document"] == [0, 0, 1]
    assert read_conll(tmp_path, "a\tO\n\n-DOCSTART-\tO\n-DOCSTART-\tO\n\nb\tO\n")["document"] == [0, 1]


def test_locations_are_line_numbers_and_follow_the_rows(tmp_path):
    rows = read_conll(tmp_path, "# x\n\n# text = a b\na\tO\nb\tO\n\n\nc\tO\n")
    assert [rows.format_location(index) for index in range(2)] == [
        f"{tmp_path}/some.conll: line 4",
        f"{tmp_path}/some.conll: line 8",
    ]
    combined = Rows.concatenate(
        [Rows.from_columns({"0": [["x"]]}, "a.json"), rows.with_column("n", [1, 2]).select([1, 0])]
    )
    assert [combined.format_location(index).split("/")[-1] for index in range(3)] == [
        "a.json: row 1",
        "some.conll: line 8",
        "some.conll: line 4",
    ]


token = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\n\r"), max_size=6)
word = token.filter(lambda text: not text.startswith("-DOCSTART-") and not (text[:1] == "#" and " " in text))


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(word, token.map("O".__add__)), min_size=1), min_size=1))
def test_any_words_between_tabs_are_read_unchanged(tmp_path_factory, sentences):
    text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences)
    rows = read_conll(tmp_path_factory.mktemp("conll"), text, "utf-8-sig")
    assert get_sentences(rows) == sentences
    lines = text.split("\n")
    for index, sentence in enumerate(sentences):
        first = int(rows.format_location(index).split("line ")[1]) - 1
        assert lines[first : first + len(sentence)] == ["\t".join(pair) for pair in sentence]


# ---- file format and encoding


def test_json_parquet_and_compression_are_detected_by_content(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"tokens": ["a", "b"], "tags": ["O", "O"]}]
    line = '{"tokens": ["a", "b"], "tags": ["O", "O"]}\n'
    for text in (line, f"[{line}]", f"\n [\n {line}]", gzip.compress(line.encode())):
        assert list(read_conll(tmp_path, text)) == rows
    columns = {"id": [7], "tokens": [["a", "b"]], "tags": [["O", "O"]]}
    assert list(read_conll(tmp_path, json.dumps(columns))) == [{"id": 7} | rows[0]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "some.conll")
    assert list(read_file(tmp_path / "some.conll", CONLL)) == rows
    assert (
        get_sentences(read_conll(tmp_path, gzip.compress(EQUIVALENT_FILES["tabs"].encode()))) == TWO_SENTENCES
    )


@pytest.mark.parametrize(
    "text", ["[\tO\nx\tO\n", "{\tO\nx\tO\n", '{\n"\na\n"\n:\n', "[ O\n{ O\n", '{ O\n" O\n', "[1] O\nx O\n"]
)
def test_a_first_word_that_is_a_bracket_is_not_json(tmp_path, text):
    assert read_conll(tmp_path, text)["0"] == [
        [line.split("\t")[0].split(" ")[0] for line in text.split("\n")[:-1]]
    ]


def test_files_that_are_not_utf_8_are_read_in_the_given_encoding(tmp_path):
    latin = Dialect(conll=True, fallback_encoding="iso-8859-1")
    assert read_conll(tmp_path, "ñu O\n", "iso-8859-1", latin)["0"] == [["ñu"]]
    assert read_conll(tmp_path, "ñu O\n", "utf-8", latin)["0"] == [["ñu"]]
    with pytest.raises(UserError, match="line 1: not UTF-8"):
        read_conll(tmp_path, "ñu O\n", "iso-8859-1")


UNREADABLE_FILES = {
    "empty": ("", "the file is empty"),
    "blank": (" \n\t\n\n", "the file is empty"),
    "documents only": ("-DOCSTART- O\n\n", "the file has no words"),
    "comments only": ("## a b\tx\n## c d\ty\n", "comments and no words; write one word per line"),
    "missing tag": (
        "a\tO\nb\tO\n\nc\nd\tO\n",
        "line 4: expected 2 columns, found 1; write one word per line",
    ),
    "missing tag, columns separated by spaces": (
        "a O\nb O\n\nc\nd O\n",
        "line 4: expected 2 columns, found 1",
    ),
    "missing tag in the last line": ("a\tO\nb\n", "line 2: expected 2 columns, found 1"),
    "extra column": ("a\tO\nb\tO\nc\tO\tO\n", "line 3: expected 2 columns, found 3"),
    "comment within a sentence": (
        "a O\n# b\nb O\n# such a thing\nc O\n",
        "line 4: expected 2 columns, found 4",
    ),
    "csv": ("text,tag\nHe ran,a\nShe,b\nThey all ran,c\n", "looks like CSV, which cannot hold"),
    "csv of one column": ("word,tag\na,O\nb,O\n", "looks like CSV, which cannot hold"),
    "zero byte": ("a\tO\n\0\tO\n", "zero byte"),
}


@pytest.mark.parametrize("name", UNREADABLE_FILES)
def test_unreadable_files_are_refused_in_one_line(tmp_path, name):
    text, message = UNREADABLE_FILES[name]
    with pytest.raises(UserError, match=message) as error:
        read_conll(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path}/some.conll: ")
    assert "\n" not in str(error.value)


# ---- folders and the sample


def test_conll_files_in_a_folder_are_assigned_to_splits_by_name(tmp_path):
    for name in ("a-train.bio", "b-train.iob2", "x/dev.txt", "test.conllu"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Oslo\tB-LOC\n")
    dataset = load_dataset(str(tmp_path), "classify", dialect=CONLL)
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }
    assert dataset.splits["validation"].format_location(0) == f"{tmp_path}/x/dev.txt: line 1"
    assert load_dataset(str(tmp_path / "x" / "dev.txt"), "classify", dialect=CONLL).splits["train"]["0"] == [
        ["Oslo"]
    ]


def test_folders_of_conll_files_are_splits_and_not_classes(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.txt").write_text("Oslo B-LOC\n")
    dataset = load_dataset(str(tmp_path), "classify", dialect=CONLL)
    assert {split: rows["1"] for split, rows in dataset.splits.items()} == {
        "train": [["B-LOC"]],
        "validation": [["B-LOC"]],
    }


def test_both_splits_of_the_sample_contain_every_tag():
    dataset = load_dataset("sample", "ner", dialect=CONLL)
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {"train": 60, "validation": 20}
    types = {f"{place}-{kind}" for place in "BI" for kind in ("PER", "LOC", "ORG")}
    for rows in dataset.splits.values():
        assert {tag for tags in rows["1"] for tag in tags} == types | {"O"}
        assert {tokens[0][0] for tokens in rows["0"]} >= {"#", "@"}


# ---- reading in parts


def read_three_characters(file, decoding, notes=None):
    """Yield a text in parts of three characters."""
    for text in read_text(file, decoding, notes):
        yield from (text[start : start + 3] for start in range(0, len(text), 3))


@contextmanager
def reading_in_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "read_text", read_three_characters)
        patch.setattr(formats, "stream_rows", partial(formats.stream_rows, stream_above_bytes=0))
        yield


def read_or_fail(folder, text):
    try:
        rows = read_conll(folder, text)
    except UserError as error:
        return str(error)
    locations = [rows.format_location(index) for index in range(len(rows))]
    return {name: list(values) for name, values in rows.columns.items()}, locations


SENTENCES = ["a O\n", "b\tO\n", "c O\nd B-X\n", "# x y z\n", "-DOCSTART- O\n", "e\n", "#f O\n", "g,h\n"]
SEPARATORS = ["\n", "\n\n", "\r\n", " \n", "\r\r\n", ""]


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(SENTENCES) | st.sampled_from(SEPARATORS), max_size=12).map("".join),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_parts_of_a_file_give_the_rows_and_errors_of_the_whole_file(tmp_path, text, has_crlf):
    if has_crlf:
        text = text.replace("\n", "\r\n")
    whole = read_or_fail(tmp_path, text)
    with reading_in_parts():
        assert read_or_fail(tmp_path, text) == whole

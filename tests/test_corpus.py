"""Reading corpora: formats are detected from content, and sentences are tokenized as by the tokenizer."""

import csv
import gzip
import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.corpus import documents
from bertkit.data.corpus.documents import (
    MAX_SENTENCE_CHARACTERS,
    TextOptions,
    detect_format,
    find_text,
    iter_documents,
    iter_raw_texts,
    split_sentences,
)
from bertkit.data.corpus.store import load_corpus, open_corpus, write_corpus
from bertkit.data.readers import text_files
from bertkit.data.readers.text_files import Decoding, FileNotes, list_files, read_text, split_lines
from bertkit.data.tokens import prefetch
from bertkit.errors import UserError

DOCUMENTS = [
    ["The mill stood by the river.", "Its wheel had not turned for years.", "Nobody knew why."],
    ["Bread needs time.", "Let the dough rest overnight."],
]
SENTENCES = "\n\n".join("\n".join(document) for document in DOCUMENTS) + "\n"
NOVEL = """CHAPTER ONE

The train left the valley at noon, and by the time it had
reached the pass there was nobody on it but Anna. She had
brought a book. She did not read it.

'Tickets, please,' said the guard.

Anna looked up. 'I have none,' she said; 'I never
have any, and you never ask.'

He laughed, sat down, and told her of the winter when
the snow had lain as high as the windows.
"""
UNWRAPPED = "\n\n".join(" ".join(block.split("\n")) for block in NOVEL.strip().split("\n\n"))
VERSE = """The lamp went out,
The door stood wide
And no one came
To look inside.

A fox went by,
A fox came back
And left its print
Along the track.
"""
WIKITEXT = """ 
 = Clay pipes = 
 
 Clay pipes are made of white clay . They break easily . 
 
 = = History = = 
 
 The first ones were small , 
 = 3 = 
 as tobacco was dear . 
 
 = Kites = 
 
 A kite flies in the wind . 
"""  # noqa: W291, W293 (spaced as in the dataset)


@pytest.fixture
def file(tmp_path):
    """Write a file whose name does not show its format."""

    def write(content, name="data.bin"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read(*paths, notes=None, **options):
    return [list(document) for document in iter_documents(paths, TextOptions(**options), notes)]


# ---- text formats


def test_files_with_one_sentence_per_line_are_detected(file):
    notes = FileNotes()
    assert read(file(SENTENCES), notes=notes) == DOCUMENTS
    assert notes.format_lines()[0].startswith("data.bin: one sentence per line")


def test_wrapped_paragraphs_are_joined_and_split_into_sentences(file):
    notes = FileNotes()
    (novel,) = read(file(NOVEL), notes=notes)
    assert novel[:4] == [
        "CHAPTER ONE",
        "The train left the valley at noon, and by the time it had reached the pass there was nobody on it "
        "but Anna.",
        "She had brought a book.",
        "She did not read it.",
    ]
    assert "--text-format sentences" in notes.format_lines()[0]


def test_separated_wikitext_punctuation_is_joined(file):
    text = WIKITEXT.replace("white clay", "white @-@ burning clay of 1 @,@ 000 @.@ 5 degrees @ home")
    assert read(file(text))[0][0] == "Clay pipes are made of white-burning clay of 1,000.5 degrees @ home ."


def test_wikitext_titles_start_documents_and_headings_are_left_out(file):
    assert read(file(WIKITEXT)) == [
        ["Clay pipes are made of white clay .", "They break easily .", "The first ones were small ,", "= 3 =",
         "as tobacco was dear ."],
        ["A kite flies in the wind ."],
    ]  # fmt: skip


@pytest.mark.parametrize("missing", ["before", "behind"])
def test_a_wikitext_title_needs_a_blank_line_on_one_side(file, missing):
    change = (
        ("dear . \n \n = Kites", "dear . \n = Kites")
        if missing == "before"
        else ("Kites = \n \n", "Kites = \n")
    )
    text = WIKITEXT.replace(*change)
    assert text != WIKITEXT
    assert read(file(text)) == read(file(WIKITEXT))


@pytest.mark.parametrize(
    ("sample", "text_format"),
    {
        "sentences": (SENTENCES, "sentences"),
        "Korean sentences": ("눈이 왔다.\n길이 얼었다.\n\n밥을 지었다.\n국을 끓였다.\n", "sentences"),
        "one block": (SENTENCES.replace("\n\n", "\n"), "prose"),
        "a novel": (NOVEL, "prose"),
        "a novel, a paragraph a line": (UNWRAPPED, "prose"),
        "a line a paragraph, of one sentence each": ("One goes.\n\nTwo go.\n\nThree go.\n", "prose"),
        "verse": (VERSE, "prose"),
        "Korean, wrapped": (
            "아침에 눈이 와서 길이\n얼었다. 버스는 오지\n\n않았다. 그래서 우리는\n걸었다.\n",
            "prose",
        ),
        "short sentences, wrapped": ("It sat.\nIt ran and\nhid.\n\nIt fell.\nWe sat and\nread.\n", "prose"),
        "several a line": ("One came. Two went.\nIt was cold.\n\nHe slept. She sang.\nIt rained.\n", "prose"),
        "wikitext": (WIKITEXT, "wikitext"),
        "nothing": ("", "prose"),
    }.values(),
)
def test_the_text_format_is_detected(sample, text_format):
    assert detect_format(sample.split("\n")) == text_format


def test_explicit_options_override_detection(file):
    assert read(file(SENTENCES), text_format="prose") == [DOCUMENTS[0] + DOCUMENTS[1]]
    assert len(read(file(UNWRAPPED), text_format="sentences")) == 5
    parts = read(file("One.\n\nTwo.\n***\nThree.\n***\n"), document_separator="***")
    assert parts == [["One.", "Two."], ["Three."]]


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ("아침에 눈이\n왔다. 길이 얼었다!", ["아침에 눈이 왔다.", "길이 얼었다!"]),
        ("今天天气\n很好。我们去\n公园吧！", ["今天天气很好。", "我们去公园吧！"]),
        ("今日は\nいい天気です。散歩\nしよう。", ["今日はいい天気です。", "散歩しよう。"]),
    ],
)
def test_chinese_japanese_and_korean_lines_are_joined_and_split_correctly(file, wrapped, expected):
    assert read(file(wrapped)) == [expected]


def test_a_line_too_long_to_be_wrapped_is_a_paragraph(file):
    long = "Rain fell on the town " * 12
    assert read(file(f"A heading\n{long}\nAnother one\n")) == [["A heading", long.strip(), "Another one"]]


# ---- file formats

ROWS = [
    {"id": "1", "text": 'It rained. He said "no", and left.\nThen it stopped.'},
    {"id": "2", "text": "한국어. 둘째 문장."},
]
SENTENCE_LISTS = [["It rained.", 'He said "no", and left.', "Then it stopped."], ["한국어.", "둘째 문장."]]


def as_csv(rows, delimiter):
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def as_parquet(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


FORMATS = {
    "json lines": "\n".join(json.dumps(row) for row in ROWS).encode(),
    "csv": as_csv(ROWS, ","),
    "semicolons": as_csv(ROWS, ";"),
    "tsv": as_csv(ROWS, "\t"),
    "one column": as_csv([{"text": row["text"]} for row in ROWS], ","),
    "parquet": as_parquet(ROWS),
}
COMPRESSED = {"gzip": gzip.compress, "zstd": lambda raw: pa.Codec("zstd").compress(raw, asbytes=True)}


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_a_document(file, name):
    found = read(file(FORMATS[name]))
    assert [" ".join(document) for document in found] == [row["text"].replace("\n", " ") for row in ROWS]
    assert found[1] == SENTENCE_LISTS[1]


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize(
    "content", [SENTENCES.encode(), b"\xef\xbb\xbf" + SENTENCES.replace("\n", "\r\n").encode()]
)
def test_compressed_files_and_other_line_ends_are_read(file, name, content):
    assert read(file(COMPRESSED[name](content))) == DOCUMENTS
    assert read(file(content)) == DOCUMENTS


def test_rows_that_are_lines_of_wikitext_form_articles(file):
    rows = [{"text": line + "\n" if line.strip() else ""} for line in WIKITEXT.split("\n")]
    assert [len(document) for document in read(file(as_parquet(rows)))] == [5, 1]


def test_the_text_column_is_passed_or_guessed(file):
    rows = [{"note": "Not this.", "lyrics": f"But this {number}."} for number in "abcdef"]
    for content in (as_csv(rows, ","), as_parquet(rows), "\n".join(map(json.dumps, rows))):
        assert read(file(content), text_column="lyrics")[0] == ["But this a."]
        with pytest.raises(UserError, match="name it with --text-column"):
            read(file(content))
        with pytest.raises(UserError, match=r"no column 'lyric'.*did you mean 'lyrics'"):
            read(file(content), text_column="lyric")
    with pytest.raises(UserError, match="running text, with no column 'lyrics'"):
        read(file(NOVEL), text_column="lyrics")


@pytest.mark.parametrize(
    "prose",
    ["Text, and more of it.\nIt goes on.\n", "Hello, world\nGoodbye, world\n", "[1] A note\n", "{a}\n"],
)
def test_running_text_is_not_taken_for_rows(file, prose):
    assert "".join(read(file(prose))[0]).replace(" ", "") == prose.replace("\n", "").replace(" ", "")


UNREADABLE = {
    "json": ('{"text": "a"}\n{"text": \n', "row 2: broken JSON"),
    "number": ('{"text": "a"}\n{"text": 3}\n', "row 2: the text column holds 3, not a text"),
    "list": ('{"text": "a"}\n[1]\n', "row 2: not a JSON object"),
    "document": ('[{"text": "a"}]', "write one object per line"),
    "fields": (b"id,text\n" + b"1,a\n" * 30 + b"2\n", "row 31: expected 2 fields"),
    "zero": (b"some text\0", "a zero byte at offset 9"),
    "pdf": (b"%PDF-1.4", "not a text file but a PDF"),
    "gzip": (gzip.compress(NOVEL.encode() * 99)[:-30], "cannot be read"),
    "parquet": (b"PAR1" + b"x" * 20, "broken Parquet file"),
    "empty": (b"", "no text: the file is empty"),
    "blank": (b"\n \n\n", "no text: the file holds only white space"),
    "no rows": (b"text\n", "no text: the file has no rows"),
    "nulls": (
        '{"text": null}\n{"text": null}\n',
        r"no text: all 2 rows are empty in the text column; .*--text-column",
    ),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_files_are_reported_with_their_cause(file, content, message):
    with pytest.raises(UserError, match=f"data.bin: .*{message}"):
        read(file(content))


@pytest.mark.parametrize("reader", [iter_documents, iter_raw_texts])
def test_files_without_text_are_reported_each_with_its_cause(file, reader):
    files = [file("", "a.txt"), file(" ", "b.txt"), file("", "c.txt")]
    with pytest.raises(
        UserError, match=r"a.txt, .*c.txt: .* the file is empty; .*b.txt: .* only white space"
    ):
        list(reader(files, TextOptions()))
    assert list(reader([*files, file("Some.", "d.txt")], TextOptions()))


def test_rows_without_a_text_are_counted(file):
    notes = FileNotes()
    content = '{"text": null}\n{"text": "Here."}\n{"id": 1}\n{"text": " "}\n'
    assert read(file(content), notes=notes) == [["Here."]]
    assert "data.bin: 3 rows left out: no text" in notes.format_lines()


# ---- bytes and lines


@pytest.mark.parametrize("before", ["", "line one\nstürmisch\n", "\n" + "한" * 400_000 + "\n"])
def test_undecodable_bytes_stop_or_are_skipped(file, before):
    path = file(before.encode() + b"caf\xe9 au lait.")
    offset, line = len(before.encode()) + 3, before.count("\n") + 1
    with pytest.raises(
        UserError, match=f"line {line}: not UTF-8 .byte 0xe9 at offset {offset}.; .*--encoding"
    ):
        "".join(read_text(path, Decoding()))
    notes = FileNotes()
    skipped = "".join(read_text(path, Decoding(errors="skip"), notes))
    assert skipped == before + "caf au lait."
    assert notes.format_lines() == ["data.bin: 1 byte left out: not UTF-8"]
    assert "".join(read_text(file(b"caf\xe9"), Decoding("latin-1"))) == "café"


def test_an_unknown_encoding_is_refused():
    with pytest.raises(UserError, match="--encoding utf-99: no such encoding"):
        Decoding("utf-99")


def test_utf16_is_read_with_its_encoding(file):
    assert "".join(read_text(file("Ünï 한".encode("utf-16")), Decoding("utf-16"))) == "Ünï 한"


@pytest.mark.slow
@given(parts=st.lists(st.text("ab \n", max_size=30)), longest=st.integers(1, 20))
def test_lines_are_whole_however_the_text_is_chunked(parts, longest):
    whole = "".join(parts)
    assert "\n".join(split_lines(parts, None)) == whole.removesuffix("\n")
    parts_of_lines = list(split_lines(parts, longest))
    assert "".join(parts_of_lines) == whole.replace("\n", "")
    assert max(map(len, split_lines([whole], longest)), default=0) <= max(
        longest, *map(len, whole.split("\n"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["word ", "가", "and the “fox of the ( day jumps over "])
def test_text_without_sentence_ends_is_split_at_white_space(file, unit):
    content = unit * (1_500_000 // len(unit))
    (found,) = read(file(content))
    assert max(map(len, found)) <= MAX_SENTENCE_CHARACTERS
    assert "".join("".join(found).split()) == "".join(content.split())


def test_unclosed_quotation_marks_are_segmented_in_parts(monkeypatch):
    given = []
    monkeypatch.setattr(documents, "segment", lambda _, text: given.append(len(text)) or [text])
    assert len(list(split_sentences("and the “fox " * 10_000))) > 10
    assert max(given) < 100_000  # its time grows with the square of this


@pytest.mark.slow
@settings(max_examples=50)
@given(st.text(st.sampled_from("ab. !?\n한。“”("), max_size=20), st.integers(1, 9))
def test_splitting_sentences_loses_only_white_space(unit, times):
    found = list(split_sentences(unit * times * 300))
    assert "".join("".join(found).split()) == "".join((unit * times * 300).split())
    assert all(
        sentence == sentence.strip() != "" and len(sentence) <= MAX_SENTENCE_CHARACTERS for sentence in found
    )


# ---- which files


def test_files_directories_and_patterns_are_listed(file, tmp_path):
    for name in ("t/b.txt", "t/a/c.txt.gz", "t/.hidden", "t/README.md", "t/a/LICENSE"):
        file(SENTENCES, name)
    folder = tmp_path / "t"
    assert list_files(str(folder)) == [folder / "a/c.txt.gz", folder / "b.txt"]
    assert list_files(str(folder / "*.txt")) == [folder / "b.txt"]
    assert list_files(f"{folder}/**/*.gz") == [folder / "a/c.txt.gz"]
    assert list_files(str(folder / "README.md")) == [folder / "README.md"]
    for missing in ("t/*.csv", "nowhere"):
        with pytest.raises(UserError, match="no such file, folder or pattern"):
            list_files(missing)


@pytest.mark.parametrize(
    ("data", "name"),
    {
        "news.txt": "news",
        ".": "here",
        "news-*.txt": "news",
        "old/[mn]*.txt": "old",
        "old/**/*": "old",
        "*.txt": "here",
    }.items(),
)
def test_a_text_is_named_after_its_files(data, name, tmp_path, monkeypatch):
    (tmp_path / "here" / "old").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for place in ("news.txt", "news-1.txt", "old/moon.txt"):
        (tmp_path / "here" / place).write_text("Some.")
    assert find_text(data).name == name


def test_notes_list_files_with_the_same_note_together(file):
    notes = FileNotes()
    read(file(NOVEL, "a"), file(SENTENCES, "b"), file(NOVEL, "c"), notes=notes)
    assert [line.split(":")[0] for line in notes.format_lines()] == ["a, c", "b"]


# ---- tokens

TOKENIZER = make_tokenizer()
TEXTS = st.lists(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)), max_size=8
)


def token_ids(corpus):
    """Return the token ids of each sentence, document by document."""
    sentences = np.split(corpus.token_ids, corpus.sentence_offsets[1:-1])
    bounds = zip(corpus.document_offsets[:-1], corpus.document_offsets[1:], strict=True)
    return [[sentence.tolist() for sentence in sentences[start:stop]] for start, stop in bounds]


def tokenize(texts):
    """Return the ids of the tokenizer, without empty sentences and documents."""
    encoded = [
        [TOKENIZER(text, add_special_tokens=False, split_special_tokens=True).input_ids for text in document]
        for document in texts
    ]
    non_empty = [[ids for ids in document if ids] for document in encoded]
    return [document for document in non_empty if document]


@pytest.mark.slow
@settings(max_examples=50)
@given(texts=TEXTS.map([["a."]].__add__))
def test_tokens_are_those_of_the_tokenizer(tmp_path_factory, texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertkit.data.corpus.store.MAX_BATCH_TEXTS", 3)  # batches end anywhere
        corpus = write_corpus(texts, TOKENIZER, tmp_path_factory.mktemp("corpus"))
    assert token_ids(corpus) == tokenize(texts)
    assert corpus.sentence_offsets[-1] == len(corpus.token_ids) == corpus.counts["tokens"]
    assert corpus.document_offsets[-1] == len(corpus.sentence_offsets) - 1 == corpus.counts["sentences"]
    assert len(corpus.document_offsets) - 1 == corpus.counts["documents"]


def test_corpus_counts_and_dtypes(tmp_path):
    corpus = write_corpus([["a film", "\x07"], ["한"]], TOKENIZER, tmp_path)
    assert corpus.counts == {"tokens": 3, "sentences": 2, "documents": 2, "unknown": 1, "characters": 8}
    assert corpus.token_ids.dtype == np.uint16
    assert (corpus.sentence_offsets.dtype, corpus.document_offsets.dtype) == (np.uint32, np.uint32)
    assert isinstance(corpus.token_ids, np.memmap)
    assert not corpus.token_ids.flags.writeable


@pytest.mark.slow
def test_a_large_vocabulary_takes_32_bits(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"w{number}w" for number in range(1 << 16)])
    corpus = write_corpus([["a w65535w"]], tokenizer, tmp_path)
    assert corpus.token_ids.dtype == np.uint32
    assert corpus.token_ids.tolist() == tokenizer("a w65535w", add_special_tokens=False).input_ids
    assert corpus.token_ids[1] >= 1 << 16


def test_text_without_tokens_is_refused(tmp_path):
    with pytest.raises(UserError, match="no text"):
        write_corpus([["\x07"], []], TOKENIZER, tmp_path)


@pytest.mark.slow
def test_a_corpus_takes_at_most_three_bytes_per_token(tmp_path):
    write_corpus([["the film was very good today"] * 500] * 20, TOKENIZER, tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.*"))
    assert size <= 3 * len(open_corpus(tmp_path).token_ids)


# ---- the cache


class CountingTokenizer:
    """A tokenizer that counts its calls."""

    def __init__(self):
        self.tokenizer, self.count = make_tokenizer(), 0
        self.backend_tokenizer = self

    def __getattr__(self, name):
        inner = self.tokenizer.backend_tokenizer
        return getattr(inner if hasattr(inner, name) else self.tokenizer, name)

    def encode_batch_fast(self, texts, **options):
        self.count += 1
        return self.tokenizer.backend_tokenizer.encode_batch_fast(texts, **options)


def test_a_corpus_is_tokenized_once(file):
    tokenizer, path = CountingTokenizer(), file(SENTENCES)
    first = load_corpus([path], TextOptions(), tokenizer)
    again = load_corpus([path], TextOptions(), tokenizer)
    assert tokenizer.count == 1
    assert token_ids(again) == token_ids(first) == tokenize(DOCUMENTS)
    assert (again.counts, again.notes) == (first.counts, first.notes)
    assert again.notes[0].startswith("data.bin: one sentence per line")


def test_the_cache_key_depends_on_file_format_and_tokenizer(file):
    path, other = file(SENTENCES), make_tokenizer()
    other.add_tokens(["river"])
    corpora = [token_ids(load_corpus([path], TextOptions(), TOKENIZER))]
    corpora.append(token_ids(load_corpus([path], TextOptions(text_format="prose"), TOKENIZER)))
    corpora.append(token_ids(load_corpus([path], TextOptions(), other)))
    file(SENTENCES.replace("years", "weeks"))
    corpora.append(token_ids(load_corpus([path], TextOptions(), TOKENIZER)))
    assert all(corpora.count(ids) == 1 for ids in corpora)


def test_without_a_cache_a_temporary_directory_is_used(file, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(file("", "a file")))
    assert token_ids(load_corpus([file(SENTENCES)], TextOptions(), TOKENIZER)) == tokenize(DOCUMENTS)


def test_an_error_leaves_no_partial_corpus(file, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "bertkit.data.readers.text_files.CHUNK_BYTES", 1000
    )  # it comes late, when the file has been judged
    bad = file(NOVEL.encode() * 50 + b"\xff", "bad")
    for _ in range(2):
        with pytest.raises(UserError, match="bad: line"):
            load_corpus([bad], TextOptions(), TOKENIZER)
    assert not list((tmp_path / "cache" / "corpus").iterdir())


def test_prefetched_errors_are_raised_in_order():
    def items():
        yield from "ab"
        raise UserError("here")

    found = prefetch(items())
    assert [next(found), next(found)] == ["a", "b"]
    with pytest.raises(UserError, match="here"):
        next(found)


def test_text_that_looks_like_a_special_token_is_text(tiny, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    corpus = write_corpus([["good [SEP] bad [MASK]"]], tokenizer, tmp_path)
    assert not set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} & set(corpus.token_ids.tolist())
    assert tokenizer.backend_tokenizer.encode("[SEP]", add_special_tokens=False).ids == [
        tokenizer.sep_token_id
    ]


def test_a_large_file_is_read_once_and_again_only_after_a_change(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(text_files, "LARGE_FILE", 1)
    monkeypatch.setattr(text_files, "SETTLED_SECONDS", -60)
    path, reads = tmp_path / "text.txt", []
    path.write_text("one")
    compute = text_files._digest_content.__wrapped__
    monkeypatch.setattr(text_files, "_digest_content", lambda *args: reads.append(1) or compute(*args))
    first = text_files.digest_path(path)
    assert (text_files.digest_path(path), len(reads)) == (first, 1)
    path.write_text("two, longer")
    assert (text_files.digest_path(path) != first, len(reads)) == (True, 2)


def test_the_digests_of_documents_are_stored_with_the_corpus(tmp_path):
    corpus = write_corpus(DOCUMENTS, make_tokenizer(), tmp_path)
    assert corpus.digests is not None
    assert corpus.list_digests() == replace(corpus, digests=None).list_digests()
    assert len(set(corpus.list_digests())) == 2

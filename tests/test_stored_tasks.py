"""Runs whose rows are stored on disk equal runs whose rows are in memory, for tasks that transform rows."""

import json
import tracemalloc

import pytest
from conftest import make_ner_rows, make_qa_rows, make_swag_rows, read_predictions, write_rows

import bertkit
from bertkit.data.readers.formats import read_file
from bertkit.tasks.ner.rows import parse_split

pytestmark = pytest.mark.slow  # most tests train a model

SETTINGS = {"max_steps": 2, "batch_size": 4, "seed": 1, "bf16": False}


def assert_same_in_memory_and_on_disk(run, folder, monkeypatch, **settings):
    """Run a task twice, and check that predictions and weights are bit-identical."""
    for name, limit in (("memory", 1 << 30), ("disk", 0)):
        monkeypatch.setattr("bertkit.data.readers.formats.IN_MEMORY_BYTES", limit)
        run(**settings, **SETTINGS, output_dir=str(folder / name))
    memory, disk = folder / "memory", folder / "disk"
    assert read_predictions(memory) == read_predictions(disk)
    assert (memory / "model.safetensors").read_bytes() == (disk / "model.safetensors").read_bytes()


@pytest.mark.parametrize("columns", ["list", "numbered"])
def test_swag_runs_are_bit_identical(tmp_path, tiny, monkeypatch, columns):
    rows = [row | {"start": "it"} for row in make_swag_rows(40)]
    if columns == "numbered":
        rows = [
            {f"ending{number}": ending for number, ending in enumerate(row.pop("endings"))} | row
            for row in rows
        ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    assert_same_in_memory_and_on_disk(
        bertkit.swag, tmp_path, monkeypatch, data=str(data), model=str(tiny), start_column="start"
    )


def convert_to_spans(row):
    """Return a row with a text and entity spans instead of words and tags."""
    spans, start = [], 0
    for word, tag in zip(row["tokens"], row["tags"], strict=True):
        if tag[0] == "B":
            spans.append([start, start + len(word), tag[2:]])
        elif tag[0] == "I":
            spans[-1][1] = start + len(word)
        start += len(word) + 1
    return {"text": " ".join(row["tokens"]), "entities": spans, "document": row["document"]}


def write_conll(path, rows):
    """Write sentences with a -DOCSTART- line before each document."""
    document, parts = None, []
    for row in rows:
        if row["document"] != document:
            parts.append("-DOCSTART- O\n\n")
        document = row["document"]
        parts += [f"{word}\t{tag}\n" for word, tag in zip(row["tokens"], row["tags"], strict=True)] + ["\n"]
    path.write_text("".join(parts), "utf-8")
    return path


@pytest.mark.parametrize(
    ("form", "context"), [("words", "document"), ("spans", "sentence"), ("conll", "document")]
)
def test_ner_runs_are_bit_identical(tmp_path, tiny, monkeypatch, form, context):
    rows = [row | {"document": number // 5} for number, row in enumerate(make_ner_rows(40))]
    if form == "conll":
        data = write_conll(tmp_path / "rows.conll", rows)
    else:
        data = write_rows(tmp_path / "rows.jsonl", rows if form == "words" else map(convert_to_spans, rows))
    assert_same_in_memory_and_on_disk(
        bertkit.ner, tmp_path, monkeypatch, data=str(data), model=str(tiny), context=context, max_length=24
    )


def write_articles(path, rows):
    """Write questions in SQuAD's own format, with one paragraph in each article."""
    articles = [
        {"title": f"t{number}", "paragraphs": [{"context": row.pop("context"), "qas": [row]}]}
        for number, row in enumerate(rows)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": articles}), "utf-8")
    return path


@pytest.mark.parametrize("write", [write_rows, write_articles])
def test_qa_runs_are_bit_identical(tmp_path, tiny, monkeypatch, write):
    rows = make_qa_rows(60, unanswerable=10)
    rows[20]["answers"][0]["answer_start"] += 1  # a wrong offset, which is corrected
    rows[21]["answers"][0] = {"text": "nowhere", "answer_start": 0}  # an answer that is dropped
    data = write(tmp_path / "rows.json", rows)
    assert_same_in_memory_and_on_disk(
        bertkit.qa, tmp_path, monkeypatch, data=str(data), model=str(tiny), max_length=24, doc_stride=4,
    )  # fmt: skip


def test_sentences_on_disk_are_normalized_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.data.readers.formats.IN_MEMORY_BYTES", 0)
    row = json.dumps({"tokens": ["words"] * 20, "tags": ["B-X", *["O"] * 19]})
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{row}\n" * 8_000, "utf-8")  # as lists, the words alone have over 10 MB
    rows = read_file(path)
    tracemalloc.start()
    try:
        sentences, scheme, _ = parse_split(rows, "train", ("tokens", "tags"), None)
        assert tracemalloc.get_traced_memory()[1] < 13e6
    finally:
        tracemalloc.stop()
    assert (len(sentences), scheme.name) == (8_000, "IOB2")
    assert all(sentences[name].is_on_disk for name in ("tokens", "text", "tags", "iob2"))

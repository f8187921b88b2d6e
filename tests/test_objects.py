"""Data passed from Python gives the same runs, predictions and errors as the same rows in a file."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROW_MAKERS, make_ner_rows, make_toy_rows, write_rows
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDatasetDict, Sequence, Value

import bertkit
from bertkit.commands.predict import build_dataset
from bertkit.data.sources import rows_from_object, splits_from_object
from bertkit.data.table import fingerprint_splits
from bertkit.errors import UserError
from bertkit.run.load_data import load_data
from bertkit.settings.validation import DataObject
from bertkit.tasks import task_class
from bertkit.utils.reporting import Reporter

SETTINGS = {"epochs": 1, "batch_size": 8, "bf16": False}
PRETRAINING = {"max_steps": 2, "batch_size": 4, "max_length": 32, "bf16": False}


class Recorder(Reporter):
    """Keep the messages."""

    def __init__(self):
        self.lines = []

    def info(self, message):
        self.lines.append(message)

    warn = info


def read_rows(value, name="data"):
    return rows_from_object(DataObject.recognize(value), name)


def get_error(function, *args, **settings):
    with pytest.raises(UserError) as error:
        function(*args, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def read_bytes(run, name):
    return (run.output_dir / name).read_bytes()


def as_splits(rows, number):
    """The first rows for training, the others for validation."""
    return DatasetDict({"train": Dataset.from_list(rows[:number]), "dev": Dataset.from_list(rows[number:])})


@pytest.fixture
def toy_splits():
    return as_splits(make_toy_rows(60), 40)


@pytest.fixture(scope="module")
def object_run(tiny, tmp_path_factory):
    """A run on a `DatasetDict`, and the `DatasetDict`."""
    data = as_splits(make_toy_rows(60), 40)
    folder = tmp_path_factory.mktemp("run") / "run"
    bertkit.classify(data=data, model=str(tiny), output_dir=str(folder), **SETTINGS)
    return folder, data


# ---- rows


def test_columns_of_a_dataset_are_read_through_its_indices_and_not_copied():
    rows = make_toy_rows(50)
    dataset = Dataset.from_list(rows)
    chosen = dataset.shuffle(seed=1).select(range(30))
    read = read_rows(chosen)
    assert list(read) == list(chosen)
    assert list(read["text"][5:9]) == chosen["text"][5:9]
    assert read.select([7, 2])["text"][0] == chosen[7]["text"]
    assert read["text"].dataset.data.column(0).chunk(0).buffers()[2].address == (
        dataset.data.column("text").chunk(0).buffers()[2].address
    )
    assert (read["text"].hashes == read_rows(list(chosen)).hash_columns(["text"])).all()


def test_hashes_of_a_dataset_are_computed_when_they_are_needed():
    column = read_rows(Dataset.from_list(make_toy_rows(5)))["text"]
    assert "hashes" not in vars(column)
    assert len(column.hashes) == 5


def test_class_names_replace_the_ids_of_labels_and_of_tags():
    features = Features({
        "label": ClassLabel(names=["good", "bad"]),
        "tags": Sequence(ClassLabel(names=["O", "B-X"])), "n": Value("int64"),
    })  # fmt: skip
    records = {"label": [1, 0, -1, None], "tags": [[0, 1], [], [1], [0]], "n": [1, None, 3, 4]}
    rows = read_rows(Dataset.from_dict(records, features))
    assert list(rows["label"]) == ["bad", "good", None, None]
    assert list(rows["tags"]) == [["O", "B-X"], [], ["B-X"], ["O"]]
    assert list(rows["n"]) == [1, None, 3, 4]
    assert rows["tags"].take(np.array([3, 0])) == [["O"], ["O", "B-X"]]
    assert len(rows["tags"].hashes) == 4


def test_missing_values_of_a_frame_are_none_and_categories_are_values():
    frame = pd.DataFrame(
        {
            "text": ["a", None, pd.NA, "d"],
            "label": pd.Categorical(["x", None, "y", "x"]),
            "count": pd.array([1, None, 3, 4], dtype="Int64"),
            "score": [0.5, np.nan, 1.0, 2.0],
            "day": pd.to_datetime(["2020-01-02", None, None, None]),
            "words": [np.array(["a", "b"]), ["c"], None, ()],
        },
        index=[7, 7, 9, 0],
    )
    rows = read_rows(frame)
    assert list(rows["text"]) == ["a", None, None, "d"]
    assert list(rows["label"]) == ["x", None, "y", "x"]
    assert list(rows["count"]) == [1, None, 3, 4]
    assert list(rows["score"]) == [0.5, None, 1.0, 2.0]
    assert rows["day"][1] is None
    assert list(rows["words"]) == [["a", "b"], ["c"], None, []]
    assert rows["label"].take(np.array([2, 0])) == ["y", "x"]
    assert rows.format_location(1) == "data: row 2"


def test_missing_keys_of_dictionaries_are_none():
    rows = read_rows([{"text": "a", "label": np.int64(1)}, {"text": "b"}])
    assert list(rows) == [{"text": "a", "label": 1}, {"text": "b", "label": None}]
    assert type(rows["label"][0]) is int


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "data: the list of dictionaries has no rows"),
        (pd.DataFrame(), "data: the DataFrame has no rows"),
        (Dataset.from_list([]), "data: the Dataset has no rows"),
        (pd.DataFrame({0: ["a"]}), "data: the column 0 is not a text; rename it"),
        (pd.DataFrame([["a", "b"]], columns=["x", "x"]), "data: the header names 'x' twice"),
        ([{"a": 1}, {2: 1}], "data: row 2: the key 2 is not a text; rename it"),
        (DatasetDict(), "data: the DatasetDict has no splits"),
        (Dataset.from_list([{"a": 1}]).to_iterable_dataset(), "data: an IterableDataset can only be read"),
    ],
)  # fmt: skip
def test_unusable_objects_are_refused(value, words):
    with pytest.raises(UserError, match="^" + words.replace("(", r"\(")):
        splits_from_object(DataObject.recognize(value), "data")


def test_class_ids_without_a_name_are_refused():
    table = Dataset.from_dict({"label": [0, 1, 5]}).data.table
    dataset = Dataset(table, fingerprint="x").cast(Features({"label": Value("int64")}))
    dataset._info.features = Features({"label": ClassLabel(names=["a", "b"])})
    assert get_error(read_rows, dataset).startswith("data: row 3: column 'label' holds class 5")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.zeros((200, 3)), "numpy.ndarray"),
        (3.5, "float"),
        ([{}, 1], "row 2 is of type int"),
        ({"a": 1}, "dict"),
    ],
)
def test_values_of_other_types_are_refused_with_those_that_are_accepted(value, found):
    line = get_error(bertkit.classify, data=value)
    assert line.startswith("classify(): data: ")
    assert found in line
    assert "a datasets.Dataset or DatasetDict, a pandas.DataFrame, or a list of dictionaries" in line


def test_a_torch_dataset_is_refused():
    from torch.utils.data import TensorDataset

    assert "torch.utils.data.dataset.TensorDataset" in get_error(bertkit.classify, data=TensorDataset())


@pytest.mark.slow
def test_libraries_are_not_imported_to_recognize_an_object():
    code = (
        "import sys; from bertkit.settings.validation import DataObject; DataObject.recognize('x');"
        "print({'pandas', 'datasets'} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


# ---- training


@pytest.mark.slow
def test_classify_on_a_dataset_dict_equals_the_run_on_files(tiny, tmp_path, toy_splits):
    for name, dataset in toy_splits.items():
        write_rows(tmp_path / "files" / f"{name}.jsonl", list(dataset))
    recorder = Recorder()
    of_files = bertkit.classify(data=str(tmp_path / "files"), model=str(tiny), **SETTINGS)
    of_object = bertkit.classify(data=toy_splits, model=str(tiny), reporter=recorder, **SETTINGS)
    for name in ("model.safetensors", "predictions.jsonl"):
        assert read_bytes(of_files, name) == read_bytes(of_object, name)
    assert of_files.metrics["data"]["fingerprint"] == of_object.metrics["data"]["fingerprint"]
    assert of_object.output_dir == Path("runs/classify-data-tiny")
    assert any(line.startswith("data: data from DatasetDict passed from Python; ") for line in recorder.lines)


@pytest.mark.slow
def test_ner_on_class_labels_equals_the_run_on_files(tiny, tmp_path):
    rows = make_ner_rows(60)
    names = sorted({tag for row in rows for tag in row["tags"]}, reverse=True)
    splits = as_splits(rows, 40)
    for name, dataset in splits.items():
        write_rows(tmp_path / "files" / f"{name}.jsonl", list(dataset))
    ids = [{**row, "tags": [names.index(tag) for tag in row["tags"]]} for row in rows]
    features = Features({"tokens": Sequence(Value("string")), "tags": Sequence(ClassLabel(names=names))})
    coded = DatasetDict({name: part.cast(features) for name, part in as_splits(ids, 40).items()})
    of_files = bertkit.ner(data=str(tmp_path / "files"), model=str(tiny), **SETTINGS)
    of_object = bertkit.ner(data=coded, model=str(tiny), **SETTINGS)
    for name in ("model.safetensors", "predictions.jsonl"):
        assert read_bytes(of_files, name) == read_bytes(of_object, name)


CONVERSIONS = {"list": list, "Dataset": Dataset.from_list, "DataFrame": pd.DataFrame}
# The kind of object that each task is trained on; all are read, and predicted.
TRAINED_ON = {"classify": "list", "ner": "Dataset", "nli": "DataFrame", "qa": "DataFrame", "swag": "Dataset"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_every_task_trains_and_predicts_alike_on_all_objects(tiny, tmp_path, task):
    rows, train = ROW_MAKERS[task](40), getattr(bertkit, task)
    file = str(write_rows(tmp_path / "rows.jsonl", rows))
    objects = {kind: convert(rows) for kind, convert in CONVERSIONS.items()}
    settings = {"model": str(tiny), "max_steps": 1, "batch_size": 4, "max_length": 64, "bf16": False}
    of_file, of_object = (train(data=data, **settings) for data in (file, objects[TRAINED_ON[task]]))
    assert read_bytes(of_file, "model.safetensors") == read_bytes(of_object, "model.safetensors")
    for run, data in ((of_file, {}), (of_object, {"data": objects[TRAINED_ON[task]]})):
        assert bertkit.evaluate(run.output_dir, **data).metrics["validation"] == run.metrics["validation"]
    parsed, predicted = parse(task, file), list(bertkit.predict(of_file.output_dir, data=file))
    for data in objects.values():
        assert parse(task, DataObject.recognize(data)) == parsed
        assert list(bertkit.predict(of_file.output_dir, data=data)) == predicted


def parse(task, data):
    """The fingerprints of the rows that a task trains on."""
    return fingerprint_splits(load_data(task, task_class(task).definition.config(data=data)).splits)


@pytest.mark.slow
def test_labels_have_the_order_of_the_class_names(tiny):
    names = ["positive", "unused", "negative"]
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    dataset = Dataset.from_list(make_toy_rows(40), features=features)
    run = bertkit.classify(data=dataset, model=str(tiny), **SETTINGS)
    assert json.loads(read_bytes(run, "config.json"))["id2label"] == {"0": "positive", "1": "negative"}


@pytest.mark.slow
def test_labels_of_a_parquet_file_have_the_order_of_its_class_names(tiny, tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["positive", "negative"])})
    Dataset.from_list(make_toy_rows(40), features=features).to_parquet(tmp_path / "a.parquet")
    run = bertkit.classify(data=str(tmp_path / "a.parquet"), model=str(tiny), **SETTINGS)
    assert json.loads(read_bytes(run, "config.json"))["id2label"] == {"0": "positive", "1": "negative"}


@pytest.mark.slow
def test_rows_without_a_class_are_left_out_of_training(tiny):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["negative", "positive"])})
    rows = [*make_toy_rows(40), {"text": "it was", "label": -1}]
    recorder = Recorder()
    run = bertkit.classify(
        data=Dataset.from_list(rows, features=features), model=str(tiny), reporter=recorder, **SETTINGS
    )
    assert run.metrics["data"]["train"] + run.metrics["data"]["validation"] == 40
    assert "1 train row left out: no gold label" in recorder.lines


def test_errors_name_the_object_and_the_row(tiny):
    frame = pd.DataFrame(make_toy_rows(40))
    frame.loc[3, "text"] = None
    rows = make_toy_rows(40)
    line = get_error(bertkit.classify, data=frame, model=str(tiny))
    assert line == "data: row 4: column 'text' has no text; fill in a text, or remove the row"
    line = get_error(bertkit.classify, data=rows, validation=frame, model=str(tiny))
    assert line.startswith("validation: row 4: ")
    splits = DatasetDict({"train": Dataset.from_list(rows), "dev": Dataset.from_pandas(frame)})
    assert get_error(bertkit.classify, data=splits, model=str(tiny)).startswith("data['dev']: row 4: ")


def test_training_needs_a_training_split_and_more_than_one_pass(tiny, toy_splits):
    line = get_error(bertkit.classify, data=DatasetDict({"dev": toy_splits["dev"]}), model=str(tiny))
    assert "no training split among validation; rename one of them to 'train'" in line
    line = get_error(bertkit.classify, data=toy_splits["train"].to_iterable_dataset(), model=str(tiny))
    assert "IterableDataset can only be read once, row by row; pass a Dataset" in line


def test_splits_with_other_names_are_left_out(toy_splits):
    data = DatasetDict({**toy_splits, "unsupervised": toy_splits["dev"]})
    splits, notes = splits_from_object(DataObject("DatasetDict", data), "data")
    assert list(splits) == ["train", "validation"]
    assert notes == ["left out, not named after a split: unsupervised"]


def test_check_reads_objects(toy_splits):
    report = bertkit.check("classify", data=toy_splits)
    assert report.data == {"name": "data", "source": "DatasetDict passed from Python"}
    assert report.splits["validation"]["rows"] == 20


@pytest.mark.slow
def test_the_run_is_named_after_the_dataset(tiny, toy_splits):
    toy_splits["train"].info.dataset_name = "reviews"
    run = bertkit.classify(data=toy_splits, model=str(tiny), max_steps=1, **SETTINGS)
    assert run.output_dir == Path("runs/classify-reviews-tiny")


def test_suites_take_names_only(tiny, toy_splits):
    line = get_error(bertkit.ablation, data=toy_splits)
    assert "expected a name or a path, found a DatasetDict; save the data" in line


# ---- repeating, resuming and evaluating a run


@pytest.mark.slow
def test_run_yaml_says_how_to_repeat_the_run(object_run):
    run, data = object_run
    text = (run / "run.yaml").read_text()
    call = f"bertkit.classify(recipe='{run}/run.yaml', data=...)"
    assert text.startswith(f"# Repeat this run in Python, with the same data: {call}\n")
    assert "passed_data:\n    data: DatasetDict\n" in text
    assert call in get_error(bertkit.classify, recipe=f"{run}/run.yaml")
    again = bertkit.classify(recipe=f"{run}/run.yaml", data=data)
    assert read_bytes(again, "model.safetensors") == (run / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_the_command_line_says_what_to_pass(cli, object_run):
    run, _ = object_run
    for args in (["evaluate", run], ["classify", "--recipe", run / "run.yaml"]):
        status, _, error = cli(*args)
        assert (status, error.count("\n")) == (2, 1)
        assert "DatasetDict passed from Python, which is not saved with the run; pass it again: " in error


@pytest.mark.slow
def test_a_run_resumes_with_the_same_object_only(cli, tiny, tmp_path, object_run, stop_at):
    folder, (whole, toy_splits) = str(tmp_path / "stopped"), object_run
    settings = {"data": toy_splits, "model": str(tiny), "save_steps": 2, **SETTINGS}
    stop_at(3)
    with pytest.raises(KeyboardInterrupt):
        raise_interrupt(bertkit.classify, output_dir=folder, **settings)
    status, _, error = cli("classify", "--resume", "--output-dir", folder)
    assert (status, error.count("\n")) == (2, 1)
    assert f"bertkit.classify(output_dir='{folder}', resume=True, data=...)" in error
    changed = DatasetDict({**toy_splits, "train": toy_splits["train"].select(range(39))})
    line = get_error(bertkit.classify, data=changed, resume=True, output_dir=folder)
    assert "the data has changed (train was 40 rows, " in line
    bertkit.classify(data=toy_splits, resume=True, output_dir=folder)
    weights = [(Path(path) / "model.safetensors").read_bytes() for path in (folder, whole)]
    assert weights[0] == weights[1]


def raise_interrupt(function, **settings):
    """Convert the error of an interrupted run."""
    from bertkit.errors import RunInterrupted

    try:
        function(**settings)
    except RunInterrupted as error:
        raise KeyboardInterrupt from error


def test_evaluate_scores_the_run_with_its_object(object_run):
    run, data = object_run
    metrics = json.loads((run / "metrics.json").read_text())
    same = bertkit.evaluate(run, data=data).metrics
    assert (same["validation"], same["baselines"]) == (metrics["validation"], metrics["baselines"])
    recorder = Recorder()
    other = bertkit.evaluate(run, data=data["dev"].select(range(15)), reporter=recorder).metrics
    assert other["data"]["validation"] == 15
    [reason] = [line for line in recorder.lines if line.startswith("no baselines: ")]
    assert reason.endswith("`data` is another object")


# ---- predictions and vectors


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_kind_of_object(object_run, tmp_path):
    run, data = object_run
    rows = list(data["dev"])
    expected = list(bertkit.predict(run, data=write_rows(tmp_path / "dev.jsonl", rows)))
    stream = data["dev"].to_iterable_dataset()
    for value in (rows, data, data["dev"], pd.DataFrame(rows), stream, IterableDatasetDict({"dev": stream})):
        assert list(bertkit.predict(run, data=value)) == expected


@pytest.mark.slow
def test_streams_are_predicted_chunk_by_chunk(object_run):
    run, _ = object_run
    read = []

    def generate():
        for number in range(10_000):
            read.append(number)
            yield {"text": "good"}

    from datasets import IterableDataset

    predictions = iter(bertkit.predict(run, data=IterableDataset.from_generator(generate)))
    next(predictions)
    assert len(read) < 5_000


def test_predictions_are_returned_as_a_dataset_or_a_frame(object_run):
    run, data = object_run
    records = list(bertkit.predict(run, data=data["dev"], all_scores=True))
    dataset = bertkit.predict(run, data=data["dev"], all_scores=True).to_dataset()
    assert list(dataset) == records
    assert dataset.cache_files  # memory-mapped
    frame = bertkit.predict(run, data=data["dev"]).to_pandas()
    assert frame["predicted"].tolist() == [record["predicted"] for record in records]


def test_chunks_with_other_keys_become_one_table():
    chunks = [
        [{"a": 1, "p": {"x": 0.5}}],
        [{"a": None, "p": {"y": 0.5}, "b": "late"}],
        [{"a": 2.5, "p": None}],
    ]
    assert build_dataset(iter(chunks)).to_list() == [
        {"a": 1.0, "p": {"x": 0.5, "y": None}, "b": None},
        {"a": None, "p": {"x": None, "y": 0.5}, "b": "late"},
        {"a": 2.5, "p": None, "b": None},
    ]


def test_values_without_a_common_type_are_refused():
    assert "values of different types" in get_error(build_dataset, [[{"a": 1}], [{"a": "b"}]])
    assert "there are no rows" in get_error(build_dataset, [])


def test_embed_reads_objects(tiny, toy_splits):
    expected = bertkit.embed(model=str(tiny), text=toy_splits["dev"]["text"][:]).vectors
    for settings in ({"data": toy_splits["dev"]}, {"data": toy_splits, "split": "validation"}):
        assert (bertkit.embed(model=str(tiny), **settings).vectors == expected).all()


# ---- pre-training


@pytest.fixture
def documents():
    rows = make_toy_rows(61)
    return [{"text": f"{first['text']}. {second['text']}."} for first, second in pairwise(rows)]


@pytest.mark.slow
def test_pretraining_reads_each_row_as_a_document(tiny, tmp_path, documents):
    dataset = Dataset.from_list(documents)
    sources = [
        write_rows(tmp_path / "texts.jsonl", documents),
        documents, dataset, dataset.to_iterable_dataset(), pd.DataFrame(documents),
    ]  # fmt: skip
    runs = [bertkit.pretrain_mlm_nsp(data=data, model=str(tiny), **PRETRAINING) for data in sources]
    assert len({read_bytes(run, "model.safetensors") for run in runs}) == 1


@pytest.mark.slow
def test_pretraining_runs_on_objects_are_evaluated_with_the_object(tiny, documents):
    run = bertkit.pretrain_mlm_nsp(data=documents, model=str(tiny), **PRETRAINING)
    assert bertkit.evaluate(run.output_dir, data=documents).metrics["validation"] == run.metrics["validation"]
    assert "pass it again: bertkit.evaluate(run=" in get_error(bertkit.evaluate, run.output_dir)
    assert "has changed" in get_error(bertkit.evaluate, run.output_dir, data=documents[:-1])


def test_texts_of_objects_are_checked(tiny, documents):
    wrong = [*documents, {"text": 5}]
    line = get_error(bertkit.pretrain_mlm_nsp, data=wrong, model=str(tiny), **PRETRAINING)
    assert line.startswith("data: row 61: the text column holds 5, not a text")
    line = get_error(bertkit.pretrain_mlm_nsp, data=[{"a": "x", "b": "y"}], model=str(tiny), **PRETRAINING)
    assert "(it has a, b); name it with --text-column" in line


def test_train_tokenizer_reads_objects(documents):
    tokenizer = bertkit.train_tokenizer(data=Dataset.from_list(documents), vocab_size=100)
    assert tokenizer.output_dir == Path("runs/tokenizer-data")


# ---- documentation


@pytest.mark.slow
def test_the_examples_of_the_documentation_run(tiny, tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text("utf-8")
    section = page.split("## Data from Python")[1].split("\n## ")[0]
    blocks = [part.split("```")[0] for part in section.split("```python\n")[1:]]
    pd.DataFrame(make_toy_rows(60)).to_csv(tmp_path / "reviews.csv", index=False)
    source = "\n".join(blocks).replace('model="minilm"', f"model={str(tiny)!r}, max_steps=2")
    names = {}
    exec(compile(source, "data.md", "exec"), names)
    assert names["run"].metrics["data"]["validation"] == 12


@pytest.mark.parametrize("value", [2**70, "text"])
def test_column_that_fits_no_arrow_type_is_refused_by_name(value):
    chunks = [[{"a": 1, "extra": 1}, {"a": 2, "extra": value}]]
    message = get_error(build_dataset, iter(chunks))
    assert message.startswith("predictions: column 'extra' cannot be stored in one Arrow column (")


def test_transform_of_a_dataset_is_refused(toy_splits):
    upper = toy_splits["train"].with_transform(lambda batch: {"text": [t.upper() for t in batch["text"]]})
    message = get_error(bertkit.classify, data=upper)
    assert message.startswith("data: the Dataset has a transform (set_transform)")
    assert len(read_rows(upper.with_format(None))) == 40
    assert len(read_rows(upper.with_format("numpy"))) == 40


def test_missing_text_column_of_labeled_rows(object_run):
    run, data = object_run
    labels = data["dev"].select_columns(["label"])
    message = get_error(lambda: list(bertkit.predict(run, data=labels)))
    assert message == "data: no column 'text' (the text); it has no other columns; add it"


def test_splits_with_other_names_are_training_rows_with_a_note(toy_splits):
    folds = DatasetDict({"first": toy_splits["train"], "second": toy_splits["dev"]})
    splits, notes = splits_from_object(DataObject.recognize(folds), "data")
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 60}
    assert notes == ["all splits are training rows: first, second"]
    _, notes = splits_from_object(DataObject.recognize(DatasetDict({"all": toy_splits["dev"]})), "data")
    assert notes == []

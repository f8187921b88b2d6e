"""Directories of `save_to_disk`, Arrow files and Feather files are read like other files, without a copy."""

import gzip
import json

import pandas as pd
import pyarrow as pa
import pytest
from conftest import make_toy_rows, write_rows
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from pyarrow import feather

import bertkit
from bertkit.data.readers.formats import read_file, stream_rows
from bertkit.data.sources import load_dataset, load_split, read_folder
from bertkit.data.table import DatasetColumn
from bertkit.errors import UserError

SETTINGS = {"epochs": 1, "batch_size": 8, "bf16": False}
ROWS = make_toy_rows(60)
FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=["positive", "negative"])})


@pytest.fixture
def dataset():
    return Dataset.from_list(ROWS, features=FEATURES)


def write_stream(path, table):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)


def write_all(folder, table):
    """The table in each kind of file."""
    write_stream(folder / "stream.arrow", table)
    feather.write_feather(table, str(folder / "file.arrow"), compression="uncompressed")
    feather.write_feather(table, str(folder / "lz4.feather"))
    (folder / "stream.arrow.gz").write_bytes(gzip.compress((folder / "stream.arrow").read_bytes()))
    return [folder / name for name in ("stream.arrow", "file.arrow", "lz4.feather", "stream.arrow.gz")]


def test_all_arrow_files_have_the_same_rows(tmp_path, dataset):
    for path in write_all(tmp_path, dataset.data.table):
        rows = read_file(path)
        assert list(rows) == ROWS
        assert rows.class_names == {"label": ["positive", "negative"]}
        assert [row for chunk in stream_rows(path, chunk_size=7) for row in chunk] == ROWS
        assert rows.format_location(20) == f"{path}: row 21"


def test_files_without_compression_are_mapped(tmp_path, dataset):
    mapped = {path.name: read_file(path)["text"] for path in write_all(tmp_path, dataset.data.table)}
    assert isinstance(mapped["stream.arrow"], DatasetColumn)
    allocated = pa.total_allocated_bytes()
    columns = [read_file(tmp_path / name)["text"] for name in ("stream.arrow", "file.arrow")]
    assert pa.total_allocated_bytes() - allocated < 2_000, columns


def test_a_categorical_column_of_pandas_has_its_values(tmp_path):
    pd.DataFrame(ROWS).astype({"label": "category"}).to_feather(tmp_path / "a.feather")
    assert list(read_file(tmp_path / "a.feather")) == ROWS


def test_columns_of_types_that_datasets_lacks_are_read(tmp_path):
    intervals = pa.array([pa.MonthDayNano([1, 2, 3])] * len(ROWS))
    table = pa.Table.from_pylist(ROWS).append_column("span", intervals)
    write_stream(tmp_path / "a.arrow", table)
    assert list(read_file(tmp_path / "a.arrow")["text"]) == [row["text"] for row in ROWS]


def test_saved_datasets_are_read_with_their_splits_and_the_order_of_their_rows(tmp_path, dataset):
    shuffled = dataset.shuffle(seed=3)
    DatasetDict({"train": shuffled, "valid": dataset.select(range(9))}).save_to_disk(str(tmp_path / "splits"))
    shuffled.save_to_disk(str(tmp_path / "single"))
    loaded = load_dataset(str(tmp_path / "splits"), "classify")
    assert (loaded.name, loaded.source) == ("splits", str(tmp_path / "splits"))
    assert [len(rows) for rows in loaded.splits.values()] == [60, 9]
    assert list(loaded.splits["train"]["text"]) == shuffled["text"][:]
    assert loaded.splits["validation"].format_location(2) == f"{tmp_path}/splits['valid']: row 3"
    assert (
        list(load_dataset(str(tmp_path / "single"), "classify").splits["train"]["text"])
        == shuffled["text"][:]
    )
    assert len(load_split(str(tmp_path / "splits"), "validation")) == 9
    with pytest.raises(UserError, match="no test split among train, validation; pass one of them"):
        load_split(str(tmp_path / "splits"), "test")


def test_descriptions_of_a_dataset_are_not_data(tmp_path, dataset):
    write_stream(tmp_path / "x-train.arrow", dataset.data.table)
    (tmp_path / "dataset_info.json").write_text("{}")
    assert len(read_folder(tmp_path)[0]["train"]) == 60


@pytest.mark.slow
def test_commands_read_saved_datasets_and_arrow_files(cli, tiny, tmp_path, dataset):
    parts = {"train": dataset.select(range(40)), "dev": dataset.select(range(40, 60))}
    DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    parts["dev"].save_to_disk(str(tmp_path / "dev"))
    feather.write_feather(parts["train"].data.table.slice(0, 40), str(tmp_path / "train.feather"))
    of_saved = bertkit.classify(data=str(tmp_path / "saved"), model=str(tiny), **SETTINGS)
    files = {"data": str(tmp_path / "train.feather"), "validation": str(tmp_path / "dev")}
    of_files = bertkit.classify(**files, model=str(tiny), **SETTINGS)
    of_object = bertkit.classify(data=DatasetDict(parts), model=str(tiny), **SETTINGS)
    for name in ("model.safetensors", "predictions.jsonl"):
        assert len({(run.output_dir / name).read_bytes() for run in (of_saved, of_files, of_object)}) == 1
    again = bertkit.evaluate(of_saved.output_dir)
    assert again.metrics["validation"] == of_saved.metrics["validation"]
    run = of_saved.output_dir
    for data in ("saved", "dev", "train.feather"):
        for args in (["predict", run], ["evaluate", run], ["check", "classify"]):
            assert cli(*args, "--data", tmp_path / data)[0] == 0, (args, data)
        assert cli("embed", tiny, "--data", tmp_path / data, "-o", tmp_path / f"{data}.npy")[0] == 0


@pytest.mark.slow
def test_pretraining_reads_saved_datasets_and_arrow_files(tiny, tmp_path):
    texts = [{"text": f"{row['text']}. {row['text']} very."} for row in ROWS]
    write_rows(tmp_path / "texts.jsonl", texts)
    Dataset.from_list(texts).save_to_disk(str(tmp_path / "saved"))
    write_stream(tmp_path / "texts.arrow", pa.Table.from_pylist(texts))
    settings = {"model": str(tiny), "max_steps": 2, "batch_size": 4, "max_length": 32, "bf16": False}
    runs = [
        bertkit.pretrain_mlm_nsp(data=str(tmp_path / name), **settings)
        for name in ("texts.jsonl", "saved", "texts.arrow")
    ]
    assert len({(run.output_dir / "model.safetensors").read_bytes() for run in runs}) == 1


@pytest.mark.parametrize(
    ("text_feature", "label_type"),
    [({"_type": "FeatureOfAnotherVersion"}, pa.int64()), ({"dtype": "string", "_type": "Value"}, pa.int32())],
)
def test_class_names_survive_what_the_parser_of_datasets_refuses(tmp_path, text_feature, label_type):
    label = {"names": ["positive", "negative"], "_type": "ClassLabel"}
    info = {"info": {"features": {"text": text_feature, "label": label}}}
    schema = pa.schema([("text", pa.string()), ("label", label_type)], {"huggingface": json.dumps(info)})
    write_stream(tmp_path / "a.arrow", pa.table([["a", "b"], [1, 0]], schema=schema))
    assert list(read_file(tmp_path / "a.arrow")["label"]) == ["negative", "positive"]
    try:
        features = Features.from_arrow_schema(schema)
    except ValueError:
        return
    assert features["label"] == Value("int32")


# ---- damage

JSON_CONTENTS = [
    "",
    "[]",
    '{"splits": 3}',
    '{"_data_files": 3}',
    '{"_data_files": [{"filename": "x"}]}',
    "[" * 9999,
]


@pytest.mark.parametrize("content", [None, *JSON_CONTENTS], ids=lambda content: str(content)[:30])
@pytest.mark.parametrize("name", ["dataset_dict.json", "train/state.json"])
def test_damaged_saved_datasets_are_refused(tmp_path, dataset, name, content):
    folder = tmp_path / "saved"
    DatasetDict({"train": dataset}).save_to_disk(str(folder))
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    assert_broken(folder)


@pytest.mark.parametrize("size", [0, 4, 100, 1000])
def test_saved_datasets_with_a_truncated_file_are_refused(tmp_path, dataset, size):
    dataset.save_to_disk(str(tmp_path / "saved"))
    (data_file,) = (tmp_path / "saved").glob("*.arrow")
    data_file.write_bytes(data_file.read_bytes()[:size])
    assert_broken(tmp_path / "saved")


def assert_broken(folder):
    with pytest.raises(UserError) as error:
        load_dataset(str(folder), "classify")
    assert str(error.value).startswith(f"{folder}: broken saved dataset (")
    assert "\n" not in str(error.value)

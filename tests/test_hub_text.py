"""Test streaming text from a local server that speaks the protocol of the Hub; nothing is written to disk."""

import gzip
import json
import shutil
import time
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_document_rows
from test_corpus import TOKENIZER

import bertkit
from bertkit.data.corpus.documents import TextOptions, find_text, iter_raw_texts
from bertkit.data.corpus.store import load_corpus
from bertkit.data.sources import load_dataset_specs
from bertkit.errors import UserError
from bertkit.utils.cache import get_cache_directory

pytestmark = pytest.mark.slow

COMMAND = "pretrain-mlm-nsp"
NAME = "someone/texts"
TRAIN = "train-00000-of-00001.parquet"


@pytest.fixture
def publish_files(hub, tmp_path):
    """Return a function that publishes files (path -> content) as the dataset NAME."""

    def publish(name=NAME, **contents):
        for path, content in contents.items():
            file = tmp_path / "set" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        hub.add_dataset(name, tmp_path / "set")
        return hub

    return publish


def make_parquet(rows, tmp_path, rows_in_group=200):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=rows_in_group)
    return path.read_bytes()


def make_json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def list_cached_files(tmp_path):
    """List the files in the Hugging Face cache."""
    return [path for path in (tmp_path / "hf-home").rglob("*") if path.is_file()]


def read_texts(source):
    return list(iter_raw_texts(source.files, TextOptions(text_column=source.column)))


FILE_FORMATS = {
    "parquet": ("train.parquet", make_parquet),
    "json lines": ("train.jsonl", lambda rows, _: make_json_lines(rows)),
    "gzip": ("train.jsonl.gz", lambda rows, _: gzip.compress(make_json_lines(rows))),
    "zstd": ("train.jsonl.zst", lambda rows, _: pa.compress(make_json_lines(rows), "zstd", asbytes=True)),
    "lines": ("train.txt", lambda rows, _: "\n".join(row["text"] for row in rows).encode()),
}


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_every_file_format_is_streamed(file_format, publish_files, tmp_path):
    rows, (path, pack) = make_document_rows(60), FILE_FORMATS[file_format]
    content = pack(rows, tmp_path)
    hub = publish_files(**{path: content})
    source = find_text(NAME)
    assert hub.sent == 0
    assert read_texts(source) == [row["text"] for row in rows]
    assert hub.sent >= len(content)
    assert list_cached_files(tmp_path) == []


def test_a_run_streams_its_text_and_a_second_run_uses_the_cache(publish_files, tmp_path):
    parts = [make_document_rows(60, seed=seed) for seed in range(3)]
    names = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
             "data/validation-00000-of-00001.parquet"]  # fmt: skip
    hub = publish_files(
        **{name: make_parquet(rows, tmp_path) for name, rows in zip(names, parts, strict=True)},
        **{"data/extra.parquet": b"named after no split"},
    )
    options = {"data": NAME, "vocab_size": 120, "max_length": 32, "max_steps": 1, "bf16": False}
    run = bertkit.pretrain_mlm_nsp(**options)
    data = run.metrics["data"]
    assert data["source"].startswith(f"Hub: {NAME}, commit ")
    assert (data["train"], data["validation"]) == (119, 60)  # one document occurs in both splits
    assert list_cached_files(tmp_path) == []
    hub.stop()
    hub.requests.clear()
    repeated = bertkit.pretrain_mlm_nsp(**options)
    assert repeated.metrics["validation"] == run.metrics["validation"]
    assert hub.requests == []


def test_streaming_keeps_memory_and_disk_usage_low(publish_files, tmp_path):
    text = " ".join(row["text"] for row in make_document_rows(400))
    content = make_parquet([{"text": f"{number} {text}"} for number in range(2000)], tmp_path, 100)
    raw = 2000 * len(text)
    hub = publish_files(**{TRAIN: content})
    source = find_text(NAME)
    next(iter_raw_texts(source.files, TextOptions()))  # load modules and buffers before memory is measured
    tracemalloc.start()
    characters = arrow = 0
    for document in iter_raw_texts(source.files, TextOptions()):
        characters += len(document)
        arrow = max(arrow, pa.total_allocated_bytes())
    peak = arrow + tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert characters > raw > 80e6
    assert hub.sent > len(content)
    assert peak < raw / 2, peak
    assert list_cached_files(tmp_path) == []
    assert sum(path.stat().st_size for path in get_cache_directory().rglob("*")) < 10_000


def test_a_file_in_the_hugging_face_cache_is_not_downloaded_again(publish_files, tmp_path):
    from huggingface_hub import snapshot_download

    rows = make_document_rows(60)
    hub = publish_files(**{TRAIN: make_parquet(rows, tmp_path)})
    snapshot_download(NAME, repo_type="dataset")
    source, hub.sent = find_text(NAME), 0
    assert read_texts(source) == [row["text"] for row in rows]
    assert hub.sent == 0
    hub.stop()
    shutil.rmtree(get_cache_directory() / "hub")
    offline = find_text(NAME)  # without the file list and without the Hub
    assert offline.location == f"Hugging Face cache: {NAME}"
    assert read_texts(offline) == read_texts(source)


def test_a_change_of_an_unrelated_file_keeps_the_cached_corpus(publish_files, tmp_path):
    hub = publish_files(**{TRAIN: make_parquet(make_document_rows(60), tmp_path), "README.md": b"a card"})
    first = load_corpus(find_text(NAME).files, TextOptions(), TOKENIZER)
    shutil.rmtree(get_cache_directory() / "hub")
    publish_files(**{"README.md": b"another card"})
    hub.sent = 0
    second = load_corpus(find_text(NAME).files, TextOptions(), TOKENIZER)
    assert second.token_ids.filename == first.token_ids.filename
    assert hub.sent == 0


def test_a_known_dataset_is_streamed_from_its_text_column(publish_files, tmp_path):
    spec = load_dataset_specs()["sick"]
    rows = [{"sentence_A": row["text"], "sentence_B": "no", "label": 1} for row in make_document_rows(60)]
    hub = publish_files(**{"default/train/0000.parquet": make_parquet(rows, tmp_path)})
    hub.add_dataset(spec.hub["id"], tmp_path / "set", spec.hub["revision"])
    source = find_text("sick")
    assert (source.name, source.column) == ("sick", "sentence_A")
    assert read_texts(source) == [row["sentence_A"] for row in rows]


def test_a_dataset_with_configurations_requires_one_of_them(publish_files, tmp_path):
    rows = {
        part: make_document_rows(20, seed=seed) for seed, part in enumerate(("20231101.de", "20231101.en"))
    }
    publish_files(**{f"{part}/{TRAIN}": make_parquet(rows[part], tmp_path) for part in rows})
    with pytest.raises(
        UserError, match=f"--data {NAME}: has several configurations .* --data {NAME}:20231101.de"
    ):
        find_text(NAME)
    source = find_text(f"{NAME}:20231101.en")
    assert source.name == "texts-20231101.en"
    assert read_texts(source) == [row["text"] for row in rows["20231101.en"]]


# ---- errors


def get_refusal(cli, *args):
    status, _, err = cli(COMMAND, "--data", NAME, "--vocab-size", 120, *args)
    assert status == 2, err
    return err.strip().splitlines()[-1]


def test_missing_gated_and_unsupported_datasets_are_refused_in_one_line(cli, publish_files, tmp_path):
    assert "does not exist on the Hub" in get_refusal(cli)
    hub = publish_files(**{"train.txt.xyz": b"unsupported"})
    assert "has no plain data files" in get_refusal(cli)
    publish_files(**{TRAIN: make_parquet([{"number": 1, "other": "a"}] * 30, tmp_path)})
    error = get_refusal(cli)
    assert f"hf://datasets/{NAME}/{TRAIN}" in error
    assert "number" in error
    hub.gated.add(NAME)
    error = get_refusal(cli)
    assert "is not accessible" in error
    assert "hf auth login" in error


def test_a_request_that_the_hub_refuses_is_not_a_lost_connection(cli, publish_files, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # skip the waits between the library's own attempts
    publish_files(**{"train.txt": b"The film was good."}).fails_with = 429
    error = get_refusal(cli)
    assert f"the Hub refused {NAME}" in error
    assert "429" in error
    assert "connection" not in error


@pytest.mark.parametrize("file_format", ["parquet", "gzip"])
def test_a_lost_connection_is_reported_and_the_next_attempt_reads_everything(
    file_format, cli, publish_files, tmp_path, monkeypatch
):
    rows, (path, pack) = make_document_rows(4000), FILE_FORMATS[file_format]
    hub = publish_files(**{path: pack(rows, tmp_path)})
    monkeypatch.setattr("bertkit.data.readers.parquet.BLOCK_SIZE", 1 << 12)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # skip the waits between the library's own attempts
    hub.breaks_after = 10_000
    error = get_refusal(cli)
    assert "the connection to the Hub was lost" in error
    assert path in error
    assert not list(get_cache_directory().rglob("*.bin"))
    hub.breaks_after = None
    assert len(read_texts(find_text(NAME))) == 4000


@pytest.mark.parametrize("offline", [False, True])
def test_without_network_and_cache_the_command_fails_within_seconds(offline, cli, no_hub, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    started = time.monotonic()
    error = get_refusal(cli)
    assert "is not in the Hugging Face cache" in error
    assert time.monotonic() - started < 5


def test_a_cached_file_list_without_its_files_fails_within_seconds(cli, publish_files, tmp_path):
    hub = publish_files(**{TRAIN: make_parquet(make_document_rows(60), tmp_path)})
    find_text(NAME)
    hub.stop()
    started = time.monotonic()
    error = get_refusal(cli)
    assert f"{TRAIN}: is not in the Hugging Face cache" in error
    assert time.monotonic() - started < 5


def test_a_tokenizer_is_trained_on_streamed_text(cli, publish_files, tmp_path):
    hub = publish_files(**{TRAIN: make_parquet(make_document_rows(60), tmp_path)})
    status, out, err = cli("train-tokenizer", "--data", NAME, "--vocab-size", 120, "--json")
    assert status == 0, err
    assert json.loads(out)["vocab_size"] <= 120
    assert hub.sent
    assert list_cached_files(tmp_path) == []

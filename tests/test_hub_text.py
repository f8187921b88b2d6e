"""Running text on the Hub: streamed from a Hub on loopback, by its protocol; never put on disk."""

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
from bertkit.data.corpus.documents import TextOptions, iter_raw_texts
from bertkit.data.corpus.source import find_text
from bertkit.data.corpus.store import load_corpus
from bertkit.data.registry import load_dataset_specs
from bertkit.errors import UserError
from bertkit.utils.cache import get_cache_directory
from bertkit.utils.reporting import Reporter

COMMAND = "pretrain-mlm-nsp"
NAME = "someone/texts"
TRAIN = "train-00000-of-00001.parquet"


@pytest.fixture
def published(hub, tmp_path):
    """Publish files, of content by path, as the set NAME."""

    def publish(name=NAME, **contents):
        for path, content in contents.items():
            file = tmp_path / "set" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        hub.add_dataset(name, tmp_path / "set")
        return hub

    return publish


def parquet(rows, tmp_path, rows_in_group=200):
    path = tmp_path / "made.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=rows_in_group)
    return path.read_bytes()


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def on_disk(tmp_path):
    """The files of the Hugging Face cache that hold something of a data set."""
    return [path for path in (tmp_path / "hf-home").rglob("*") if path.is_file()]


def texts_of(source):
    return list(iter_raw_texts(source.files, TextOptions(text_column=source.column)))


PACKINGS = {
    "parquet": ("train.parquet", parquet),
    "json lines": ("train.jsonl", lambda rows, _: json_lines(rows)),
    "gzip": ("train.jsonl.gz", lambda rows, _: gzip.compress(json_lines(rows))),
    "zstd": ("train.jsonl.zst", lambda rows, _: pa.compress(json_lines(rows), "zstd", asbytes=True)),
    "lines": ("train.txt", lambda rows, _: "\n".join(row["text"] for row in rows).encode()),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_any_kind_of_file_is_streamed(packing, published, tmp_path):
    rows, (path, pack) = make_document_rows(60), PACKINGS[packing]
    content = pack(rows, tmp_path)
    hub = published(**{path: content})
    source = find_text(NAME)
    assert hub.sent == 0
    assert texts_of(source) == [row["text"] for row in rows]
    assert hub.sent >= len(content)
    assert on_disk(tmp_path) == []


def test_a_run_streams_and_a_second_one_reads_nothing(published, tmp_path):
    parts = [make_document_rows(60, seed=seed) for seed in range(3)]
    names = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
             "data/validation-00000-of-00001.parquet"]  # fmt: skip
    hub = published(
        **{name: parquet(rows, tmp_path) for name, rows in zip(names, parts, strict=True)},
        **{"data/extra.parquet": b"named after no split"},
    )
    options = {"data": NAME, "vocab_size": 120, "max_length": 32, "max_steps": 1, "bf16": False}
    run = bertkit.pretrain_mlm_nsp(**options)
    found = run.metrics["data"]
    assert found["source"].startswith(f"Hub: {NAME}, commit ")
    assert (found["train"], found["validation"]) == (119, 60)  # one stands on both sides
    assert on_disk(tmp_path) == []
    hub.stop()
    hub.requests.clear()
    again = bertkit.pretrain_mlm_nsp(**options)
    assert again.metrics["validation"] == run.metrics["validation"]
    assert hub.requests == []


def test_memory_and_disk_are_not_filled(published, tmp_path):
    text = " ".join(row["text"] for row in make_document_rows(400))
    content = parquet([{"text": f"{number} {text}"} for number in range(2000)], tmp_path, 100)
    raw = 2000 * len(text)
    hub = published(**{TRAIN: content})
    source = find_text(NAME)
    next(iter_raw_texts(source.files, TextOptions()))  # what is imported and kept anyway
    tracemalloc.start()
    characters = arrow = 0
    for one in iter_raw_texts(source.files, TextOptions()):
        characters += len(one)
        arrow = max(arrow, pa.total_allocated_bytes())
    held = arrow + tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert characters > raw > 80e6
    assert hub.sent > len(content)
    assert held < raw / 2, held
    assert on_disk(tmp_path) == []
    assert sum(path.stat().st_size for path in get_cache_directory().rglob("*")) < 10_000


def test_a_file_in_the_hugging_face_cache_is_read_from_there(published, tmp_path):
    from huggingface_hub import snapshot_download

    rows = make_document_rows(60)
    hub = published(**{TRAIN: parquet(rows, tmp_path)})
    snapshot_download(NAME, repo_type="dataset")
    source, hub.sent = find_text(NAME), 0
    assert texts_of(source) == [row["text"] for row in rows]
    assert hub.sent == 0
    hub.stop()
    shutil.rmtree(get_cache_directory() / "hub")
    alone = find_text(NAME)  # from the Hugging Face cache, with neither list nor Hub
    assert alone.location == f"Hugging Face cache: {NAME}"
    assert texts_of(alone) == texts_of(source)


def test_a_change_of_another_file_reads_nothing_again(published, tmp_path):
    hub = published(**{TRAIN: parquet(make_document_rows(60), tmp_path), "README.md": b"a card"})
    first = load_corpus(find_text(NAME).files, TextOptions(), TOKENIZER, Reporter())
    shutil.rmtree(get_cache_directory() / "hub")
    published(**{"README.md": b"another card"})
    hub.sent = 0
    again = load_corpus(find_text(NAME).files, TextOptions(), TOKENIZER, Reporter())
    assert again.token_ids.filename == first.token_ids.filename
    assert hub.sent == 0


def test_a_known_set_is_streamed_with_its_column(published, tmp_path):
    known = load_dataset_specs()["sick"]
    rows = [{"sentence_A": row["text"], "sentence_B": "no", "label": 1} for row in make_document_rows(60)]
    hub = published(**{"default/train/0000.parquet": parquet(rows, tmp_path)})
    hub.add_dataset(known.hub["id"], tmp_path / "set", known.hub["revision"])
    source = find_text("sick")
    assert (source.name, source.column) == ("sick", "sentence_A")
    assert texts_of(source) == [row["sentence_A"] for row in rows]


def test_of_a_set_with_parts_one_is_chosen(published, tmp_path):
    rows = {
        part: make_document_rows(20, seed=seed) for seed, part in enumerate(("20231101.de", "20231101.en"))
    }
    published(**{f"{part}/{TRAIN}": parquet(rows[part], tmp_path) for part in rows})
    with pytest.raises(
        UserError, match=f"--data {NAME}: has several configurations .* --data {NAME}:20231101.de"
    ):
        find_text(NAME)
    source = find_text(f"{NAME}:20231101.en")
    assert source.name == "texts-20231101.en"
    assert texts_of(source) == [row["text"] for row in rows["20231101.en"]]


# ---- what goes wrong


def refused(cli, *args):
    status, _, err = cli(COMMAND, "--data", NAME, "--vocab-size", 120, *args)
    assert status == 2, err
    return err.strip().splitlines()[-1]


def test_gated_missing_and_useless_sets_are_one_line(cli, published, tmp_path):
    assert "does not exist on the Hub" in refused(cli)
    hub = published(**{"train.txt.xyz": b"of no use"})
    assert "has no plain data files" in refused(cli)
    published(**{TRAIN: parquet([{"number": 1, "other": "a"}] * 30, tmp_path)})
    told = refused(cli)
    assert f"hf://datasets/{NAME}/{TRAIN}" in told
    assert "number" in told
    hub.gated.add(NAME)
    told = refused(cli)
    assert "is not accessible" in told
    assert "hf auth login" in told


@pytest.mark.parametrize("packing", ["parquet", "gzip"])
def test_a_connection_that_breaks_is_taken_up_again_or_told(packing, cli, published, tmp_path, monkeypatch):
    rows, (path, pack) = make_document_rows(4000), PACKINGS[packing]
    hub = published(**{path: pack(rows, tmp_path)})
    monkeypatch.setattr("bertkit.data.readers.parquet.BLOCK_SIZE", 1 << 12)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between the library's own attempts
    hub.breaks_after = 10_000
    told = refused(cli)
    assert "the connection to the Hub was lost" in told
    assert path in told
    assert not list(get_cache_directory().rglob("*.bin"))
    hub.breaks_after = None
    assert len(texts_of(find_text(NAME))) == 4000


@pytest.mark.parametrize("offline", [False, True])
def test_no_network_and_nothing_cached_is_said_at_once(offline, cli, no_hub, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    started = time.monotonic()
    told = refused(cli)
    assert "is not in the Hugging Face cache" in told
    assert time.monotonic() - started < 5


def test_a_list_without_its_files_is_said_at_once(cli, published, tmp_path):
    hub = published(**{TRAIN: parquet(make_document_rows(60), tmp_path)})
    find_text(NAME)
    hub.stop()
    started = time.monotonic()
    told = refused(cli)
    assert f"{TRAIN}: is not in the Hugging Face cache" in told
    assert time.monotonic() - started < 5


def test_a_tokenizer_is_trained_on_a_stream(cli, published, tmp_path):
    hub = published(**{TRAIN: parquet(make_document_rows(60), tmp_path)})
    status, out, err = cli("train-tokenizer", "--data", NAME, "--vocab-size", 120, "--json")
    assert status == 0, err
    assert json.loads(out)["vocab_size"] <= 120
    assert hub.sent
    assert on_disk(tmp_path) == []

"""Texts at any URL that fsspec supports."""

import gzip
import http.server
import threading
from functools import partial

import fsspec
import pytest
from conftest import assert_refused, make_document_rows, write_rows

from bertkit.data.corpus.documents import TextOptions, find_text, iter_documents
from bertkit.data.corpus.store import digest_files
from bertkit.data.readers.text_files import RemoteFile, list_remote_files


@pytest.fixture
def memory():
    """Texts in memory: two shards, one of them packed, and a third file that is no text."""
    system = fsspec.filesystem("memory")
    system.pipe("/corpus/part-0.txt", b"One is here.\nTwo is there.\n\nThree is new.\n")
    system.pipe("/corpus/part-1.txt.gz", gzip.compress("Four is far. 다섯 번째다.\n".encode()))
    system.pipe("/corpus/README.md", b"of another kind")
    yield system
    system.rm("/corpus", recursive=True)


def read(source):
    files = source.splits["train"]
    return [list(sentences) for sentences in iter_documents(files, TextOptions(text_format="sentences"))]


def test_a_pattern_of_shards_is_read_in_order_and_unpacked(memory):
    source = find_text("memory://corpus/part-*")
    assert source.name == "part"
    assert [str(file) for file in source.files] == [
        "memory:///corpus/part-0.txt",
        "memory:///corpus/part-1.txt.gz",
    ]
    assert read(source) == [
        ["One is here.", "Two is there."],
        ["Three is new."],
        ["Four is far. 다섯 번째다."],
    ]


def test_the_digest_of_a_file_changes_with_its_content(memory):
    url = "memory://corpus/part-0.txt"
    before = digest_files(list_remote_files(url))
    assert digest_files(list_remote_files(url)) == before
    memory.pipe("/corpus/part-0.txt", b"Another text.")
    assert digest_files(list_remote_files(url)) != before


def test_a_file_url_is_a_path(tmp_path):
    path = write_rows(tmp_path / "text.jsonl", make_document_rows(3))
    assert list_remote_files(f"file://{path}") == [path]


@pytest.mark.slow
def test_http_files_are_read(tmp_path):
    (tmp_path / "text.txt").write_text("One is here.\nTwo is there.\n", "utf-8")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = find_text(f"http://127.0.0.1:{server.server_port}/text.txt")
        assert isinstance(source.files[0], RemoteFile)
        assert read(source) == [["One is here.", "Two is there."]]
        server.shutdown()


@pytest.mark.parametrize(("url", "words"), [
    ("memory://nowhere/*.txt", "no such file, folder or pattern"),
    ("strange://bucket/a.txt", "cannot be read (Protocol not known: strange"),
])  # fmt: skip
def test_missing_files_are_an_error_of_one_line(cli, tmp_path, url, words):
    assert_refused(cli, tmp_path, ["--data", url], [url, words], command="train-tokenizer")

"""Random damage to what readers are given: nothing but a `UserError` may come out.

    python tests/fuzz.py --examples 2000

A target is a reader. Files are made from those that are legal in `malformed` by edits of their bytes, or of
the values in their rows; hypothesis makes what fails as small as it can.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

os.environ.setdefault("OMP_NUM_THREADS", "1")

from conftest import ROW_MAKERS, make_document_rows, make_toy_rows, save_tiny_model, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import CASES, RUN_DAMAGES
from malformed.case import Case
from malformed.readers import READERS, make_training_reader

import bertkit
from bertkit.data.readers.formats import Dialect, read_file, stream_rows
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.tasks import TASKS

Target = Callable[[settings, Path, Path], None]  # how to draw, where files go, and a tiny model
BYTE_SNIPPETS = [
    b"\0", b"\n", b"\r", b"\t", b'"', b"'", b",", b";", b":", b"{", b"}", b"[", b"]", b"\\", b"\\ud83d",
    b"null", b"true", b"NaN", b"-1", b"1e999", b"[" * 2000, b"9" * 5000, b"PAR1", b"ARROW1", b"\x1f\x8b",
    b"PK\x03\x04", b"\xef\xbb\xbf", b"\xff", "\u2028".encode(), "한".encode(), b"-DOCSTART-", b"#", b"&a",
    b"*a", b"<<",
]  # fmt: skip
JSON_KEYS = ["text", "answer_start", "start", "end", "label", "a"]
MAX_FILE_BYTES = 20_000  # bytes: what is longer gives nothing new and takes time
BASE_SETTINGS = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


# ---- damage

fractions = st.floats(0, 1, exclude_max=True)
edits_strategy = st.one_of(
    st.tuples(st.just("put"), fractions, st.sampled_from(BYTE_SNIPPETS)),
    st.tuples(st.just("put"), fractions, st.binary(max_size=8)),
    st.tuples(st.just("over"), fractions, st.sampled_from(BYTE_SNIPPETS)),
    st.tuples(st.just("drop"), fractions, st.integers(1, 400)),
    st.tuples(st.just("twice"), fractions, st.integers(1, 400)),
    st.tuples(st.just("cut"), fractions, st.none()),
)
scalar_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
scalar_values |= st.sampled_from(["\ud83d", "B-", "O", "I-NICE", "../x", "[red]", 10**30, -0.0, ""])
json_values = st.recursive(
    scalar_values,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(JSON_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


def apply_edits(content: bytes, edits: list[tuple[str, float, Any]]) -> bytes:
    """A file after some edits, one after the other."""
    for kind, where, what in edits:
        at = int(where * len(content))
        before, after = content[:at], content[at:]
        match kind:
            case "put":
                content = before + what + after
            case "over":
                content = before + what + after[len(what) :]
            case "drop":
                content = before + after[what:]
            case "twice":
                content = before + after[:what] + after
            case "cut":
                content = before
    return content


def replace_value_in_file(name: str, content: bytes, path: list[float], value: Any) -> bytes:
    """A file of JSON, JSON lines or YAML with another value at some place."""
    if name.endswith(".jsonl"):
        lines = replace_nested_value([json.loads(line) for line in content.splitlines()], path, value)
        return "".join(json.dumps(line) + "\n" for line in lines).encode()
    whole = json.loads(content) if name.endswith(".json") else yaml.safe_load(content)
    return json.dumps(replace_nested_value(whole, path, value)).encode()


def replace_nested_value(found: Any, path: list[float], value: Any) -> Any:
    """Replace a nested value; each number of the path selects a key by its relative position."""
    if not path or not found or not isinstance(found, (dict, list)):
        return value
    keys = list(found) if isinstance(found, dict) else range(len(found))
    key, copy = keys[int(path[0] * len(keys))], found.copy()
    copy[key] = replace_nested_value(found[key], path[1:], value)
    return copy


def allow_user_error(read: Callable[[], object]) -> object:
    """What is read; None where it is refused as it should be."""
    try:
        return read()
    except UserError:
        return None


# ---- targets


def fuzz_file_bytes(reader: str) -> Target:
    """Edits of the bytes of legal files."""
    legal = [
        case
        for case in CASES[reader].values()
        if case.num_rows is not None and len(case.content) < MAX_FILE_BYTES
    ]

    def fuzz(how: settings, folder: Path, model: Path) -> None:
        @how
        @given(st.sampled_from(legal), st.lists(edits_strategy, min_size=1, max_size=4))
        def one(case: Case, edits: list[tuple[str, float, Any]]) -> None:
            path = folder / case.name
            path.write_bytes(apply_edits(case.content, edits))
            if case.sidecar is not None:
                (folder / f"{case.name}.json").write_text(case.sidecar)
            allow_user_error(lambda: READERS[reader](path, model))

        one()

    return fuzz


def fuzz_chunked_reading(reader: str) -> Target:
    """Some rows at a time or all at once: both refuse a file, or both read the same from it."""
    legal = [
        case
        for case in CASES[reader].values()
        if case.num_rows is not None and len(case.content) < MAX_FILE_BYTES
    ]
    dialect = Dialect(conll=True) if reader == "ner" else None

    def fuzz(how: settings, folder: Path, _: Path) -> None:
        @how
        @given(st.sampled_from(legal), st.lists(edits_strategy, min_size=1, max_size=3))
        def one(case: Case, edits: list[tuple[str, float, Any]]) -> None:
            path = folder / case.name
            path.write_bytes(apply_edits(case.content, edits))
            allow_user_error(lambda: read_file(path, dialect))
            allow_user_error(
                lambda: Rows.concatenate(list(stream_rows(path, dialect, chunk_size=7, stream_above_bytes=0)))
            )

        one()

    return fuzz


def fuzz_row_values(task: str) -> Target:
    """Any JSON in the place of a value of a row: texts, labels, tokens, tags, spans, endings, answers."""
    good = make_rows(task, 20)
    keys = sorted(good[0])

    def fuzz(how: settings, folder: Path, model: Path) -> None:
        @how
        @given(st.sampled_from(keys), json_values, st.integers(0, 19))
        def one(key: str, value: Any, at: int) -> None:
            path = folder / "data.jsonl"
            changed = [{**row, key: value} if n == at else row for n, row in enumerate(good)]
            path.write_text("".join(json.dumps(row) + "\n" for row in changed))
            allow_user_error(lambda: make_training_reader(task)(path, model))

        one()

    return fuzz


def fuzz_run_files(use: str, task: str = "classify") -> Target:
    """Edits of a file of a finished run."""

    def fuzz(how: settings, folder: Path, model: Path) -> None:
        run = train_small_run(folder, model, task)
        read, files = RUN_DAMAGES[use][0], list_files_read(run, use)

        @how
        @given(st.sampled_from(files), st.lists(edits_strategy, min_size=1, max_size=3))
        def one(name: str, edits: list[tuple[str, float, Any]]) -> None:
            with restore_content_after(run / name) as content:
                (run / name).write_bytes(apply_edits(content, edits))
                allow_user_error(lambda: read(run))

        one()

    return fuzz


def fuzz_report_values(task: str) -> Target:
    """Any JSON in the place of a value of what a page is made of."""

    def fuzz(how: settings, folder: Path, model: Path) -> None:
        run = train_small_run(folder, model, task)
        read, files = RUN_DAMAGES["report"][0], list_files_read(run, "report")
        steps = st.lists(fractions, min_size=1, max_size=4)

        @how
        @given(st.sampled_from(files), steps, json_values)
        def one(name: str, path: list[float], value: Any) -> None:
            with restore_content_after(run / name) as content:
                (run / name).write_bytes(replace_value_in_file(name, content, path, value))
                allow_user_error(lambda: read(run))

        one()

    return fuzz


def list_files_read(run: Path, use: str) -> list[str]:
    """The files of a run that are read."""
    names = {damage.file for damage in RUN_DAMAGES[use][1].values()}
    return sorted(name for name in names if (run / name).exists())


@contextmanager
def restore_content_after(path: Path) -> Iterator[bytes]:
    """The content of a file, which it has again at the end."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)


def train_small_run(folder: Path, model: Path, task: str) -> Path:
    """A small run."""
    data = write_rows(folder / "rows.jsonl", make_rows(task, 30))
    train = getattr(bertkit, task.replace("-", "_"))
    more = {"qa": {"squad": "v2"}, "pretrain-mlm-nsp": {"max_length": 64}}.get(task, {})
    run = train(data=data, model=model, output_dir=folder / "run", max_steps=1, batch_size=8, **more)
    return run.output_dir


def make_rows(task: str, count: int) -> list[dict[str, Any]]:
    """Legal rows."""
    return (
        make_document_rows(count)
        if task == "pretrain-mlm-nsp"
        else ROW_MAKERS.get(task, make_toy_rows)(count)
    )


TARGETS: dict[str, Target] = {
    **{f"files: {reader}": fuzz_file_bytes(reader) for reader in CASES},
    **{f"in chunks: {task}": fuzz_chunked_reading(task) for task in ("classify", "ner", "qa", "swag")},
    **{f"values: {task}": fuzz_row_values(task) for task in TASKS},
    **{f"runs: {use}": fuzz_run_files(use) for use in RUN_DAMAGES},
    **{f"runs: report of {task}": fuzz_run_files("report", task) for task in TASKS if task != "classify"},
    **{f"values: report of {task}": fuzz_report_values(task) for task in TASKS},
}


def run_target(target: str, how: settings, model: Path) -> None:
    """Run one target; what fails is raised as hypothesis raises it."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        TARGETS[target](how, folder, model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run all targets, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="of each target")
    parser.add_argument("--only", default="", help="the targets whose names hold this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["BERTKIT_CACHE_DIR"] = str(Path(name) / "cache")
        model = save_tiny_model(Path(name) / "tiny")
        for target in (target for target in TARGETS if given.only in target):
            print(target, flush=True)
            run_target(target, settings(BASE_SETTINGS, max_examples=given.examples), model)


if __name__ == "__main__":
    sys.exit(main())

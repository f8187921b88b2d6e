"""Each malformed file is refused in one line that names it; valid files are read completely."""

import gc
import shutil
from pathlib import Path

import pytest
from conftest import assert_refused
from malformed import CASES, RUN_DAMAGES
from malformed.readers import READERS

from bertkit.errors import UserError

pytestmark = pytest.mark.slow  # hundreds of files

NAMES = [(reader, name) for reader, cases in CASES.items() for name in cases]
COMMANDS = {"classify", "ner", "qa", "swag", "pretrain-mlm-nsp"}


def write_case(folder: Path, reader: str, name: str) -> Path:
    """Write the files of a case, and return the path."""
    case = CASES[reader][name]
    (folder / case.name).write_bytes(case.content)
    if case.sidecar is not None:
        (folder / f"{case.name}.json").write_text(case.sidecar)
    return folder / case.name


def test_enough_malformed_cases_exist():
    assert len(NAMES) >= 200
    assert all(sum(case.num_rows is None for case in cases.values()) >= 30 for cases in CASES.values())


@pytest.fixture(scope="module")
def quick():
    """Disable the garbage collector, which would take half of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("reader", "name"), NAMES, ids=[f"{reader}: {name}" for reader, name in NAMES])
def test_malformed_file_is_refused_or_read(quick, tiny, tmp_path, reader, name):
    case, path = CASES[reader][name], write_case(tmp_path, reader, name)
    if case.num_rows is not None:
        assert READERS[reader](path, tiny) == case.num_rows
        return
    with pytest.raises(UserError) as refusal:
        READERS[reader](path, tiny)
    line = str(refusal.value)
    assert [word for word in (str(path), *case.message_parts) if word not in line] == []
    assert ("\n" not in line, len(line) < 500) == (True, True), line


@pytest.mark.parametrize("reader", [name for name in CASES if name in COMMANDS])
def test_a_command_refuses_a_damaged_file_in_one_line(cli, tiny, tmp_path, reader):
    """Check the command line: one line, status 2, and no files."""
    path = write_case(tmp_path, reader, "gzip cut short")
    args = ["--data", path, "--model", tiny, "--output-dir", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, [str(path), "cannot be read"], reader)


@pytest.mark.parametrize("reader", ["classify", "ner", "qa", "swag", "pretrain-mlm-nsp"])
@pytest.mark.parametrize("kind", ["a folder of nothing", "no file", "a device"])
def test_path_that_is_not_a_file_is_refused(cli, tiny, tmp_path, reader, kind):
    path = {"a folder of nothing": tmp_path, "no file": tmp_path / "no.csv", "a device": Path("/dev/null")}[
        kind
    ]
    args = ["--data", path, "--model", tiny, "--output-dir", "run"]
    assert_refused(cli, tmp_path, args, [str(path)], reader)


DAMAGES = [(use, name) for use, (_, damages) in RUN_DAMAGES.items() for name in damages]


@pytest.mark.parametrize(("use", "name"), DAMAGES, ids=[f"{use}: {name}" for use, name in DAMAGES])
def test_run_with_a_malformed_file_is_refused(quick, runs, tmp_path, use, name):
    read, damages = RUN_DAMAGES[use]
    damage, run = damages[name], tmp_path / "run"
    shutil.copytree(runs / damage.task, run, ignore=shutil.ignore_patterns("checkpoints"))
    before = (run / damage.file).read_bytes()
    (run / damage.file).unlink()
    if (after := damage.change(before)) is not None:
        (run / damage.file).write_bytes(after)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as refusal:
        read(run)
    line = str(refusal.value)
    assert [word for word in damage.message_parts if word not in line] == []
    assert ("\n" not in line, len(line) < 500) == (True, True), line
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files

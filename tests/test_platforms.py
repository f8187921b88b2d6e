"""Other operating systems than Linux, as far as they can be imitated here: see docs/platforms.md."""

import ast
import ctypes
import functools
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest
from new_process import call_in_new_process

from bertkit.cli.app import main
from bertkit.errors import UserError
from bertkit.models.loading import find_model
from bertkit.utils import files, system
from bertkit.utils.files import check_output_directory, check_output_file, replace_path, write_text

PACKAGE = Path(__file__).parents[1] / "bertkit"
SIMULATION = Path(__file__).with_name("simulated_windows.py")
# Names that differ between operating systems.
SYSTEM_NAMES = {"sys.platform", "os.name", "os.fork", "os.symlink", "os.uname", "os.getuid", "os.killpg"}
SYSTEM_NAMES |= {
    f"signal.{name}" for name in ("SIGTERM", "SIGKILL", "SIGPIPE", "SIGBREAK", "CTRL_BREAK_EVENT")
}
SYSTEM_MODULES = {"fcntl", "resource", "msvcrt", "winreg", "pwd", "grp", "termios"}


@functools.cache
def walk(source):
    """Return the nodes of the syntax tree of a module."""
    return list(ast.walk(ast.parse(source)))


def find_system_code(source):
    """Return the names in a module that only some operating systems have."""
    for node in walk(source):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in SYSTEM_NAMES:
                yield name
        if isinstance(node, ast.Import):
            yield from SYSTEM_MODULES & {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module in SYSTEM_MODULES:
            yield node.module


@pytest.mark.slow
def test_only_utils_distinguishes_operating_systems():
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "utils" and (names := sorted(set(find_system_code(path.read_text("utf-8")))))
    }
    # SIGTERM exists everywhere; the signal handlers raise it in their own process.
    assert {path: names for path, names in found.items() if names != ["signal.SIGTERM"]} == {}
    assert list(find_system_code("import fcntl\nos.name")) == ["fcntl", "os.name"]


# ---- text files


def find_text_writers(source):
    """Return the calls in a module that write text, but set no encoding or no line end.

    Their files would differ between operating systems. JSON without indentation has no line ends.
    """
    for call in (node for node in walk(source) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in ("open", "fdopen", "write_text"):
            continue
        keywords = {keyword.arg for keyword in call.keywords}
        constants = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
        is_open = name in ("open", "fdopen") and any(
            isinstance(value, str) and re.fullmatch("(?=.*[wax+])[rwaxt+]+", value) for value in constants
        )
        is_method = name == "write_text" and isinstance(call.func, ast.Attribute)
        text = ast.unparse(call.args[0]) if call.args else ""
        is_one_line = is_method and text.startswith("json.dumps(") and "indent" not in text
        has_encoding = "encoding" in keywords or (is_method and len(call.args) > 1)
        if (is_open or is_method) and not (has_encoding and ("newline" in keywords or is_one_line)):
            yield ast.unparse(call)


@pytest.mark.slow
def test_text_files_have_the_same_bytes_on_every_system():
    found = {
        path.relative_to(PACKAGE).as_posix(): calls
        for path in PACKAGE.rglob("*.py")
        if (calls := list(find_text_writers(path.read_text("utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "call",
    [
        "path.write_text(text, 'utf-8')", "path.write_text(text, newline='')", "open(path, 'w')",
        "path.open('a', encoding='utf-8')", "os.fdopen(handle, mode='w+', newline='')",
        "path.write_text(json.dumps(rows, indent=2), 'utf-8')", "path.write_text(json.dumps(rows))",
    ],
)  # fmt: skip
def test_a_call_that_writes_other_bytes_on_windows_is_found(call):
    assert list(find_text_writers(call)) == [call]


# ---- a whole session without POSIX


simulated = pytest.mark.skipif(sys.platform != "linux", reason="the simulation reads /proc")


@pytest.fixture(scope="module")
def session(tiny, tmp_path_factory):
    """Run commands in a directory whose name has a space and Korean letters, on a console with cp949."""
    folder = tmp_path_factory.mktemp("my 데이터")
    common = ["--data", "sample", "--model", str(tiny), "--max-length", "16", "--batch-size", "4"]
    train = ["classify", *common, "--max-steps", "6", "--save-steps", "2"]
    commands = [
        [3, *train, "-o", "run"],
        ["classify", "--resume", "-o", "run"],
        [*train, "-o", "run", "--overwrite"],
        ["predict", "run", "--text", "très bien 🙂 좋아요", "-o", "out.csv"],
        ["predict", "run", "--text", "très bien 🙂 좋아요", "--format", "table"],
        ["report", "run"],
        ["evaluate", "run", "-o", "scores"],
    ]
    if importlib.util.find_spec("optuna"):
        commands.append(["study", "classify", *common, "--max-steps", "2", "--trials", "2", "-o", "study"])
    (folder / "commands.json").write_text(json.dumps(commands), "utf-8")
    environment = os.environ | {"PYTHONIOENCODING": "cp949", "BERTKIT_CACHE_DIR": str(folder / "cache")}
    process = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(SIMULATION), "commands.json"],
        cwd=folder, env=environment, capture_output=True, encoding="cp949", errors="replace",
    )  # fmt: skip
    statuses = [
        int(line.split()[-1]) for line in process.stdout.splitlines() if line.startswith("exit status")
    ]
    assert len(statuses) == len(commands), process.stderr[-3000:]
    return SimpleNamespace(folder=folder, statuses=statuses, out=process.stdout, err=process.stderr)


@pytest.mark.slow
@simulated
def test_commands_run_without_posix(session):
    assert session.statuses == [130] + [0] * (len(session.statuses) - 1), session.err[-3000:]


@pytest.mark.slow
@simulated
def test_an_interrupted_run_is_resumed_without_posix(session):
    assert "resume with: bertkit classify --resume" in session.err.replace("\n", " ")
    assert json.loads((session.folder / "run" / "metrics.json").read_text("utf-8"))["training"]["steps"] == 6


@pytest.mark.slow
@simulated
def test_no_file_of_a_run_has_other_line_ends(session):
    texts = [
        path for path in session.folder.rglob("*") if path.suffix in (".json", ".yaml", ".jsonl", ".csv")
    ]
    assert len(texts) > 10
    assert [path for path in texts if b"\r" in path.read_bytes()] == []
    assert "très bien 🙂 좋아요" in (session.folder / "out.csv").read_text("utf-8")


@pytest.mark.slow
@simulated
def test_no_lock_or_partial_file_is_left(session):
    left = [path.name for path in session.folder.rglob(".*") if path.parent.name != "cache"]
    assert [
        name for name in left if name.startswith((".bertkit-lock", ".partial")) or ".partial" in name
    ] == []


# ---- console


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp949", "cp1252", "ascii"])
def test_help_and_tables_are_printed_in_the_encoding_of_the_console(encoding, monkeypatch):
    """Characters that the encoding lacks are replaced, and none of them is an error."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    for arguments in (["--help"], ["data", "ls"]):
        monkeypatch.setattr(sys, "argv", ["bertkit", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0
    out, err = (stream.buffer.getvalue() for stream in streams.values() if stream.flush() is None)
    assert err == b""
    text = out.decode(encoding)
    assert "label-issues" in text
    assert "rotten_tomatoes" in text


# ---- files and paths


def test_a_file_that_is_open_for_a_moment_is_replaced(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "new")
    attempts = []
    replace = Path.replace

    def replace_later(self, target):
        attempts.append(self)
        if len(attempts) < 3:
            error = PermissionError(13, "open in another process")
            error.winerror = 32
            raise error
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_later)
    replace_path(tmp_path / "a", tmp_path / "b")
    assert (len(attempts), (tmp_path / "b").read_text()) == (3, "new")


def test_a_missing_permission_is_reported_at_once(tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(files.time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(PermissionError):
        replace_path(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("org/name:config", ("org/name", "config")),
        ("C:\\data\\x", ("C:\\data\\x", "")),
        ("c:/data/x.py:k=v", ("c:/data/x.py", "k=v")),
        ("f1:average=macro", ("f1", "average=macro")),
        ("x:y", ("x", "y")),
        ("name", ("name", "")),
    ],
)
def test_the_letter_of_a_drive_is_part_of_the_name(value, parts):
    assert files.split_at_colon(value) == parts


@pytest.mark.parametrize("path", ["C:\\models\\mine", "D:/mine", "models\\mine", ".\\mine"])
def test_a_path_of_windows_is_not_looked_up_on_the_hub(cli, path):
    with pytest.raises(UserError, match="does not exist; check the path"):
        find_model(path)
    status, _, err = cli("classify", "--data", path)
    assert (status, "no such file or folder" in err) == (2, True)


INVALID_NAMES = ["con", "NUL", "aux.csv", "com1/run", "runs/a.", "runs/b ", "runs/what?", "run:1"]


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_windows_does_not_accept_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    check_output_directory(Path(name))
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    for check in (check_output_directory, lambda path: check_output_file(path, overwrite=False)):
        with pytest.raises(UserError, match="is not a valid name on Windows; choose another name"):
            check(Path(name))


@pytest.mark.parametrize("name", ["run", "..", "../console", "./a.b", "common", "nul1", ".hidden"])
def test_a_valid_name_of_windows_is_accepted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    check_output_directory(Path(name))
    assert system.find_invalid_name(PureWindowsPath(r"C:\Users\a b\run")) is None


def test_the_name_is_checked_before_the_data(cli, tmp_path, damaged, monkeypatch):
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    status, _, err = cli("classify", "--data", damaged, "-o", tmp_path / "aux.1")
    assert (status, "aux.1: 'aux.1' is not a valid name on Windows" in err.replace("\n", " ")) == (2, True)


def test_the_command_line_is_quoted_for_the_shell(monkeypatch):
    arguments = ["bertkit", "-o", "C:\\my runs\\x"]
    assert files.join_command(arguments) == "bertkit -o 'C:\\my runs\\x'"
    monkeypatch.setattr(files, "IS_WINDOWS", True)
    assert files.join_command(arguments) == 'bertkit -o "C:\\my runs\\x"'


def test_members_of_an_ensemble_may_be_on_another_drive(tmp_path, monkeypatch):
    def refuse(path, start):
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    assert files.make_relative(tmp_path / "a", tmp_path / "b") == "../a"
    monkeypatch.setattr(os.path, "relpath", refuse)
    assert files.make_relative(tmp_path / "a", tmp_path / "b") == (tmp_path / "a").as_posix()


# ---- processes and memory


def test_processes_of_windows_are_interrupted_and_not_ended(monkeypatch):
    calls = []
    monkeypatch.setattr(system, "_CTRL_BREAK", 1)
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    child = SimpleNamespace(poll=lambda: None, send_signal=calls.append)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **options: calls.append(options) or child)
    system.request_stop(system.start_process_group(["x"], {"A": "b"}))
    assert calls == [{"env": {"A": "b", "USE_LIBUV": "0"}, "creationflags": 512}, 1]
    assert system.was_interrupted(0xC000013A)
    assert not system.was_interrupted(1)


def test_signals_without_a_name_are_described():
    assert system.describe_exit(-15) == "was killed by SIGTERM"
    assert system.describe_exit(-40) == "was killed by signal 40"
    assert system.describe_exit(3) == "exited with status 3"


def test_a_closed_console_interrupts_the_main_thread(monkeypatch):
    handlers, calls = [], []
    kernel = SimpleNamespace(SetConsoleCtrlHandler=lambda handler, add: handlers.append((handler, add)))
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(ctypes, "WINFUNCTYPE", lambda *_: lambda function: function, raising=False)
    monkeypatch.setattr(system._thread, "interrupt_main", calls.append)
    with system.handle_console_close():
        [(handler, is_added)] = handlers
        assert (is_added, handler(0), calls) == (True, False, [])  # Ctrl-C
        assert handler(2, calls.append) is True
    assert calls == [signal.SIGTERM, system.MAX_WAIT_SECONDS]
    assert [is_added for _, is_added in handlers] == [True, False]


def test_the_peak_memory_of_windows_is_read(monkeypatch):
    assert 10e6 < system.get_peak_memory() < 1e11
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=1, peak_wset=5))
    monkeypatch.setattr(system.psutil, "Process", lambda: process)
    assert system.get_peak_memory() == 5


def print_process_seconds():
    print(system.get_process_seconds())


@pytest.mark.slow
def test_the_seconds_of_a_process_begin_with_its_start():
    call_in_new_process(print_process_seconds)  # the first call imports the libraries
    started = time.monotonic()
    done = call_in_new_process(print_process_seconds)
    assert 0 <= float(done.stdout) < time.monotonic() - started + 0.01  # the start is rounded down


def test_a_missing_compiler_is_found():
    assert system.can_run_compiler("no-such-compiler") is False
    assert system.can_run_compiler(sys.executable)

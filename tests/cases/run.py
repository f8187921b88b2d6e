"""Run the commands of cases, and compare their output with `expected.yaml`.

A case is a folder with small files and a script `cmd.sh`. Its lines that begin with `${BERTKIT:-bertkit}` are
commands. `python tests/cases/run.py FOLDER` runs all cases in a folder; further arguments select cases by
name. The output of a command, with single spaces for white space, must match all patterns under `has` and
none under `lacks`. Its exit status must be `exit`, by default 0.
"""

import os
import re
import shlex
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

CASES = Path(__file__).parent
COMMAND = re.compile(r"^\$\{BERTKIT:-bertkit\} (.*?)( 2>&1 \| head .*)?$", re.MULTILINE)


def read_commands(case: Path) -> list[list[str]]:
    """Return the arguments of each command of a case."""
    return [shlex.split(match[1]) for match in COMMAND.finditer((case / "cmd.sh").read_text("utf-8"))]


def read_expected() -> dict[str, list[dict[str, Any]]]:
    """Return what is expected of the commands of each case."""
    content: dict[str, list[dict[str, Any]]] = yaml.safe_load((CASES / "expected.yaml").read_text("utf-8"))
    return content


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit status and its output."""
    from bertkit.cli.app import main

    output, status = StringIO(), 0
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    with (
        redirect_stdout(output),
        redirect_stderr(output),
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["bertkit", *arguments]),
    ):
        try:
            main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
    return status, output.getvalue()


def find_failures(expected: dict[str, Any], status: int, output: str) -> list[str]:
    """Return what differs from what is expected of a command."""
    text = " ".join(output.split())
    failures = []
    if status != expected.get("exit", 0):
        failures.append(f"exit status {status}, expected {expected.get('exit', 0)}")
    for key, is_wanted in (("has", True), ("lacks", False)):
        wrong = [item for item in expected.get(key, []) if bool(re.search(item, text)) != is_wanted]
        failures += [f"{'lacks' if is_wanted else 'has'} {item!r}" for item in wrong]
    return failures


def run_case(case: Path, expected: list[dict[str, Any]]) -> list[str]:
    """Run the commands of a case; return the failures, each with the command and its output."""
    commands = read_commands(case)
    if len(commands) != len(expected):
        return [f"{case.name}: {len(commands)} commands, but {len(expected)} expectations"]
    failures = []
    with chdir(case):
        for arguments, expectation in zip(commands, expected, strict=True):
            status, output = run_command(arguments)
            if problems := find_failures(expectation, status, output):
                failures.append(f"$ bertkit {shlex.join(arguments)}\n  {'; '.join(problems)}\n{output}")
    return failures


def main(folder: Path, names: list[str]) -> int:
    """Run all cases of a folder, or those with one of the names; return the exit status."""
    all_expected, num_failed = read_expected(), 0
    cases = [case for case in sorted(folder.iterdir()) if case.name in all_expected]
    for case in cases:
        if names and not any(name in case.name for name in names):
            continue
        failures = run_case(case, all_expected[case.name])
        num_failed += bool(failures)
        print(f"{'FAILED' if failures else 'ok':6}  {case.name}", *failures, sep="\n", flush=True)
    print(f"{len(cases)} cases, {num_failed} failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else CASES / "files"), sys.argv[2:]))

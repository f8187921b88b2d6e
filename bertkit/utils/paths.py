"""Names that may be paths, and command lines, in the syntax of every operating system."""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bertkit.utils.system import IS_WINDOWS

DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")


def expand_home(path: str | Path) -> Path:
    """Return a path with a home directory in place of `~` or `~NAME`; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - unlike `Path.expanduser`, this never raises


def split_at_colon(value: str) -> tuple[str, str]:
    """Split `NAME:REST` at its first colon, but not after the letter of a drive, as in `C:/NAME:REST`."""
    drive = DRIVE.match(value)
    start = drive.end() if drive else 0
    name, _, rest = value[start:].partition(":")
    return value[:start] + name, rest


def is_path_syntax(name: str) -> bool:
    """Return whether a name can only be a path, because names on the Hub do not look like it."""
    return name.startswith((".", "/", "~")) or "\\" in name or DRIVE.match(name) is not None


def make_relative(path: Path, folder: Path) -> str:
    """Return a path relative to a directory, with slashes; an absolute path if it is on another drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.absolute().as_posix()


def join_command(arguments: Sequence[str]) -> str:
    """Return a command line for the shell of this operating system."""
    return subprocess.list2cmdline(arguments) if IS_WINDOWS else shlex.join(arguments)

"""Plain text, line by line: what a tokenizer is trained on."""

from collections.abc import Iterator
from glob import glob
from pathlib import Path

from bertkit.data.sources import SAMPLES
from bertkit.errors import UserError


def texts_of(data: str) -> Iterator[str]:
    """The lines of the files that `--data` names: a file, a folder, a pattern, or sample.

    Raises:
        UserError: there is no such file, or one is not text (the line).
    """
    for path in _files(data):
        yield from _lines(path)


def _files(data: str) -> list[Path]:
    path = SAMPLES / "text" if data == "sample" else Path(data).expanduser()
    if path.is_dir():
        found = [file for file in sorted(path.rglob("*.txt")) if file.is_file()]
    else:
        found = [path] if path.is_file() else sorted(map(Path, glob(str(path), recursive=True)))  # noqa: PTH207
        found = [file for file in found if file.is_file()]
    if not found:
        what = "no .txt files in this folder" if path.is_dir() else "no such file or folder, no file fits it"
        raise UserError(f"--data {data}: {what}")
    return found


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007
                yield line
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: after line {number}: not UTF-8; convert it, for example with iconv"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error

"""Text files that hold a text a line, as their name says and standard input has it too."""

import re
from collections.abc import Iterator
from pathlib import Path

from bertkit.data.readers.files import JSON_OBJECT_START
from bertkit.data.readers.streaming import UTF8_DECODING
from bertkit.data.readers.text_files import read_text, split_lines
from bertkit.data.readers.text_rows import detect_delimiter
from bertkit.utils.reporting import Reporter

TEXT_FILE_NAME = re.compile(r".*\.txt(\.gz|\.zst)?", re.IGNORECASE)


def read_text_lines(data: str, column: str | None, reporter: Reporter) -> Iterator[str] | None:
    """The lines of a `.txt` file, a text each, which is said; None of other files, and of a table in one.

    Args:
        column: the one that holds texts, by which a table is known too.
    """
    path = Path(data).expanduser()
    if not path.is_file() or not TEXT_FILE_NAME.fullmatch(path.name):
        return None
    sample = next(read_text(path, UTF8_DECODING))
    if (
        not sample.strip()
        or JSON_OBJECT_START.match(sample)
        or detect_delimiter(sample, column)
        or detect_delimiter(sample)
    ):
        return None
    reporter.info(f"--data {data}: a text a line")
    return (line.rstrip("\r") for line in split_lines(read_text(path, UTF8_DECODING), max_chars=None))

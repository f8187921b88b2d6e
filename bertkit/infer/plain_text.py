"""Text files that hold a text a line, as their name says and standard input has it too."""

import re
from collections.abc import Iterator
from pathlib import Path

from bertkit.data.readers import OBJECTS
from bertkit.data.row_chunks import UTF8
from bertkit.data.text_files import lines, text
from bertkit.data.text_rows import delimiter_of
from bertkit.reporter import Reporter

NAME = re.compile(r".*\.txt(\.gz|\.zst)?", re.IGNORECASE)


def plain_lines(data: str, column: str | None, reporter: Reporter) -> Iterator[str] | None:
    """The lines of a `.txt` file, a text each, which is said; None of other files, and of a table in one.

    Args:
        column: the one that holds texts, by which a table is known too.
    """
    path = Path(data).expanduser()
    if not path.is_file() or not NAME.fullmatch(path.name):
        return None
    sample = next(text(path, UTF8))
    if not sample.strip() or OBJECTS.match(sample) or delimiter_of(sample, column) or delimiter_of(sample):
        return None
    reporter.say(f"--data {data}: a text a line")
    return (line.rstrip("\r") for line in lines(text(path, UTF8), longest=None))

"""Texts to work on: rows that `--data` names, texts of `--text`, or what comes in on standard input."""

from dataclasses import dataclass
from typing import Any, BinaryIO

from bertkit.data.columns import guess_text_columns, require_column, require_texts
from bertkit.data.features import Features
from bertkit.data.loading import load_dataset, resolve_data_dir
from bertkit.data.readers.files import STANDARD_INPUT, read_stdin_rows, read_text_lines
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.reporting import Reporter

TEXT_COLUMN_SETTINGS = ("text_column", "text_pair_column")


@dataclass(frozen=True)
class TextInputs:
    """Rows, and which of their columns are the text and, of pairs, the second one."""

    rows: Rows
    columns: list[str]

    @property
    def display_texts(self) -> list[str]:
        """[n] the text of each row, or both, for people."""
        return [" | ".join(texts) for texts in self.rows.zip_columns(self.columns)]


@dataclass
class TruncationCounter:
    """How many texts a model does not read to their end, counted part by part."""

    total: int = 0
    truncated: int = 0
    longest: int = 0

    def add(self, features: Features) -> None:
        """Count those of a part."""
        self.total, self.truncated = self.total + len(features), self.truncated + features.num_truncated
        self.longest = max(self.longest, features.max_untruncated_length)

    def report(self, max_length: int, reporter: Reporter) -> None:
        """Say it, where there are any."""
        if self.truncated:
            reporter.info(
                f"{self.truncated:,} of {format_count(self.total, 'text')} {'is' if self.truncated == 1 else 'are'} over "
                f"{max_length} pieces and cut (longest {self.longest:,})"
            )


def load_texts(config: Any, stdin: BinaryIO | None, reporter: Reporter) -> TextInputs:
    """The texts that the settings name, else those on standard input.

    Args:
        config: has `data`, `data_dir`, `split`, `text` and the names of columns.
        piped: standard input, unless a person sits at it; read only where nothing else is named.

    Raises:
        UserError: no texts, no such column, or a row without a text (its number).
    """
    if config.data and config.text:
        raise UserError("--text: the texts are those of --data; leave one of them out")
    defaults: dict[str, Any] = {}
    if config.data:
        rows, defaults = _split(config, reporter)
    elif config.text:
        rows = Rows.from_columns({"text": list(config.text)}, "--text")
    else:
        rows = read_stdin_texts(stdin, "--data, --text")
    columns = _columns(rows, {key: getattr(config, key) for key in TEXT_COLUMN_SETTINGS}, defaults)
    require_texts(rows, columns)
    return TextInputs(rows, columns)


def _split(config: Any, reporter: Reporter) -> tuple[Rows, dict[str, Any]]:
    """The rows of one split, and what a known set says of its columns."""
    named = config.text_column or config.text_pair_column
    if not named and (texts := read_text_lines(config.data, None, reporter)):
        return Rows.from_columns({"text": list(texts)}, config.data), {}
    directory = resolve_data_dir(config.data_dir)
    found = load_dataset(config.data, "classify", str(directory) if directory else None)
    if config.split not in found.splits:
        raise UserError(f"--split {config.split}: {config.data} has {format_list(found.splits)}")
    for note in found.notes:
        reporter.info(note)
    rows = found.splits[config.split]
    others = [name for name in found.splits if name != config.split]
    beside = f", split {config.split} (--split: {format_list(others)})" if others else ""
    reporter.info(f"data: {found.name} from {found.source}{beside}; {format_count(len(rows), 'row')}")
    return rows, found.defaults


def read_stdin_texts(stdin: BinaryIO | None, alternatives: str) -> Rows:
    """All rows on standard input."""
    rows = read_stdin_rows(stdin, alternatives, lambda _, line: {"text": line})
    return Rows.from_dicts(list(rows), STANDARD_INPUT)


def _columns(rows: Rows, named: dict[str, str | None], defaults: dict[str, Any]) -> list[str]:
    """The columns named, else those the known set has, else those with the usual names."""
    for key, column in named.items():
        if column:
            require_column(rows, column, "--" + key.replace("_", "-"))
    if not named["text_column"]:
        known = {key: column for key in TEXT_COLUMN_SETTINGS if (column := defaults.get(key)) in rows.columns}
        guessed = (
            known
            if "text_column" in known
            else dict(zip(TEXT_COLUMN_SETTINGS, guess_text_columns(rows), strict=True))
        )
        named = {key: column or guessed.get(key) for key, column in named.items()}
    columns = [column for key in TEXT_COLUMN_SETTINGS if (column := named[key])]
    if len(set(columns)) < len(columns):
        raise UserError(f"--text-pair-column {columns[1]}: is the first text already; name another column")
    return columns

"""Texts to work on: rows that `--data` names, texts of `--text`, or what comes in on standard input."""

from dataclasses import dataclass
from typing import Any, BinaryIO

from bertkit.data.columns import guess_texts, require, require_texts
from bertkit.data.features import Features
from bertkit.data.rows import Rows
from bertkit.data.sources import data_directory, find
from bertkit.errors import UserError, counted, listed
from bertkit.infer.piped import STANDARD_INPUT, piped_rows
from bertkit.infer.plain_text import plain_lines
from bertkit.reporter import Reporter

COLUMNS = ("text_column", "text_pair_column")


@dataclass(frozen=True)
class Texts:
    """Rows, and which of their columns are the text and, of pairs, the second one."""

    rows: Rows
    columns: list[str]

    @property
    def shown(self) -> list[str]:
        """[n] the text of each row, or both, for people."""
        return [" | ".join(texts) for texts in self.rows.texts(self.columns)]


@dataclass
class Cut:
    """How many texts a model does not read to their end, counted part by part."""

    texts: int = 0
    cut: int = 0
    longest: int = 0

    def add(self, features: Features) -> None:
        """Count those of a part."""
        self.texts, self.cut = self.texts + len(features), self.cut + features.truncated
        self.longest = max(self.longest, features.longest)

    def tell(self, max_length: int, reporter: Reporter) -> None:
        """Say it, where there are any."""
        if self.cut:
            reporter.say(
                f"{self.cut:,} of {counted(self.texts, 'text')} {'is' if self.cut == 1 else 'are'} over "
                f"{max_length} pieces and cut (longest {self.longest:,})"
            )


def find_texts(config: Any, piped: BinaryIO | None, reporter: Reporter) -> Texts:
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
        rows = Rows.of({"text": list(config.text)}, "--text")
    else:
        rows = piped_texts(piped, "--data, --text")
    columns = _columns(rows, {key: getattr(config, key) for key in COLUMNS}, defaults)
    require_texts(rows, columns)
    return Texts(rows, columns)


def _split(config: Any, reporter: Reporter) -> tuple[Rows, dict[str, Any]]:
    """The rows of one split, and what a known set says of its columns."""
    named = config.text_column or config.text_pair_column
    if not named and (texts := plain_lines(config.data, None, reporter)):
        return Rows.of({"text": list(texts)}, config.data), {}
    directory = data_directory(config.data_dir)
    found = find(config.data, "classify", str(directory) if directory else None)
    if config.split not in found.splits:
        raise UserError(f"--split {config.split}: {config.data} has {listed(found.splits)}")
    for note in found.notes:
        reporter.say(note)
    rows = found.splits[config.split]
    others = [name for name in found.splits if name != config.split]
    beside = f", split {config.split} (--split: {listed(others)})" if others else ""
    reporter.say(f"data: {found.name} from {found.source}{beside}; {counted(len(rows), 'row')}")
    return rows, found.defaults


def piped_texts(piped: BinaryIO | None, ways: str) -> Rows:
    """All rows on standard input."""
    rows = piped_rows(piped, ways, lambda _, line: {"text": line})
    return Rows.from_dicts(list(rows), STANDARD_INPUT)


def _columns(rows: Rows, named: dict[str, str | None], defaults: dict[str, Any]) -> list[str]:
    """The columns named, else those the known set has, else those with the usual names."""
    for key, column in named.items():
        if column:
            require(rows, column, "--" + key.replace("_", "-"))
    if not named["text_column"]:
        known = {key: column for key in COLUMNS if (column := defaults.get(key)) in rows.columns}
        guessed = known if "text_column" in known else dict(zip(COLUMNS, guess_texts(rows), strict=True))
        named = {key: column or guessed.get(key) for key, column in named.items()}
    columns = [column for key in COLUMNS if (column := named[key])]
    if len(set(columns)) < len(columns):
        raise UserError(f"--text-pair-column {columns[1]}: is the first text already; name another column")
    return columns

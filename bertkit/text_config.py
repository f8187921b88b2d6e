"""Settings of commands that read running text."""

from dataclasses import dataclass
from typing import Literal

from bertkit.config import DATA, Settings, setting


@dataclass(frozen=True, kw_only=True)
class TextConfig(Settings):
    """Settings of commands that read running text: which text, and how to read its files."""

    data: str | None = setting(
        None,
        "Text to read: files (plain text, JSONL, CSV, Parquet), a directory, a glob pattern ('texts/*.txt'), "
        "a known dataset, a dataset on the Hub (ORG/NAME[:CONFIG]), or sample.",
        DATA,
        completion="data",
        is_path=True,
    )
    text_column: str | None = setting(
        None,
        "Column that holds the texts, in files of rows; each row is one document.",
        DATA,
        default_text="guessed",
    )
    document_separator: str | None = setting(
        None, "Line that separates two documents in plain text files.", DATA
    )
    encoding: str | None = setting(None, "Character encoding of text files.", DATA, default_text="utf-8")
    encoding_errors: Literal["stop", "skip"] = setting(
        "stop", "What to do with bytes that cannot be decoded: stop with an error, or skip the line.", DATA
    )

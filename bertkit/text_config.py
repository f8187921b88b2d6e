"""The settings of whatever reads running text."""

from dataclasses import dataclass
from typing import Literal

from bertkit.config import DATA, Settings, setting


@dataclass(frozen=True, kw_only=True)
class TextConfig(Settings):
    """Which text, and how its files are read."""

    data: str | None = setting(
        None,
        "Text: files (also JSONL, CSV, Parquet), a folder, a pattern ('texts/*.txt'), a known name, a set on "
        "the Hub (ORG/NAME[:CONFIG]), or sample.",
        DATA,
        values="data",
        path=True,
    )
    text_column: str | None = setting(
        None, "The texts, in files of rows; each is a document.", DATA, default_text="guessed"
    )
    document_separator: str | None = setting(None, "A line between two documents of prose.", DATA)
    encoding: str | None = setting(None, "Of text files.", DATA, default_text="utf-8")
    encoding_errors: Literal["stop", "skip"] = setting("stop", "Where bytes are no text.", DATA)

"""The settings of commands that read running text."""

from dataclasses import dataclass
from typing import Literal

from bertkit.common_settings import encoding_setting
from bertkit.data_objects import DataSource
from bertkit.setting import DATA, Settings, setting

DEFAULT_VOCAB_SIZE = 30_000  # Devlin et al. 2018, 3: WordPiece with a vocabulary of 30,000
WordUnits = Literal["words", "morphemes"]


@dataclass(frozen=True, kw_only=True)
class TextConfig(Settings):
    """Settings that commands for running text share."""

    data: DataSource | None = setting(
        None,
        "Text to read: a file (text, JSONL, CSV or Parquet), a directory, a pattern ('texts/*.txt'), a known "
        "dataset, a Hub dataset (ORG/NAME[:CONFIG]), or sample.",
        DATA,
        completion="data",
        is_path=True,
    )
    text_column: str | None = setting(
        None, "Column of the texts in files of rows; each row is a document.", DATA, default_text="guessed"
    )
    document_separator: str | None = setting(None, "Line that separates two documents of prose.", DATA)
    encoding: str | None = encoding_setting()
    encoding_errors: Literal["stop", "skip"] = setting(
        "stop",
        "What to do with bytes that cannot be decoded: stop with an error, or skip and count them.",
        DATA,
    )

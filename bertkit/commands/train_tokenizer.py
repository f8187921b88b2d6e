"""`train-tokenizer`: train a WordPiece tokenizer on text files."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from bertkit.commands.configs import TokenizerConfig
from bertkit.data.corpus.documents import TextOptions, find_text, iter_raw_texts
from bertkit.data.readers.text_files import FileNotes
from bertkit.data.wordpiece import evaluate_tokenizer, require_analyzer, train_wordpiece
from bertkit.errors import UserError
from bertkit.run_directory import create_default_directory
from bertkit.settings.validation import DataSource, validate_settings
from bertkit.utils import locks
from bertkit.utils.console import print_json
from bertkit.utils.files import OutputKind, check_output_directory, expand_home, stage_files
from bertkit.utils.reporting import report_info

TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
TOKENIZER = OutputKind("a tokenizer", "pass --overwrite to replace it", lambda names: names - TOKENIZER_FILES)
EXAMPLE_WORDS = 12  # number of words that the example shows as tokens


@dataclass(frozen=True)
class TrainedTokenizer:
    """Result of training a tokenizer.

    Attributes:
        output_dir: Directory of the tokenizer, which `AutoTokenizer` loads.
        statistics: Statistics of the vocabulary and of the tokenized text.
    """

    output_dir: Path
    statistics: dict[str, Any]


def train_tokenizer(settings: Mapping[str, Any]) -> TrainedTokenizer:
    """Train a tokenizer and write it to a directory."""
    config = TokenizerConfig(**validate_settings(TokenizerConfig, settings, "train_tokenizer()"))
    if not config.data:
        raise UserError("--data: is required; pass a text file, a directory, a pattern, or sample")
    if config.word_units == "morphemes":
        require_analyzer()
    folder = expand_home(config.output_dir) if config.output_dir else None
    if folder:
        check_output_directory(folder, TOKENIZER, config.overwrite)
    with locks.lock_directory(folder) if folder else nullcontext():
        return _train(config, config.data, folder)


def _train(config: TokenizerConfig, data: DataSource, folder: Path | None) -> TrainedTokenizer:
    source = find_text(data, column=config.text_column, encoding=config.encoding)
    file_notes = FileNotes()
    for note in source.notes:
        report_info(note)
    options = TextOptions.from_config(config, source)
    texts = partial(iter_raw_texts, source.files, options, file_notes)
    result = train_wordpiece(
        texts, config.vocab_size, not config.cased, config.strip_accents, config.character_coverage,
        config.word_units,
    )  # fmt: skip
    for note in [*file_notes.format_lines(), *result.notes]:
        report_info(note)
    first_text = next(text for text in texts() if text.strip())
    first_words = " ".join(first_text.split()[:EXAMPLE_WORDS])
    statistics = {
        "vocab_size": len(result.tokenizer),
        "lowercase": not config.cased,
        "strip_accents": result.strip_accents,
        "alphabet": result.alphabet_size,
        **evaluate_tokenizer(result.tokenizer, texts()),
        "example": " ".join(result.tokenizer.tokenize(first_words)),
    }
    folder = folder or create_default_directory("tokenizer", source.name)
    with stage_files(folder, "the tokenizer", "free disk space") as staging:
        result.tokenizer.save_pretrained(staging)
        result.tokenizer.backend_tokenizer.model.save(str(staging))  # vocab.txt, one token per line
    return TrainedTokenizer(folder, statistics)


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = train_tokenizer(settings)
    statistics = result.statistics
    if as_json:
        print_json({"output_dir": str(result.output_dir), **statistics})
        return
    lines = {
        "vocabulary": f"{statistics['vocab_size']:,} tokens, including {statistics['alphabet']:,} characters",
        "case": "lowercase" if statistics["lowercase"] else "cased",
        "accents": "stripped" if statistics["strip_accents"] else "kept",
        "[UNK]": f"{statistics['unknown']:.2%} of the tokens",
        "tokens/word": f"{statistics['tokens_per_word']:.2f}",
        "example": statistics["example"],
        "tokenizer": result.output_dir,
    }
    for name, value in lines.items():
        typer.echo(f"{name:<11} {value}")

"""`train-tokenizer`: from plain text to a folder that `AutoTokenizer` loads."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.config import OUTPUT, setting
from bertkit.errors import UserError
from bertkit.text_config import TextConfig
from bertkit.utils.files import stage_files
from bertkit.utils.output_paths import OutputKind, check_output_directory
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.data.wordpiece import WordPieceResult

HELP = "Train a WordPiece vocabulary on your own text: the tokenizer of a BERT."
VOCABULARY = "Vocabulary"
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
TOKENIZER = OutputKind("a tokenizer", "pass --overwrite to replace it", lambda names: names - TOKENIZER_FILES)
EXAMPLE_WORDS = 12  # words


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(TextConfig):
    """The settings of `bertkit train-tokenizer`."""

    vocab_size: int = setting(30_000, "Pieces to have at most, special ones included.", VOCABULARY, min=6)
    cased: bool = setting(False, "Keep capital letters.", VOCABULARY)
    strip_accents: bool | None = setting(
        None,
        "Take accents off letters.",
        VOCABULARY,
        flags=("--strip-accents/--no-strip-accents",),
        default_text="unless --cased, or the text is in a script that this takes apart",
    )
    character_coverage: float = setting(
        0.9999,
        "Share of the text that characters with a piece of their own make up at least.",
        VOCABULARY,
        min=0.9,
        max=1.0,
    )
    output_dir: str | None = setting(
        None,
        "Where the tokenizer is put.",
        OUTPUT,
        flags=("--output-dir", "-o"),
        default_text="runs/tokenizer-DATA",
    )
    overwrite: bool = setting(False, "Replace the tokenizer in --output-dir.", OUTPUT)


@dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer that was trained: where it lies, and what is told of it."""

    output_dir: Path
    statistics: dict[str, Any]


def train_tokenizer(settings: Mapping[str, Any], reporter: Reporter | None = None) -> TrainedTokenizer:
    """Train a tokenizer and write it.

    Raises:
        UserError: anything the caller can mend, in one line; nothing is written then.
    """
    reporter = reporter or Reporter()
    config = TokenizerConfig(**validate_settings(TokenizerConfig, settings, "train_tokenizer()"))
    if not config.data:
        raise UserError("--data is missing: a file of plain text, a folder, a pattern, or sample")
    if config.output_dir is None:
        return _train(config, config.data, reporter)
    from bertkit.utils import locks

    folder = Path(config.output_dir).expanduser()
    check_output_directory(folder, TOKENIZER, config.overwrite)
    with locks.lock_directory(folder):
        return _train(config, config.data, reporter)


def _train(config: TokenizerConfig, data: str, reporter: Reporter) -> TrainedTokenizer:
    from bertkit.data.corpus.documents import TextOptions, iter_raw_texts
    from bertkit.data.corpus.source import find_text
    from bertkit.data.readers.text_files import FileNotes
    from bertkit.data.wordpiece import evaluate_tokenizer, train_wordpiece

    source, notes = find_text(data, column=config.text_column), FileNotes()
    for note in source.notes:
        reporter.info(note)
    texts = partial(iter_raw_texts, source.files, TextOptions.from_config(config, source.column), notes)
    made = train_wordpiece(
        texts, config.vocab_size, not config.cased, config.strip_accents, config.character_coverage
    )
    for note in [*notes.format_lines(), *made.notes]:
        reporter.info(note)
    figures = {
        "vocab_size": len(made.tokenizer),
        "lowercase": not config.cased,
        "strip_accents": made.strip_accents,
        "alphabet": made.alphabet_size,
        **evaluate_tokenizer(made.tokenizer, texts()),
        "example": _example(made, next(text for text in texts() if text.strip())),
    }
    return TrainedTokenizer(_write(made.tokenizer, config, source.name), figures)


def _example(made: "WordPieceResult", text: str) -> str:
    return " ".join(made.tokenizer.tokenize(" ".join(text.split()[:EXAMPLE_WORDS])))


def _write(tokenizer: Any, config: TokenizerConfig, name: str) -> Path:
    from bertkit import run_directory

    if config.output_dir is None:
        folder = run_directory.create_default_directory("tokenizer", name)
    else:
        folder = Path(config.output_dir).expanduser()
    with stage_files(folder, "the tokenizer", "free disk space") as aside:
        tokenizer.save_pretrained(aside)
        tokenizer.backend_tokenizer.model.save(str(aside))  # vocab.txt, a piece a line
    return folder

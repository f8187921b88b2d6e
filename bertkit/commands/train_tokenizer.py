"""`train-tokenizer`: train a WordPiece tokenizer on text files."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import typer

from bertkit.commands.configs import TokenizerConfig
from bertkit.data.corpus.documents import TextOptions, find_text, iter_raw_texts
from bertkit.data.readers.text_files import FileNotes
from bertkit.data.wordpiece import evaluate_tokenizer, require_analyzer, train_wordpiece
from bertkit.errors import UserError
from bertkit.models.loading import ModelSource, count_token_ids, find_model, load_tokenizer
from bertkit.models.vocabulary_extension import (
    MIN_COUNT,
    SENTENCE_FILES,
    choose_words,
    load_wordpiece,
    write_extended_model,
)
from bertkit.run_directory import create_default_directory
from bertkit.settings.declaration import get_flag, get_settings
from bertkit.settings.run_settings import DEFAULT_VOCAB_SIZE
from bertkit.settings.validation import DataSource, validate_settings
from bertkit.utils import locks
from bertkit.utils.console import print_json
from bertkit.utils.files import OutputKind, check_output_directory, expand_home, stage_files
from bertkit.utils.reporting import report_info, silence_libraries

TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
TOKENIZER = OutputKind("a tokenizer", "pass --overwrite to replace it", lambda names: names - TOKENIZER_FILES)
MODEL_FILES = {*TOKENIZER_FILES, "config.json", "model.safetensors", *SENTENCE_FILES}
MODEL = OutputKind("an extended model", "pass --overwrite to replace it", lambda names: names - MODEL_FILES)
VOCABULARY_SETTINGS = ("cased", "strip_accents", "character_coverage", "word_units")  # of a new vocabulary
NUM_ADDED_WORDS = 1_000
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
        check_output_directory(folder, MODEL if config.extend else TOKENIZER, config.overwrite)
    with locks.lock_directory(folder) if folder else nullcontext():
        return _train(config, config.data, folder)


def _train(config: TokenizerConfig, data: DataSource, folder: Path | None) -> TrainedTokenizer:
    extended = _load_extended(config) if config.extend else None
    source = find_text(data, column=config.text_column, encoding=config.encoding)
    file_notes = FileNotes()
    for note in source.notes:
        report_info(note)
    options = TextOptions.from_config(config, source)
    texts = partial(iter_raw_texts, source.files, options, file_notes)
    if extended:
        return _extend(extended, texts, file_notes, folder, source.name)
    result = train_wordpiece(
        texts, config.vocab_size or DEFAULT_VOCAB_SIZE, not config.cased, config.strip_accents,
        config.character_coverage, config.word_units,
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


# ---- more words for a model


class ExtendedModel(NamedTuple):
    """A model to extend."""

    source: ModelSource
    config: Any
    tokenizer: Any
    num_words: int  # that are added at most


def _load_extended(config: TokenizerConfig) -> ExtendedModel:
    """Load the tokenizer of `--extend`, and check the flags."""
    for name in VOCABULARY_SETTINGS:
        declared = get_settings(TokenizerConfig)[name]
        if getattr(config, name) != declared.default:
            flag = get_flag(name, declared.metadata)
            raise UserError(f"{flag}: --extend keeps the settings of the model's tokenizer; omit it")
    source = find_model(str(config.extend), "--extend")
    model_config, tokenizer = load_wordpiece(source)
    size = count_token_ids(tokenizer)
    if config.vocab_size is not None and config.vocab_size <= size:
        raise UserError(
            f"--vocab-size {config.vocab_size}: {source.name} has {size:,} tokens already; pass more"
        )
    num_words = NUM_ADDED_WORDS if config.vocab_size is None else config.vocab_size - size
    return ExtendedModel(source, model_config, tokenizer, num_words)


def _extend(
    extended: ExtendedModel,
    texts: Callable[[], Iterator[str]],
    file_notes: FileNotes,
    folder: Path | None,
    data_name: str,
) -> TrainedTokenizer:
    """Add the words of the text that save the most tokens, and write the model and its tokenizer.

    `file_notes` are those of reading `texts`.
    """
    source, model_config, tokenizer, num_words = extended
    words = choose_words(tokenizer, texts(), num_words)
    for note in file_notes.format_lines():
        report_info(note)
    if not words:
        raise UserError(
            f"--extend {source.folder}: its tokenizer splits no word that occurs {MIN_COUNT} times; use "
            "it as it is"
        )
    before = evaluate_tokenizer(tokenizer, texts())
    folder = folder or create_default_directory(source.name, data_name)
    folder.mkdir(parents=True, exist_ok=True)
    with silence_libraries(), stage_files(folder, "the model", "free disk space") as staging:
        write_extended_model(source, model_config, tokenizer, words, staging)
    new_tokenizer = load_tokenizer(ModelSource(folder.name, folder))
    after = evaluate_tokenizer(new_tokenizer, texts())
    statistics = {
        "extended": source.name, "vocab_size": count_token_ids(new_tokenizer), "added": len(words), **after,
        "tokens_per_word_before": before["tokens_per_word"], "words": words[:EXAMPLE_WORDS],
    }  # fmt: skip
    return TrainedTokenizer(folder, statistics)


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = train_tokenizer(settings)
    statistics = result.statistics
    if as_json:
        print_json({"output_dir": str(result.output_dir), **statistics})
        return
    if "extended" in statistics:
        before, after = statistics["tokens_per_word_before"], statistics["tokens_per_word"]
        lines = {
            "vocabulary": f"{statistics['vocab_size']:,} tokens, {statistics['added']:,} of them new",
            "tokens/word": f"{after:.3f} (before: {before:.3f})",
            "new words": ", ".join(statistics["words"]),
            "model": result.output_dir,
        }
        for name, value in lines.items():
            typer.echo(f"{name:<11} {value}")
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

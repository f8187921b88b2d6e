"""A model that does not exist yet: a tokenizer and a config, in a folder as a model's is."""

import atexit
import json
import tempfile
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.corpus.content_key import digest_files
from bertkit.data.corpus.documents import TextOptions, iter_raw_texts
from bertkit.data.corpus.source import TextSource
from bertkit.data.readers.text_files import describe_files
from bertkit.errors import UserError
from bertkit.modeling.loading import ModelSource, find_model, load_tokenizer
from bertkit.modeling.pretraining import build_bert_config
from bertkit.utils.cache import get_or_create
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.data.wordpiece import WordPieceResult

ModelShape = tuple[int, int, int]
CACHE_VERSION = 2  # to be raised when the same text would give another tokenizer
NOTES_FILE = "notes.json"
DEFAULT_VOCAB_SIZE = 30_000  # Devlin et al. 2018, 3: WordPiece with a vocabulary of 30,000


def resolve_model_shape(config: Any, sizes: dict[str, ModelShape]) -> tuple[str, ModelShape]:
    """The name of a size and its layers, width and heads, as said or as usual.

    Raises:
        UserError: the heads do not divide the width.
    """
    import torch

    size = config.size or ("base" if torch.accelerator.is_available() else "tiny")
    said = (config.num_layers, config.hidden_size, config.num_heads)
    layers, hidden, heads = (one or other for one, other in zip(said, sizes[size], strict=True))
    if hidden % heads:
        raise UserError(f"--num-heads {heads}: must divide the width, --hidden-size {hidden}")
    name = size if not any(said) else f"{layers}-{hidden}"
    return f"bert-{name}", (layers, hidden, heads)


def create_model_folder(
    config: Any, sizes: dict[str, ModelShape], text: TextSource, options: TextOptions, reporter: Reporter
) -> ModelSource:
    """A folder with a tokenizer, a new one of the text where none is named, and a BERT's config."""
    name, shape = resolve_model_shape(config, sizes)
    tokenizer = _named(config) if config.tokenizer else _trained(config, text, options, reporter)
    scratch = tempfile.TemporaryDirectory(prefix="bertkit-")
    atexit.register(scratch.cleanup)
    tokenizer.save_pretrained(scratch.name)
    pieces = max(tokenizer.get_vocab().values()) + 1
    build_bert_config(pieces, shape, tokenizer.pad_token_id).save_pretrained(scratch.name)
    return ModelSource(name, Path(scratch.name), is_new=True)


def _named(config: Any) -> Any:
    if config.vocab_size is not None:
        raise UserError("--vocab-size: belongs to a new tokenizer; leave it out, or --tokenizer")
    return load_tokenizer(find_tokenizer(config.tokenizer))


def find_tokenizer(name: str) -> ModelSource:
    """What `--tokenizer` names: a folder with a tokenizer alone, or a model."""
    folder = Path(name).expanduser()
    return ModelSource(folder.name, folder) if folder.is_dir() else find_model(name, "--tokenizer")


def _trained(config: Any, text: TextSource, options: TextOptions, reporter: Reporter) -> Any:
    """A new tokenizer of the text, or the one that was made of the same text before."""
    settings = (config.vocab_size or DEFAULT_VOCAB_SIZE, not config.cased)
    about = [CACHE_VERSION, settings, asdict(options), digest_files(text.files)]
    made: list[WordPieceResult] = []

    def write(folder: Path) -> None:
        made.append(_train(text, options, settings, reporter))
        made[0].tokenizer.save_pretrained(folder)
        (folder / NOTES_FILE).write_text(json.dumps(made[0].notes), "utf-8")

    folder = get_or_create(
        "tokenizer", blake2b(json.dumps(about).encode(), digest_size=16).hexdigest(), write
    )
    if folder is None:
        made = made or [_train(text, options, settings, reporter)]
        tokenizer, notes = made[0].tokenizer, made[0].notes
    else:
        tokenizer = load_tokenizer(ModelSource("tokenizer", folder))
        notes = json.loads((folder / NOTES_FILE).read_text("utf-8"))
    for note in notes:
        reporter.info(note)
    whence = "" if made else ", trained on this text before and used again"
    reporter.info(f"a WordPiece tokenizer of {len(tokenizer):,} pieces{whence}")
    return tokenizer


def _train(
    text: TextSource, options: TextOptions, settings: tuple[int, bool], reporter: Reporter
) -> "WordPieceResult":
    from bertkit.data.wordpiece import train_wordpiece

    reporter.info(f"training a tokenizer on {describe_files(text.files)}, read twice for it")
    return train_wordpiece(partial(iter_raw_texts, text.files, options), *settings)

"""New models for pre-training: their config, initial weights and tokenizer, in a temporary folder."""

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import processors

from bertkit.data.corpus.documents import TextOptions, TextSource, iter_raw_texts
from bertkit.data.corpus.store import digest_files
from bertkit.data.readers.text_files import describe_files, hash_json
from bertkit.data.tokens import SequenceTemplate
from bertkit.data.wordpiece import WordPieceResult, get_analyzer_version, train_wordpiece
from bertkit.errors import UserError
from bertkit.models.loading import (
    INITIALIZER_RANGE,
    ModelSource,
    count_token_ids,
    count_token_types,
    find_model,
    load_tokenizer,
)
from bertkit.settings.run_settings import DEFAULT_VOCAB_SIZE
from bertkit.utils import devices
from bertkit.utils.cache import cache_or_write
from bertkit.utils.files import create_process_directory, expand_home
from bertkit.utils.reporting import report_info

ModelShape = tuple[int, int, int]  # layers, hidden size, attention heads
CACHE_VERSION = 4  # must be increased if a code change leads to another tokenizer, or to other notes
MAX_POSITION_EMBEDDINGS = 512
BASE_HIDDEN_SIZE = 768  # hidden size of BERT-base
NOTES_FILE = "notes.json"  # notes of the tokenizer's training, repeated when the tokenizer is reused


def create_model_folder(
    config: Any, sizes: dict[str, ModelShape], text: TextSource, options: TextOptions
) -> ModelSource:
    """Create a temporary folder with a config of BERT or ELECTRA, and a tokenizer.

    The tokenizer is the one that `--tokenizer` names, or else it is trained on the text.
    """
    size = config.size or ("base" if devices.has_accelerator() else "tiny")
    requested = (config.num_layers, config.hidden_size, config.num_heads)
    layers, hidden, heads = (value or default for value, default in zip(requested, sizes[size], strict=True))
    if hidden % heads:
        raise UserError(
            f"--num-heads {heads}: does not divide --hidden-size {hidden}; pass a divisor of {hidden}"
        )
    if config.tokenizer:
        for flag, is_set in {"--vocab-size": config.vocab_size is not None, "--cased": config.cased}.items():
            if is_set:
                raise UserError(f"{flag}: applies only to a new tokenizer; remove it or --tokenizer")
        tokenizer = load_tokenizer(find_tokenizer(config.tokenizer))
    else:
        tokenizer = _load_trained_tokenizer(config, text, options)
    if config.has_pairs:
        tokenizer = add_segments(tokenizer)
    folder = create_process_directory()
    tokenizer.save_pretrained(folder)
    model_config = build_config(
        config.model_type, count_token_ids(tokenizer), (layers, hidden, heads), tokenizer.pad_token_id
    )
    model_config.type_vocab_size = max(model_config.type_vocab_size, count_token_types(tokenizer))
    model_config.save_pretrained(folder)
    shape_name = f"{layers}-{hidden}" if any(requested) else size
    return ModelSource(f"{config.model_type}-{shape_name}", folder, is_new=True)


# ---- configs and weights


def build_config(model_type: str, vocab_size: int, shape: ModelShape, pad_token_id: int) -> Any:
    """Return the config of a BERT or an ELECTRA discriminator with intermediate size 4 * hidden, dropout 0.1.

    A model with a smaller hidden size than BERT-base gets initial weights with a larger standard deviation.
    The outputs of its layers then vary as much as in BERT-base. With a standard deviation of 0.02, a
    narrow model is slow to learn tasks that need several layers, above all next sentence prediction. As in
    ELECTRA-Base, the embeddings have the hidden size.
    """
    from transformers import BertConfig, ElectraConfig

    layers, hidden, heads = shape
    sizes = {
        "vocab_size": vocab_size, "pad_token_id": pad_token_id, "num_hidden_layers": layers,
        "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden,
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        "initializer_range": compute_initializer_range(hidden),
    }  # fmt: skip
    if model_type == "electra":
        return ElectraConfig(embedding_size=hidden, **sizes)
    return BertConfig(**sizes)


def compute_initializer_range(hidden_size: int) -> float:
    """Return the standard deviation of the initial weights; see `build_config`."""
    return INITIALIZER_RANGE * math.sqrt(max(1.0, BASE_HIDDEN_SIZE / hidden_size))


def set_token_embeddings(model: Any, vectors: np.ndarray) -> None:
    """Replace token embeddings by vectors `[vocab_size, embedding_size]`, except where a vector is zero.

    The vectors are scaled to the standard deviation of the previous embeddings.
    """
    embeddings = model.base_model.get_input_embeddings().weight
    token_ids = np.flatnonzero(vectors.any(1))
    scale = embeddings.std().item() / vectors[token_ids].std()
    with torch.no_grad():
        embeddings[token_ids] = torch.from_numpy(vectors[token_ids] * scale)


# ---- tokenizers


def add_segments(tokenizer: Any) -> Any:
    """Return a tokenizer with the token type ids of BERT for a pair: 0 up to the first [SEP], and then 1.

    RoBERTa's tokenizers assign 0 to both texts. Without segments, a model from scratch would learn next
    sentence prediction more slowly. A tokenizer that distinguishes the texts is returned unchanged.
    """
    from transformers import PreTrainedTokenizerFast

    templates = [SequenceTemplate.from_tokenizer(tokenizer, pair) for pair in (False, True)]
    if len(set(templates[1].token_type_ids)) > 1:
        return tokenizer
    special_tokens = {
        name: tokenizer.added_tokens_decoder.get(tokenizer.convert_tokens_to_ids(token), token)
        for name, token in tokenizer.special_tokens_map.items()
    }
    # The classes of some tokenizers, such as RoBERTa's, would replace the template when they are loaded.
    with_segments = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, model_max_length=tokenizer.model_max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"], **special_tokens,
    )  # fmt: skip
    with_segments.backend_tokenizer.post_processor = _build_post_processor(tokenizer, *templates)
    return with_segments


def _build_post_processor(tokenizer: Any, single: SequenceTemplate, pair: SequenceTemplate) -> Any:
    """Return the post-processor that adds special tokens and token type ids to a text or a pair."""
    second_segment = pair.slots.index(~0) + 2  # the first text and the special token after it are segment 0
    special_ids = sorted({slot for slot in pair.slots + single.slots if slot >= 0})
    tokens = dict(zip(special_ids, tokenizer.convert_ids_to_tokens(special_ids), strict=True))
    names = tokens | {~0: "$A", ~1: "$B"}
    template = processors.TemplateProcessing(
        single=[f"{names[slot]}:0" for slot in single.slots],
        pair=[f"{names[slot]}:{int(index >= second_segment)}" for index, slot in enumerate(pair.slots)],
        special_tokens=[(token, token_id) for token_id, token in tokens.items()],
    )
    if not getattr(tokenizer.backend_tokenizer.post_processor, "trim_offsets", False):
        return template
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])  # as RoBERTa's processor


def find_tokenizer(name: str) -> ModelSource:
    """Resolve `--tokenizer`: the folder of a tokenizer, or the name of a model."""
    folder = expand_home(name)
    return ModelSource(folder.name, folder) if folder.is_dir() else find_model(name, "--tokenizer")


def _load_trained_tokenizer(config: Any, text: TextSource, options: TextOptions) -> Any:
    """Train a tokenizer on the text, or load the cached one that was trained on the same text."""
    settings = (config.vocab_size or DEFAULT_VOCAB_SIZE, not config.cased)
    units = () if config.word_units == "words" else (config.word_units, get_analyzer_version())
    trained: WordPieceResult | None = None

    def write(folder: Path) -> None:
        nonlocal trained
        if trained is None:  # unless the cache could not be written
            report_info(f"training a tokenizer on {describe_files(text.files)} (the text is read twice)")
            texts = partial(iter_raw_texts, text.files, options)
            trained = train_wordpiece(texts, *settings, word_units=config.word_units)
        trained.tokenizer.save_pretrained(folder)
        (folder / NOTES_FILE).write_text(json.dumps(trained.notes), "utf-8")

    key = hash_json([CACHE_VERSION, settings, *units, asdict(options), digest_files(text.files)])
    folder = cache_or_write("tokenizer", key, write, "the tokenizer")
    tokenizer = load_tokenizer(ModelSource("tokenizer", folder))
    for note in json.loads((folder / NOTES_FILE).read_text("utf-8")):
        report_info(note)
    suffix = " (cached: trained on this text before)" if trained is None else ""
    report_info(f"WordPiece tokenizer with {len(tokenizer):,} tokens{suffix}")
    return tokenizer

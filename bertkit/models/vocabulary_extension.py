"""Domain words as new tokens of a WordPiece model, with embeddings from the tokens that they consisted of."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from bertkit.errors import UserError
from bertkit.models.loading import (
    HEAD_KEY,
    ModelSource,
    count_token_ids,
    load_config,
    load_model,
    load_tokenizer,
    require_embeddings,
)

MIN_COUNT = 3  # of a word in the text
SENTENCE_FILES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling",
)


def load_wordpiece(source: ModelSource) -> tuple[Any, Any]:
    """Return config and tokenizer of a model whose vocabulary can be extended."""
    import transformers

    config, tokenizer = load_config(source), load_tokenizer(source)
    kind = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"]
    if kind != "WordPiece":
        raise UserError(f"--extend {source.name}: its tokenizer is {kind}; use a model with a WordPiece one")
    architecture = (getattr(config, "architectures", None) or ["AutoModel"])[0]
    if getattr(config, HEAD_KEY, None) or not hasattr(transformers, architecture):
        raise UserError(
            f"--extend {source.name}: has a head that transformers does not know; extend the pre-trained "
            "model, and fine-tune it again"
        )
    require_embeddings(source, config, tokenizer)
    return config, tokenizer


def choose_words(tokenizer: Any, texts: Iterable[str], count: int) -> list[str]:
    """Return the words that save the most tokens if each of them is a single token, at most `count`.

    A word is what the tokenizer splits the normalized text into. The order is deterministic.
    """
    backend = tokenizer.backend_tokenizer
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.split())
    words: Counter[str] = Counter()
    for chunk, frequency in chunks.items():
        normalized = backend.normalizer.normalize_str(chunk) if backend.normalizer else chunk
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized):
            words[word] += frequency
    candidates = sorted(
        word for word, frequency in words.items() if frequency >= MIN_COUNT and word.isalnum()
    )
    encodings = backend.encode_batch_fast(candidates, add_special_tokens=False)
    saved = {
        word: words[word] * (len(encoding.ids) - 1)
        for word, encoding in zip(candidates, encodings, strict=True)
        if len(encoding.ids) > 1 and tokenizer.unk_token_id not in encoding.ids
    }
    return sorted(saved, key=lambda word: (-saved[word], word))[:count]


@torch.no_grad()
def write_extended_model(
    source: ModelSource, config: Any, tokenizer: Any, words: list[str], folder: Path
) -> None:
    """Write the model with the words as tokens: their embeddings are the means of those of their old tokens.

    The weights of an output layer over the vocabulary, and its bias, are extended likewise.
    """
    import transformers

    first = count_token_ids(tokenizer)
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(words, add_special_tokens=False)
    model_class = getattr(transformers, (getattr(config, "architectures", None) or ["AutoModel"])[0])
    model = load_model(model_class, source, config, may_lack_head=True)
    model.resize_token_embeddings(max(first + len(words), config.vocab_size), mean_resizing=False)
    for parameter in _iter_vocabulary_parameters(model):
        for token_id, encoding in enumerate(encodings, start=first):
            parameter[token_id] = parameter[encoding.ids].mean(0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    content["model"]["vocab"] |= {word: token_id for token_id, word in enumerate(words, start=first)}
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    for name in SENTENCE_FILES:
        if (found := source.folder / name).is_dir():
            shutil.copytree(found, folder / name)
        elif found.exists():
            shutil.copyfile(found, folder / name)


def _iter_vocabulary_parameters(model: Any) -> Iterator[torch.Tensor]:
    """Yield each parameter with a row for each token once; tied weights are the same parameter."""
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    found = [embeddings.weight, *([] if output is None else [output.weight, output.bias])]
    yield from {id(parameter): parameter for parameter in found if parameter is not None}.values()

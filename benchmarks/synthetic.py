"""Create synthetic text, its tokenizer, and a model with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import SEED

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
SENTENCES_PER_DOCUMENT = 12


def build_tokenizer(vocabulary: int) -> Any:
    """Return a tokenizer in which each of the words `w6`, `w7`, ... is one token."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(len(SPECIAL_TOKENS), vocabulary))]
    numbers = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def write_model(folder: Path, vocabulary: int, shape: tuple[int, int, int]) -> Path:
    """Write a BERT with random weights and its tokenizer; `shape` is (num_layers, hidden_size, num_heads)."""
    import torch
    from transformers import BertModel

    from bertkit.models.scratch import build_config

    torch.manual_seed(SEED)
    BertModel(build_config("bert", vocabulary, shape, 0)).save_pretrained(folder)
    build_tokenizer(vocabulary).save_pretrained(folder)
    return folder


def write_modernbert(folder: Path, vocabulary: int, shape: tuple[int, int, int]) -> Path:
    """Write a ModernBERT with random weights and its tokenizer; see `write_model`."""
    import torch
    from transformers import ModernBertConfig, ModernBertModel

    layers, hidden, heads = shape
    tokenizer = build_tokenizer(vocabulary)
    special = {"pad": tokenizer.pad_token_id, "cls": tokenizer.cls_token_id, "sep": tokenizer.sep_token_id}
    torch.manual_seed(SEED)
    config = ModernBertConfig(
        vocab_size=vocabulary, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        intermediate_size=3 * hidden // 2, bos_token_id=special["cls"], eos_token_id=special["sep"],
        **{f"{name}_token_id": number for name, number in special.items()},
    )  # fmt: skip
    ModernBertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(path: Path, rows: int, length: int, vocabulary: int, median: float) -> Path:
    """Write labeled texts with up to 2 * `length` tokens; most are shorter, around `median`."""
    from bertkit.utils.files import write_jsonl

    rng = np.random.default_rng(SEED)
    sizes = rng.lognormal(np.log(median), 0.6, rows).clip(3, 2 * length).astype(int)
    texts = (_words(rng, size, vocabulary) for size in sizes)
    labels = ("negative", "positive")
    write_jsonl(path, ({"text": text, "label": labels[row % 2]} for row, text in enumerate(texts)))
    return path


def write_text(path: Path, tokens: int, vocabulary: int, sentences: int = SENTENCES_PER_DOCUMENT) -> Path:
    """Write documents with at least this number of tokens, one sentence of 5 to 40 words per line.

    `sentences` is the number of sentences of a document.
    """
    rng = np.random.default_rng(SEED)
    lines: list[str] = []
    written = 0
    while written < tokens or len(lines) < 3 * sentences:
        size = int(rng.integers(5, 40))
        lines.append(_words(rng, size, vocabulary) + " .")
        if len(lines) % sentences == 0:
            lines.append("")
        written += size + 1
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _words(rng: np.random.Generator, size: int, vocabulary: int) -> str:
    numbers = rng.integers(len(SPECIAL_TOKENS), vocabulary, size)
    return " ".join(map("w{}".format, numbers.tolist()))

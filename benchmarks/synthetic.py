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

    from bertkit.modeling.pretraining import build_bert_config

    torch.manual_seed(SEED)
    BertModel(build_bert_config(vocabulary, shape, 0)).save_pretrained(folder)
    build_tokenizer(vocabulary).save_pretrained(folder)
    return folder


def write_rows(path: Path, rows: int, length: int, vocabulary: int) -> Path:
    """Write labeled texts of realistic lengths: many are short, a few have `length` tokens."""
    from bertkit.utils.files import write_jsonl

    rng = np.random.default_rng(SEED)
    sizes = rng.lognormal(np.log(0.4 * length), 0.6, rows).clip(3, 2 * length).astype(int)
    texts = (_words(rng, size, vocabulary) for size in sizes)
    labels = ("negative", "positive")
    write_jsonl(path, ({"text": text, "label": labels[row % 2]} for row, text in enumerate(texts)))
    return path


def write_text(path: Path, tokens: int, vocabulary: int) -> Path:
    """Write documents with at least this number of tokens, one sentence of 5 to 40 words per line."""
    rng = np.random.default_rng(SEED)
    lines: list[str] = []
    written = 0
    while written < tokens or len(lines) < 3 * SENTENCES_PER_DOCUMENT:
        size = int(rng.integers(5, 40))
        lines.append(_words(rng, size, vocabulary) + " .")
        if len(lines) % SENTENCES_PER_DOCUMENT == 0:
            lines.append("")
        written += size + 1
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _words(rng: np.random.Generator, size: int, vocabulary: int) -> str:
    numbers = rng.integers(len(SPECIAL_TOKENS), vocabulary, size)
    return " ".join(map("w{}".format, numbers.tolist()))

"""Compare how long it takes to mask a batch with transformers' collator and with bertkit.

    python benchmarks/masking_speed.py --out masking.md

Both mask random tokens in one process, without a model. Each receives the batch in its own format. The time
includes all that it does: transformers converts lists to tensors, and bertkit lists the masked positions.
The rows "collator" add what the collator does before and after masking. Morphemes are flags of each example,
which it pads.
Progress goes to standard error, the report to standard output.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from bertkit.data.masking import MlmCollator, TokenMasker
from harness import OUT_HELP, SEED, compute_median_ratio, format_report, list_rounds, publish
from ner_data import time_alternating

BATCH_SIZE, LENGTH, VOCAB_SIZE = 64, 512, 30_522
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MAX_PREDICTIONS = 77  # google's max_predictions_per_seq at this length
WHOLE, MORPHEMES, SINGLE_TOKENS = "whole words", "morphemes", "single tokens"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="batches of each, medians are shown")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def make_batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random token ids, a mask of the special tokens, and a mask of the continuation tokens.

    The first two have the shape `[batch, seq_len]`, the last `[vocab_size]`.
    """
    rng = np.random.default_rng(SEED)
    ids = rng.integers(len(SPECIAL_TOKENS), VOCAB_SIZE, (BATCH_SIZE, LENGTH))
    ids[:, 0], ids[:, [LENGTH // 2, -1]] = SPECIAL_TOKENS.index("[CLS]"), SPECIAL_TOKENS.index("[SEP]")
    continues = rng.random(VOCAB_SIZE) < 0.25
    continues[: len(SPECIAL_TOKENS)] = False
    return ids, ids < len(SPECIAL_TOKENS), continues


def to_examples(ids: np.ndarray, special: np.ndarray, continues: np.ndarray) -> list[dict[str, Any]]:
    """Convert the batch for transformers, which joins tokens with adjacent offsets to words."""
    stop = np.cumsum(np.where(continues[ids], 1, 2), axis=1)
    offsets = np.stack([stop - 1, stop], axis=2)
    lists = (array.tolist() for array in (ids, special.astype(int), offsets))
    names = ("input_ids", "special_tokens_mask", "offset_mapping")
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def list_calls() -> dict[str, Callable[[], object]]:
    """Return row name -> function to time; bertkit masks other examples at each call."""
    ids, special, continues = make_batch()
    examples = to_examples(ids, special, continues)
    vocabulary = {token: at for at, token in enumerate(SPECIAL_TOKENS)}
    vocabulary |= {f"token{at}": at for at in range(len(SPECIAL_TOKENS), VOCAB_SIZE)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")), pad_token="[PAD]",
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
    keys = np.arange(BATCH_SIZE)

    def transformers(whole: bool) -> Callable[[], object]:
        collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole, seed=SEED)
        names = ("input_ids", "special_tokens_mask", *(["offset_mapping"] if whole else []))
        batch = [{name: example[name] for name in names} for example in examples]
        return lambda: collator([dict(example) for example in batch])

    def bertkit(continues: np.ndarray | None) -> Callable[[], object]:
        random_ids = np.arange(len(SPECIAL_TOKENS), VOCAB_SIZE)
        masking = TokenMasker(
            SPECIAL_TOKENS.index("[MASK]"), random_ids, continues, max_predictions_per_seq=MAX_PREDICTIONS
        )
        return lambda: masking(ids, special, np.add(keys, BATCH_SIZE, out=keys))

    items = [{"input_ids": row, "key": key} for row, key in zip(ids, keys.tolist(), strict=True)]
    of_units = [{**item, "is_continuation": flags} for item, flags in zip(items, continues[ids], strict=True)]

    def collate(rows: list[dict[str, Any]]) -> Callable[[], object]:
        random_ids = np.arange(len(SPECIAL_TOKENS), VOCAB_SIZE)
        masking = TokenMasker(
            SPECIAL_TOKENS.index("[MASK]"), random_ids, continues, max_predictions_per_seq=MAX_PREDICTIONS
        )
        is_special = np.arange(VOCAB_SIZE) < len(SPECIAL_TOKENS)
        collator = MlmCollator(lambda _: {"input_ids": torch.tensor(ids)}, masking, is_special, False)
        return lambda: collator(rows)

    return {
        f"transformers, {WHOLE}": transformers(True), f"bertkit, {WHOLE}": bertkit(continues),
        f"collator, {WHOLE}": collate(items), f"collator, {MORPHEMES}": collate(of_units),
        f"transformers, {SINGLE_TOKENS}": transformers(False), f"bertkit, {SINGLE_TOKENS}": bertkit(None),
    }  # fmt: skip


def format_table(seconds: dict[str, list[float]]) -> list[str]:
    """Return medians, ratios to transformers with the same masking, and every round."""
    lines = ["| | ms per batch | tokens/s | speedup |", "|---|---:|---:|---:|"]
    for name, runs in seconds.items():
        took = statistics.median(runs)
        baseline = f"transformers, {SINGLE_TOKENS if name.endswith(SINGLE_TOKENS) else WHOLE}"
        ratio = compute_median_ratio(seconds[baseline], runs)
        lines.append(f"| {name} | {took * 1e3:.2f} | {BATCH_SIZE * LENGTH / took:,.0f} | {ratio:.1f} |")
    shown = {name: [f"{run * 1e3:.1f}" for run in runs] for name, runs in seconds.items()}
    return [*lines, *list_rounds("ms", shown)]


def main() -> None:
    """Time everything and report."""
    args = parse_args()
    torch.set_num_threads(1)  # several threads would wait for each other on a busy machine
    warnings.filterwarnings("ignore", message="Random token replacement")
    about = (
        f"{BATCH_SIZE} rows of {LENGTH} random tokens, vocabulary {VOCAB_SIZE:,}, a quarter continue a word; "
        f"medians of {args.rounds} rounds, one thread. The speedup is the median of the ratios per round."
    )
    own = f"python benchmarks/masking_speed.py --rounds {args.rounds}"
    publish(
        format_report(
            "Speed of masking", about, format_table(time_alternating(list_calls(), args.rounds)), [own]
        ),
        args.out,
    )


if __name__ == "__main__":
    main()

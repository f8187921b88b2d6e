"""Time the data processing of `bertkit ner` in this process: features, and vectors of a frozen encoder.

`ner_speed.py` imports this module.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bertkit.run.prepare import PreparedRun, prepare
from bertkit.tasks.ner.config import NerConfig
from bertkit.tasks.ner.task import Ner
from harness import SEED, compute_median_ratio, list_rounds

if TYPE_CHECKING:
    from bertkit.tasks.ner.tags import TagSet

SENTENCES = 10_000
BATCH_SIZE = 16
MAX_LENGTH = 128
BARE_CALL = "tokenizer(words, is_split_into_words=True)"


def prepare_wnut17(data_dir: Path, model: Path, rows: int, **settings: Any) -> PreparedRun:
    """Load, sample and tokenize WNUT-17 as `bertkit ner` does with these settings."""
    config = NerConfig(
        data="wnut17", data_dir=str(data_dir), model=str(model), max_train_samples=rows,
        max_eval_samples=rows, seed=SEED, max_length=MAX_LENGTH, batch_size=BATCH_SIZE, **settings,
    )  # fmt: skip
    return prepare("ner", config)


# ---- features


def time_features(sampled: PreparedRun, rounds: int) -> list[str]:
    """Time `build_word_features` and comparable calls; return the lines of the report."""
    train = sampled.splits["train"]
    words = list(islice(cycle(train["tokens"]), SENTENCES))
    tags = list(islice(cycle(train["iob2"]), SENTENCES))
    calls = list_feature_calls(words, tags, cast(Ner, sampled.task).state.tags, sampled.tokenizer)
    seconds = time_alternating(calls, rounds)
    lines = [f"| | s for {SENTENCES:,} sentences | sentences/s | ratio |", "|---|---:|---:|---:|"]
    for name, runs in seconds.items():
        took, ratio = statistics.median(runs), compute_median_ratio(seconds[BARE_CALL], runs)
        lines.append(f"| {name} | {took:.2f} | {SENTENCES / took:.0f} | {ratio:.2f} |")
    shown = {name: [f"{run:.2f}" for run in runs] for name, runs in seconds.items()}
    return [*lines, *list_rounds("Seconds", shown)]


def list_feature_calls(
    words: Sequence[Sequence[str]], tags: Sequence[Sequence[str]], tag_set: TagSet, tokenizer: Any
) -> dict[str, Callable[[], object]]:
    """Return row name -> function to time; the first is the reference."""
    from bertkit.data.language import join_words
    from bertkit.tasks.ner.features import build_word_features

    labels, texts = tag_set.encode(tags), list(map(join_words, words))
    backend = tokenizer.backend_tokenizer

    def build_features() -> object:
        return build_word_features(
            words, list(map(join_words, words)), labels, tokenizer, MAX_LENGTH, cache=False
        )

    def encode_with_offsets() -> object:
        encodings = backend.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_without_offsets() -> object:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    return {
        BARE_CALL: lambda: tokenizer(words, is_split_into_words=True),
        "build_word_features, from words to labeled features": build_features,
        "encode_batch of joined texts, with ids and offsets": encode_with_offsets,
        "encode_batch_fast of joined texts, with ids": encode_without_offsets,
    }


def time_alternating(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in each round, in alternating order, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        print(f"round {number}/{rounds} ...", file=sys.stderr, flush=True)
        for name in reversed(list(calls)) if number % 2 == 0 else calls:
            started = time.perf_counter()
            calls[name]()
            if number:  # round 0 is the warm-up
                seconds[name].append(time.perf_counter() - started)
    return seconds


# ---- vectors


@dataclass(frozen=True)
class VectorTimes:
    """Seconds to compute the vectors of all sentences and to read them once, and their size."""

    compute_seconds: float
    read_seconds: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.compute_seconds:.2f} and {self.read_seconds:.2f}"


def time_vectors(data_dir: Path, model: Path, rows: int, names: Sequence[str], rounds: int) -> list[str]:
    """Time vectors of several `--features`; return the lines of the report."""
    runs: dict[str, list[VectorTimes]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in names if number % 2 else reversed(names):
            print(f"vectors: round {number}/{rounds}: {name} ...", file=sys.stderr, flush=True)
            runs[name].append(time_vectors_once(data_dir, model, rows, name))
    lines = ["| --features | computing, s | reading an epoch, s | ratio | MB |", "|---|---:|---:|---:|---:|"]
    for name, times in runs.items():
        computing, reading = [run.compute_seconds for run in times], [run.read_seconds for run in times]
        lines.append(
            f"| {name} | {statistics.median(computing):.2f} | {statistics.median(reading):.2f} "
            f"| {compute_median_ratio(computing, reading):.1f} | {times[0].megabytes:.0f} |"
        )
    shown = {name: list(map(str, times)) for name, times in runs.items()}
    return [*lines, *list_rounds("Seconds to compute and to read", shown)]


def time_vectors_once(data_dir: Path, model_folder: Path, rows: int, name: str) -> VectorTimes:
    """Compute the vectors into an empty cache, and read them as an epoch of training does."""
    from bertkit.models.encoder import VectorFeatures, compute_vectors
    from bertkit.training.samplers import LengthGroupedBatchSampler

    with tempfile.TemporaryDirectory() as cache:
        os.environ["BERTKIT_CACHE_DIR"] = cache
        sampled = prepare_wnut17(data_dir, model_folder, rows, features=name)
        train: Any = sampled.features["train"]
        task = sampled.task
        model = task.build_model(sampled.model_config, sampled.model_source)
        collator = task.make_collator(sampled.tokenizer, model)
        started = time.perf_counter()
        computed = compute_vectors(model, train, collator, sampled.config.eval_batch_size)
        computing = time.perf_counter() - started
        items = VectorFeatures(train, computed)
        started = time.perf_counter()
        for batch in LengthGroupedBatchSampler(train, BATCH_SIZE, seed=SEED):
            collator([items[row] for row in batch])
        return VectorTimes(computing, time.perf_counter() - started, computed.nbytes / 1e6)

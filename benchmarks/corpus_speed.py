"""Measure how bertkit builds a corpus from text files: speed, memory and disk usage.

    python benchmarks/corpus_speed.py --data-dir TEXTS --out corpus.md

speed: the time from files to the corpus on disk, and the part for reading and splitting into sentences,
compared with a call of the tokenizer on the same sentences.
memory: how much a large file of repeated texts increases the peak memory, and its size on disk.
shards: the same for text of one size in 1, 8 and 64 files, and the time of the next start, with a warm cache.
Everything runs in this process, without training.

TEXTS is a folder of text files in any supported format. Progress goes to standard error, the report to
standard output.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.corpus.documents import TextOptions, TextSource, iter_documents
from bertkit.data.corpus.store import write_corpus
from bertkit.data.readers.text_files import _digest_content, list_files, read_chunks
from bertkit.models.loading import ModelSource, load_tokenizer
from bertkit.tasks.pretrain.task import CorpusSet
from harness import add_options, describe_model_and_rounds, format_report, publish, validate_options
from process_memory import read_memory_mb
from qa_speed import compare_calls


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "text files", (1, argparse.SUPPRESS), rounds=5)
    parser.add_argument("--megabytes", type=int, default=100, help="size of the large file (default: 100)")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="repeatable (default: both)")
    args = parser.parse_args(argv)
    if args.data_dir is None or not args.data_dir.is_dir():
        parser.error("no texts found: give their folder with --data-dir")
    validate_options(parser, args)
    if args.megabytes < 1:
        parser.error("--megabytes must be at least 1")
    return args


def measure_speed(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Compare building a corpus with a call of the tokenizer."""
    files, options = list_files(str(args.data_dir)), TextOptions()
    sentences = list(chain.from_iterable(iter_documents(files, options)))

    def build_corpus() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(iter_documents(files, options), tokenizer, Path(folder))

    calls: dict[str, Callable[[], object]] = {
        "encode_batch_fast(sentences)": lambda: tokenizer.backend_tokenizer.encode_batch_fast(
            sentences, add_special_tokens=False
        ),
        "bertkit, from files to disk": build_corpus,
        "of which: reading and splitting into sentences": lambda: sum(
            map(len, map(list, iter_documents(files, options)))
        ),
    }
    size = sum(path.stat().st_size for path in files) / 1e6
    about = f"{len(files)} files, {size:.1f} MB, {len(sentences):,} sentences, without a cache."
    return ["## Speed", "", about, "", *compare_calls(calls, args, size, "s per MB")]


def measure_memory(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Measure how much a large file increases the peak memory, and the size of its corpus on disk."""
    with tempfile.TemporaryDirectory() as scratch:
        large, folder = Path(scratch) / "large.txt", Path(scratch) / "corpus"
        folder.mkdir()
        write_repeated(list_files(str(args.data_dir)), large, args.megabytes * 1_000_000)
        before = read_memory_mb()["VmRSS"]
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
        started = time.perf_counter()
        counts = write_corpus(iter_documents([large], TextOptions()), tokenizer, folder).counts
        took, raised = time.perf_counter() - started, read_memory_mb()["VmHWM"] - before
        disk = sum(path.stat().st_size for path in folder.iterdir())
    return [
        *("## Memory and disk", ""),
        f"One file of {args.megabytes} MB, {counts['tokens']:,} tokens in {counts['sentences']:,} sentences "
        f"and {counts['documents']:,} documents, built in {took:.0f} s.",
        *("", "| | |", "|---|---:|"),
        f"| increase of the peak | {raised:.0f} MB |",
        f"| peak | {before + raised:.0f} MB |",
        f"| on disk | {disk / counts['tokens']:.2f} bytes per token |",
    ]


def write_repeated(files: list[Path], large: Path, size: int) -> None:
    """Repeat the texts in a file until it has the requested size in bytes."""
    with large.open("wb") as file:
        while file.tell() < size:
            for path in files:
                for chunk in read_chunks(path):
                    file.write(chunk)
                file.write(b"\n\n")


def measure_shards(args: argparse.Namespace, tokenizer: Any) -> list[str]:
    """Measure building a corpus and loading it again, for text of one size in several numbers of files."""
    lines = ["| files | first start, s | next start, s | peak growth, MB | next start, peak growth, MB |"]
    lines += ["|---:|---:|---:|---:|---:|"]
    content = "\n\n".join(path.read_text("utf-8") for path in list_files(str(args.data_dir)))
    content *= math.ceil(args.megabytes * 1_000_000 / len(content))
    for count in SHARD_COUNTS:
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["BERTKIT_CACHE_DIR"] = str(Path(scratch) / "cache")
            size = args.megabytes * 1_000_000 // count
            for number in range(count):
                shard = f"Text number {number}.\n\n{content[number * size : (number + 1) * size]}"
                (Path(scratch) / f"{number}.txt").write_text(shard, "utf-8")
            text = TextSource("text", scratch, {"train": tuple(sorted(Path(scratch).glob("*.txt")))})
            seconds, peaks = [], []
            for _ in range(2):
                _digest_content.cache_clear()  # as in a new process
                before = read_memory_mb()["VmRSS"]
                Path("/proc/self/clear_refs").write_text("5")
                started = time.perf_counter()
                CorpusSet().add_corpus(text, TextOptions(), False, tokenizer, "words")
                seconds.append(time.perf_counter() - started)
                peaks.append(read_memory_mb()["VmHWM"] - before)
                gc.collect()
            values = f"{seconds[0]:.1f} | {seconds[1]:.2f} | {peaks[0]:.0f} | {peaks[1]:.0f}"
            lines.append(f"| {count} | {values} |")
    return [f"## {args.megabytes} MB of text in several files", "", *lines]


PARTS = {"speed": measure_speed, "memory": measure_memory, "shards": measure_shards}
SHARD_COUNTS = (1, 8, 64)


def main() -> None:
    """Run the parts and report."""
    args = parse_args()
    tokenizer = load_tokenizer(ModelSource(args.model.name, args.model))
    parts = [PARTS[name](args, tokenizer) for name in args.part or PARTS]
    about = (
        f"TOKENIZERS_PARALLELISM={os.environ.get('TOKENIZERS_PARALLELISM', '(not set)')}; "
        f"{describe_model_and_rounds(args.model, args.rounds)}. Ratios are medians of the "
        "ratios to the first row per round."
    )
    own = f"corpus_speed.py --data-dir TEXTS --rounds {args.rounds} --megabytes {args.megabytes}"
    own += "".join(f" --part {name}" for name in args.part or [])
    results = [line for lines in parts for line in [*lines, ""]]
    title = "Building a corpus from text files: speed, memory, disk"
    publish(format_report(title, about, results[:-1], [f"python benchmarks/{own}"]), args.out)


if __name__ == "__main__":
    main()

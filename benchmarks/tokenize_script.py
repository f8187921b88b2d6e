"""Read a CSV file and tokenize its texts without bertkit, as a baseline of `data_scale.py`.

    python benchmarks/tokenize_script.py --library tokenizers --train_file FILE --model_name_or_path MODEL

* `--library tokenizers`: `pyarrow.csv` and the Rust backend of the tokenizer. The tokens are not kept.
* `--library datasets`: `load_dataset` and `map`, as in the documentation of transformers.

Texts are not truncated. The script prints one line of JSON to standard output. Everything else goes to
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable

BATCH_SIZE = 10_000  # texts per call of the backend
Times = tuple[int, float, float]  # rows, seconds to read, seconds to tokenize


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=list(LIBRARIES), required=True)
    parser.add_argument("--train_file", required=True, help="CSV file with a column `text`")
    parser.add_argument("--model_name_or_path", required=True)
    return parser.parse_args(argv)


def time_tokenizers(path: str, model: str) -> Times:
    """Time `pyarrow.csv` and calls of the tokenizer's backend."""
    import pyarrow.csv
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(model).backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    started = time.perf_counter()
    texts = pyarrow.csv.read_csv(path).column("text")
    read = time.perf_counter()
    for start in range(0, len(texts), BATCH_SIZE):
        backend.encode_batch(texts.slice(start, BATCH_SIZE).to_pylist())
    return len(texts), read - started, time.perf_counter() - read


def time_datasets(path: str, model: str) -> Times:
    """Time `load_dataset` and `map`, which write their results to the cache of datasets."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    started = time.perf_counter()
    dataset = load_dataset("csv", data_files=path, split="train")
    read = time.perf_counter()
    dataset.map(lambda batch: tokenizer(batch["text"]), batched=True)
    return len(dataset), read - started, time.perf_counter() - read


LIBRARIES: dict[str, Callable[[str, str], Times]] = {
    "tokenizers": time_tokenizers,
    "datasets": time_datasets,
}


def main() -> None:
    """Read, tokenize, and print the times."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        rows, read, tokenized = LIBRARIES[args.library](args.train_file, args.model_name_or_path)
    print(json.dumps({"rows": rows, "read_seconds": read, "tokenize_seconds": tokenized}))


if __name__ == "__main__":
    main()

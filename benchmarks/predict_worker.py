"""Predict the same texts again and again, once for each line of standard input.

`predict_speed.py` starts this script in a process of its own for each system, so that two checkouts can be
compared. The script prints "ready" when the model is loaded, and the seconds of each pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

SYSTEMS = ("bertkit", "pipeline", "pipeline-rows")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("run", help="a finished run of classify, or its export (bertkit only)")
    parser.add_argument("texts", type=Path, help="a JSON list of texts")
    parser.add_argument("--batch-size", type=int, default=32, help="batch size of pipeline")
    return parser.parse_args(argv)


def build_call(args: argparse.Namespace) -> Callable[[], object]:
    """Load the model, and return the function to time."""
    texts = json.loads(args.texts.read_text("utf-8"))
    if args.system == "bertkit":
        import bertkit

        predictor, rows = bertkit.load(args.run), [{"text": text} for text in texts]
        return lambda: list(predictor.predict(rows))
    from transformers import pipeline

    pipe = pipeline("text-classification", args.run, top_k=None)
    if args.system == "pipeline":
        return lambda: pipe(texts, batch_size=args.batch_size, truncation=True)
    return lambda: [pipe(text, truncation=True) for text in texts]


def main() -> None:
    """Time a pass for each line of standard input."""
    call = build_call(parse_args())
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        call()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()

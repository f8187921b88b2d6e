"""`bertkit train-tokenizer`: a vocabulary of one's own text."""

import json
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.pipeline.train_tokenizer import HELP, TokenizerConfig


def _run(given: dict[str, Any], as_json: bool) -> None:
    from bertkit.cli.console import ConsoleReporter
    from bertkit.pipeline.train_tokenizer import train_tokenizer

    made = train_tokenizer(given, ConsoleReporter())
    if as_json:
        typer.echo(json.dumps({"output_dir": str(made.output_dir), **made.statistics}, ensure_ascii=False))
        return
    figures = made.statistics
    lines = {
        "pieces": f"{figures['vocab_size']:,}, of these {figures['alphabet']:,} characters",
        "letters": "lower case" if figures["lowercase"] else "upper and lower case",
        "accents": "stripped" if figures["strip_accents"] else "kept",
        "unknown": f"{figures['unknown']:.2%} of the pieces",
        "a word": f"{figures['tokens_per_word']:.2f} pieces",
        "example": figures["example"],
        "tokenizer": made.output_dir,
    }
    for name, value in lines.items():
        typer.echo(f"{name:<10} {value}")


train_tokenizer = build_command(TokenizerConfig, HELP, _run)

"""Compare the training speed of `bertkit swag` with that of `bertkit classify` on the same tokens.

Both fine-tune the same model on questions of CODAH, each run in a process of its own: `swag` on
the questions as they are, with their endings; `classify` on the same pairs of context and ending,
one a row, right or wrong. A batch of 8 questions is one of 32 pairs, so both take as many
optimizer steps over the same sequences; the run fails if they do not.

    python benchmarks/choice_speed.py --data-dir SETS --out choice.md

SETS is a folder that holds codah/ as CODAH is distributed. Progress goes to standard error, the
report to standard output.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.choices import endings_of, right_endings
from bertkit.data.sources import find
from bertkit.errors import UserError
from bertkit.files import write_jsonl
from side_by_side import (
    SEED,
    Contestant,
    add_options,
    check_options,
    every_round,
    model_and_rounds,
    publish,
    report,
    run_all,
    shown_commands,
)

ENDINGS = 4
QUESTIONS_A_BATCH = 8
VALIDATION = 40
MAX_LENGTH = 64
LEARNING_RATE = 5e-5
CLASSIFY, SWAG = "bertkit classify, a row for each pair", "bertkit swag"


@dataclass(frozen=True)
class Question:
    """A context, what may follow it, and the number of the ending that does."""

    context: str
    endings: Sequence[str]
    right: int

    def choice(self) -> dict[str, Any]:
        """Return the row of it that `swag` reads."""
        endings = {f"ending{number}": ending for number, ending in enumerate(self.endings)}
        return {"context": self.context, **endings, "label": self.right}

    def pairs(self) -> list[dict[str, Any]]:
        """Return the rows of it that `classify` reads."""
        return [
            {"text": self.context, "text_pair": text, "label": "right" if number == self.right else "wrong"}
            for number, text in enumerate(self.endings)
        ]


@dataclass(frozen=True)
class Figures:
    """What one run of one contestant measured; a sequence is a context with one ending."""

    tokens_per_second: float
    sequences_per_second: float
    tokens: int
    steps: int
    precision: str

    def __str__(self) -> str:
        return f"{self.tokens_per_second:.0f} tokens/s ({self.sequences_per_second:.1f} sequences/s)"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line and check what can be checked at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "codah/", (600, "training questions to draw"), rounds=3)
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "codah").is_dir():
        parser.error("no codah/ found: give its parent folder with --data-dir")
    check_options(parser, args)
    return args


# ---- the data


def questions(data_dir: Path) -> list[Question]:
    """Read the training questions of CODAH."""
    found = find("codah", "swag", str(data_dir))
    rows = found.splits["train"]
    endings = endings_of(rows, found.defaults["ending_columns"])
    right = right_endings(rows, found.defaults["label_column"], endings, first=0).tolist()
    contexts = rows[found.defaults["context_column"]]
    return [
        Question(*parts) for parts in zip(contexts, endings, right, strict=True) if len(parts[1]) == ENDINGS
    ]


def draw(source: list[Question], rows: int) -> tuple[list[Question], list[Question]]:
    """Draw questions to train on and a few to validate on, with a fixed seed.

    No context stands on both sides: bertkit leaves out training rows that it also evaluates on, and
    pairs may recur where questions do not.
    """
    drawn = random.Random(SEED).sample(source, len(source))
    validation = drawn[:VALIDATION]
    seen = {question.context for question in validation}
    return [question for question in drawn if question.context not in seen][:rows], validation


def write(folder: Path, data_dir: Path, rows: int) -> int:
    """Write the questions for both commands; return how many there are to train on."""
    train, validation = draw(questions(data_dir), rows)
    for split, drawn in (("train", train), ("validation", validation)):
        write_jsonl(folder / f"choices-{split}.jsonl", (question.choice() for question in drawn))
        pairs = (pair for question in drawn for pair in question.pairs())
        write_jsonl(folder / f"pairs-{split}.jsonl", pairs)
    return len(train)


# ---- the runs


def contestant(name: str, command: str, rows: str, batch_size: int, sequences: int) -> Contestant[Figures]:
    """Describe the runs of a command on `rows`, each of which holds so many sequences."""

    def line(data: Path, model: Path, output: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "bertkit", command),
            *("--data", str(data / f"{rows}-train.jsonl")),
            *("--validation", str(data / f"{rows}-validation.jsonl")),
            *("--model", str(model)),
            *("--epochs", "1"),
            *("--learning-rate", str(LEARNING_RATE)),
            *("--batch-size", str(batch_size)),
            *("--max-length", str(MAX_LENGTH)),
            *("--output-dir", str(output)),
            *("--json", "--seed", str(SEED)),
        ]

    def read(printed: dict[str, Any], _: float) -> Figures:
        return figures_of(printed["training"], sequences)

    return Contestant(name, line, read)


def figures_of(training: dict[str, Any], sequences: int) -> Figures:
    """Read a run's figures; `sequences` is how many an example has."""
    return Figures(
        training["tokens_per_second"],
        training["examples_per_second"] * sequences,
        round(training["tokens_per_second"] * training["seconds"]),
        training["steps"],
        training["precision"],
    )


def contestants() -> list[Contestant[Figures]]:
    """List the rows of the table; the first is what the other is compared with."""
    return [
        contestant(CLASSIFY, "classify", "pairs", QUESTIONS_A_BATCH * ENDINGS, 1),
        contestant(SWAG, "swag", "choices", QUESTIONS_A_BATCH, ENDINGS),
    ]


def require_same_work(figures: dict[str, list[Figures]]) -> None:
    """Stop where the runs did not train on as many tokens, in as many steps and the same precision."""
    work = {name: {(run.tokens, run.steps, run.precision) for run in runs} for name, runs in figures.items()}
    if len(set.union(*work.values())) > 1:
        raise SystemExit(f"not the same work (tokens, steps, precision), so there is no comparison: {work}")


# ---- the report


def results(figures: dict[str, list[Figures]]) -> list[str]:
    """Lay out the medians as a Markdown table, and list every round."""
    base = statistics.median(run.tokens_per_second for run in figures[CLASSIFY])
    lines = ["| | training tokens/s | sequences/s | ratio | precision |", "|---|---:|---:|---:|---|"]
    for name, runs in figures.items():
        tokens = statistics.median(run.tokens_per_second for run in runs)
        sequences = statistics.median(run.sequences_per_second for run in runs)
        ratio = f"{tokens / base:.2f}"
        lines.append(f"| {name} | {tokens:.0f} | {sequences:.1f} | {ratio} | {runs[0].precision} |")
    rounds = {name: [str(run) for run in runs] for name, runs in figures.items()}
    return [*lines, *every_round("Training speed", {**rounds, "ratio": ratios(figures)})]


def ratios(figures: dict[str, list[Figures]]) -> list[str]:
    """Compare the two round by round."""
    together = zip(figures[SWAG], figures[CLASSIFY], strict=True)
    return [f"{swag.tokens_per_second / pairs.tokens_per_second:.2f}" for swag, pairs in together]


def about(rows: int, work: Figures, model: Path, rounds: int) -> str:
    """Say what was run."""
    return (
        f"{rows} training questions of CODAH with {ENDINGS} endings each, drawn with seed {SEED}, one epoch, "
        f"batches of {QUESTIONS_A_BATCH} questions or {QUESTIONS_A_BATCH * ENDINGS} pairs, at most "
        f"{MAX_LENGTH} tokens; {model_and_rounds(model, rounds)}. Both trained on the same {work.tokens} "
        f"tokens, padding not counted, in {work.steps} steps; a sequence is a context with one ending. "
        "The ratio is to the first row. Who goes first changes from round to round."
    )


def main() -> None:
    """Draw the questions, run everything and report."""
    args = parse_args()
    entries = contestants()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            rows = write(Path(scratch), args.data_dir, args.rows)
        except UserError as error:
            raise SystemExit(str(error)) from None
        figures = run_all(entries, Path(scratch), args.model.resolve(), args.rounds, alternate=True)
    require_same_work(figures)
    own = f"{Path(__file__).name} --data-dir SETS --model MODEL --rows {rows} --rounds {args.rounds}"
    what = about(rows, figures[SWAG][0], args.model, args.rounds)
    title = "Training speed: bertkit swag and bertkit classify on the same tokens"
    publish(report(title, what, results(figures), shown_commands(own, entries)), args.out)


if __name__ == "__main__":
    main()

"""Compare the training speed of `bertkit swag` with that of `bertkit classify` on the same tokens.

Both fine-tune the same model on questions of CODAH, each in a separate process. `swag` trains on the
questions with their endings. `classify` trains on the same pairs of context and ending, one per row. A batch
of 8 questions corresponds to 32 pairs, so both take the same steps over the same sequences. The script fails
if they do not.

    python benchmarks/choice_speed.py --data-dir DATA --out choice.md

DATA is a directory that contains the original files of CODAH in codah/. Progress goes to standard error, the
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

from bertkit.data.sources import load_dataset
from bertkit.errors import UserError
from bertkit.tasks.choice.task import encode_ending_labels, parse_endings
from bertkit.utils.files import write_jsonl
from harness import (
    SEED,
    System,
    add_options,
    describe_model_and_rounds,
    format_commands,
    format_report,
    list_rounds,
    publish,
    run_systems,
    validate_options,
)

ENDINGS = 4
QUESTIONS_PER_BATCH = 8
VALIDATION_QUESTIONS = 40
MAX_LENGTH = 64
LEARNING_RATE = 5e-5
CLASSIFY, SWAG = "bertkit classify, one row per pair", "bertkit swag"


@dataclass(frozen=True)
class Question:
    """A context, its endings, and the index of the correct ending."""

    context: str
    endings: Sequence[str]
    label: int

    def to_swag_row(self) -> dict[str, Any]:
        """Return the row for `swag`."""
        endings = {f"ending{number}": ending for number, ending in enumerate(self.endings)}
        return {"context": self.context, **endings, "label": self.label}

    def to_classify_rows(self) -> list[dict[str, Any]]:
        """Return the rows for `classify`."""
        return [
            {"text": self.context, "text_pair": text, "label": "right" if number == self.label else "wrong"}
            for number, text in enumerate(self.endings)
        ]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run; a sequence is a context with one ending."""

    tokens_per_second: float
    sequences_per_second: float
    tokens: int
    steps: int
    precision: str

    def __str__(self) -> str:
        return f"{self.tokens_per_second:.0f} tokens/s ({self.sequences_per_second:.1f} sequences/s)"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read and validate the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, "codah/", (600, "training questions to sample"), rounds=3)
    args = parser.parse_args(argv)
    if args.data_dir is None or not (args.data_dir / "codah").is_dir():
        parser.error("no codah/ found: give its parent folder with --data-dir")
    validate_options(parser, args)
    return args


# ---- the data


def load_questions(data_dir: Path) -> list[Question]:
    """Read the training questions of CODAH."""
    dataset = load_dataset("codah", "swag", str(data_dir))
    rows = dataset.splits["train"]
    endings = parse_endings(rows, dataset.defaults["ending_columns"])
    correct = encode_ending_labels(rows, dataset.defaults["label_column"], endings, first_label=0).tolist()
    contexts = rows[dataset.defaults["context_column"]]
    return [
        Question(*parts) for parts in zip(contexts, endings, correct, strict=True) if len(parts[1]) == ENDINGS
    ]


def sample_questions(source: list[Question], rows: int) -> tuple[list[Question], list[Question]]:
    """Sample training questions and a few validation questions with a fixed seed.

    No context is in both splits, because bertkit removes training rows that are also validation rows, and
    pairs may be duplicates even if questions are not.
    """
    sampled = random.Random(SEED).sample(source, len(source))
    validation = sampled[:VALIDATION_QUESTIONS]
    validation_contexts = {question.context for question in validation}
    train = [question for question in sampled if question.context not in validation_contexts]
    return train[:rows], validation


def write_splits(folder: Path, data_dir: Path, rows: int) -> int:
    """Write the questions for both commands; return the number of training questions."""
    train, validation = sample_questions(load_questions(data_dir), rows)
    for split, sampled in (("train", train), ("validation", validation)):
        write_jsonl(folder / f"choices-{split}.jsonl", (question.to_swag_row() for question in sampled))
        pairs = (pair for question in sampled for pair in question.to_classify_rows())
        write_jsonl(folder / f"pairs-{split}.jsonl", pairs)
    return len(train)


# ---- the runs


def describe_system(
    name: str, command: str, rows: str, batch_size: int, sequences: int
) -> System[Measurements]:
    """Describe the runs of a command; `sequences` is the number of sequences per row."""

    def build_command(data: Path, model: Path, output: Path) -> list[str]:
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

    def read(printed: dict[str, Any], _: float) -> Measurements:
        return read_measurements(printed["training"], sequences)

    return System(name, build_command, read)


def read_measurements(training: dict[str, Any], sequences: int) -> Measurements:
    """Read the measurements of a run; `sequences` is the number of sequences per example."""
    return Measurements(
        training["tokens_per_second"],
        training["examples_per_second"] * sequences,
        round(training["tokens_per_second"] * training["seconds"]),
        training["steps"],
        training["precision"],
    )


def list_systems() -> list[System[Measurements]]:
    """List the systems; the first is the reference."""
    return [
        describe_system(CLASSIFY, "classify", "pairs", QUESTIONS_PER_BATCH * ENDINGS, 1),
        describe_system(SWAG, "swag", "choices", QUESTIONS_PER_BATCH, ENDINGS),
    ]


def verify_same_work(measurements: dict[str, list[Measurements]]) -> None:
    """Exit unless the runs used the same number of tokens and steps, and the same precision."""
    work = {
        name: {(run.tokens, run.steps, run.precision) for run in runs} for name, runs in measurements.items()
    }
    if len(set.union(*work.values())) > 1:
        raise SystemExit(f"tokens, steps or precision differ, so the speeds cannot be compared: {work}")


# ---- the report


def format_results(measurements: dict[str, list[Measurements]]) -> list[str]:
    """Format the medians as a Markdown table, and list every round."""
    base = statistics.median(run.tokens_per_second for run in measurements[CLASSIFY])
    lines = ["| | training tokens/s | sequences/s | ratio | precision |", "|---|---:|---:|---:|---|"]
    for name, runs in measurements.items():
        tokens = statistics.median(run.tokens_per_second for run in runs)
        sequences = statistics.median(run.sequences_per_second for run in runs)
        ratio = f"{tokens / base:.2f}"
        lines.append(f"| {name} | {tokens:.0f} | {sequences:.1f} | {ratio} | {runs[0].precision} |")
    rounds = {name: [str(run) for run in runs] for name, runs in measurements.items()}
    return [*lines, *list_rounds("Training speed", {**rounds, "ratio": compute_ratios(measurements)})]


def compute_ratios(measurements: dict[str, list[Measurements]]) -> list[str]:
    """Return the ratio of both speeds in each round."""
    rounds = zip(measurements[SWAG], measurements[CLASSIFY], strict=True)
    return [f"{swag.tokens_per_second / pairs.tokens_per_second:.2f}" for swag, pairs in rounds]


def describe_setup(rows: int, work: Measurements, model: Path, rounds: int) -> str:
    """Describe the setup in one paragraph."""
    return (
        f"{rows} training questions of CODAH with {ENDINGS} endings each, sampled with seed {SEED}, one "
        f"epoch, batches of {QUESTIONS_PER_BATCH} questions or {QUESTIONS_PER_BATCH * ENDINGS} pairs, at "
        f"most {MAX_LENGTH} tokens; {describe_model_and_rounds(model, rounds)}. Both trained on the same "
        f"{work.tokens} tokens, without padding, in {work.steps} steps; a sequence is a context "
        "with one ending. The ratio compares with the first row. The order alternates between rounds."
    )


def main() -> None:
    """Sample the questions, run everything and report."""
    args = parse_args()
    entries = list_systems()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            rows = write_splits(Path(scratch), args.data_dir, args.rows)
        except UserError as error:
            raise SystemExit(str(error)) from None
        measurements = run_systems(entries, Path(scratch), args.model.resolve(), args.rounds, alternate=True)
    verify_same_work(measurements)
    own = f"{Path(__file__).name} --data-dir DATA --model MODEL --rows {rows} --rounds {args.rounds}"
    what = describe_setup(rows, measurements[SWAG][0], args.model, args.rounds)
    title = "Training speed: bertkit swag and bertkit classify on the same tokens"
    publish(format_report(title, what, format_results(measurements), format_commands(own, entries)), args.out)


if __name__ == "__main__":
    main()

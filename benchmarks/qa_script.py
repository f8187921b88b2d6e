"""Fine-tune a model to answer questions with a plain `transformers.Trainer`.

This is the yardstick of `qa_train.py`: windows by the tokenizer, the answer looked for in each with Python
loops, and every window padded to the maximum length, as such scripts do unless told otherwise. It uses
bertkit for one thing, to score its answers, so that both sides are scored by the same rule.

The last thing it does is to print one line of JSON on standard output; all else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import qa_usual
from ner_script import peak_memory_mb

if TYPE_CHECKING:
    from transformers import Trainer

Question = dict[str, Any]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", type=Path, required=True, help="in the form of SQuAD")
    parser.add_argument("--validation_file", type=Path, required=True, help="the same")
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument("--doc_stride", type=int, default=128, help="pieces that two windows share")
    parser.add_argument("--per_device_train_batch_size", type=int, default=12)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=float, default=2.0)
    parser.add_argument("--no_pad_to_max_length", action="store_true", help="pad to the longest of a batch")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args(argv)


def questions_of(path: Path) -> list[Question]:
    """Each question with its paragraph."""
    return [
        {**question, "context": paragraph["context"]}
        for article in json.loads(path.read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def windows_of(questions: list[Question], tokenizer: Any, args: argparse.Namespace) -> Any:
    """The windows of all questions, with offsets and the number of the question of each."""
    return tokenizer(
        [question["question"].lstrip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second", max_length=args.max_seq_length, stride=args.doc_stride,
        return_overflowing_tokens=True, return_offsets_mapping=True,
        padding=False if args.no_pad_to_max_length else "max_length",
    )  # fmt: skip


def place_of(
    answer: dict[str, Any], offsets: list[tuple[int, int]], sides: list[int | None]
) -> tuple[int, int]:
    """The first and the last piece of an answer in a window; those of [CLS] where it is not all inside."""
    start, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    inside = [number for number, side in enumerate(sides) if side == 1]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < stop:
        return 0, 0
    first = max(number for number in inside if offsets[number][0] <= start)
    return first, min(number for number in inside if offsets[number][1] >= stop)


def training_rows(questions: list[Question], windows: Any) -> list[dict[str, Any]]:
    """What the model reads of each window, and where the answer begins and ends."""
    rows = []
    for number, question in enumerate(windows["overflow_to_sample_mapping"]):
        answer = questions[question]["answers"][0]
        place = place_of(answer, windows["offset_mapping"][number], windows.sequence_ids(number))
        inputs = {name: windows[name][number] for name in ("input_ids", "attention_mask", "token_type_ids")}
        rows.append({**inputs, "start_positions": place[0], "end_positions": place[1]})
    return rows


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    import torch
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(args.seed)  # before the model, whose head starts at random
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    questions = questions_of(args.train_file)
    arguments = TrainingArguments(
        output_dir=args.output_dir, per_device_train_batch_size=args.per_device_train_batch_size,
        learning_rate=args.learning_rate, num_train_epochs=args.num_train_epochs, seed=args.seed,
        save_strategy="no", report_to="none", use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    return Trainer(
        model=AutoModelForQuestionAnswering.from_pretrained(args.model_name_or_path), args=arguments,
        train_dataset=training_rows(questions, windows_of(questions, tokenizer, args)),
        processing_class=tokenizer, data_collator=DataCollatorWithPadding(tokenizer),
    )  # fmt: skip


def scores(trainer: Trainer, args: argparse.Namespace) -> dict[str, float]:
    """Exact and F1 of the answers, found the usual way."""
    from bertkit.metrics.squad import marks_v1, scores_v1

    questions = questions_of(args.validation_file)
    windows = windows_of(questions, trainer.processing_class, args)
    rows = [{name: windows[name][n] for name in ("input_ids", "attention_mask", "token_type_ids")}
            for n in range(len(windows["input_ids"]))]  # fmt: skip
    found = trainer.predict(rows).predictions
    sides = [windows.sequence_ids(number) for number in range(len(rows))]
    offsets = [
        [place if side == 1 else None for place, side in zip(places, of_each, strict=True)]
        for places, of_each in zip(windows["offset_mapping"], sides, strict=True)
    ]
    of = qa_usual.Windows(windows["overflow_to_sample_mapping"], offsets)
    ids, contexts = [one["id"] for one in questions], [one["context"] for one in questions]
    listed = qa_usual.find(np.stack(found[:2], 1), of, ids, contexts, 20, 30).nbest
    best = [next((span["text"] for span in listed[name] if span["text"]), "") for name in ids]
    return scores_v1(marks_v1([[answer["text"] for answer in one["answers"]] for one in questions], best))


def main() -> None:
    """Train, evaluate, and print the figures."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer = build_trainer(args)
        trained = trainer.train().metrics
        peak = peak_memory_mb()
        report = {"examples_per_second": trained["train_samples_per_second"], "peak_memory_mb": peak}
        report |= scores(trainer, args)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

"""Fine-tune a model to answer questions with a plain `transformers.Trainer`.

This is a baseline of `training.py`. As in similar scripts, the tokenizer builds the windows, Python loops
find the answer in each, and every window is padded to the maximum length by default. The script does not use
bertkit and computes no scores: `training.py` scores the answers of all systems.

Finally it prints one line of JSON with measurements and answers to standard output. Everything else goes to
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import qa_baseline
from trainer_options import FirstStepTimer, add_training_options, build_training_arguments, summarize_training

if TYPE_CHECKING:
    from transformers import Trainer

Question = dict[str, Any]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", type=Path, required=True, help="in the format of SQuAD")
    parser.add_argument("--validation_file", type=Path, required=True, help="in the format of SQuAD")
    parser.add_argument(
        "--doc_stride", type=int, default=128, help="tokens that consecutive windows have in common"
    )
    add_training_options(parser, length=384, batch_size=12)
    return parser.parse_args(argv)


def load_questions(path: Path) -> list[Question]:
    """Load all questions with their contexts."""
    return [
        {**question, "context": paragraph["context"]}
        for article in json.loads(path.read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def tokenize_windows(questions: list[Question], tokenizer: Any, args: argparse.Namespace) -> Any:
    """Return the windows of all questions, with offsets and the index of the question of each window."""
    return tokenizer(
        [question["question"].lstrip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second", max_length=args.max_seq_length, stride=args.doc_stride,
        return_overflowing_tokens=True, return_offsets_mapping=True,
        padding="max_length" if args.pad_to_max_length else False,
    )  # fmt: skip


def find_answer_tokens(
    answer: dict[str, Any], offsets: list[tuple[int, int]], sides: list[int | None]
) -> tuple[int, int]:
    """Return the first and last token of an answer in a window, or [CLS] if it is not completely inside."""
    start, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    inside = [number for number, side in enumerate(sides) if side == 1]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < stop:
        return 0, 0
    first = max(number for number in inside if offsets[number][0] <= start)
    return first, min(number for number in inside if offsets[number][1] >= stop)


def build_training_rows(questions: list[Question], windows: Any) -> list[dict[str, Any]]:
    """Return the model inputs of each window, and the first and last token of the answer."""
    rows = []
    for number, question in enumerate(windows["overflow_to_sample_mapping"]):
        answer = questions[question]["answers"][0]
        first, last = find_answer_tokens(
            answer, windows["offset_mapping"][number], windows.sequence_ids(number)
        )
        inputs = get_model_inputs(windows, number)
        rows.append({**inputs, "start_positions": first, "end_positions": last})
    return rows


def get_model_inputs(windows: Any, number: int) -> dict[str, list[int]]:
    """Return the inputs of a window; some tokenizers return no token type ids."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: windows[name][number] for name in names if name in windows}


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        set_seed,
    )

    set_seed(args.seed)  # before the random initialization of the head
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    questions = load_questions(args.train_file)
    return Trainer(
        model=AutoModelForQuestionAnswering.from_pretrained(args.model_name_or_path),
        args=build_training_arguments(args),
        train_dataset=build_training_rows(questions, tokenize_windows(questions, tokenizer, args)),
        processing_class=tokenizer, data_collator=DataCollatorWithPadding(tokenizer),
    )  # fmt: skip


def predict_answers(trainer: Trainer, args: argparse.Namespace) -> dict[str, str]:
    """Return question id -> answer."""
    questions = load_questions(args.validation_file)
    windows = tokenize_windows(questions, trainer.processing_class, args)
    rows = [get_model_inputs(windows, number) for number in range(len(windows["input_ids"]))]
    logits = trainer.predict(rows).predictions
    sides = [windows.sequence_ids(number) for number in range(len(rows))]
    offsets = [
        [pair if side == 1 else None for pair, side in zip(pairs, window_sides, strict=True)]
        for pairs, window_sides in zip(windows["offset_mapping"], sides, strict=True)
    ]
    baseline_windows = qa_baseline.Windows(windows["overflow_to_sample_mapping"], offsets)
    ids, contexts = ([question[key] for question in questions] for key in ("id", "context"))
    scores = np.stack(logits[:2], 1)
    nbest = qa_baseline.find_answers(scores, baseline_windows, ids, contexts, 20, 30).nbest
    return {name: next((span["text"] for span in nbest[name] if span["text"]), "") for name in ids}


def main() -> None:
    """Train, save, answer, and print the measurements."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer, first = build_trainer(args), FirstStepTimer()
        trained = trainer.train().metrics
        lengths = [sum(row["attention_mask"]) for row in trainer.train_dataset]
        report = summarize_training(lengths, args, trained["train_runtime"], first)
        trainer.save_model()
        report["answers"] = predict_answers(trainer, args)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

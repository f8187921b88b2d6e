"""Fine-tune a single-sentence classifier with a plain `transformers.Trainer`.

This is the yardstick of the speed benchmark: what somebody gets who wires `datasets`, a tokenizer
and `Trainer` together in the usual way. It does not use bertkit. By default every sentence is
padded to the maximum length; `--no_pad_to_max_length` pads each batch to its longest sentence.

The last thing it does is to print one line of JSON on standard output; all else, progress and
warnings, goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import sys
import time
from typing import TYPE_CHECKING, Any

STARTED = time.perf_counter()  # before the heavy imports, which are part of the whole time

if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True, help="TSV with the header sentence, label")
    parser.add_argument("--validation_file", required=True, help="TSV with the same header")
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_seq_length", type=int, default=128)
    padding = parser.add_mutually_exclusive_group()
    padding.add_argument(
        "--pad_to_max_length",
        action="store_true",
        default=True,
        help="pad every sentence to --max_seq_length (the default)",
    )
    padding.add_argument(
        "--no_pad_to_max_length",
        action="store_false",
        dest="pad_to_max_length",
        help="pad each batch to its longest sentence",
    )
    parser.add_argument("--per_device_train_batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=float, default=3.0)
    parser.add_argument("--max_train_samples", type=int, help="use only the first N rows")
    parser.add_argument(
        "--train_sampling_strategy",
        choices=("random", "sequential", "group_by_length"),
        default="random",
    )
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16 mixed precision")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args(argv)


def load_tables(args: argparse.Namespace) -> DatasetDict:
    """Load both TSV files; a quotation mark in them is a character like any other."""
    from datasets import load_dataset

    tables = load_dataset(
        "csv",
        data_files={"train": args.train_file, "validation": args.validation_file},
        delimiter="\t",
        quoting=csv.QUOTE_NONE,
        keep_default_na=False,
    )
    if args.max_train_samples is not None:
        wanted = min(args.max_train_samples, len(tables["train"]))
        tables["train"] = tables["train"].select(range(wanted))
    return tables


def tokenize(
    tables: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    classes: list[Any],
    args: argparse.Namespace,
) -> DatasetDict:
    """Turn sentences into token ids, and labels into positions in `classes`."""
    padding = "max_length" if args.pad_to_max_length else False
    class_ids = {name: number for number, name in enumerate(classes)}

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded = tokenizer(
            batch["sentence"], padding=padding, truncation=True, max_length=args.max_seq_length
        )
        return {**encoded, "label": [class_ids[name] for name in batch["label"]]}

    return tables.map(encode, batched=True, remove_columns=["sentence"])


def training_arguments(args: argparse.Namespace) -> TrainingArguments:
    """Hand the command line on; what is not on it keeps the defaults of `Trainer`."""
    import torch
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=args.output_dir,
        per_device_train_batch_size=args.per_device_train_batch_size,
        learning_rate=args.learning_rate,
        num_train_epochs=args.num_train_epochs,
        train_sampling_strategy=args.train_sampling_strategy,
        bf16=args.bf16,
        seed=args.seed,
        save_strategy="no",  # the model is saved once, after the timed training
        report_to="none",
        use_cpu=not torch.cuda.is_available(),  # asked for where bf16 meets no accelerator
    )


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of sentences whose highest-scored class is the right one."""
    chosen = prediction.predictions.argmax(axis=-1)
    return {"accuracy": float((chosen == prediction.label_ids).mean())}


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        default_data_collator,
        set_seed,
    )

    set_seed(args.seed)  # before the model, whose classification head starts at random
    tables = load_tables(args)
    classes = sorted(tables["train"].unique("label"))
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model_name_or_path, num_labels=len(classes)
    )
    tables = tokenize(tables, tokenizer, classes, args)
    return Trainer(
        model=model,
        args=training_arguments(args),
        train_dataset=tables["train"],
        eval_dataset=tables["validation"],
        processing_class=tokenizer,
        data_collator=(
            default_data_collator if args.pad_to_max_length else DataCollatorWithPadding(tokenizer)
        ),
        compute_metrics=accuracy,
    )


def main() -> None:
    """Train, save, evaluate, and print the figures."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer = build_trainer(args)
        trained = trainer.train().metrics
        trainer.save_model()
        evaluated = trainer.evaluate()
    report = {
        "train_samples_per_second": trained["train_samples_per_second"],
        "train_runtime": trained["train_runtime"],
        "accuracy": evaluated["eval_accuracy"],
        "seconds_total": round(time.perf_counter() - STARTED, 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()

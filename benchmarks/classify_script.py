"""Fine-tune a classifier of single texts with a plain `transformers.Trainer`.

This is a baseline of `training.py`, which combines `datasets`, a tokenizer and `Trainer` as in the
transformers examples. It does not use bertkit. By default every text is padded to the maximum length;
`--no_pad_to_max_length` pads each batch to its longest text.

Finally it prints one line of JSON to standard output. Everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from trainer_options import FirstStepTimer, add_training_options, build_training_arguments, summarize_training

if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase, Trainer


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True, help="JSON lines with text and label")
    parser.add_argument("--validation_file", required=True, help="JSON lines with the same columns")
    add_training_options(parser, length=128, batch_size=32)
    return parser.parse_args(argv)


def tokenize(
    tables: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    classes: list[Any],
    args: argparse.Namespace,
) -> DatasetDict:
    """Convert texts to token ids, and labels to their indices in `classes`."""
    padding = "max_length" if args.pad_to_max_length else False
    class_ids = {name: number for number, name in enumerate(classes)}

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded = tokenizer(batch["text"], padding=padding, truncation=True, max_length=args.max_seq_length)
        return {**encoded, "label": [class_ids[name] for name in batch["label"]]}

    return tables.map(encode, batched=True, remove_columns=["text"])


def compute_accuracy(prediction: Any) -> dict[str, float]:
    """Return the fraction of texts that are classified correctly."""
    predicted = prediction.predictions.argmax(axis=-1)
    return {"accuracy": float((predicted == prediction.label_ids).mean())}


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    from datasets import load_dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        default_data_collator,
        set_seed,
    )

    set_seed(args.seed)  # before the random initialization of the head
    files = {"train": args.train_file, "validation": args.validation_file}
    tables = load_dataset("json", data_files=files)
    classes = sorted(tables["train"].unique("label"))
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model_name_or_path, num_labels=len(classes)
    )
    tables = tokenize(tables, tokenizer, classes, args)
    return Trainer(
        model=model,
        args=build_training_arguments(args),
        train_dataset=tables["train"],
        eval_dataset=tables["validation"],
        processing_class=tokenizer,
        data_collator=(
            default_data_collator if args.pad_to_max_length else DataCollatorWithPadding(tokenizer)
        ),
        compute_metrics=compute_accuracy,
    )


def main() -> None:
    """Train, save, evaluate, and print the measurements."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer, first = build_trainer(args), FirstStepTimer()
        trained = trainer.train().metrics
        lengths = [sum(mask) for mask in trainer.train_dataset["attention_mask"]]
        report = summarize_training(lengths, args, trained["train_runtime"], first)
        trainer.save_model()
        report["accuracy"] = trainer.evaluate()["eval_accuracy"]
    print(json.dumps(report))


if __name__ == "__main__":
    main()

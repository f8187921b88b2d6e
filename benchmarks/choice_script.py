"""Fine-tune a multiple-choice model with a plain `transformers.Trainer`.

This is a baseline of `training.py`. All questions have the same number of endings, and a batch is padded to
its longest sequence. The script does not use bertkit.

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
    columns = "context, ending0 and so on, and label"
    parser.add_argument("--train_file", required=True, help=f"JSON lines with {columns}")
    parser.add_argument("--validation_file", required=True, help="JSON lines with the same columns")
    add_training_options(parser, length=128, batch_size=8, pad_to_max_length=False)
    return parser.parse_args(argv)


def tokenize(
    tables: DatasetDict, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace
) -> DatasetDict:
    """Tokenize the pairs of context and ending; `length` is the length of the longest pair of a question."""
    endings = [name for name in tables["train"].column_names if name.startswith("ending")]

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        contexts, texts = [row["context"]] * len(endings), [row[name] for name in endings]
        encoded = tokenizer(contexts, texts, truncation=True, max_length=args.max_seq_length)
        return {**encoded, "length": max(map(len, encoded["input_ids"]))}

    return tables.map(encode, remove_columns=["context", *endings])


def make_collator(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return a collator that leaves out the column `length`, which only the sampler needs."""
    from transformers import DataCollatorForMultipleChoice

    collate = DataCollatorForMultipleChoice(tokenizer)
    return lambda rows: collate([{key: row[key] for key in row if key != "length"} for row in rows])


def compute_accuracy(prediction: Any) -> dict[str, float]:
    """Return the fraction of questions that are answered correctly."""
    predicted = prediction.predictions.argmax(axis=-1)
    return {"accuracy": float((predicted == prediction.label_ids).mean())}


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    from datasets import load_dataset
    from transformers import AutoModelForMultipleChoice, AutoTokenizer, Trainer, set_seed

    set_seed(args.seed)  # before the random initialization of the head
    tables = load_dataset("json", data_files={"train": args.train_file, "validation": args.validation_file})
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForMultipleChoice.from_pretrained(args.model_name_or_path)
    tables = tokenize(tables, tokenizer, args)
    arguments = build_training_arguments(args)
    arguments.remove_unused_columns = False  # otherwise Trainer would remove the lengths before grouping
    return Trainer(
        model=model, args=arguments, train_dataset=tables["train"], eval_dataset=tables["validation"],
        processing_class=tokenizer, data_collator=make_collator(tokenizer), compute_metrics=compute_accuracy,
    )  # fmt: skip


def main() -> None:
    """Train, save, evaluate, and print the measurements."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer, first = build_trainer(args), FirstStepTimer()
        trained = trainer.train().metrics
        lengths = [sum(map(len, choices)) for choices in trainer.train_dataset["input_ids"]]
        report = summarize_training(lengths, args, trained["train_runtime"], first)
        trainer.save_model()
        report["accuracy"] = trainer.evaluate()["eval_accuracy"]
    print(json.dumps(report))


if __name__ == "__main__":
    main()

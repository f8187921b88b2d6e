"""Fine-tune a token classifier with a plain `transformers.Trainer`.

This is a baseline of `training.py`. It tokenizes word by word, labels the first token of each word, and
ignores the other tokens (-100). Batches are padded to their longest sentence. It uses bertkit only to count
the predicted entities, so that both systems are scored in the same way.

Finally it prints one line of JSON to standard output. Everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer_options import FirstStepTimer, add_training_options, build_training_arguments, summarize_training

if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase, Trainer

IGNORE_INDEX = -100  # the label that the loss ignores


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True, help="JSON lines with tokens and tags, in IOB2")
    parser.add_argument("--validation_file", required=True, help="JSON lines with the same columns")
    add_training_options(parser, length=128, batch_size=16, pad_to_max_length=False)
    return parser.parse_args(argv)


def load_tables(args: argparse.Namespace) -> DatasetDict:
    """Load both files."""
    from datasets import load_dataset

    return load_dataset("json", data_files={"train": args.train_file, "validation": args.validation_file})


def list_classes(tables: DatasetDict) -> list[str]:
    """Return the tags of both splits, because a small training split may lack some."""
    return sorted({tag for table in tables.values() for tags in table["tags"] for tag in tags})


def tokenize(
    tables: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    classes: list[str],
    args: argparse.Namespace,
) -> DatasetDict:
    """Tokenize the words, and label the first token of each word with its tag."""
    class_ids = {name: number for number, name in enumerate(classes)}

    def align_labels(words: list[int | None], tags: list[str]) -> list[int]:
        labels, previous = [], None
        for word in words:
            is_first_token = word is not None and word != previous
            labels.append(class_ids[tags[word]] if is_first_token and word is not None else IGNORE_INDEX)
            previous = word
        return labels

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded = tokenizer(
            batch["tokens"], is_split_into_words=True, truncation=True, max_length=args.max_seq_length
        )
        labels = [align_labels(encoded.word_ids(row), tags) for row, tags in enumerate(batch["tags"])]
        return {**encoded, "labels": labels}

    return tables.map(encode, batched=True, remove_columns=tables["train"].column_names)


def make_entity_f1(classes: list[str]) -> Callable[[Any], dict[str, float]]:
    """Return a function that computes the F1 of the entities."""
    import numpy as np

    from bertkit.tasks.ner.predictions import count_entities, score_entities
    from bertkit.tasks.ner.tags import TagSet

    tags = TagSet(classes)

    def f1(prediction: Any) -> dict[str, float]:
        is_labeled = prediction.label_ids != IGNORE_INDEX
        offsets = np.concatenate([[0], np.cumsum(is_labeled.sum(axis=1))])
        predicted = prediction.predictions.argmax(axis=-1)[is_labeled]
        counts = count_entities(prediction.label_ids[is_labeled], predicted, offsets, tags)
        return {"f1": score_entities(counts)["f1"]}

    return f1


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    from transformers import (
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        Trainer,
        set_seed,
    )

    set_seed(args.seed)  # before the random initialization of the head
    tables = load_tables(args)
    classes = list_classes(tables)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForTokenClassification.from_pretrained(args.model_name_or_path, num_labels=len(classes))
    tables = tokenize(tables, tokenizer, classes, args)
    return Trainer(
        model=model,
        args=build_training_arguments(args),
        train_dataset=tables["train"],
        eval_dataset=tables["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=make_entity_f1(classes),
    )


def main() -> None:
    """Train, save, evaluate, and print the measurements."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer, first = build_trainer(args), FirstStepTimer()
        trained = trainer.train().metrics
        lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
        report = summarize_training(lengths, args, trained["train_runtime"], first)
        trainer.save_model()
        report["f1"] = trainer.evaluate()["eval_f1"]
    print(json.dumps(report))


if __name__ == "__main__":
    main()

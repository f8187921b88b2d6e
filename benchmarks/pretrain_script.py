"""Pre-train a small BERT from scratch with a plain `transformers.Trainer`.

This is a baseline of `training.py`. Examples are pairs of sentences as in the code of the BERT paper, and
`DataCollatorForLanguageModeling` masks single tokens. `BertForPreTraining` computes logits at every position.
The script does not use bertkit.

Finally it prints one line of JSON to standard output. Everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_options import FirstStepTimer, add_training_options, build_training_arguments, summarize_training

if TYPE_CHECKING:
    from transformers import Trainer

Document = list[list[int]]  # token ids of each sentence
SPECIAL_TOKENS = 3  # of a pair: [CLS] and two [SEP]
SHORT_PROBABILITY = 0.1  # of a pair with a random, shorter length


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "one sentence per line, a blank line between documents"
    parser.add_argument("--train_file", type=Path, required=True, help=text)
    parser.add_argument("--validation_file", type=Path, required=True, help=text)
    parser.add_argument("--num_hidden_layers", type=int, default=2)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--num_attention_heads", type=int, default=2)
    add_training_options(parser, length=64, batch_size=64, pad_to_max_length=False)
    return parser.parse_args(argv)


def load_documents(path: Path, tokenizer: Any) -> list[Document]:
    """Return the token ids of all sentences of each document."""
    texts = [block.split("\n") for block in path.read_text("utf-8").strip().split("\n\n")]
    encoded = iter(
        tokenizer([line for lines in texts for line in lines], add_special_tokens=False)["input_ids"]
    )
    documents = [[ids for _ in lines if (ids := next(encoded))] for lines in texts]
    return [document for document in documents if document]


def build_examples(
    documents: list[Document], tokenizer: Any, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return pairs of texts; in half of them, the second text is from a random other document."""
    rng, examples = random.Random(args.seed), []
    begin, end = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    for number in range(len(documents)):
        for first, second, is_random in pair_sentences(documents, number, args.max_seq_length, rng):
            examples.append({
                "input_ids": begin + first + end + second + end,
                "token_type_ids": [0] * (len(first) + 2) + [1] * (len(second) + 1),
                "next_sentence_label": int(is_random),
            })  # fmt: skip
    return examples


def pair_sentences(
    documents: list[Document], number: int, max_length: int, rng: random.Random
) -> list[tuple[list[int], list[int], bool]]:
    """Return the pairs of a document, and whether the second text is random."""
    sentences, pairs, start = documents[number], [], 0
    while start < len(sentences):
        limit = max_length - SPECIAL_TOKENS
        target = rng.randint(2, limit) if rng.random() < SHORT_PROBABILITY else limit
        stop, size = start, 0
        while stop < len(sentences) and size < target:
            size += len(sentences[stop])
            stop += 1
        middle = start + rng.randint(1, stop - start - 1) if stop - start > 1 else stop
        first = list(chain(*sentences[start:middle]))
        is_random = middle == stop or rng.random() < 0.5
        if is_random:
            other = documents[(number + rng.randint(1, len(documents) - 1)) % len(documents)]
            second = list(chain(*other[rng.randrange(len(other)) :]))[: max(1, target - len(first))]
            stop = middle  # the sentences that were not used are paired again
        else:
            second = list(chain(*sentences[middle:stop]))
        pairs.append((*truncate_pair(first, second, limit, rng), is_random))
        start = stop
    return pairs


def truncate_pair(
    first: list[int], second: list[int], limit: int, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Remove tokens of the longer text, at its beginning or end, until both fit into `limit`."""
    while len(first) + len(second) > limit:
        longer = first if len(first) > len(second) else second
        del longer[0 if rng.random() < 0.5 else -1]
    return first, second


def build_trainer(args: argparse.Namespace) -> Trainer:
    """Assemble data, tokenizer and model."""
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForPreTraining,
        DataCollatorForLanguageModeling,
        Trainer,
        set_seed,
    )

    set_seed(args.seed)  # before the random initialization
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=args.num_hidden_layers, hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads, intermediate_size=4 * args.hidden_size,
    )  # fmt: skip
    train, validation = (
        build_examples(load_documents(path, tokenizer), tokenizer, args)
        for path in (args.train_file, args.validation_file)
    )
    arguments = build_training_arguments(args)
    arguments.prediction_loss_only = True
    return Trainer(
        model=BertForPreTraining(config), args=arguments, train_dataset=train, eval_dataset=validation,
        processing_class=tokenizer, data_collator=DataCollatorForLanguageModeling(tokenizer),
    )  # fmt: skip


def main() -> None:
    """Train, save, evaluate, and print the measurements."""
    args = parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        trainer, first = build_trainer(args), FirstStepTimer()
        trained = trainer.train().metrics
        lengths = [len(row["input_ids"]) for row in trainer.train_dataset]
        report = summarize_training(lengths, args, trained["train_runtime"], first)
        trainer.save_model()
        report["loss"] = trainer.evaluate()["eval_loss"]
    print(json.dumps(report))


if __name__ == "__main__":
    main()

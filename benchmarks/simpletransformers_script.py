"""Fine-tune a classifier of single texts with simpletransformers, as its documentation does.

A yardstick of `training.py`, with the options of `trainer_script.py`; other options keep their own
defaults. It is run by the interpreter that has it. Its model for question answering cannot be imported beside
transformers 5, which has no `SquadExample` any more.

The last thing it does is to print one line of JSON on standard output; all else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

import trainer_script
from trainer_options import FirstStepTimer, summarize_training


def build_model_args(args: argparse.Namespace) -> dict[str, Any]:
    """Return what a user would set, and that nothing is evaluated, saved or cached beside the training."""
    return {
        "num_train_epochs": int(args.num_train_epochs), "learning_rate": args.learning_rate,
        "train_batch_size": args.per_device_train_batch_size, "eval_batch_size": 64,
        "max_seq_length": args.max_seq_length, "manual_seed": args.seed, "output_dir": args.output_dir,
        "cache_dir": f"{args.output_dir}-cache", "tensorboard_dir": f"{args.output_dir}-runs",
        "save_steps": -1, "save_model_every_epoch": False, "save_eval_checkpoints": False,
        "use_multiprocessing_for_evaluation": False,  # by default; a fork after threads have begun hangs
        "fp16": False,  # it is on by default, and needs an accelerator
    }  # fmt: skip


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train and score; return the measurements."""
    import pandas as pd
    import torch
    from simpletransformers.classification import ClassificationModel

    seconds: list[float] = []

    class Timed(ClassificationModel):  # the training loop alone, without making features, as Trainer's is
        def train(self, *given: Any, **named: Any) -> Any:
            started = time.perf_counter()
            done = super().train(*given, **named)
            seconds.append(time.perf_counter() - started)
            return done

    rows, held = (pd.read_json(path, lines=True) for path in (args.train_file, args.validation_file))
    classes = sorted(rows["label"].unique())
    for table in (rows, held):
        table["labels"] = table["label"].map(classes.index)
    cuda, first = torch.cuda.is_available(), FirstStepTimer()
    model = Timed(
        "bert", args.model_name_or_path, num_labels=len(classes), use_cuda=cuda, args=build_model_args(args)
    )
    model.train_model(rows[["text", "labels"]])
    texts = model.tokenizer(rows["text"].tolist(), truncation=True, max_length=args.max_seq_length)
    report = summarize_training(texts["attention_mask"], args, seconds[0], first)
    predicted, _ = model.predict(held["text"].tolist())
    return report | {"accuracy": float((held["labels"] == predicted).mean())}


def main() -> None:
    """Train, and print the measurements."""
    args = trainer_script.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        report = train(args)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

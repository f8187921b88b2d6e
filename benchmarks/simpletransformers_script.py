"""Fine-tune a classifier of single texts with simpletransformers, as its documentation does.

This is a baseline of `training.py`, with the options of `classify_script.py`; other options keep their
defaults. It requires an interpreter with simpletransformers. The question answering model of
simpletransformers cannot be imported with transformers 5, which has removed `SquadExample`.

Finally it prints one line of JSON to standard output. Everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

import classify_script
from trainer_options import FirstStepTimer, summarize_training


def build_model_args(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run, without evaluation, checkpoints and caching."""
    return {
        "num_train_epochs": int(args.num_train_epochs), "learning_rate": args.learning_rate,
        "train_batch_size": args.per_device_train_batch_size, "eval_batch_size": 64,
        "max_seq_length": args.max_seq_length, "manual_seed": args.seed, "output_dir": args.output_dir,
        "cache_dir": f"{args.output_dir}-cache", "tensorboard_dir": f"{args.output_dir}-runs",
        "save_steps": -1, "save_model_every_epoch": False, "save_eval_checkpoints": False,
        "use_multiprocessing_for_evaluation": False,  # True forks after threads have started, and hangs
        "fp16": False,  # on by default, and requires an accelerator
    }  # fmt: skip


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate; return the measurements."""
    import pandas as pd
    import torch
    from simpletransformers.classification import ClassificationModel

    seconds: list[float] = []

    class TimedModel(ClassificationModel):  # times the training loop without building features, like Trainer
        def train(self, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = super().train(*args, **kwargs)
            seconds.append(time.perf_counter() - started)
            return result

    rows, validation = (pd.read_json(path, lines=True) for path in (args.train_file, args.validation_file))
    classes = sorted(rows["label"].unique())
    for table in (rows, validation):
        table["labels"] = table["label"].map(classes.index)
    cuda, first = torch.cuda.is_available(), FirstStepTimer()
    model = TimedModel(
        "bert", args.model_name_or_path, num_labels=len(classes), use_cuda=cuda, args=build_model_args(args)
    )
    model.train_model(rows[["text", "labels"]])
    texts = model.tokenizer(rows["text"].tolist(), truncation=True, max_length=args.max_seq_length)
    report = summarize_training([sum(mask) for mask in texts["attention_mask"]], args, seconds[0], first)
    predictions, _ = model.predict(validation["text"].tolist())
    return report | {"accuracy": float((validation["labels"] == predictions).mean())}


def main() -> None:
    """Train, and print the measurements."""
    args = classify_script.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        report = train(args)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

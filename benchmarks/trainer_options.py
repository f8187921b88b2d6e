"""Shared code of the plain `Trainer` scripts: training options, and the measurements they print.

The scripts show what users write without bertkit, so nothing here imports it.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import TrainingArguments


def add_training_options(parser: argparse.ArgumentParser, length: int, batch_size: int) -> None:
    """Add what every script takes, by the names of the transformers examples; `length` is their default."""
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_seq_length", type=int, default=length)
    parser.add_argument(
        "--no_pad_to_max_length",
        action="store_false",
        dest="pad_to_max_length",
        help="pad each batch to its longest sequence; by default all are padded to --max_seq_length",
    )
    parser.add_argument("--per_device_train_batch_size", type=int, default=batch_size)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=float, default=3.0)
    parser.add_argument(
        "--train_sampling_strategy",
        choices=("random", "sequential", "group_by_length"),
        default="random",
    )
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16 mixed precision")
    parser.add_argument("--seed", type=int, default=42)


def build_training_arguments(args: argparse.Namespace) -> TrainingArguments:
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


class FirstStepTimer:
    """Sees the end of this process's first optimizer step, whoever takes it; make it before training."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.seconds: float | None = None
        self._hook = register_optimizer_step_post_hook(self._ended)

    def _ended(self, *_: Any) -> None:
        import psutil

        self.seconds = time.time() - psutil.Process().create_time()
        self._hook.remove()


def summarize_training(
    masks: Iterable[Sequence[int]], args: argparse.Namespace, seconds: float, first: FirstStepTimer
) -> dict[str, Any]:
    """Return what every script prints of its training; call it when that is over.

    Args:
        masks: the attention mask of each example, which is 0 at padding.
        seconds: of training.
    """
    lengths = [sum(mask) for mask in masks]
    return {
        "examples_per_second": len(lengths) * args.num_train_epochs / seconds,
        "tokens_per_second": sum(lengths) * args.num_train_epochs / seconds,
        "first_step_seconds": first.seconds,
        "peak_memory_mb": get_peak_memory_mb(),
        "precision": "bf16" if args.bf16 else "fp32",
    }


def get_peak_memory_mb() -> float:
    """Return the most memory used so far: the device's where there is one, else this process's."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6

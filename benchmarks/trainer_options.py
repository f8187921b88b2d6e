"""Shared code of the plain `Trainer` scripts: training options, and the measurements they print.

The scripts show code without bertkit, so this module does not import it.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import TrainingArguments


def add_training_options(
    parser: argparse.ArgumentParser, length: int, batch_size: int, pad_to_max_length: bool = True
) -> None:
    """Add the options of all scripts, with the names of the transformers examples and these defaults."""
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_seq_length", type=int, default=length)
    parser.add_argument(
        "--no_pad_to_max_length",
        action="store_false",
        dest="pad_to_max_length",
        default=pad_to_max_length,
        help="pad each batch to its longest sequence; by default, some scripts pad to --max_seq_length",
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
    """Convert the command line to training arguments; other arguments keep the defaults of `Trainer`."""
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
        use_cpu=not torch.cuda.is_available(),  # required for bf16 without an accelerator
    )


class FirstStepTimer:
    """A timer from the start of the process to its first optimizer step; create it before training."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.seconds: float | None = None
        self._hook = register_optimizer_step_post_hook(self._record)

    def _record(self, *_: Any) -> None:
        import psutil

        self.seconds = time.time() - psutil.Process().create_time()
        self._hook.remove()


def summarize_training(
    lengths: Sequence[int], args: argparse.Namespace, seconds: float, first: FirstStepTimer
) -> dict[str, Any]:
    """Return the measurements that every script prints after training.

    Args:
        lengths: number of tokens of each example, without padding.
        seconds: training time.
    """
    return {
        "examples_per_second": len(lengths) * args.num_train_epochs / seconds,
        "tokens_per_second": sum(lengths) * args.num_train_epochs / seconds,
        "first_step_seconds": first.seconds,
        "peak_memory_mb": get_peak_memory_mb(),
        "precision": "bf16" if args.bf16 else "fp32",
    }


def get_peak_memory_mb() -> float:
    """Return the peak memory of the GPU, or of this process if there is no GPU."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6

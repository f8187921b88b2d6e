"""Progress reports: bertkit's own reporter, and silence for the libraries that it uses.

The pipeline never prints. The command line passes a reporter that does; a call from Python reports nothing
unless the caller passes a reporter.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

T = TypeVar("T")
NOISY_LOGGERS = [
    "transformers",
    "accelerate",
    "datasets",
    "huggingface_hub",
    "torch",
    "onnxscript",
    "onnx_ir",
    "filelock",
    "httpx",
    "httpcore",
]
VERBOSITY_VARIABLE = "TRANSFORMERS_VERBOSITY"


class Reporter:
    """A reporter that discards everything. Subclasses show what they receive."""

    def info(self, message: str) -> None:
        """Report a choice that was made, and why."""

    def warn(self, message: str) -> None:
        """Report something that the user may want to change."""

    def on_train_begin(self, total: int, done: int) -> None:
        """Report that training starts.

        Args:
            total: Optimizer steps of the whole run.
            done: Steps that were done before a resume.
        """

    def on_step_end(self, step: int, **metrics: Any) -> None:
        """Report that a step is done; `metrics` may have the latest `loss`, and its `parts` by name."""

    def on_train_end(self) -> None:
        """Report that the last step is done, or that training stopped."""

    def track(self, batches: Iterable[T], total: int, what: str) -> Iterator[T]:
        """Yield `batches` unchanged, and show how many of `total` are done."""
        yield from batches


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Show only errors of other libraries, no warnings and no progress bars; restore everything at the end.

    What they print nevertheless goes to standard error, since standard output is for results only.
    transformers takes a second to import, and an early error may not need it, so it is not imported here. If
    it is imported later, it reads its verbosity from the environment, and its progress bars follow the Hub's.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    verbosity, os.environ[VERBOSITY_VARIABLE] = os.environ.get(VERBOSITY_VARIABLE), "error"
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    had_progress_bars = not are_progress_bars_disabled()
    _set_progress_bars(False)
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            del os.environ[VERBOSITY_VARIABLE]
            if verbosity is not None:
                os.environ[VERBOSITY_VARIABLE] = verbosity
            if had_progress_bars:
                _set_progress_bars(True)


def _set_progress_bars(enabled: bool) -> None:
    """Switch the progress bars of huggingface_hub, and of transformers if it is imported."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if enabled else disable_progress_bars)()
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        if enabled:
            transformers_logging.enable_progress_bar()
        else:
            transformers_logging.disable_progress_bar()

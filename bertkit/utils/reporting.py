"""The interface of progress reports, and a context manager that silences other libraries.

The pipeline prints nothing itself, but calls a reporter. The reporter of the command line prints. A call from
Python reports nothing unless the caller passes a reporter.
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
    "evaluate",
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
    """Base class of reporters, which reports nothing."""

    def info(self, message: str) -> None:
        """Report information, such as an automatic choice and the reason for it."""

    def warn(self, message: str) -> None:
        """Report a problem that does not stop the command."""

    def on_train_begin(self, total: int, done: int) -> None:
        """Report that training begins.

        Args:
            total: Number of optimizer steps of the whole run.
            done: Number of optimizer steps before a resume, else 0.
        """

    def on_step_end(self, step: int, **metrics: Any) -> None:
        """Report the end of an optimizer step.

        Args:
            step: Number of steps so far.
            **metrics: After a logged step, `loss` and the losses `parts` by name.
        """

    def on_train_end(self) -> None:
        """Report that training has ended, been interrupted or failed."""

    def track(self, batches: Iterable[T], total: int, description: str) -> Iterator[T]:
        """Yield `batches` unchanged, and report the progress.

        Args:
            batches: The items.
            total: Number of items.
            what: Name of the progress bar.
        """
        yield from batches


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Hide the warnings and progress bars of other libraries during the block; errors are still shown.

    Standard output is redirected to standard error, because bertkit prints only results to standard output.

    transformers is not imported here, because its import takes a second and would delay early errors. A later
    import reads the verbosity from the environment, and takes over the progress bar setting of
    huggingface_hub.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    verbosity = os.environ.get(VERBOSITY_VARIABLE)
    os.environ[VERBOSITY_VARIABLE] = "error"
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
    """Enable or disable the progress bars of huggingface_hub, and of transformers if it is imported."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    if enabled:
        enable_progress_bars()
    else:
        disable_progress_bars()
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        if enabled:
            transformers_logging.enable_progress_bar()
        else:
            transformers_logging.disable_progress_bar()

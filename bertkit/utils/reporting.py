"""The interface of progress reports, and a context manager that silences other libraries.

The pipeline prints nothing itself. It reports to the reporter of `use_reporter`: that of the command line
prints, and by default nothing is reported.

Progress is of two kinds: that of batches (`track_progress`), and that of the bytes of a file (`track_reading`
around the code that calls `report_position`). The reporter shows both as bars.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
NOISY_LOGGERS = [
    "transformers", "accelerate", "datasets", "evaluate", "huggingface_hub", "torch", "onnxscript", "onnx_ir",
    "filelock", "httpx", "httpcore",
]  # fmt: skip
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

    def track(
        self,
        batches: Iterable[T],
        total: int | None,
        description: str,
        get_size: Callable[[T], int] = lambda _: 1,
    ) -> Iterator[T]:
        """Yield `batches` unchanged, and report the progress.

        Args:
            batches: The batches.
            total: Sum of the sizes of all batches; None if it is unknown.
            description: Name of the progress bar.
            get_size: Returns the size of a batch; by default, batches are counted.
        """
        yield from batches

    def track_position(self, size: int, description: str) -> AbstractContextManager[Callable[[int], None]]:
        """Report the progress of reading a file during the block.

        Args:
            size: Size of the file in bytes.
            description: Name of the progress bar.

        Returns:
            A context manager that yields a function that receives the current position in the file.
        """
        return nullcontext(lambda _: None)


_active_reporter: ContextVar[Reporter] = ContextVar("active_reporter", default=Reporter())  # noqa: B039


def get_reporter() -> Reporter:
    """Return the reporter of `use_reporter`; by default, one that reports nothing."""
    return _active_reporter.get()


@contextmanager
def use_reporter(reporter: Reporter) -> Iterator[None]:
    """Report to this reporter during the block."""
    token = _active_reporter.set(reporter)
    try:
        yield
    finally:
        _active_reporter.reset(token)


def keep_reporter(items: Iterable[T]) -> Generator[T]:
    """Yield items that are computed later, during the iteration, and report to the reporter of this call."""
    reporter, iterator = get_reporter(), iter(items)

    def iterate() -> Generator[T]:
        while True:
            with use_reporter(reporter):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    return iterate()


def silence_reports() -> AbstractContextManager[None]:
    """Report nothing during the block."""
    return use_reporter(Reporter())


_reported_warnings: set[str] = set()
_position_callback: ContextVar[Callable[[int], None]] = ContextVar("position", default=lambda _: None)


@contextmanager
def track_reading(size: int, description: str) -> Iterator[None]:
    """Report the positions that `report_position` receives during the block; see `track_position`."""
    with _active_reporter.get().track_position(size, description) as callback:
        token = _position_callback.set(callback)
        try:
            yield
        finally:
            _position_callback.reset(token)


def report_position(position: int) -> None:
    """Report how many bytes of a file have been read; without `track_reading`, do nothing."""
    _position_callback.get()(position)


def report_info(message: str) -> None:
    """Report information, such as an automatic choice and the reason for it."""
    _active_reporter.get().info(message)


def report_warning(message: str) -> None:
    """Report a problem that does not stop the command."""
    _active_reporter.get().warn(message)


def report_warning_once(message: str) -> None:
    """Report a problem that does not stop the command, once per process."""
    reporter = _active_reporter.get()
    if type(reporter) is not Reporter and message not in _reported_warnings:
        _reported_warnings.add(message)
        reporter.warn(message)


def track_progress(
    batches: Iterable[T], total: int | None, description: str, get_size: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Yield `batches` unchanged, and report the progress; see `Reporter.track`."""
    return _active_reporter.get().track(batches, total, description, get_size)


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Hide the warnings and progress bars of other libraries during the block; errors are still shown.

    Standard output is redirected to standard error, because bertkit prints only results to standard output.

    transformers is not imported here, because its import takes a second and would delay early errors. A later
    import reads the verbosity from the environment, and takes over the progress bar setting of
    huggingface_hub.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # setLevel clears the caches of all loggers, so it is only called for levels that differ.
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    levels = {name: level for name, level in levels.items() if level != logging.ERROR}
    verbosity = os.environ.get(VERBOSITY_VARIABLE)
    os.environ[VERBOSITY_VARIABLE] = "error"
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    had_progress_bars = not are_progress_bars_disabled()
    _set_progress_bars(False)
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        for name in levels:
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

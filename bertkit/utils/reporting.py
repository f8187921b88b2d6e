"""What the pipeline tells while it works. The pipeline never prints: the command line brings a
reporter that does, and a call from Python is quiet unless it is given one.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class Reporter:
    """The quiet one. A subclass shows what it is told."""

    def info(self, message: str) -> None:
        """Something the user should know: a choice that was made and why."""

    def warn(self, message: str) -> None:
        """Something the user may want to change."""

    def on_train_begin(self, total: int, done: int) -> None:
        """`total` optimizer steps in all, `done` of them before a resume."""

    def on_step_end(self, step: int, **figures: Any) -> None:
        """Step `step` is done; `figures` may hold the latest `loss`, and its `parts` by name."""

    def on_train_end(self) -> None:
        """The last step is done, or training was stopped."""

    def track(self, batches: Iterable[T], total: int, what: str) -> Iterator[T]:
        """Pass `batches` through, showing how many are done."""
        yield from batches

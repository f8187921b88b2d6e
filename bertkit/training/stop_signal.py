"""Ctrl-C and SIGTERM: asked once, training stops at the next step with a checkpoint; twice, at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from bertkit.utils import distributed


class StopRequest:
    """Context manager; `requested` turns true at the first signal.

    A signal may reach one rank alone: `agreed` is the same on all.

    In a thread other than the main one (a notebook's worker) signals are left alone.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_requested_on_any_rank(self) -> bool:
        """Whether a signal has reached any rank; all must ask at the same place."""
        return distributed.any_rank(self.requested)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

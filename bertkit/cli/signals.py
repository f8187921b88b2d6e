"""Ctrl-C and SIGTERM stop a command wherever in it they land."""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RETRY_SECONDS = 0.05  # seconds


@contextmanager
def handle_signals() -> Iterator[None]:
    """Within this SIGTERM is as Ctrl-C, and neither is lost.

    Where Python runs a finalizer (`__del__`, what a weak reference calls) it prints an exception and goes
    on. A signal's is raised once more, a little later, until it lands where it stops something. In a thread
    other than the main one signals are somebody else's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told, handler = sys.unraisablehook, signal.signal(signal.SIGTERM, signal.default_int_handler)

    def hook(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            again = threading.Timer(RETRY_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
            again.daemon = True
            again.start()
        else:
            told(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = told
        signal.signal(signal.SIGTERM, handler)

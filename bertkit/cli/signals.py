"""Interruption by Ctrl-C and SIGTERM."""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RETRY_SECONDS = 0.05


@contextmanager
def handle_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for SIGTERM as for Ctrl-C, and do not lose any interrupt.

    Python prints and drops an exception that is raised in a finalizer (`__del__`, or the callback of a weak
    reference). A dropped interrupt is sent again until it reaches ordinary code. Outside of the main thread,
    this function does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    original_hook = sys.unraisablehook
    original_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def resend_interrupt(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            original_hook(unraisable)
            return
        timer = threading.Timer(RETRY_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
        timer.daemon = True
        timer.start()

    sys.unraisablehook = resend_interrupt
    try:
        yield
    finally:
        sys.unraisablehook = original_hook
        signal.signal(signal.SIGTERM, original_handler)

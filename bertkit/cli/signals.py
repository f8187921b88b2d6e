"""Interruption by Ctrl-C, SIGTERM and the end of the console."""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertkit.utils.console_close import handle_console_close
from bertkit.utils.processes import STOP_SIGNALS

RETRY_SECONDS = 0.05


@contextmanager
def handle_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for every signal in `STOP_SIGNALS`, and do not lose any interrupt.

    Python prints and drops an exception that is raised in a finalizer (`__del__`, or the callback of a weak
    reference). A dropped interrupt is sent again until it reaches ordinary code. Outside of the main thread,
    this function does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    original_hook = sys.unraisablehook
    original_handlers = {
        number: signal.signal(number, signal.default_int_handler)
        for number in STOP_SIGNALS
        if number != signal.SIGINT  # has this handler, unless the process was started in the background
    }

    def resend_interrupt(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            original_hook(unraisable)
            return
        timer = threading.Timer(RETRY_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
        timer.daemon = True
        timer.start()

    sys.unraisablehook = resend_interrupt
    try:
        with handle_console_close():
            yield
    finally:
        sys.unraisablehook = original_hook
        for number, handler in original_handlers.items():
            signal.signal(number, handler)

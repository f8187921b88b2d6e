"""Closing of the console window on Windows, which sends no signal that a program has time to handle."""

import _thread
import ctypes
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Events that end the process as soon as their handler returns: the window is closed, the user logs off, and
# the system shuts down.
END_EVENTS = (2, 5, 6)
MAX_WAIT_SECONDS = 30.0  # longer than Windows waits for a handler


@contextmanager
def handle_console_close() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the main thread when the console is closed during the block.

    Windows ends the process when the handler of such an event returns, or after some seconds. The handler
    waits, so that the main thread can save a checkpoint. On other systems, the terminal sends a signal.
    """
    windows = getattr(ctypes, "windll", None)
    if windows is None:
        yield
        return
    handler_type = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)  # type: ignore[attr-defined]
    handler = handler_type(_handle_event)
    windows.kernel32.SetConsoleCtrlHandler(handler, True)
    try:
        yield
    finally:
        windows.kernel32.SetConsoleCtrlHandler(handler, False)


def _handle_event(event: int, sleep: Any = time.sleep) -> bool:
    """Handle an event, in a thread that Windows starts; return whether no other handler is needed."""
    if event not in END_EVENTS:
        return False
    _thread.interrupt_main(signal.SIGTERM)
    sleep(MAX_WAIT_SECONDS)
    return True

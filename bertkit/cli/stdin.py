"""Standard input, where something is piped into it."""

import sys
from typing import BinaryIO


def get_piped_stdin() -> BinaryIO | None:
    """Standard input to read, None where a person sits at it or there is none."""
    return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer

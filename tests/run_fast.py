"""Run the tests that `make test-fast` runs, on systems without make: `python tests/run_fast.py [OPTIONS]`."""

import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def find_slow_files():
    """Return the slow test files, which the Makefile lists."""
    makefile = (TESTS.parent / "Makefile").read_text("utf-8")
    names = re.search(r"^SLOW := ((?:.*\\\n)*.*)", makefile, re.MULTILINE)[1].replace("\\", " ").split()
    return [TESTS / f"test_{name}.py" for name in names]


if __name__ == "__main__":
    sys.exit(pytest.main([*(f"--ignore={path}" for path in find_slow_files()), *sys.argv[1:], str(TESTS)]))

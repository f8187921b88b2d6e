"""The operating system. Only modules of `bertkit.utils` distinguish systems; the others call them."""

import subprocess
import sys

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
IS_WINDOWS = sys.platform == "win32"
# The C++ compiler that PyTorch uses unless the environment variable CXX names another one.
DEFAULT_COMPILER = "cl" if IS_WINDOWS else "clang++" if IS_MACOS else "g++"


def can_run_compiler(compiler: str) -> bool:
    """Return whether a C++ compiler runs."""
    arguments = [] if IS_WINDOWS else ["--version"]  # cl prints its version without arguments
    try:
        subprocess.run([compiler, *arguments], capture_output=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return False
    return True

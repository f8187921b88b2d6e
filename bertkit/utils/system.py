"""The operating system. Only modules of `bertkit.utils` distinguish systems; the others call them."""

import re
import subprocess
import sys
from pathlib import PurePath, PureWindowsPath

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
IS_WINDOWS = sys.platform == "win32"
# The C++ compiler that PyTorch uses unless the environment variable CXX names another one.
DEFAULT_COMPILER = "cl" if IS_WINDOWS else "clang++" if IS_MACOS else "g++"

# Devices, with any suffix; names whose end Windows removes; characters that no name may contain.
INVALID_WINDOWS_NAME = re.compile(
    r'(con|prn|aux|nul|com\d|lpt\d) *(\..*)?|.*[. ]|.*[<>:"|?*\x00-\x1f].*', re.IGNORECASE | re.DOTALL
)


def find_invalid_name(path: PurePath) -> str | None:
    """Return the part of a path that Windows does not accept or changes. On other systems, return None."""
    if not IS_WINDOWS:
        return None
    windows_path = PureWindowsPath(path)
    names = [name for name in windows_path.parts if name not in (windows_path.anchor, "..")]
    return next((name for name in names if INVALID_WINDOWS_NAME.fullmatch(name)), None)


def can_run_compiler(compiler: str) -> bool:
    """Return whether a C++ compiler runs."""
    arguments = [] if IS_WINDOWS else ["--version"]  # cl prints its version without arguments
    try:
        subprocess.run([compiler, *arguments], capture_output=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return False
    return True

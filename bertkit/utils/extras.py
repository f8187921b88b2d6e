"""Packages that only some users need, and the extras of bertkit that install them."""

import importlib.util
from collections.abc import Sequence

from bertkit.errors import UserError, format_list


def require_extra(extra: str, packages: Sequence[str], purpose: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Args:
        packages: Names under which the packages are imported.
        purpose: Start of the error message: a flag or a command.
    """
    if missing := [name for name in packages if not is_installed(name)]:
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{purpose}: needs {format_list(missing)}, which {verb} not installed; install the extra: "
            f"pip install 'bertkit[{extra}]'"
        )


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(package) is not None

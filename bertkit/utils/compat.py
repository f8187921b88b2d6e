"""What differs between the supported versions of Python and of the libraries, in one place.

Each entry says with which version it can be removed. `docs/versions.md` lists the supported versions.
"""

import sys
from typing import Any

if sys.version_info >= (3, 11):  # remove with Python 3.10
    from typing import NotRequired, Self

    NEW_PROCESS_GROUP: dict[str, Any] = {"process_group": 0}
else:
    from typing_extensions import NotRequired, Self

    NEW_PROCESS_GROUP = {"start_new_session": True}  # the session has a process group of its own

__all__ = ["NEW_PROCESS_GROUP", "NotRequired", "Self"]


def get_command_error() -> type[Exception]:
    """Return `typer.exceptions.TyperException`, the base class of usage errors.

    Remove with Typer 0.27. Until then the class has no public name, but is the base of `UsageError`.
    """
    import typer

    if hasattr(typer, "TyperException"):
        return typer.TyperException
    return typer.BadParameter.__mro__[2]

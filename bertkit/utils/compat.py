"""What differs between the supported versions of Python and of the libraries, and what is optional.

The version after "until" is the first one that does not need the entry. docs/versions.md lists the supported
versions.
"""

import importlib.util
import inspect
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, format_list

NEW_PROCESS_GROUP: dict[str, Any]  # arguments of `Popen`
if sys.version_info >= (3, 11):  # until Python 3.11
    from typing import NotRequired, Self

    NEW_PROCESS_GROUP = {"process_group": 0}
else:
    from typing_extensions import NotRequired, Self

    NEW_PROCESS_GROUP = {"start_new_session": True}  # the session has a process group of its own

__all__ = ["NEW_PROCESS_GROUP", "NotRequired", "Self"]

# Until transformers 5.23, the arguments and methods of activation checkpointing have another name.
NEW_CHECKPOINTING, OLD_CHECKPOINTING = "activation_checkpointing", "gradient_checkpointing"
CPU_INFO = Path("/proc/cpuinfo")  # only on Linux


def get_command_error() -> type[Exception]:
    """Return `typer.TyperException`, the base class of usage errors (until Typer 0.28)."""
    import typer

    # click's `ClickException`, the parent of `UsageError`, which is the parent of `BadParameter`
    old_error: type[Exception] = typer.BadParameter.__mro__[2]
    return getattr(typer, "TyperException", old_error)


def get_argument_name(name: str) -> str:
    """Return the name that a field of `TrainingArguments` has in the installed transformers."""
    from transformers import TrainingArguments

    if hasattr(TrainingArguments, NEW_CHECKPOINTING):
        return name
    return name.replace(NEW_CHECKPOINTING, OLD_CHECKPOINTING)


def enable_activation_checkpointing(model: Any, options: dict[str, Any]) -> None:
    """Call `model.activation_checkpointing_enable` under its name in the installed transformers."""
    name = NEW_CHECKPOINTING if hasattr(model, f"{NEW_CHECKPOINTING}_enable") else OLD_CHECKPOINTING
    getattr(model, f"{name}_enable")(**options)


def is_exporting() -> bool:
    """Return `torch.compiler.is_exporting()` (until torch 2.7)."""
    import torch

    is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(is_exporting())


def has_varlen_attention() -> bool:
    """Return whether `torch.nn.attention.varlen` has all arguments that bertkit passes (until torch 2.13)."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"scale", "window_size"} <= inspect.signature(varlen_attn).parameters.keys()


def set_device_index(index: int) -> None:
    """Call `torch.accelerator.set_device_index` (until torch 2.8)."""
    from torch import accelerator

    name = "set_device_index" if hasattr(accelerator, "set_device_index") else "set_device_idx"
    getattr(accelerator, name)(index)


def get_cpu_capabilities() -> dict[str, Any]:
    """Return those entries of `torch.cpu.get_capabilities()` that bertkit reads (until torch 2.13).

    Older versions have no public function, so the entries are read from the system. They are empty where the
    system is not Linux, and bf16 is then not used by default.
    """
    import torch

    if hasattr(torch.cpu, "get_capabilities"):
        return dict(torch.cpu.get_capabilities())
    if not CPU_INFO.exists():
        return {"cpu_name": platform.processor()}
    lines = (line.partition(":") for line in CPU_INFO.read_text("utf-8").splitlines())
    values = {key.strip(): value.strip() for key, _, value in lines}
    flags = dict.fromkeys(values.get("flags", "").split(), True)
    return flags | {"cpu_name": values.get("model name", platform.processor())}


# ---- extras


def require_extra(extra: str, packages: Sequence[str], purpose: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    `purpose` is what needs them: a flag or a command.
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

"""The processes of one run, its ranks, as torchrun counts them: what one does for all, what all agree on.

Where there is one process alone, everything here is what it would do anyway. What ranks tell one another
goes over gloo, whatever their gradients go over, so that none waits on its device for it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from bertkit.errors import UserError

T = TypeVar("T")
COLLECTIVE_TIMEOUT = timedelta(
    days=1
)  # the first may read a large corpus while others wait; who dies is seen at once
LAUNCHER_VARIABLE = "BERTKIT_LAUNCHED"  # set by --nproc, which itself tells how a rank died
SHARDING_VARIABLES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # set by accelerate launch
_group: Any = None  # of those that joined
_runs = 0


class RankLost(UserError):
    """Another rank is gone."""

    exit_code = 1


def _number(name: str, otherwise: int) -> int:
    said = os.environ.get(name, "")
    return int(said) if said.isdigit() else otherwise


def get_launched_world_size() -> int:
    """How many processes were started together."""
    return _number("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def is_rank_unset() -> bool:
    """Whether there should be several, and this one was told no number: it would wait for ever."""
    return _number("WORLD_SIZE", 1) > 1 and "RANK" not in os.environ


def is_launched_by_bertkit() -> bool:
    """Whether they were started by --nproc."""
    return LAUNCHER_VARIABLE in os.environ


def is_main_process() -> bool:
    """Whether this one tells and writes for all."""
    return get_launched_world_size() == 1 or _number("RANK", 0) == 0


def is_local_main_process() -> bool:
    """Whether this one is the first on its machine."""
    return get_launched_world_size() == 1 or _number("LOCAL_RANK", 0) == 0


def get_world_size() -> int:
    """How many have joined."""
    return _group.size() if _group is not None else 1


def get_rank() -> int:
    """The number of this one among those that have joined."""
    return _group.rank() if _group is not None else 0


# ---- together


@contextmanager
def use_process_group() -> Iterator[None]:
    """Within this, ranks work together; a process group that is there already is used, and left.

    Raises:
        UserError: this machine has no device for each of them.
        Lost: another rank is gone.
    """
    if get_launched_world_size() == 1 or _group is not None:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of what is meant so
    import torch
    from torch import distributed

    ours = not distributed.is_initialized()
    if ours:
        distributed.init_process_group(_backend())
    _enter(distributed.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT))
    whole = False
    try:
        yield
        wait_for_everyone()
        whole = True
    except UserError as error:
        error.should_report = _is_first_to_tell() if error.should_report is None else error.should_report
        raise
    except RuntimeError as error:
        if not _is_of_connection(error):
            raise
        lost = RankLost("another process of this run is gone; --resume goes on from the last checkpoint")
        lost.should_report = not is_launched_by_bertkit() and _is_first_to_tell()
        raise lost from error
    finally:
        _enter(None)
        if ours and (whole or not torch.accelerator.is_available()):  # NCCL would wait for one that is gone
            distributed.destroy_process_group()


def _enter(group: Any) -> None:
    global _group, _runs
    _group, _runs = group, _runs + (group is not None)


def _backend() -> str:
    """Of the gradients. Raises `UserError` where there are fewer devices than ranks."""
    import torch
    from torch import distributed

    if not torch.accelerator.is_available():
        if any(os.environ.get(name, "").lower() == "true" for name in SHARDING_VARIABLES):
            raise UserError("FSDP and DeepSpeed need accelerators, and there are none; use DDP, or --nproc")
        return "gloo"
    here, devices = _number("LOCAL_WORLD_SIZE", 1), torch.accelerator.device_count()
    if here > devices:
        raise UserError(f"{here} processes: this machine has {devices} devices; start one for each")
    device = torch.accelerator.current_accelerator() or "cpu"
    torch.accelerator.set_device_index(_number("LOCAL_RANK", 0))
    return distributed.get_default_backend_for_device(device)


def _is_first_to_tell() -> bool:
    """Whether no other rank has told of an error yet; the store of all counts."""
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        return _get_default_store().add(f"bertkit/{_runs}/told", 1) == 1
    except RuntimeError:  # it was with a rank that is gone: who told why
        return False


def _is_of_connection(error: RuntimeError) -> bool:
    from torch.distributed import DistError

    return isinstance(error, DistError) or "gloo/transport" in str(error)


# ---- what they tell one another


def wait_for_everyone() -> None:
    """Until all are here."""
    gather_object(None)


def any_rank(flag: bool) -> bool:
    """Whether it is true of any rank; quick enough for every step."""
    if get_world_size() == 1:
        return flag
    import torch
    from torch import distributed

    flags = torch.tensor([flag], dtype=torch.int8)
    distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=_group)
    return bool(flags.item())


def gather_object(mine: T) -> list[T]:
    """What each rank has, in their order."""
    if get_world_size() == 1:
        return [mine]
    from torch import distributed

    found: list[Any] = [None] * get_world_size()
    distributed.all_gather_object(found, mine, group=_group)
    return found


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """An error of the user's on any rank is raised on all, at the end of this."""
    mine = None
    try:
        yield
    except UserError as error:
        mine = error
        if get_world_size() == 1:
            raise
    for found in gather_object(mine):
        if found is not None:
            raise found


def on_main_process(act: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """What the first rank's call gives, on all: it is the only one to call. An error is everybody's too."""
    found: Any = None
    with raise_on_all_ranks():
        if get_rank() == 0:
            found = act(*arguments, **named)
    return gather_object(found)[0] if get_world_size() > 1 else found


def main_process_first(act: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """The same call on all, first on one of each machine: the others find in the cache what it left there."""
    found: Any = None
    for turn in (True, False) if get_world_size() > 1 else (True,):
        with raise_on_all_ranks():
            if is_local_main_process() == turn or get_world_size() == 1:
                found = act(*arguments, **named)
    return found

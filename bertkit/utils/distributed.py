"""Processes (ranks) of a distributed run, started by `--nproc`, torchrun or `accelerate launch`.

All functions also work in a single process. Objects are exchanged over gloo, even if gradients use another
backend, because gloo does not wait for the device.
"""

import errno
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from bertkit.errors import UserError
from bertkit.utils.compat import set_device_index
from bertkit.utils.reporting import report_warning
from bertkit.utils.system import get_launched_world_size, get_local_rank, read_int

T = TypeVar("T")
# The timeout is long, because the other ranks may wait while the first rank reads a large corpus. A rank that
# has ended is detected at once, without a timeout.
COLLECTIVE_TIMEOUT = timedelta(days=1)
CONNECT_SECONDS = 60.0
LAUNCHER_VARIABLE = "BERTKIT_LAUNCHED"  # set by the launcher of --nproc, which reports how a rank ended
SHARDING_VARIABLES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # set by `accelerate launch`
_group: Any = None  # gloo group of all ranks, or None if there is no process group
_num_groups = 0  # number of groups created so far, for a separate store key of each group


def is_rank_unset() -> bool:
    """Return whether WORLD_SIZE is set without RANK. Such a process would wait forever for other ranks."""
    return read_int("WORLD_SIZE", 1) > 1 and "RANK" not in os.environ


def is_launched_by_bertkit() -> bool:
    """Return whether the launcher of `--nproc` started this process."""
    return LAUNCHER_VARIABLE in os.environ


def require_launcher(processes: int) -> None:
    """Refuse `--nproc` in Python and with another launcher; it is a setting of the command line."""
    if processes > 1 and not is_launched_by_bertkit():
        is_distributed = get_launched_world_size() > 1
        problem = "the processes are already started" if is_distributed else "works only on the command line"
        raise UserError(f"--nproc {processes}: {problem}; omit it")


def is_main_process() -> bool:
    """Return whether this is the process that prints and writes for all ranks."""
    return get_launched_world_size() == 1 or read_int("RANK", 0) == 0


def is_local_main_process() -> bool:
    """Return whether this is the first process on its machine."""
    return get_launched_world_size() == 1 or read_int("LOCAL_RANK", 0) == 0


def has_several_hosts() -> bool:
    """Return whether the processes of this run were started on several machines."""
    world_size = get_launched_world_size()
    return read_int("LOCAL_WORLD_SIZE", world_size) < world_size


def get_torchrun_command(job: str) -> list[str]:
    """Return the start of the command that each machine runs to start the same number of processes.

    Jobs with other names may meet at the same address.
    """
    processes = read_int("LOCAL_WORLD_SIZE", 1)
    return [
        "torchrun", "--nnodes", str(get_launched_world_size() // processes),
        "--nproc-per-node", str(processes), "--rdzv-id", job, "--rdzv-backend", "c10d",
        "--rdzv-endpoint", os.environ["MASTER_ADDR"],
    ]  # fmt: skip


def name_host(error: UserError) -> UserError:
    """Add the name of this machine to an error of a run on several machines: others may not have it."""
    if has_several_hosts():
        error.args = (f"{error} (on the host {socket.gethostname()})",)
    return error


def get_world_size() -> int:
    """Return the number of ranks in the process group, 1 without a group."""
    return _group.size() if _group is not None else 1


def get_rank() -> int:
    """Return the rank of this process in the process group, 0 without a group."""
    return _group.rank() if _group is not None else 0


# ---- the process group


@contextmanager
def use_process_group() -> Iterator[None]:
    """Connect the ranks of the run during the block. An existing process group is used and not destroyed."""
    global _group, _num_groups
    if get_launched_world_size() == 1 or _group is not None:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hides warnings about intended settings
    from torch import distributed

    from bertkit.utils import devices

    owns_group = not distributed.is_initialized()
    if owns_group:
        distributed.init_process_group(_select_backend())
    _group = distributed.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    _num_groups += 1
    is_complete = False
    connections = _watch_hosts() if has_several_hosts() else []
    try:
        yield
        gather_object(None)  # waits until all ranks are here
        is_complete = True
    except UserError as error:
        if error.should_report is None:
            error.should_report = _is_first_to_report()
        raise
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo/transport" not in str(error):
            raise
        lost = UserError(
            "another process of this run has ended; use --resume to resume from the last checkpoint"
        )
        lost.exit_code = 1
        lost.should_report = not is_launched_by_bertkit() and _is_first_to_report()
        raise lost from error
    finally:
        for connection in connections:
            with suppress(OSError):  # `close` alone would not end the `recv` of the thread
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        _group = None
        # After an error, destroying an NCCL group would wait for the rank that has ended.
        if owns_group and (is_complete or not devices.has_accelerator()):
            distributed.destroy_process_group()


def _select_backend() -> str:
    """Select the device of this rank, and return the backend for gradients."""
    import torch
    from torch import distributed

    from bertkit.utils import devices

    if not devices.has_accelerator():
        if any(os.environ.get(name, "").lower() == "true" for name in SHARDING_VARIABLES):
            raise UserError(
                "FSDP and DeepSpeed: need an accelerator, but none is available; use DDP or --nproc"
            )
        return "gloo"
    ranks, num_devices = read_int("LOCAL_WORLD_SIZE", 1), torch.accelerator.device_count()
    if ranks > num_devices:
        raise UserError(
            f"{ranks} processes: this machine has {num_devices} devices; start one process per device"
        )
    set_device_index(get_local_rank())
    return distributed.get_default_backend_for_device(devices.get_device())


def _is_first_to_report() -> bool:
    """Return whether no other rank has reported an error; a counter in the shared store decides."""
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        return _get_default_store().add(f"bertkit/{_num_groups}/errors", 1) == 1
    except RuntimeError:  # the rank that held the store has ended, and has reported the reason
        return False


# ---- hosts that cannot be reached any more

# Seconds without an answer until the kernel asks the other host, and between further attempts; their number.
KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}


def _watch_hosts() -> list[socket.socket]:
    """Connect the first process of each host with rank 0, to end the run if a host does not answer.

    If a process ends, its kernel closes its connections, and the other ranks notice it at once. If a machine
    or its network fails, nothing arrives: gloo would wait for half an hour, and longer for objects. The
    kernels exchange the messages, so a process may be busy or stopped.
    """
    server = None
    if get_rank() == 0:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=is_dual)
    (port, *_) = gather_object(server.getsockname()[1] if server else 0)
    is_client = server is None and is_local_main_process()
    num_clients = sum(gather_object(is_client))
    connections = []
    try:
        if server is not None:
            server.settimeout(CONNECT_SECONDS)
            connections = [server.accept()[0] for _ in range(num_clients)]
        elif is_client:
            address = (os.environ["MASTER_ADDR"], port)
            connections = [socket.create_connection(address, CONNECT_SECONDS)]
    except (OSError, KeyError) as error:  # KeyError: another library has initialized the process group
        report_warning(
            f"the other hosts cannot be watched ({error}); if one fails, the run may wait for half an hour"
        )
    finally:
        if server is not None:
            server.close()
    for connection in connections:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        threading.Thread(target=_exit_if_unreachable, args=[connection], daemon=True).start()
    return connections


def _exit_if_unreachable(connection: socket.socket) -> None:
    """Wait for the end of a connection; if the other host does not answer, end this process."""
    host = "of another process"
    try:
        host = connection.getpeername()[0].removeprefix("::ffff:")
        connection.recv(1)  # nothing is sent
    except OSError as error:
        if error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
            print(
                f"bertkit: the host {host} is not reachable any more, and this host has stopped; if there is "
                "a checkpoint, resume with --resume",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)


# ---- collective operations


def any_rank(flag: bool) -> bool:
    """Return whether `flag` is true on any rank. The call is fast enough for every training step."""
    if get_world_size() == 1:
        return flag
    import torch
    from torch import distributed

    flags = torch.tensor([flag], dtype=torch.int8)
    distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=_group)
    return bool(flags.item())


def gather_object(local: T) -> list[T]:
    """Return the object of each rank, ordered by rank."""
    if get_world_size() == 1:
        return [local]
    from torch import distributed

    objects: list[Any] = [None] * get_world_size()
    distributed.all_gather_object(objects, local, group=_group)
    return objects


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """If a rank raises a `UserError` in the block, raise it on all ranks at the end of the block."""
    local_error = None
    try:
        yield
    except UserError as error:
        local_error = error
        if get_world_size() == 1:
            raise
    for rank_error in gather_object(local_error):
        if rank_error is not None:
            raise rank_error


def on_main_process(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function on the main process only; return its result, or raise its `UserError`, on all ranks."""
    result: Any = None
    with raise_on_all_ranks():
        if get_rank() == 0:
            result = function(*args, **kwargs)
    return gather_object(result)[0] if get_world_size() > 1 else result


def main_process_first(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function on all ranks, first on one rank per machine, which fills the cache."""
    if get_world_size() == 1:
        return function(*args, **kwargs)
    result: Any = None
    for runs_local_main_process in (True, False):
        with raise_on_all_ranks():
            if is_local_main_process() == runs_local_main_process:
                try:
                    result = function(*args, **kwargs)
                except UserError as error:
                    raise name_host(error) from error.__cause__
    return result

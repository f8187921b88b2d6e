"""A Ray cluster, and what a task of it needs. Importing this module imports `ray`."""

import functools
import logging
import os
import re
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import worker
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bertkit._version import __version__
from bertkit.errors import UserError, format_count
from bertkit.utils.locks import MAX_DELAY_SECONDS
from bertkit.utils.reporting import report_warning
from bertkit.utils.system import STOP_SIGNALS, count_cores, read_int

# Variables of this process that the processes of all nodes receive.
SENT_VARIABLES = ("BERTKIT_", "HF_", "TOKENIZERS_", "PYTHONPATH")
AUTO, LOCAL = "auto", "local"
ADDRESS = re.compile(r"[^/]+:\d+")  # of a cluster, without a protocol such as ray://
CONNECT_SECONDS = 5.0
HIDE_GPUS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"  # of the machine from tasks without GPUs
MAX_RETRIES = 3  # of a task whose process or node has died
PENDING_CALLS = 2  # of each process, so that it never waits for this process
KEPT_CALLS = 4  # of each process, in memory, because a call before them has not ended yet
POLL_SECONDS = 1.0  # at most, until a node that has joined is used
DEATHS = (RayActorError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)


@dataclass(eq=False)
class _Process:
    """An actor, which has its CPUs and GPUs until it is killed."""

    actor: Any
    node: Future[Any]  # the id of its node, known when the actor is ready

    def is_ready(self) -> bool:
        return self.node.done() and self.node.exception() is None


@dataclass(eq=False)
class _Call:
    """A call of a function with an item, which is repeated if its process or node dies."""

    item: Any
    process: _Process | None = None
    future: Future[Any] | None = None  # None until a process is ready
    num_deaths: int = 0

    def has_result(self) -> bool:
        """Return whether it has ended, with a result or an error, and is not repeated."""
        return self.future is not None and self.future.done() and not self.must_be_repeated()

    def must_be_repeated(self) -> bool:
        return (
            self.future is not None
            and self.future.done()
            and self.num_deaths < MAX_RETRIES
            and isinstance(self.future.exception(), (*DEATHS, ObjectLostError))
        )


class _Caller:
    """A process that calls functions."""

    def get_node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class Cluster:
    """A connected cluster, whose tasks each have `num_cpus` CPUs and threads, and `num_gpus` GPUs."""

    def __init__(self, address: str, num_cpus: int, num_gpus: float) -> None:
        self.address, self.num_cpus, self.num_gpus = address, num_cpus, num_gpus

    def as_task(self, function: Callable[..., Any]) -> Any:
        """Return a function whose calls are tasks, which Ray starts again if their process or node dies."""
        options: Any = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "max_retries": MAX_RETRIES}
        return ray.remote(**options)(function)

    def map_in_order(
        self, function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any], consequence: str,
        fix: str,
    ) -> Iterator[Any]:  # fmt: skip
        """Yield the result of `function(shared, item)` for each item, in order.

        The calls are made by as many processes as fit on the nodes, also on those that join later. A process
        makes many calls, so it can keep a model in memory. If it dies, its calls are made again by the others
        or, if its CPUs are free, by a new one. If processes cannot be started, as on a node without the
        libraries, the others make all calls. `consequence` and `fix` are for errors.
        """
        start = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus)(_Caller).remote
        shared, remaining = ray.put(shared), iter(items)
        slots, num_failed_starts = 0, 0
        processes: list[_Process] = []
        calls: deque[_Call] = deque()

        def end(process: _Process) -> None:
            if process in processes:
                processes.remove(process)
                ray.kill(process.actor)

        try:
            while True:
                before, slots = slots, max(1, self.count_slots())  # without nodes: another one may join
                if slots != before:
                    num_failed_starts = 0  # nodes have joined or left
                while len(calls) < KEPT_CALLS * slots and (item := next(remaining, None)) is not None:
                    calls.append(_Call(item))
                if not calls:
                    return
                lost = [call for call in calls if call.must_be_repeated()]
                for call in lost:
                    assert call.process is not None
                    end(call.process)
                    call.future, call.num_deaths = None, call.num_deaths + 1
                    num_failed_starts = 0  # a process fits in its place
                if lost:  # a node that has died may also have had processes without calls
                    nodes = {node["NodeID"] for node in self._list_nodes()}
                    for process in [each for each in processes if each.is_ready()]:
                        if process.node.result() not in nodes:
                            end(process)
                for process in [each for each in processes if each.node.done() and not each.is_ready()]:
                    end(process)
                    num_failed_starts += 1
                    if num_failed_starts > MAX_RETRIES and not processes:
                        _get_result(process.node.result, "--ray", consequence, fix)
                    if num_failed_starts == MAX_RETRIES + 1:
                        report_warning(
                            f"--ray: {num_failed_starts} processes could not be started; the others continue "
                            "without them"
                        )
                unfinished = [call for call in calls if call.future is None or not call.future.done()]
                if num_failed_starts <= MAX_RETRIES or not processes:
                    for _ in range(min(slots, len(unfinished)) - len(processes)):
                        actor = start()
                        processes.append(_Process(actor, actor.get_node.remote().future()))
                num_calls = Counter(call.process for call in unfinished if call.future is not None)
                for call in [each for each in unfinished if each.future is None]:
                    ready = [
                        each for each in processes if each.is_ready() and num_calls[each] < PENDING_CALLS
                    ]
                    if not ready:
                        break
                    call.process = min(ready, key=num_calls.__getitem__)
                    num_calls[call.process] += 1
                    call.future = call.process.actor.call.remote(function, shared, call.item).future()
                if calls[0].has_result():
                    first = calls.popleft().future
                    assert first is not None
                    yield _get_result(first.result, "--ray", consequence, fix)
                    continue
                futures = [call.future for call in calls if call.future is not None]
                futures += [process.node for process in processes]
                wait([each for each in futures if not each.done()], POLL_SECONDS, FIRST_COMPLETED)
        finally:
            for process in processes:
                ray.kill(process.actor)

    def count_slots(self) -> int:
        """Return how many tasks the nodes that are alive can run at the same time."""
        slots = 0
        for node in self._list_nodes():
            resources = node["Resources"]
            fitting = int(resources.get("CPU", 0) // self.num_cpus)
            if self.num_gpus:
                fitting = min(fitting, int(resources.get("GPU", 0) / self.num_gpus))
            slots += fitting
        return slots

    def check_nodes(self, paths: Sequence[str], written: Path | None = None) -> None:
        """Check that a task fits on a node, and that all nodes have this version of bertkit and these files.

        `written` is a file that this process has written. A node with its own disk lacks it, or has another.
        """
        if not self.count_slots():
            resources = format_count(self.num_cpus, "CPU")
            resources += f" and {self.num_gpus:g} GPUs" if self.num_gpus else ""
            raise UserError(
                f"--ray {self.address}: no node has the {resources} of --num-cpus and --num-gpus; pass other "
                "values"
            )
        content = written.read_bytes() if written else b""
        arguments = (str(Path.cwd()), list(paths), str(written or ""), content)
        remote = ray.remote(num_cpus=0, max_retries=0)(_check_node)
        nodes = self._list_nodes()
        references = [
            remote.options(scheduling_strategy=_on_node(node["NodeID"])).remote(*arguments) for node in nodes
        ]
        for node, reference in zip(nodes, references, strict=True):
            where = f"--ray {self.address}: node {node['NodeManagerAddress']}"
            try:
                version, missing = ray.get(reference)
            except (NodeDiedError, TaskUnschedulableError):
                continue  # it has just died
            except RayError as error:
                reason = str(error).strip().split("\n")[-1]
                raise UserError(
                    f"{where} cannot run bertkit ({reason}); install bertkit in the Python of all nodes"
                ) from error
            if version != __version__:
                raise UserError(
                    f"{where} has bertkit {version}, and this machine {__version__}; install one version"
                )
            if missing:
                raise UserError(
                    f"{where} does not see {Path(missing).absolute()}; put it on a file system that all "
                    "nodes share"
                )

    def _list_nodes(self) -> list[dict[str, Any]]:
        return [node for node in ray.nodes() if node["Alive"]]


def get_result(reference: Any, name: str, consequence: str, fix: str) -> Any:
    """Return the result of a task; raise the `UserError` of the task, or one about its process or node."""
    return _get_result(lambda: ray.get(reference), name, consequence, fix)


def _get_result(get: Callable[[], Any], name: str, consequence: str, fix: str) -> Any:
    try:
        return get()
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except RayError as error:
        problem = str(error).split("\n")[0].rstrip(".")
        if isinstance(error, DEATHS):
            problem = f"its process or node died {MAX_RETRIES + 1} times ({problem})"
        raise UserError(f"{name}: {problem}, and {consequence}; {fix}") from None


def check_address(config: Any) -> None:
    """Check, before work, that a cluster answers at the address of `--ray`, and that tasks have the device.

    A connection of the caller is used, whatever the address.
    """
    if config.device.startswith("cuda:"):
        raise UserError(f"--device {config.device}: a task of --ray has its own GPUs; pass cuda")
    if ray.is_initialized():
        return
    server = os.environ.get("RAY_ADDRESS", "") if config.ray == AUTO else config.ray
    if ADDRESS.fullmatch(server):
        _require_server(config.ray, server)
    elif config.ray not in (AUTO, LOCAL) and "://" not in config.ray:
        raise UserError(f"--ray {config.ray}: is no address; pass auto, local or HOST:PORT")


@contextmanager
def connect(config: Any) -> Iterator[Cluster]:
    """Connect to the cluster of `--ray` during the block; a connection of the caller is used and stays open.

    The address may be `local`, for a new Ray on this machine, or `auto`: the cluster of RAY_ADDRESS or of
    this machine, else a new one.
    """
    num_cpus = config.num_cpus or read_int("OMP_NUM_THREADS", 0) or 1
    is_own = not ray.is_initialized()
    if is_own:
        _start(config.ray, num_cpus)
    try:
        num_gpus = config.num_gpus
        if num_gpus is None:
            num_gpus = float(config.device in ("auto", "cuda") and ray.cluster_resources().get("GPU", 0) > 0)
        yield Cluster(config.ray, num_cpus, num_gpus)
    finally:
        if is_own:
            ray.shutdown()


def _print_to_stderr() -> None:
    """Make Ray print messages, such as that a node is dead, to standard error: rows go to standard output."""
    original = getattr(worker, "print_to_stdstream", None)  # no public name; the versions may differ
    if original is not None and not hasattr(original, "__wrapped__"):

        @functools.wraps(original)
        def print_message(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            original({**data, "is_err": True}, *args, **kwargs)

        worker.print_to_stdstream = print_message


def _start(address: str, num_cpus: int) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    _print_to_stderr()
    variables = {name: value for name, value in os.environ.items() if name.startswith(SENT_VARIABLES)}
    variables["OMP_NUM_THREADS"] = str(num_cpus)
    variables[HIDE_GPUS] = "1"
    resources: Any = {"num_cpus": count_cores(), "include_dashboard": False} if address == LOCAL else {}
    try:
        with _keep_signal_handlers():
            ray.init(
                address=None if address == AUTO else address, runtime_env={"env_vars": variables},
                log_to_driver=False, logging_level=logging.ERROR, **resources,
            )  # fmt: skip
    except (RayError, ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(
            f"--ray {address}: cannot connect ({reason}); start a cluster with `ray start --head`, or pass "
            "--ray local"
        ) from error


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the handlers of signals after the block, which Ray replaces in the main thread."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # Python cannot restore a handler of a library in C, which is None.
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def _require_server(address: str, server: str) -> None:
    """Check that something listens at an address: Ray would wait for minutes."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"--ray {address}: no cluster answers at {server} ({error.strerror or error}); start one with "
            "`ray start --head`, or pass --ray local"
        ) from error


def _check_node(folder: str, paths: list[str], written: str, content: bytes) -> tuple[str, str | None]:
    """Return the version of bertkit on a node, and a path that it does not see, or None."""
    if not Path(folder).is_dir():
        return __version__, folder
    os.chdir(folder)
    path, deadline = Path(written), time.monotonic() + MAX_DELAY_SECONDS
    # `exists` may read a stale cache of NFS
    while written and not (
        path.parent.is_dir() and path in path.parent.iterdir() and path.read_bytes() == content
    ):
        if time.monotonic() > deadline:
            return __version__, str(path.parent)
        time.sleep(0.1)
    return __version__, next((path for path in paths if not Path(path).exists()), None)


class Mailbox:
    """The messages of all tasks: title of the run, text, and whether it is a warning.

    Its class is in this module because a process that receives it imports the module, here without PyTorch.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, bool]] = []

    def add(self, message: tuple[str, str, bool]) -> None:
        self.messages.append(message)

    def take(self) -> list[tuple[str, str, bool]]:
        """Return the messages since the last call."""
        messages, self.messages = self.messages, []
        return messages

    def wait(self) -> None:
        """Return after the earlier calls of the caller, which have an order."""


def start_mailbox() -> Any:
    """Return an actor of `Mailbox` on the node of this process, which uses no CPU."""
    remote: Any = ray.remote(num_cpus=0)(Mailbox)
    return remote.options(scheduling_strategy=_on_node(ray.get_runtime_context().get_node_id())).remote()


def _on_node(node_id: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft=False)

"""Start the HTTP server, reload its models, and end it without losing a request."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import UserError
from bertkit.serve.config import ServeConfig
from bertkit.utils import devices
from bertkit.utils.extras import require_extra
from bertkit.utils.paths import expand_home
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

REQUIRED_PACKAGES = ("anyio", "fastapi", "uvicorn", "prometheus_client")
MAX_TOKEN_CHARS = 4096
BACKLOG = 2048  # connections that wait to be accepted


def serve(
    settings: Mapping[str, Any],
    reporter: Reporter | None = None,
    on_ready: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Serve finished runs over HTTP until SIGTERM or Ctrl-C.

    Args:
        settings: Settings of `ServeConfig`.
        reporter: Receives warnings.
        on_ready: Receives `url` and `models` once the server accepts requests.

    Raises:
        UserError: A package is not installed, a run cannot be loaded, names repeat, the token file has no
            token, or the address cannot be used.
    """
    config = ServeConfig(**validate_settings(ServeConfig, settings, "serve()"))
    reporter = reporter or Reporter()
    devices.request_device(config.device)
    require_extra("serve", REQUIRED_PACKAGES, "serve")
    names = choose_names(config.run, config.name)
    token = read_token(expand_home(config.token_file)) if config.token_file else None
    with contextlib.closing(bind_socket(config.host, config.port)) as listener:
        if token is None and not is_loopback(listener):
            reporter.warn(
                f"--host {config.host}: other machines can send requests, and no token is needed; pass "
                "--token-file, or put the server behind a proxy that checks access"
            )
        asyncio.run(_run(config, names, token, listener, on_ready, reporter))


async def _run(
    config: ServeConfig,
    names: Sequence[str],
    token: bytes | None,
    listener: socket.socket,
    on_ready: Callable[[dict[str, Any]], None],
    reporter: Reporter,
) -> None:
    from bertkit.serve.access import choose_hosts
    from bertkit.serve.app import create_app
    from bertkit.serve.metrics import Metrics
    from bertkit.serve.model_registry import ModelRegistry, NamedRun
    from bertkit.serve.served_model import BatchSettings
    from bertkit.serve.uvicorn_server import DrainingServer, make_uvicorn_config

    runs = [NamedRun(name, run) for name, run in zip(names, config.run, strict=True)]
    settings = BatchSettings(config.max_batch_size, config.max_delay_ms / 1000, config.max_request_tokens)
    registry = ModelRegistry(runs, settings, Metrics())
    with reload_on_hangup(registry.reload):  # also while loading: SIGHUP would end the process
        registry.load()
        devices.report_device(reporter)
        # With a token, a page of another site cannot read predictions, whatever name it uses.
        hosts = choose_hosts(config.host) if token is None and is_loopback(listener) else None
        app = create_app(registry, config, token, hosts)
        server = DrainingServer(make_uvicorn_config(app), registry)
        start_listening(listener, config.host, config.port)
        server.on_started = lambda: on_ready({"url": format_url(listener), "models": list(names)})
        await server.serve(sockets=[listener])
        await registry.close()


@contextlib.contextmanager
def reload_on_hangup(reload: Callable[[], Any]) -> Iterator[None]:
    """Reload at SIGHUP in the block, on systems that have this signal."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    loop, tasks = asyncio.get_running_loop(), set()

    def start_reload() -> None:
        task = loop.create_task(reload())
        tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, start_reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


# ---- settings


def choose_names(runs: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the name of each run: that of the user, or that of its directory.

    Raises:
        UserError: There are not as many names as runs, or two runs have the same name.
    """
    if names and len(names) != len(runs):
        raise UserError(f"--name: {len(names)} names for {len(runs)} runs; pass one --name for each RUN")
    chosen = list(names) or [expand_home(run).resolve().name for run in runs]
    repeated = [name for name in chosen if chosen.count(name) > 1]
    if repeated:
        raise UserError(f"RUN: two runs have the name {repeated[0]!r}; pass a different --name for each RUN")
    return chosen


def read_token(path: Path) -> bytes:
    """Return the token in a file, without white space around it.

    Raises:
        UserError: The file cannot be read, or does not contain one word of ASCII characters.
    """
    try:
        token = path.read_bytes()[: MAX_TOKEN_CHARS + 1].strip()
    except OSError as error:
        raise UserError(f"--token-file {path}: cannot be read ({error.strerror}); check the path") from error
    is_word = token.isascii() and len(token.split()) == 1 and token.decode("ascii").isprintable()
    if not is_word or len(token) > MAX_TOKEN_CHARS:
        raise UserError(
            f"--token-file {path}: does not contain one token of ASCII characters; write one, for example "
            "with openssl rand -hex 32"
        )
    return token


# ---- address


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet, so that clients are refused until it does.

    Raises:
        UserError: The address does not exist on this machine, or is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host}: cannot be resolved ({error}); pass an address of this machine"
        ) from None
    try:
        if hasattr(signal, "SIGHUP"):  # on Windows, the option would allow two servers on a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _make_address_error(host, port, error) from error
    return listener


def start_listening(listener: socket.socket, host: str, port: int) -> None:
    """Make a socket listen. Two servers can bind a port at the same time, but only one of them can listen.

    Raises:
        UserError: Another server listens on the port.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _make_address_error(host, port, error) from error


def _make_address_error(host: str, port: int, error: OSError) -> UserError:
    return UserError(
        f"--host {host} --port {port}: cannot be used ({error.strerror}); pass another --port, or 0 for any "
        "free port"
    )


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can connect to a socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def format_url(listener: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

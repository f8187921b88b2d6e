"""Start the HTTP server, reload its models, and end it without losing a request."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h11
import msgspec
import typer
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from bertkit.commands.configs import ServeConfig
from bertkit.errors import UserError, format_list
from bertkit.serve.app import choose_hosts, create_app
from bertkit.serve.models import Metrics, ModelRegistry
from bertkit.settings.validation import validate_settings
from bertkit.utils import devices
from bertkit.utils.console import print_json
from bertkit.utils.files import expand_home
from bertkit.utils.reporting import report_warning

MAX_TOKEN_CHARS = 4096


def serve(settings: Mapping[str, Any], on_ready: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Serve finished runs over HTTP until SIGTERM or Ctrl-C.

    `on_ready` receives `url` and `models` once the server accepts requests.
    """
    config = ServeConfig(**validate_settings(ServeConfig, settings, "serve()"))
    devices.request_device(config.device)
    names = choose_names(config.run, config.name)
    token = read_token(expand_home(config.token_file)) if config.token_file else None
    with contextlib.closing(bind_socket(config.host, config.port)) as listener:
        if token is None and not is_loopback(listener):
            report_warning(
                f"--host {config.host}: other machines can send requests, and no token is needed; pass "
                "--token-file, or put the server behind a proxy that checks access"
            )
        asyncio.run(_run(config, names, token, listener, on_ready))


async def _run(
    config: ServeConfig,
    names: Sequence[str],
    token: bytes | None,
    listener: socket.socket,
    on_ready: Callable[[dict[str, Any]], None],
) -> None:
    registry = ModelRegistry(dict(zip(names, config.run, strict=True)), config, Metrics())
    with reload_on_hangup(registry.reload):  # also while loading: SIGHUP would end the process
        registry.load()
        devices.report_device()
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
    """Return the name of each run: that of the user, or that of its directory."""
    if names and len(names) != len(runs):
        raise UserError(f"--name: {len(names)} names for {len(runs)} runs; pass one --name for each RUN")
    chosen = list(names) or [expand_home(run).resolve().name for run in runs]
    repeated = [name for name in chosen if chosen.count(name) > 1]
    if repeated:
        raise UserError(f"RUN: two runs have the name {repeated[0]!r}; pass a different --name for each RUN")
    return chosen


def read_token(path: Path) -> bytes:
    """Return the token in a file, without white space around it."""
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
    """Return a socket that is bound but does not listen yet, so that clients are refused until it does."""
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
    """Make a socket listen. Two servers can bind a port at the same time, but only one of them can listen."""
    try:
        listener.listen(2048)  # connections that wait to be accepted
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


# ---- connections

# Time in which a client must send the head of a request, or the rest of a body that has its response already.
MAX_SEND_SECONDS = 10.0


class LimitedProtocol(H11Protocol):
    """Closes connections whose clients do not complete the head of a request in time.

    The rest of a body has the same limit if its response is complete, such as 401. `LimitsMiddleware` limits
    the time of other bodies. uvicorn limits only the time between two requests of a connection.
    """

    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        # The first byte of a request starts a time limit; the end of the head stops it.
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        # If the invalid part is in a body whose response has begun, nothing more can be sent.
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = msgspec.json.encode({"error": f"request: {msg.removesuffix('.').lower()}; send HTTP/1.1"})
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _update_timer(self) -> None:
        is_body_unused = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if self.conn.their_state is not h11.IDLE and not is_body_unused:
            self._stop_timer()
        elif self._send_timer is None:
            self._send_timer = self.loop.call_later(MAX_SEND_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


# ---- the end of the server

# Time between the end of listening and the closing of idle connections. A request that was sent before then
# arrives in this time.
DRAIN_SECONDS = 0.5
# Time after the end of listening in which open requests get their response. It is longer than the time after
# which a request gets 503, so only clients that do not read their responses lose them.
MAX_DRAIN_SECONDS = 70
MAX_HEAD_BYTES = 16_384
KEEP_ALIVE_SECONDS = 75  # longer than the idle time of common load balancers, which otherwise see resets


def make_uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """Return the configuration: one process, no log of its own, no WebSockets."""
    return uvicorn.Config(
        app, http=LimitedProtocol, ws="none", lifespan="off", log_config=None, log_level="critical",
        access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES, proxy_headers=False,
        timeout_graceful_shutdown=MAX_DRAIN_SECONDS,
    )  # fmt: skip


class DrainingServer(uvicorn.Server):
    """A server that exits with status 0 after SIGTERM or Ctrl-C, once all requests have their response."""

    def __init__(self, config: uvicorn.Config, registry: ModelRegistry) -> None:
        super().__init__(config)
        self.registry = registry
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would close idle connections at once, and lose a request that a client sends at this moment.
        self.registry.is_draining = True
        await asyncio.sleep(0)  # accepts the connections that are already waiting
        for server in self.servers:
            server.close()
        if not self.force_exit:
            await asyncio.sleep(DRAIN_SECONDS)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Unlike uvicorn, do not raise the signals again after the block, since the exit is regular.
        originals: dict[Any, Any] = {
            number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS
        }
        try:
            yield
        finally:
            for number, handler in originals.items():
                signal.signal(number, handler)


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    """Serve until SIGTERM or Ctrl-C. The log is on standard error, without the messages of libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    logger = logging.getLogger("bertkit.serve")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)

    def print_address(server: dict[str, Any]) -> None:
        if as_json:
            print_json(server)
        else:
            typer.echo(f"{server['url']} serves {format_list(server['models'])}")
        sys.stdout.flush()

    serve(settings, print_address)

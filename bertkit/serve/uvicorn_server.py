"""uvicorn's server with a shutdown that answers every request that a client has sent."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import HANDLED_SIGNALS

from bertkit.serve.model_registry import ModelRegistry
from bertkit.serve.protocol import LimitedProtocol

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
    """A server that exits with status 0 after SIGTERM or Ctrl-C, once all requests have their response.

    Args:
        config: Configuration of uvicorn.
        registry: The models; the server marks them as draining.

    Attributes:
        on_started: Called when the server accepts requests.
    """

    def __init__(self, config: uvicorn.Config, registry: ModelRegistry) -> None:
        super().__init__(config)
        self.registry = registry
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer all requests that were sent before, and close the connections.

        uvicorn would close idle connections at once. A request that a client sends at this moment would be
        lost.
        """
        self.registry.is_draining = True
        await asyncio.sleep(0)  # accepts the connections that are already waiting
        for server in self.servers:
            server.close()
        if not self.force_exit:
            await asyncio.sleep(DRAIN_SECONDS)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the block. Unlike uvicorn, do not raise them again, since the exit is regular."""
        originals: dict[Any, Any] = {
            number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS
        }
        try:
            yield
        finally:
            for number, handler in originals.items():
                signal.signal(number, handler)

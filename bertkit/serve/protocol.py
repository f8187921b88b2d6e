"""uvicorn's HTTP protocol with time limits for clients that send slowly, and JSON errors."""

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

# Time in which a client must send the head of a request, or the rest of a body that has its response already.
MAX_SEND_SECONDS = 10.0


class LimitedProtocol(H11Protocol):
    """Closes connections whose clients do not complete the head of a request in time.

    The rest of a body has the same limit if its response is complete, such as 401. `LimitsMiddleware` limits
    the time of other bodies. uvicorn limits only the time between two requests of a connection.
    """

    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit for the first request."""
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Process data. The first byte of a request starts a time limit; the end of the head stops it."""
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that is not HTTP, and close the connection.

        If the invalid part is in a body whose response has begun, nothing more can be sent.
        """
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

"""ASGI middleware that asks clients to close their connections while the server drains."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ConnectionCloseMiddleware:
    """Adds `Connection: close` to responses while the server drains.

    Args:
        app: The application.
        is_draining: Returns whether the server is shutting down.
    """

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        self.app, self.is_draining = app, is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and self.is_draining():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, send_with_header)

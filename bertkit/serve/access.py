"""ASGI middleware that decides which clients may send requests: by token, and by the name of the server."""

import hmac
import re
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bertkit.serve.responses import RequestError, make_error_response

# The page has no data of the models; its script asks for the token. Probes do not know the token.
OPEN_PATHS = ("/", "/healthz", "/readyz")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def choose_hosts(host: str) -> set[str]:
    """Return the names, in the header `Host`, of a server that listens on a loopback address.

    Args:
        host: The address that the user passed.
    """
    return {*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host.lower()}


class AccessMiddleware:
    """Refuses requests without the token, or with another name of the server.

    A page of another site can let its own name resolve to 127.0.0.1 (DNS rebinding). The browser then permits
    the page to read responses, but still sends this name as `Host`.

    Args:
        app: The application.
        token: The bearer token; None if no token is needed.
        allowed_hosts: Names of the server in the header `Host`; None to allow all names.
    """

    def __init__(self, app: ASGIApp, token: bytes | None, allowed_hosts: Collection[str] | None) -> None:
        self.app, self.token, self.allowed_hosts = app, token, allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that is allowed, or send an error."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = Headers(scope=scope)
            try:
                self._check_host(headers)
                self._check_token(headers)
            except RequestError as error:
                await make_error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestError` if a browser could have been redirected to this server."""
        name = re.sub(r":\d*$", "", headers.get("host", "").lower())  # without the port
        if self.allowed_hosts is not None and name not in self.allowed_hosts:
            raise RequestError(
                403, "host: is not a name of this server; send Host: localhost, or start it with --token-file"
            )

    def _check_token(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestError` if the token is missing or wrong."""
        if self.token is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # The comparison takes the same time for any wrong token.
        is_valid = hmac.compare_digest(token.strip().encode(), self.token)
        if scheme.lower() != "bearer" or not is_valid:
            raise RequestError(
                401, "token: is missing or wrong; send the header Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )  # fmt: skip

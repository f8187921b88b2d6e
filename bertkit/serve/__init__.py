"""The HTTP server of `bertkit serve`: predictions of finished runs, and a page to try them."""

from typing import Any

from bertkit.utils.compat import require_extra

REQUIRED_PACKAGES = ("anyio", "fastapi", "uvicorn", "prometheus_client")


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    """Serve until SIGTERM or Ctrl-C, if the packages of the extra are installed."""
    require_extra("serve", REQUIRED_PACKAGES, "serve")
    from bertkit.serve import server  # imports these packages

    server.run_command(settings, as_json)

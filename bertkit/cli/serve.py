"""`bertkit serve RUN...`: the HTTP server, with its log on standard error."""

import logging
import sys
from typing import Any

import typer

from bertkit.cli.options import build_command
from bertkit.cli.streams import print_json
from bertkit.commands.configs import SERVE_HELP, ServeConfig
from bertkit.errors import format_list
from bertkit.utils.extras import require_extra

LOG_FORMAT = "%(asctime)s %(message)s"
DATE_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


def _run(settings: dict[str, Any], as_json: bool) -> None:
    require_extra("serve", ("anyio", "fastapi", "uvicorn", "prometheus_client"), "serve")
    from bertkit.serve.server import serve

    _log_to_stderr()

    def print_address(server: dict[str, Any]) -> None:
        if as_json:
            print_json(server)
        else:
            typer.echo(f"{server['url']} serves {format_list(server['models'])}")
        sys.stdout.flush()

    serve(settings, print_address)


def _log_to_stderr() -> None:
    """Print the messages of the server, but not those of the libraries, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT, DATE_FORMAT))
    logger = logging.getLogger("bertkit.serve")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


serve = build_command(ServeConfig, SERVE_HELP, _run)

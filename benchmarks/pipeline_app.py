"""Serve a run with FastAPI and transformers' pipeline, as many projects do: one forward pass per request.

`serve_speed.py` starts this script. It prints its address as JSON once it accepts requests.
"""

from __future__ import annotations

import json
import socket
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class Row(BaseModel):
    """The body of a request."""

    text: str


def create_app(run: str) -> FastAPI:
    """Return the application for a finished run of classify."""
    app, classify = FastAPI(), pipeline("text-classification", run, top_k=None)

    @app.post("/predict")
    def predict(row: Row) -> list[dict[str, float | str]]:
        return classify([row.text], truncation=True)[0]

    return app


def main() -> None:
    """Serve the run in the first argument on any free port."""
    app = create_app(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""A small Hugging Face Hub on loopback, so that tests run the real download code.

Only what loading and uploading need of the protocol is here: repository information, the file tree and the
files, read from a folder, whole or by ranges; accounts, new repositories and commits, in ``hub_uploads.py``.
Large files go the way of LFS, not Xet.
A ``conftest.py`` gives the fixtures to the tests beside it with ``from hub import hub, no_hub``.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from hub_uploads import UploadHandler
from huggingface_hub import close_session
from huggingface_hub.hf_api import api as shared_api

_REPO = r"(?P<name>[\w.-]+(?:/[\w.-]+)?)"
_API = re.compile(
    rf"/api/(?P<kind>models|datasets)/{_REPO}"
    r"(?:/(?P<view>revision|tree)/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?"
)
_FILE = re.compile(rf"/(?:(?P<kind>datasets)/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class _NotFoundError(Exception):
    """A 404 of the Hub: clients choose the exception they raise by its ``X-Error-Code``."""

    def __init__(self, code: str, commit: str = "") -> None:
        super().__init__(code)
        self.headers = {"X-Error-Code": code, "X-Error-Message": code}
        if commit:  # lets the client remember, for this commit, that the file does not exist
            self.headers["X-Repo-Commit"] = commit


def _blob_id(file: Path) -> str:
    """Name a file as git does, by its content: the client keys its cache by this."""
    data = _mapped(file)
    digest = hashlib.sha1(b"blob %d\0" % len(data))
    digest.update(data)
    return digest.hexdigest()


def _mapped(file: Path) -> memoryview:
    """The bytes of a file, not in memory, so that tests can measure what those who ask for them hold."""
    with file.open("rb") as opened:
        empty = not file.stat().st_size
        return memoryview(b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _files(folder: Path) -> dict[str, Path]:
    """List the files of a revision by their path in the repository."""
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in found}


def _commit(folder: Path) -> str:
    """Derive the commit from the content, so that a changed file makes a new commit."""
    listing = [f"{path} {_blob_id(file)}" for path, file in _files(folder).items()]
    return hashlib.sha1("\n".join(listing).encode()).hexdigest()


def _info(name: str, folder: Path, blobs: bool) -> dict[str, Any]:
    """Describe a revision; sizes only on request, as on the Hub, so that no code relies on them."""
    siblings: list[dict[str, Any]] = []
    for path, file in _files(folder).items():
        sizes = {"size": file.stat().st_size, "blobId": _blob_id(file)} if blobs else {}
        siblings.append({"rfilename": path, **sizes})
    flags = {"private": False, "gated": False, "disabled": False, "tags": []}
    return {"id": name, "sha": _commit(folder), "siblings": siblings, **flags}


def _tree(folder: Path, path: str, recursive: bool) -> list[dict[str, Any]]:
    """List the files and folders below a path of a revision."""
    top = folder / path
    if not top.is_dir():
        raise _NotFoundError("EntryNotFound", _commit(folder))
    entries: list[dict[str, Any]] = []
    for at in sorted(top.rglob("*") if recursive else top.iterdir()):
        entry = {"path": at.relative_to(folder).as_posix(), "size": 0}
        if at.is_file():
            entry |= {"type": "file", "oid": _blob_id(at), "size": at.stat().st_size}
        else:
            entry |= {"type": "directory", "oid": _commit(at)}
        entries.append(entry)
    return entries


class Hub:
    """Serves ``root/models/[ORG/]NAME`` and ``root/datasets/ORG/NAME`` until it is stopped.

    A revision other than main lies beside its repository, in ``NAME@REVISION`` with the slashes
    of the revision quoted.  ``requests`` holds what was asked, and ``sent`` the bytes of files that were
    given, for tests of what a load costs.  Of the data sets named in ``gated`` nobody gets a file, and after
    ``breaks_after`` bytes of files each connection breaks.  ``uploads`` has accounts and what they commit.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        self.gated: set[str] = set()
        self.breaks_after: int | None = None
        self.uploads = UploadHandler(root)
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen on a free port: another one, and so another ``url``, at every start."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the port: later requests are refused, as those to a Hub out of reach."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def add_model(self, name: str, folder: Path, revision: str = "main") -> Path:
        """Publish a copy of a folder as a model, in place of what the revision held before."""
        return self._add("models", name, folder, revision)

    def add_dataset(self, name: str, folder: Path, revision: str = "main") -> Path:
        """Publish a copy of a folder as a data set, in place of what the revision held before."""
        return self._add("datasets", name, folder, revision)

    def _add(self, kind: str, name: str, folder: Path, revision: str) -> Path:
        suffix = "" if revision == "main" else "@" + quote(revision, safe="")
        target = self.root / kind / (name + suffix)
        if target.exists():
            shutil.rmtree(target)
        return Path(shutil.copytree(folder, target))

    def find(self, kind: str, name: str, revision: str) -> Path:
        """Find the folder of a revision, which may be given as a branch or as its commit."""
        main = self.root / kind / name
        beside = main.parent.glob(f"{main.name}@*")
        found = {unquote(folder.name.partition("@")[2]): folder for folder in beside}
        # A name without a slash is that of a model only if files lie in it: else it is an ORG.
        if main.is_dir() and ("/" in name or any(file.is_file() for file in main.iterdir())):
            found["main"] = main
        if not found:
            raise _NotFoundError("RepoNotFound")
        for branch, folder in found.items():
            if revision in (branch, _commit(folder)):
                return folder
        raise _NotFoundError("RevisionNotFound")


class _ForbiddenError(_NotFoundError):
    """A 403 of the Hub."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; HTTP/1.0, the default, so that no connection outlives ``Hub.stop``."""

    def __init__(self, hub: Hub, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.hub.uploads.asked_for(self.path):
            self.do_POST()
            return
        self.hub.requests.append((self.command, self.path))
        try:
            body, headers = self._answer()
            status = 206 if "Content-Range" in headers else 200
        except _NotFoundError as error:
            body, headers = json.dumps({"error": str(error)}).encode(), error.headers
            status = 403 if isinstance(error, _ForbiddenError) else 404
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send(body, is_file="ETag" in headers)

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.hub.requests.append((self.command, self.path))
        status, answer = self._uploaded(urlsplit(self.path).path)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _uploaded(self, path: str) -> tuple[int, object]:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self.hub.uploads.answer(path, self.headers.get("Authorization"), body, self.hub.url)

    def _send(self, body: bytes | memoryview, is_file: bool) -> None:
        """The body, or what is left of it before the connection breaks."""
        left = self.hub.breaks_after
        part = body if left is None or not is_file else body[: max(0, left - self.hub.sent)]
        with suppress(ConnectionError):  # who asked has heard enough
            for at in range(0, len(part), 1 << 16):
                self.wfile.write(part[at : at + (1 << 16)])
                self.hub.sent += len(part[at : at + (1 << 16)]) if is_file else 0

    def _answer(self) -> tuple[bytes | memoryview, dict[str, str]]:
        """Route by the undecoded path: a quoted slash belongs to the name of a revision."""
        url = urlsplit(self.path)
        match = _API.fullmatch(url.path) or _FILE.fullmatch(url.path)
        if match is None:
            raise _NotFoundError("RepoNotFound")
        kind, revision = match["kind"] or "models", unquote(match["revision"] or "main")
        folder, path = self.hub.find(kind, match["name"], revision), unquote(match["path"] or "")
        if match.re is _FILE:
            if match["name"] in self.hub.gated:
                raise _ForbiddenError("GatedRepo", _commit(folder))
            return self._file(folder, path)
        query = parse_qs(url.query)
        if match["view"] == "tree":
            body: object = _tree(folder, path, query.get("recursive") == ["true"])
        else:
            body = _info(match["name"], folder, query.get("blobs") == ["true"])
        return json.dumps(body).encode(), {"Content-Type": "application/json"}

    def _file(self, folder: Path, path: str) -> tuple[memoryview, dict[str, str]]:
        file, commit = _files(folder).get(path), _commit(folder)
        if file is None:
            raise _NotFoundError("EntryNotFound", commit)
        body, headers = _mapped(file), {"ETag": f'"{_blob_id(file)}"', "X-Repo-Commit": commit}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return body, headers
        first, last = int(wanted[1]), min(int(wanted[2] or len(body)), len(body) - 1)
        return body[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(body)}"}

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: ``Hub.requests`` is the log."""


def _settings(url: str, home: Path) -> list[tuple[str, str, object]]:
    """List the variables that the libraries look up at each call, by module."""
    resolve = "/{repo_id}/resolve/{revision}/"
    no_agents: dict[str, object] = {"harnesses": {}}  # else the first call of all fetches a list
    return [
        ("huggingface_hub.constants", "ENDPOINT", url),
        ("huggingface_hub.constants", "HUGGINGFACE_CO_URL_TEMPLATE", url + resolve + "{filename}"),
        ("huggingface_hub.constants", "HF_HUB_CACHE", str(home / "hub")),
        ("huggingface_hub.constants", "HF_HUB_OFFLINE", False),
        ("huggingface_hub.constants", "HF_HUB_DISABLE_XET", True),
        ("huggingface_hub.constants", "HF_TOKEN_PATH", str(home / "token")),
        ("huggingface_hub.utils._detect_agent", "_registry", no_agents),
        ("transformers.utils.hub", "_hf_api", None),  # its client, made at the first load and kept
        ("datasets.config", "HF_ENDPOINT", url),
        ("datasets.config", "HUB_DATASETS_URL", f"{url}/datasets{resolve}{{path}}"),
        ("datasets.config", "HF_DATASETS_CACHE", home / "datasets"),
        ("datasets.config", "HF_HUB_OFFLINE", False),
        ("datasets.config", "HF_UPDATE_DOWNLOAD_COUNTS", False),
    ]


def _use(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point this process, and its children, at the Hub of an address and at an empty cache.

    The libraries read the environment once, on import.  So what is imported already is patched,
    and what is imported later finds the environment.  A version may lack one of the variables.
    """
    environment = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "no_proxy": "127.0.0.1",
        "DISABLE_SAFETENSORS_CONVERSION": "1",  # else a .bin model asks a public service for help
        "HF_HUB_DISABLE_XET": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # else a data set reports that it was loaded
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    for key in (*offline, "HF_DATASETS_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    for module, name, setting in _settings(url, home):
        if module in sys.modules:
            monkeypatch.setattr(sys.modules[module], name, setting, raising=False)
    monkeypatch.setattr(shared_api, "endpoint", url)  # behind huggingface_hub.model_info and others
    close_session()  # the client in use keeps the proxies that were set when it was made


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a Hub that the libraries use, with an empty cache."""
    with Hub(tmp_path / "hub-root") as running:
        _use(running.url, tmp_path / "hf-home", monkeypatch)
        yield running


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have the libraries use a Hub that refuses connections, with an empty cache; its address."""
    with socket.socket() as closed:  # bound but not listening: refuses, and nobody else gets it
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        _use(url, tmp_path / "hf-home", monkeypatch)
        yield url

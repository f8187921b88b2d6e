"""A small local server with the protocol of the Hugging Face Hub, so that tests run the real download code.

It implements what loading and uploading require: repository information, the file tree, and complete or
partial downloads of the files of a folder. ``hub_uploads.py`` adds accounts, new repositories and commits.
Large files use LFS, not Xet. ``conftest.py`` imports the fixtures ``hub`` and ``no_hub``.
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
    """A 404 of the Hub; clients raise an exception according to its ``X-Error-Code``."""

    def __init__(self, code: str, commit: str = "") -> None:
        super().__init__(code)
        self.headers = {"X-Error-Code": code, "X-Error-Message": code}
        if commit:  # lets the client remember, for this commit, that the file does not exist
            self.headers["X-Repo-Commit"] = commit


def _blob_id(file: Path) -> str:
    """Compute the git blob id of a file, which is the key in the cache of the client."""
    data = _map_file(file)
    digest = hashlib.sha1(b"blob %d\0" % len(data))
    digest.update(data)
    return digest.hexdigest()


def _map_file(file: Path) -> memoryview:
    """Map a file instead of reading it, so that tests can measure the memory of the client."""
    with file.open("rb") as opened:
        empty = not file.stat().st_size
        return memoryview(b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def _list_files(folder: Path) -> dict[str, Path]:
    """Return path in the repository -> file of a revision."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def _compute_commit(folder: Path) -> str:
    """Derive the commit from the content, so that a changed file makes a new commit."""
    listing = [f"{path} {_blob_id(file)}" for path, file in _list_files(folder).items()]
    return hashlib.sha1("\n".join(listing).encode()).hexdigest()


def _describe_revision(name: str, folder: Path, blobs: bool) -> dict[str, Any]:
    """Describe a revision. As on the Hub, sizes are included only on request."""
    siblings: list[dict[str, Any]] = []
    for path, file in _list_files(folder).items():
        sizes = {"size": file.stat().st_size, "blobId": _blob_id(file)} if blobs else {}
        siblings.append({"rfilename": path, **sizes})
    flags = {"private": False, "gated": False, "disabled": False, "tags": []}
    return {"id": name, "sha": _compute_commit(folder), "siblings": siblings, **flags}


def _list_tree(folder: Path, path: str, recursive: bool) -> list[dict[str, Any]]:
    """List the files and folders below a path of a revision."""
    top = folder / path
    if not top.is_dir():
        raise _NotFoundError("EntryNotFound", _compute_commit(folder))
    entries: list[dict[str, Any]] = []
    for member in sorted(top.rglob("*") if recursive else top.iterdir()):
        entry = {"path": member.relative_to(folder).as_posix(), "size": 0}
        if member.is_file():
            entry |= {"type": "file", "oid": _blob_id(member), "size": member.stat().st_size}
        else:
            entry |= {"type": "directory", "oid": _compute_commit(member)}
        entries.append(entry)
    return entries


class Hub:
    """A server of ``root/models/[ORG/]NAME`` and ``root/datasets/ORG/NAME``.

    The folder of a revision other than main is ``NAME@REVISION``, with quoted slashes.

    Attributes:
        requests: method and path of every request.
        sent: number of bytes of files that were sent.
        gated: datasets whose files are not accessible.
        breaks_after: number of bytes of files after which every connection breaks.
        fails_with: status of all answers, or None.
        uploads: accounts and their commits.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        self.gated: set[str] = set()
        self.breaks_after: int | None = None
        self.fails_with: int | None = None
        self.uploads = UploadHandler(root)
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen on a free port; every start uses a new port and therefore a new ``url``."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the port; later requests are refused, as by an unreachable Hub."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def add_model(self, name: str, folder: Path, revision: str = "main") -> Path:
        """Publish a copy of a folder as a model; it replaces the revision."""
        return self._add("models", name, folder, revision)

    def add_dataset(self, name: str, folder: Path, revision: str = "main") -> Path:
        """Publish a copy of a folder as a dataset; it replaces the revision."""
        return self._add("datasets", name, folder, revision)

    def _add(self, kind: str, name: str, folder: Path, revision: str) -> Path:
        suffix = "" if revision == "main" else "@" + quote(revision, safe="")
        target = self.root / kind / (name + suffix)
        if target.exists():
            shutil.rmtree(target)
        return Path(shutil.copytree(folder, target))

    def find(self, kind: str, name: str, revision: str) -> Path:
        """Find the folder of a revision, which is a branch or a commit."""
        main = self.root / kind / name
        beside = main.parent.glob(f"{main.name}@*")
        folders = {unquote(folder.name.partition("@")[2]): folder for folder in beside}
        # A folder without a slash in its name is a model only if it contains files; otherwise it is an ORG.
        if main.is_dir() and ("/" in name or any(file.is_file() for file in main.iterdir())):
            folders["main"] = main
        if not folders:
            raise _NotFoundError("RepoNotFound")
        for branch, folder in folders.items():
            if revision in (branch, _compute_commit(folder)):
                return folder
        raise _NotFoundError("RevisionNotFound")


class _ForbiddenError(_NotFoundError):
    """A 403 of the Hub."""


class _Handler(BaseHTTPRequestHandler):
    """A handler of one request, over HTTP/1.0 so that no connection outlives ``Hub.stop``."""

    def __init__(self, hub: Hub, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.hub.uploads.handles(self.path):
            self.do_POST()
            return
        self.hub.requests.append((self.command, self.path))
        try:
            if self.hub.fails_with is not None:
                self.send_error(self.hub.fails_with)
                return
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
        status, answer = self._handle_upload(urlsplit(self.path).path)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _handle_upload(self, path: str) -> tuple[int, object]:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self.hub.uploads.answer(path, self.headers.get("Authorization"), body, self.hub.url)

    def _send(self, body: bytes | memoryview, is_file: bool) -> None:
        """Send the body, or its beginning if the connection breaks."""
        left = self.hub.breaks_after
        part = body if left is None or not is_file else body[: max(0, left - self.hub.sent)]
        with suppress(ConnectionError):  # the client closed the connection
            for at in range(0, len(part), 1 << 16):
                self.wfile.write(part[at : at + (1 << 16)])
                self.hub.sent += len(part[at : at + (1 << 16)]) if is_file else 0

    def _answer(self) -> tuple[bytes | memoryview, dict[str, str]]:
        """Route by the undecoded path, because a quoted slash belongs to the name of a revision."""
        url = urlsplit(self.path)
        match = _API.fullmatch(url.path) or _FILE.fullmatch(url.path)
        if match is None:
            raise _NotFoundError("RepoNotFound")
        kind, revision = match["kind"] or "models", unquote(match["revision"] or "main")
        folder, path = self.hub.find(kind, match["name"], revision), unquote(match["path"] or "")
        if match.re is _FILE:
            if match["name"] in self.hub.gated:
                raise _ForbiddenError("GatedRepo", _compute_commit(folder))
            return self._file(folder, path)
        query = parse_qs(url.query)
        if match["view"] == "tree":
            body: object = _list_tree(folder, path, query.get("recursive") == ["true"])
        else:
            body = _describe_revision(match["name"], folder, query.get("blobs") == ["true"])
        return json.dumps(body).encode(), {"Content-Type": "application/json"}

    def _file(self, folder: Path, path: str) -> tuple[memoryview, dict[str, str]]:
        file, commit = _list_files(folder).get(path), _compute_commit(folder)
        if file is None:
            raise _NotFoundError("EntryNotFound", commit)
        body, headers = _map_file(file), {"ETag": f'"{_blob_id(file)}"', "X-Repo-Commit": commit}
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if byte_range is None:
            return body, headers
        first, last = int(byte_range[1]), min(int(byte_range[2] or len(body)), len(body) - 1)
        return body[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(body)}"}

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; ``Hub.requests`` is the log."""


def _list_settings(url: str, home: Path) -> list[tuple[str, str, object]]:
    """List (module, variable, value) of the settings that the libraries read at each call."""
    resolve = "/{repo_id}/resolve/{revision}/"
    no_agents: dict[str, object] = {"harnesses": {}}  # otherwise the first call downloads a list
    return [
        ("huggingface_hub.constants", "ENDPOINT", url),
        ("huggingface_hub.constants", "HUGGINGFACE_CO_URL_TEMPLATE", url + resolve + "{filename}"),
        ("huggingface_hub.constants", "HF_HUB_CACHE", str(home / "hub")),
        ("huggingface_hub.constants", "HF_HUB_OFFLINE", False),
        ("huggingface_hub.constants", "HF_HUB_DISABLE_XET", True),
        ("huggingface_hub.constants", "HF_TOKEN_PATH", str(home / "token")),
        ("huggingface_hub.utils._detect_agent", "_registry", no_agents),
        ("transformers.utils.hub", "_hf_api", None),  # the client, which is cached at the first load
        ("datasets.config", "HF_ENDPOINT", url),
        ("datasets.config", "HUB_DATASETS_URL", f"{url}/datasets{resolve}{{path}}"),
        ("datasets.config", "HF_DATASETS_CACHE", home / "datasets"),
        ("datasets.config", "HF_HUB_OFFLINE", False),
        ("datasets.config", "HF_UPDATE_DOWNLOAD_COUNTS", False),
    ]


def _use_hub(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process and its children use the Hub at this address, and an empty cache.

    The libraries read the environment once, on import. Therefore imported modules are patched, and
    environment variables are set for later imports. Some versions lack some of the variables.
    """
    environment = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "no_proxy": "127.0.0.1",
        "DISABLE_SAFETENSORS_CONVERSION": "1",  # otherwise a .bin model calls a public conversion service
        "HF_HUB_DISABLE_XET": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # otherwise loading a dataset sends a report
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    for key in (*offline, "HF_DATASETS_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    for module, name, setting in _list_settings(url, home):
        if module in sys.modules:
            monkeypatch.setattr(sys.modules[module], name, setting, raising=False)
    monkeypatch.setattr(shared_api, "endpoint", url)  # used by huggingface_hub.model_info and others
    close_session()  # the open client keeps its old proxy settings


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a Hub, and make the libraries use it with an empty cache."""
    with Hub(tmp_path / "hub-root") as running:
        _use_hub(running.url, tmp_path / "hf-home", monkeypatch)
        yield running


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the libraries use an address that refuses connections, with an empty cache."""
    with socket.socket() as closed:  # bound but not listening: refuses connections and stays reserved
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        _use_hub(url, tmp_path / "hf-home", monkeypatch)
        yield url

"""Uploads to the local Hub of the tests: accounts, new repositories, and commits with LFS files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

_ROUTES = {
    r"/api/whoami-v2": "_whoami",
    r"/api/repos/create": "_create",
    r"/api/validate-yaml": "_validate",
    r"/api/models/(?P<repo>[^/]+/[^/]+)/auth-check(?:/write)?": "_check",
    r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/main": "_modes",
    r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch": "_batch",
    r"/lfs/(?P<oid>[0-9a-f]{64})": "_store",
    r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/main": "_commit",
}
_PUBLIC = ("_store",)  # needs no token, like the signed address of a bucket
_LARGE = (".safetensors", ".bin")  # as in the .gitattributes of a new repository


class _RefusedError(Exception):
    """A response with an error status."""

    def __init__(self, status: int, message: str, **fields: str) -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": message, "errors": [{"message": message}], **fields}


class UploadHandler:
    """A handler of uploads that stores models below ``root``.

    Attributes:
        tokens: token -> account and role.
        organizations: organizations that every account may write to.
        created: new repository -> the request that created it.
        commits: message and paths of each commit.
        fails: name of the method that responds with a server error, such as ``_commit``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tokens: dict[str, tuple[str, str]] = {}
        self.organizations = {"team"}
        self.created: dict[str, dict[str, Any]] = {}
        self.commits: list[tuple[str, list[str]]] = []
        self.fails = ""
        self._large: dict[str, bytes] = {}

    def handles(self, path: str) -> bool:
        """Return whether this class handles a GET request."""
        return path == "/api/whoami-v2" or "/auth-check" in path

    def answer(self, path: str, authorization: str | None, body: bytes, url: str) -> tuple[int, Any]:
        """Return status and content of the response."""
        route = next(
            ((match, name) for pattern, name in _ROUTES.items() if (match := re.fullmatch(pattern, path))),
            None,
        )
        if route is None:
            return 404, {"error": f"no {path}"}
        match, name = route
        account = self.tokens.get((authorization or "").removeprefix("Bearer "))
        if account is None and name not in _PUBLIC:
            return 401, {"error": "Invalid username or password."}
        if name == self.fails:
            return 500, {"error": "the server fails"}
        respond: Callable[..., Any] = getattr(self, name)
        try:
            return 200, respond(body=body, url=url, account=account, **match.groupdict())
        except _RefusedError as error:
            return error.status, error.content

    def _whoami(self, account: tuple[str, str], **_: Any) -> dict[str, Any]:
        name, role = account
        token = {"displayName": "token", "role": role}
        return {
            "type": "user",
            "name": name,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": token},
        }

    def _create(self, body: bytes, account: tuple[str, str], url: str, **_: Any) -> dict[str, Any]:
        request = json.loads(body)
        repo = f"{request['organization'] or account[0]}/{request['name']}"
        self._require_right(repo, account)
        if repo in self.created:
            raise _RefusedError(409, "You already created this model repo", url=f"{url}/{repo}")
        self.created[repo] = request
        (self.root / "models" / repo).mkdir(parents=True)
        return {"url": f"{url}/{repo}", "name": repo}

    def _require_right(self, repo: str, account: tuple[str, str]) -> None:
        if account[1] != "write" or repo.split("/")[0] not in {account[0], *self.organizations}:
            raise _RefusedError(403, f"You don't have the rights to write to {repo}")

    def _check(self, repo: str, account: tuple[str, str], **_: Any) -> dict[str, Any]:
        self._require_right(repo, account)
        return {}

    def _validate(self, body: bytes, **_: Any) -> dict[str, Any]:
        """Check the YAML metadata of a model card, including the names of repositories."""
        content = json.loads(body)["content"]
        metadata = yaml.safe_load(content.split("---")[1]) if content.startswith("---") else {}
        repositories = [metadata.get("base_model"), *metadata.get("datasets", [])]
        for name in filter(None, repositories):
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
                raise _RefusedError(400, f"{name!r} is not a valid repository")
        return {"errors": [], "warnings": []}

    def _modes(self, body: bytes, account: tuple[str, str], repo: str, **_: Any) -> dict[str, Any]:
        self._require_right(repo, account)
        return {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(_LARGE) else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(body)["files"]
            ]
        }

    def _batch(self, body: bytes, url: str, **_: Any) -> dict[str, Any]:
        def add_upload_action(file: dict[str, Any]) -> dict[str, Any]:
            action = {"actions": {"upload": {"href": f"{url}/lfs/{file['oid']}"}}}
            return file if file["oid"] in self._large else file | action

        return {
            "transfer": "basic",
            "objects": [add_upload_action(file) for file in json.loads(body)["objects"]],
        }

    def _store(self, body: bytes, oid: str, **_: Any) -> dict[str, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _RefusedError(400, "the content does not match its checksum")
        self._large[oid] = body
        return {}

    def _commit(self, body: bytes, url: str, account: tuple[str, str], repo: str, **_: Any) -> dict[str, Any]:
        self._require_right(repo, account)
        header, *operations = map(json.loads, body.splitlines())
        for operation in operations:
            file, kind = operation["value"], operation["key"]
            content = base64.b64decode(file["content"]) if kind == "file" else self._large[file["oid"]]
            target = self.root / "models" / repo / file["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        self.commits.append(
            (header["value"]["summary"], [operation["value"]["path"] for operation in operations])
        )
        oid = hashlib.sha1(body).hexdigest()
        return {"success": True, "commitOid": oid, "commitUrl": f"{url}/{repo}/commit/{oid}"}

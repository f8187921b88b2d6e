"""The half of the Hub that takes: accounts, new repositories, and commits with large files by way of LFS."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

_POSTED = {
    r"/api/whoami-v2": "_whoami",
    r"/api/repos/create": "_create",
    r"/api/validate-yaml": "_validate",
    r"/api/models/(?P<repo>[^/]+/[^/]+)/auth-check(?:/write)?": "_check",
    r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/main": "_modes",
    r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch": "_batch",
    r"/lfs/(?P<oid>[0-9a-f]{64})": "_store",
    r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/main": "_commit",
}
_NO_TOKEN_NEEDED = ("_store",)  # its address is the permission, as that of a bucket
_LARGE = (".safetensors", ".bin")  # as a new repository's .gitattributes say


class _RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": message, "errors": [{"message": message}], **more}


class UploadHandler:
    """Takes models below ``root`` from the owners of its tokens.

    ``tokens`` has the account and the role of each token, ``organizations`` those that every account
    may write to.  ``made`` is what was asked for each new repository, ``commits`` the message and the paths
    of each commit.  ``fails`` names what to refuse with an error of the server: ``_commit``, say.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tokens: dict[str, tuple[str, str]] = {}
        self.organizations = {"team"}
        self.made: dict[str, dict[str, Any]] = {}
        self.commits: list[tuple[str, list[str]]] = []
        self.fails = ""
        self._large: dict[str, bytes] = {}

    def asked_for(self, path: str) -> bool:
        """Whether a GET is one of these."""
        return path == "/api/whoami-v2" or "/auth-check" in path

    def answer(self, path: str, authorization: str | None, body: bytes, url: str) -> tuple[int, Any]:
        """Status and content."""
        found = next(
            ((match, name) for form, name in _POSTED.items() if (match := re.fullmatch(form, path))), None
        )
        if found is None:
            return 404, {"error": f"no {path}"}
        match, name = found
        account = self.tokens.get((authorization or "").removeprefix("Bearer "))
        if account is None and name not in _NO_TOKEN_NEEDED:
            return 401, {"error": "Invalid username or password."}
        if name == self.fails:
            return 500, {"error": "the server fails"}
        do: Callable[..., Any] = getattr(self, name)
        try:
            return 200, do(body=body, url=url, account=account, **match.groupdict())
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
        asked = json.loads(body)
        repo = f"{asked['organization'] or account[0]}/{asked['name']}"
        self._require_right(repo, account)
        if repo in self.made:
            raise _RefusedError(409, "You already created this model repo", url=f"{url}/{repo}")
        self.made[repo] = asked
        (self.root / "models" / repo).mkdir(parents=True)
        return {"url": f"{url}/{repo}", "name": repo}

    def _require_right(self, repo: str, account: tuple[str, str]) -> None:
        if account[1] != "write" or repo.split("/")[0] not in {account[0], *self.organizations}:
            raise _RefusedError(403, f"You don't have the rights to write to {repo}")

    def _check(self, repo: str, account: tuple[str, str], **_: Any) -> dict[str, Any]:
        self._require_right(repo, account)
        return {}

    def _validate(self, body: bytes, **_: Any) -> dict[str, Any]:
        """The metadata before a card: YAML, with names of repositories where there must be such."""
        content = json.loads(body)["content"]
        metadata = yaml.safe_load(content.split("---")[1]) if content.startswith("---") else {}
        named = [metadata.get("base_model"), *metadata.get("datasets", [])]
        for name in filter(None, named):
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
        def wanted(file: dict[str, Any]) -> dict[str, Any]:
            action = {"actions": {"upload": {"href": f"{url}/lfs/{file['oid']}"}}}
            return file if file["oid"] in self._large else file | action

        return {"transfer": "basic", "objects": [wanted(file) for file in json.loads(body)["objects"]]}

    def _store(self, body: bytes, oid: str, **_: Any) -> dict[str, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _RefusedError(400, "other bytes than were announced")
        self._large[oid] = body
        return {}

    def _commit(self, body: bytes, url: str, account: tuple[str, str], repo: str, **_: Any) -> dict[str, Any]:
        self._require_right(repo, account)
        header, *operations = map(json.loads, body.splitlines())
        for operation in operations:
            about, kind = operation["value"], operation["key"]
            content = base64.b64decode(about["content"]) if kind == "file" else self._large[about["oid"]]
            (self.root / "models" / repo / about["path"]).write_bytes(content)
        self.commits.append((header["value"]["summary"], [one["value"]["path"] for one in operations]))
        oid = hashlib.sha1(body).hexdigest()
        return {"success": True, "commitOid": oid, "commitUrl": f"{url}/{repo}/commit/{oid}"}

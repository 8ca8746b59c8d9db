"""A stand-in for the hub on 127.0.0.1: as much of its protocol as pushing and fetching take."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """Keeps repositories in memory: {repo: {path: contents}}."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.fetched: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(
        self, body: bytes, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {"Content-Type": "application/json"}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(json.dumps(value).encode(), status)

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization")
            name = f"{owner}/{asked['name']}" if owner else asked["name"]
            self.server.repos.setdefault(name, {})
            return self._json({"url": f"{self.server.address}/{name}", "name": name})
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        repo, action = self.path.removeprefix("/api/models/").rsplit("/", 2)[:2]
        if action == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self._json({"files": files, "commitOid": None})
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                contents = base64.b64decode(entry["value"]["content"])
                self.server.repos[repo][entry["value"]["path"]] = contents
        address = f"{self.server.address}/{repo}/commit/{self._commit(repo)}"
        self._json({"success": True, "commitOid": self._commit(repo), "commitUrl": address})

    def _body(self) -> bytes:
        if self.headers["Content-Length"] is not None:
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):  # sent in chunks
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _commit(self, repo: str) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for path, contents in sorted(self.server.repos[repo].items()):
            digest.update(path.encode() + contents)
        return digest.hexdigest()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/"):
            return self._of_model(path.removeprefix("/api/models/"))
        repo, _, rest = path.removeprefix("/").partition("/resolve/")
        name = rest.split("/", 1)[-1]
        if name not in self.server.repos.get(repo, {}):
            return self._json({"error": "Entry not found"}, 404)
        contents = self.server.repos[repo][name]
        if self.command == "GET":
            self.server.fetched.append(name)
        etag = hashlib.sha1(contents, usedforsecurity=False).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self._commit(repo)}
        self._answer(contents, headers=headers)

    do_HEAD = do_GET

    def _of_model(self, rest: str) -> None:
        parts = rest.split("/")
        repo = "/".join(parts[:2])
        if repo not in self.server.repos:
            return self._json({"error": "Repository not found"}, 404)
        files = self.server.repos[repo]
        if "tree" in parts:
            return self._json(
                [{"type": "file", "path": p, "size": len(c), "oid": "0"} for p, c in files.items()]
            )
        info = {"id": repo, "modelId": repo, "sha": self._commit(repo), "private": False}
        self._json(info | {"siblings": [{"rfilename": path} for path in files]})

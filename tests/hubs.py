"""A local HTTP server in the place of huggingface.co: one repository, or refusals alone."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """A running hub, and the ``Authorization`` headers that it was sent."""

    url: str = ""
    tokens: set[str | None] = field(default_factory=set[str | None])


@contextmanager
def refusing_hub(status: int, code: str | None = None) -> Generator[str]:
    """Answers every question alike; yields the endpoint."""

    class Answer(_Quiet):
        def do_GET(self) -> None:
            self.answer(status, b"", {"X-Error-Code": code} if code else {})

        do_HEAD = do_GET

    with _running(Answer) as url:
        yield url


@contextmanager
def serving_hub(folder: Path) -> Generator[Hub]:
    """Serves a folder as ``owner/name`` with one commit."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub = Hub()

    class Answer(_Quiet):
        def do_GET(self) -> None:
            hub.tokens.add(self.headers.get("authorization"))
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/owner/name/tree/"):
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                    for name, data in files.items()
                ]
                self.answer(200, json.dumps(entries).encode(), {})
            elif path.startswith("/api/models/owner/name"):
                siblings = [{"rfilename": name} for name in files]
                info = {"id": "owner/name", "modelId": "owner/name", "sha": COMMIT, "siblings": siblings}
                self.answer(200, json.dumps(info).encode(), {})
            else:
                data = files[path.rpartition("/")[2]]
                self.answer(200, data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT})

        do_HEAD = do_GET

    with _running(Answer) as hub.url:
        yield hub


class _Quiet(BaseHTTPRequestHandler):
    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()

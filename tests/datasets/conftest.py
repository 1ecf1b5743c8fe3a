"""Isolate the tests from the datasets, caches and proxies of the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUBER_DATA", "CUBER_CACHE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Server(ThreadingHTTPServer):
    """Serve ``content``; truncate the next ``cut`` transfers, and return the status codes of ``answers``.

    ``lengths`` has values of Content-Length that are not true.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content: dict[str, bytes] = {}
        self.answers: dict[str, int] = {}
        self.lengths: dict[str, str] = {}
        self.cut = 0
        self.asked: list[str] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.content.get(self.path, b"")
        self.send_response(self.server.answers.get(self.path, 200 if content else 404))
        self.send_header("Content-Length", self.server.lengths.get(self.path, str(len(content))))
        self.end_headers()
        if self.server.cut > 0:
            self.server.cut -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()

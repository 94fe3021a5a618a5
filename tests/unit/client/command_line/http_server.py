"""A server of HTTP in a thread of the test's process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import quote, unquote


class Echo(HTTPServer):
    """Answers everything with the JSON that the path begins with, and keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    def make_url(self, answer: Any) -> str:
        """Return the address of a store with this answer."""
        return f"http://127.0.0.1:{self.server_port}/{quote(json.dumps(answer), safe='')}"


class _Handler(BaseHTTPRequestHandler):
    server: Echo

    def do_GET(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        body = unquote(self.path.split("/")[1]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serve() -> Iterator[Echo]:
    """Yield a server that runs."""
    with Echo() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()

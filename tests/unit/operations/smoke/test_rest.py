"""Requests of the smoke test to the api."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from inference_store.operations.smoke.rest import Rest


class _Api(BaseHTTPRequestHandler):
    """Answers with the name that it was asked by."""

    def do_GET(self) -> None:
        name = self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(name)))
        self.end_headers()
        self.wfile.write(name)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_without_a_token_it_names_loopback(api: str) -> None:
    """Else an api without access control, in a cluster say, refuses it."""
    assert Rest(f"http://{api}").ask("GET", "/") == b"localhost"
    assert Rest(f"http://{api}", "a-token").ask("GET", "/") == api.encode()

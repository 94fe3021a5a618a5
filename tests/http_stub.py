"""An HTTP server whose answers a test writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple


class Request(NamedTuple):
    """What a client sent."""

    method: str
    path: str
    headers: "Message[str, str]"
    body: bytes


class Response(NamedTuple):
    """What it gets; `content_type` None: without the header."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/xml"


@contextmanager
def serve_http(answer: Callable[[Request], Response]) -> Iterator[str]:
    """Yield the URL of a server that answers every request by a function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            response = answer(Request(self.command, self.path, self.headers, body))
            self.send_response(response.status)
            if response.content_type is not None:
                self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Tests read no access log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

"""A server of HTTP in a thread of the test's process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from tests.http_stub import Request, Response, serve_http


@dataclass(slots=True)
class Echo:
    """Answers everything with the JSON that the path begins with, and keeps what is sent."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)

    def make_url(self, answer: Any) -> str:
        return f"{self.url}/{quote(json.dumps(answer), safe='')}"

    def answer(self, request: Request) -> Response:
        self.bodies.append(request.body)
        body = unquote(request.path.split("/")[1]).encode()
        return Response(body=body, content_type="application/json")


@contextmanager
def serve() -> Iterator[Echo]:
    server = Echo()
    with serve_http(server.answer) as server.url:
        yield server

"""Requests to a server that runs beside the test, and whether it answers."""

import json
from ssl import SSLContext
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen


def send(url: str, body: Any = None, *, method: str | None = None, **headers: str) -> bytes:
    """Send a request, with a body as JSON if there is one; return the bytes of the answer."""
    content = None if body is None else json.dumps(body).encode()
    own = {"Content-Type": "application/json", **headers}
    with urlopen(Request(url, content, own, method=method), timeout=300) as answer:
        return bytes(answer.read())


def ask(url: str, body: Any = None, **more: Any) -> Any:
    """Send the same, and return the decoded JSON of the answer."""
    return json.loads(send(url, body, **more))


def answers(url: str, context: SSLContext | None = None) -> bool:
    try:
        with urlopen(url, timeout=10, context=context) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False

"""Calls to a model server by a socket and curl, and how two answers differ."""

import http.client
import json
import shutil
import socket
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.versions import MissingServer

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as it is to stand on the wire; Host and Content-Length are added if missing.

    A body of `Transfer-Encoding: chunked` is written as it is: in chunks.
    """

    method: str
    path: str
    """With the query, escaped."""
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back. Header names as they were spelt."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    """Without chunks, with its content coding."""
    cut: bool = False
    """The connection ended before the body did."""


def make_binary(
    name: str, datatype: str, shape: Sequence[int], raw: bytes, *outputs: str, **more: Any
) -> tuple[bytes, dict[str, str]]:
    """Make a body with a binary tensor behind its JSON, as Triton's clients do; and its headers."""
    tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    named = [{"name": output, "parameters": {"binary_data": True}} for output in outputs]
    head = json.dumps({**more, "inputs": [tensor], "outputs": named}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return head + raw, {**headers, "Content-Type": "application/octet-stream"}


def find_curl() -> Path:
    """The program. Raises MissingServer."""
    found = shutil.which("curl")
    if found is None:
        raise MissingServer("curl is not installed")
    return Path(found)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _SECONDS)


def by_socket(address: str, asked: Asked) -> Answered:
    """Over a plain socket, written here. Raises ConnectionError where nothing came."""
    with connect(address) as connection:
        connection.sendall(_on_the_wire(address, asked))
        with closing(http.client.HTTPResponse(connection, method=asked.method)) as answer:
            answer.begin()
            try:
                body, cut = answer.read(), False
            except http.client.IncompleteRead as exc:
                body, cut = exc.partial, True
            return Answered(answer.status, tuple(answer.getheaders()), body, cut)


def _on_the_wire(address: str, asked: Asked) -> bytes:
    named = {name.lower() for name, _ in asked.headers}
    headers = [*([] if "host" in named else [("Host", address)]), *asked.headers]
    if asked.body and named.isdisjoint({"content-length", "transfer-encoding"}):
        headers.append(("Content-Length", str(len(asked.body))))
    lines = [f"{asked.method} {asked.path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + asked.body


HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
BY_TIME = frozenset({"date"})
"""Headers whose presence is compared and not their value."""


def differences(direct: Answered, proxied: Answered, *, besides: Collection[str] = ()) -> list[str]:
    """What differs between two answers, a sentence each; [] where nothing does.

    `besides`: headers, in lower case, that only the second one has.
    """
    first, second = _seen(direct), _seen(proxied, besides)
    pairs = {
        "status": (direct.status, proxied.status),
        "cut off": (direct.cut, proxied.cut),
        **{name: (first.get(name), second.get(name)) for name in sorted({*first, *second})},
        "body": (direct.body, proxied.body),
    }
    return [f"{what}: {a!r} became {b!r}" for what, (a, b) in pairs.items() if a != b]


def _seen(answer: Answered, besides: Collection[str] = ()) -> dict[str, list[str]]:
    """The values of each header a caller may rely on, in their order."""
    found: dict[str, list[str]] = {}
    for name, value in answer.headers:
        lower = name.lower()
        if lower not in HOP_BY_HOP and lower not in besides:
            found.setdefault(f"header {lower}", []).append("" if lower in BY_TIME else value)
    return found

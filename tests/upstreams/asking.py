"""Requests sent as they are to stand on the wire, and answers as they came."""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

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


async def by_socket(address: str, asked: Asked) -> Answered:
    """Over a plain socket, written and read here. Raises ConnectionError where nothing came."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
    wire = b""
    try:
        writer.write(_on_the_wire(address, asked))
        with suppress(ConnectionResetError):  # after some of an answer that is its end
            while not _whole(wire, asked.method):
                part = await asyncio.wait_for(reader.read(2**20), _SECONDS)
                if not part:
                    break
                wire += part
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return read_answer(wire, asked.method)


def find_curl() -> Path:
    """The program. Raises MissingServer."""
    found = shutil.which("curl")
    if found is None:
        raise MissingServer("curl is not installed")
    return Path(found)


def _on_the_wire(address: str, asked: Asked) -> bytes:
    named = {name.lower() for name, _ in asked.headers}
    headers = [*([] if "host" in named else [("Host", address)]), *asked.headers]
    if asked.body and named.isdisjoint({"content-length", "transfer-encoding"}):
        headers.append(("Content-Length", str(len(asked.body))))
    lines = [f"{asked.method} {asked.path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + asked.body


def _whole(wire: bytes, method: str) -> bool:
    """Nothing of the answer is missing, as far as its head says how long it is."""
    try:
        answer = read_answer(wire, method)
    except ConnectionError:
        return False
    names = {name.lower() for name, _ in answer.headers}
    ends = names & {"content-length", "transfer-encoding"} or _is_empty(method, answer.status)
    return bool(ends) and not answer.cut


def _is_empty(method: str, status: int) -> bool:
    return method == "HEAD" or status in (204, 304)


def read_answer(wire: bytes, method: str) -> Answered:
    """An answer from all that a connection gave until it ended."""
    head, found, rest = wire.partition(b"\r\n\r\n")
    if not found:
        raise ConnectionError(f"the connection ended after {wire[:200]!r}")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split()[1])
    if 100 <= status < 200:
        return read_answer(rest, method)
    headers = tuple((name, value.strip()) for name, _, value in (ln.partition(":") for ln in lines))
    values = {name.lower(): value for name, value in headers}
    if _is_empty(method, status):
        return Answered(status, headers, b"")
    if values.get("transfer-encoding", "").lower() == "chunked":
        body, cut = _joined(rest)
        return Answered(status, headers, body, cut)
    return Answered(status, headers, rest, len(rest) < int(values.get("content-length", 0)))


def _joined(chunks: bytes) -> tuple[bytes, bool]:
    """The body of chunks, and whether the last one is missing."""
    parts: list[bytes] = []
    while True:
        line, found, rest = chunks.partition(b"\r\n")
        if not found:
            return b"".join(parts), True
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts), False
        parts.append(rest[:size])
        if len(rest) < size + 2:
            return b"".join(parts), True
        chunks = rest[size + 2 :]

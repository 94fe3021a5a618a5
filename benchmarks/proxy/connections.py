"""The load's connections: what they have in common, and HTTP/1.1 as far as the load needs it.

Sockets do not block, and calls are known by when they were due.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from .workloads import Workload

_BUFFER: Final = 1 << 20
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length: "


class Broken(Exception):
    """The other side closed the connection, or said what this client does not understand."""


class Connection(ABC):
    """One connection; up to `slots` calls at once."""

    slots = 1

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._socket.setblocking(False)
        self._out = b""
        self.fd = self._socket.fileno()

    @property
    def writes(self) -> bool:
        """Return whether more is to be sent once there is room."""
        return bool(self._out)

    @abstractmethod
    def ask(self, due: float) -> None:
        """Send a call that was due then."""

    @abstractmethod
    def answered(self) -> Sequence[tuple[float, bool]]:
        """Read what is there: of each call that is over when it was due, and whether all of the
        answer came and was good. Raises Broken."""

    def flush(self) -> None:
        """Send as much as there is room for."""
        self._send(b"")

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _send(self, more: bytes) -> None:
        out = self._out + more if self._out else more
        try:
            sent = self._socket.send(out)
        except BlockingIOError:
            sent = 0
        self._out = out[sent:] if sent < len(out) else b""

    def _read(self) -> bytes:
        try:
            part = self._socket.recv(_BUFFER)
        except BlockingIOError:
            return b""
        except OSError as exc:
            raise Broken(str(exc)) from exc
        if not part:
            raise Broken("it was closed")
        return part


class Http1(Connection):
    """A kept-alive connection: one call at a time, answers with a Content-Length."""

    def __init__(self, port: int, work: Workload) -> None:
        super().__init__(port)
        self._request = _build_request(work, port)
        self._expected = work.answer
        self._got = b""
        self._end = 0

    def ask(self, due: float) -> None:
        self._due = due
        self._send(self._request)

    def answered(self) -> Sequence[tuple[float, bool]]:
        self._got += self._read()
        if not self._end:
            head = self._got.find(_END)
            if head < 0:
                return ()
            self._end = head + len(_END) + _length(self._got[: head + 2])
        if len(self._got) < self._end:
            return ()
        if len(self._got) > self._end:
            raise Broken("more came than was asked for")
        good = self._got.startswith(b"HTTP/1.1 200") and self._got.endswith(self._expected)
        self._got, self._end = b"", 0
        return ((self._due, good),)


def _build_request(work: Workload, port: int) -> bytes:
    lines = [f"POST {work.path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    if work.binary_header is None:
        lines.append("Content-Type: application/json")
    else:
        lines.append("Content-Type: application/octet-stream")
        lines.append(f"Inference-Header-Content-Length: {work.binary_header}")
    lines.append(f"Content-Length: {len(work.request)}")
    return "\r\n".join([*lines, "", ""]).encode() + work.request


def _length(head: bytes) -> int:
    at = head.lower().find(_LENGTH)
    if at < 0:
        raise Broken("an answer without Content-Length")
    start = at + len(_LENGTH)
    return int(head[start : head.index(b"\r", start)])

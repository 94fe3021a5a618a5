"""HTTP/1.1 as far as the load needs it: one call at a time, answers with a Content-Length."""

from collections.abc import Sequence
from typing import Final

from .connections import Broken, Connection
from .workloads import Workload

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length: "


def request_of(work: Workload, port: int) -> bytes:
    """Head and body."""
    lines = [f"POST {work.path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    if work.binary_header is None:
        lines.append("Content-Type: application/json")
    else:
        lines.append("Content-Type: application/octet-stream")
        lines.append(f"Inference-Header-Content-Length: {work.binary_header}")
    lines.append(f"Content-Length: {len(work.request)}")
    return "\r\n".join([*lines, "", ""]).encode() + work.request


class Http1(Connection):
    """A kept-alive connection."""

    def __init__(self, port: int, work: Workload) -> None:
        super().__init__(port)
        self._request = request_of(work, port)
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


def _length(head: bytes) -> int:
    at = head.lower().find(_LENGTH)
    if at < 0:
        raise Broken("an answer without Content-Length")
    start = at + len(_LENGTH)
    return int(head[start : head.index(b"\r", start)])

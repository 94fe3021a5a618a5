"""A store that streams, without any I/O: it answers the core's commands."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from inference_store_client.commands import (
    Close,
    Deliver,
    Failure,
    Open,
    Read,
    Response,
    Steps,
    Wait,
)
from inference_store_client.errors import ConnectionFailed
from tests.both_clients import make_item

Line = dict[str, Any]


@dataclass(slots=True)
class FakeStore:
    """Streams `count` inferences after a cursor. `cut`: how much of the next connection comes.

    A connection that is cut ends with a failure, or as if it were whole if `is_silent`.
    """

    count: int
    cuts: Iterator[int | None]
    piece_bytes: int = 50
    is_silent: bool = False
    change_end: Callable[[Line], Line] = lambda end: end
    refusals: list[Response] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    bodies: list[Line] = field(default_factory=list)
    closed: int = 0
    result: Any = None
    """What the commands led to."""
    encode_columns: Callable[[int], bytes] | None = None
    """Encodes something else than lines."""
    is_searching: bool = False
    """Whether the first line says how far the search is."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of each answer that is a stream."""
    arrivals: list[Line] = field(default_factory=list)
    """What a page has after the last inference."""
    _pieces: Iterator[bytes | Failure] = field(default_factory=lambda: iter(()))

    def drive(self, steps: Steps[Any]) -> list[Any]:
        """Perform the commands; return what they deliver."""
        delivered: list[Any] = []
        outcome: Any = None
        while True:
            try:
                command = steps.send(outcome)
            except StopIteration as end:
                self.result = end.value
                return delivered
            outcome = None
            match command:
                case Open(request):
                    assert request.body is not None
                    self.bodies.append(json.loads(request.body))
                    outcome = self._open()
                case Read():
                    outcome = next(self._pieces)
                case Wait(seconds):
                    self.waits.append(seconds)
                case Deliver(items):
                    delivered += items
                case Close():
                    self.closed += 1

    def _open(self) -> Response:
        if self.refusals:
            refusal = self.refusals.pop(0)
            self._pieces = iter([refusal.content, b""])
            return Response(refusal.status, refusal.headers)
        cursor = self.bodies[-1].get("cursor")
        if "limit" in self.bodies[-1]:
            return self._open_page(int(cursor or 0))
        self._pieces = self._cut(self.encode(0 if cursor is None else int(cursor)))
        return Response(200, self.headers)

    def _open_page(self, begin: int) -> Response:
        items = [make_item(number) for number in range(begin, self.count)][:50] or self.arrivals
        page = {"items": items, "next": None, "searched_back_to": None, "warnings": []}
        self._pieces = iter([json.dumps(page).encode(), b""])
        return Response(200)

    def encode(self, begin: int) -> bytes:
        """Return the lines after the first `begin` inferences."""
        if self.encode_columns is not None:
            return self.encode_columns(begin)
        numbers = range(begin, self.count)
        lines = [make_item(number) | {"cursor": str(number + 1)} for number in numbers]
        end: Line = {"count": len(lines), "next": None, "warnings": [], "problem": None}
        searching = {"cursor": str(begin), "searched_back_to": "2026-11-01T00:00:00Z"}
        every = [*([searching] if self.is_searching else []), *lines, self.change_end(end)]
        return b"".join(json.dumps(line).encode() + b"\n" for line in every)

    def _cut(self, content: bytes) -> Iterator[bytes | Failure]:
        cut = next(self.cuts)
        whole = content if cut is None else content[:cut]
        for begin in range(0, len(whole), self.piece_bytes):
            yield whole[begin : begin + self.piece_bytes]
        yield b"" if cut is None or self.is_silent else Failure(ConnectionFailed("cut"))

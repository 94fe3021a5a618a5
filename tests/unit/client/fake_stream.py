"""A store that streams, without any I/O: it is the transport of the core."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from inference_store_client.errors import ConnectionFailed
from inference_store_client.origin import Origin
from inference_store_client.question import Question
from inference_store_client.requests import Request
from inference_store_client.settings import ClientSettings, Retries
from inference_store_client.transport import Jobs, Response, Transport
from tests.both_clients import make_item, make_page

Line = dict[str, Any]
Pieces = Iterator[bytes | ConnectionFailed]
SETTINGS: Final = ClientSettings(Origin("https://store.example"), retries=Retries(attempts=4))
QUESTION: Final = Question(path="/v1/models/m/inferences", filter="n > 1")
CUT: Final = ConnectionFailed("cut")


@dataclass(slots=True)
class FakeTransport(Transport):
    """Answers with what a function gives for each request, and counts what is done."""

    answer: Callable[[Request], tuple[Response, Pieces]]
    settings: ClientSettings = SETTINGS
    waits: list[float] = field(default_factory=list)
    closed: int = 0

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Response]:
        response, pieces = self.answer(request)
        try:
            yield replace(response, pieces=_raise_cuts(pieces))
        finally:
            self.closed += 1

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def open_jobs(self) -> AbstractAsyncContextManager[Jobs]:
        raise NotImplementedError


async def _raise_cuts(pieces: Pieces) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, ConnectionFailed):
            raise piece
        yield piece


@dataclass(slots=True)
class FakeStore:
    """Streams `count` inferences after a cursor. `cuts`: how much of the next connection comes.

    A connection that is cut ends with a failure, or as if it were whole if `is_silent`.
    """

    count: int
    cuts: Iterator[int | None]
    piece_bytes: int = 50
    is_silent: bool = False
    change_end: Callable[[Line], Line] = lambda end: end
    refusals: list[Response] = field(default_factory=list)
    bodies: list[Line] = field(default_factory=list)
    encode_columns: Callable[[int], bytes] | None = None
    """Encodes something else than lines."""
    is_searching: bool = False
    """Whether the first line says how far the search is."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of each answer that is a stream."""
    arrivals: list[Line] = field(default_factory=list)
    """What a page has after the last inference."""
    transport: FakeTransport = field(init=False)

    def __post_init__(self) -> None:
        self.transport = FakeTransport(self._open)

    def _open(self, request: Request) -> tuple[Response, Pieces]:
        assert request.body is not None
        body = json.loads(request.body)
        self.bodies.append(body)
        if self.refusals:
            refusal = self.refusals.pop(0)
            return refusal, iter([refusal.content])
        begin = int(body.get("cursor") or 0)
        if "limit" in body:
            return Response(200), iter([self._encode_page(begin)])
        return Response(200, self.headers), self._cut(self.encode(begin))

    def _encode_page(self, begin: int) -> bytes:
        items = [make_item(number) for number in range(begin, self.count)][:50] or self.arrivals
        return make_page(*items).content

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

    def _cut(self, content: bytes) -> Pieces:
        cut = next(self.cuts)
        yield from cut_up(content if cut is None else content[:cut], self.piece_bytes)
        if cut is not None and not self.is_silent:
            yield CUT


def cut_up(content: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]

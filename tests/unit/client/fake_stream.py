"""A store that streams, without any I/O: it answers the core's commands."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from inference_store_client import commands
from inference_store_client.errors import ConnectionFailed
from inference_store_client.origin import Origin
from inference_store_client.question import Question
from inference_store_client.requests import Request
from inference_store_client.retries import Retries
from inference_store_client.settings import ClientSettings
from tests.both_clients import make_item

Line = dict[str, Any]
Pieces = Iterator[bytes | commands.Failure]
SETTINGS: Final = ClientSettings(Origin("https://store.example"), retries=Retries(attempts=4))
QUESTION: Final = Question(path="/v1/models/m/inferences", filter="n > 1")
CUT: Final = commands.Failure(ConnectionFailed("cut"))


@dataclass(slots=True)
class Performance:
    """What commands lead to, and what was performed."""

    delivered: list[Any] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    closed: int = 0
    result: Any = None
    settings: ClientSettings = SETTINGS

    def run(
        self,
        steps: commands.Steps[Any],
        open: Callable[[Request], tuple[commands.Response, Pieces]],
    ) -> None:
        """Perform the commands. `open`: answers a request, and with which pieces."""
        pieces: Pieces = iter(())
        outcome: Any = None
        while True:
            try:
                command = steps.send(outcome)
            except StopIteration as end:
                self.result = end.value
                return
            outcome = None
            match command:
                case commands.Settings():
                    outcome = self.settings
                case commands.Open(request):
                    outcome, pieces = open(request)
                case commands.Read():
                    outcome = next(pieces)
                case commands.Wait(seconds):
                    self.waits.append(seconds)
                case commands.Deliver(items):
                    self.delivered += items
                case commands.Close():
                    self.closed += 1


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
    refusals: list[commands.Response] = field(default_factory=list)
    bodies: list[Line] = field(default_factory=list)
    performance: Performance = field(default_factory=Performance)
    encode_columns: Callable[[int], bytes] | None = None
    """Encodes something else than lines."""
    is_searching: bool = False
    """Whether the first line says how far the search is."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of each answer that is a stream."""
    arrivals: list[Line] = field(default_factory=list)
    """What a page has after the last inference."""

    def drive(self, steps: commands.Steps[Any]) -> list[Any]:
        """Perform the commands; return what they deliver."""
        self.performance.run(steps, self._open)
        return self.performance.delivered

    def _open(self, request: Request) -> tuple[commands.Response, Pieces]:
        assert request.body is not None
        body = json.loads(request.body)
        self.bodies.append(body)
        if self.refusals:
            refusal = self.refusals.pop(0)
            return commands.Response(refusal.status, refusal.headers), iter([refusal.content, b""])
        begin = int(body.get("cursor") or 0)
        if "limit" in body:
            return commands.Response(200), iter([self._encode_page(begin), b""])
        return commands.Response(200, self.headers), self._cut(self.encode(begin))

    def _encode_page(self, begin: int) -> bytes:
        items = [make_item(number) for number in range(begin, self.count)][:50] or self.arrivals
        page = {"items": items, "next": None, "searched_back_to": None, "warnings": []}
        return json.dumps(page).encode()

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
        yield b"" if cut is None or self.is_silent else CUT


def cut_up(content: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]

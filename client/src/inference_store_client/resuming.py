"""A stream that is resumed until it has its end. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass

from .commands import Close, Failure, Steps, Wait
from .errors import ConnectionFailed, StoreError, StreamIncomplete
from .exchange import open_content
from .plurals import write_count
from .requests import Request
from .settings import ClientSettings
from .store_warnings import warn_of_header


@dataclass(slots=True)
class Position:
    """How far a stream has come, over all its connections."""

    most: int | None = None
    """The size of a sample; None: until the end."""
    cursor: str | None = None
    received: int = 0
    moves: int = 0
    """Grows with each cursor."""
    has_warned: bool = False

    @property
    def is_full(self) -> bool:
        """Whether a sample is complete."""
        return self.most is not None and self.received >= self.most

    def move(self, cursor: str) -> None:
        """Continue after this cursor, if the connection breaks."""
        self.cursor, self.moves = cursor, self.moves + 1


MakeRequest = Callable[[str | None], Request]
ReadPart = Callable[[Position], Steps[Failure | None]]
"""Reads what one connection brings; None: that was the end."""


def resume(
    make_request: MakeRequest, read_part: ReadPart, settings: ClientSettings, position: Position
) -> Steps[None]:
    """Read a stream to its end, over as many connections as it takes.

    Raises StreamIncomplete, or the refusal of the store.
    """
    attempt = 0
    while True:
        moves = position.moves
        failure = yield from _read_once(
            make_request(position.cursor), read_part, settings, position
        )
        if failure is None:
            return
        attempt = 1 if position.moves > moves else attempt + 1
        wait = settings.retries.find_wait(failure, attempt)
        if wait is None:
            raise _explain(failure.error, position)
        yield Wait(wait)


def _read_once(
    request: Request, read_part: ReadPart, settings: ClientSettings, position: Position
) -> Steps[Failure | None]:
    opened = yield from open_content(request, settings)
    if isinstance(opened, Failure):
        return opened
    if not position.has_warned:
        position.has_warned = True
        warn_of_header(opened.headers)
    failure = yield from read_part(position)
    yield Close()
    return failure


def _explain(error: StoreError, position: Position) -> StoreError:
    count = f"{write_count(position.received, 'inference')} had come"
    if not isinstance(error, ConnectionFailed):
        if position.received:
            error.add_note(count)
        return error
    incomplete = StreamIncomplete(f"{error}; {count}, and they are not everything")
    incomplete.__cause__ = error
    return incomplete

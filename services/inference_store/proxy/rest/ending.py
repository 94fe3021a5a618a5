"""An answer's end where the client below does not tell: it closes a connection whose framing breaks
in the middle of an answer, and lets its reader wait for ever."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import ClientPayloadError, ClientResponse


@contextmanager
def ended_with_connection(answer: ClientResponse) -> Iterator[None]:
    """Reading inside raises ClientPayloadError, if the connection goes before the answer's end."""

    def end(_: object = None) -> None:
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(ClientPayloadError("broke off"))

    protocol = answer.connection and answer.connection.protocol
    if protocol is None:  # all of it is here
        yield
    elif (closed := protocol.closed) is None:  # it has gone
        end()
        yield
    else:
        closed.remove_done_callback(_heard)  # at most one, however many answers come over it
        closed.add_done_callback(_heard)
        closed.add_done_callback(end)
        try:
            yield
        finally:
            closed.remove_done_callback(end)


def _heard(closed: "asyncio.Future[None]") -> None:
    """Nobody else asks why a connection that rested was lost; unasked it is logged as a mistake."""
    if not closed.cancelled():
        closed.exception()

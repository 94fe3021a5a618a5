"""Ends an answer whose connection is lost: the HTTP client closes a connection whose framing breaks
within an answer, but lets its reader wait forever."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import ClientPayloadError, ClientResponse


@contextmanager
def fail_with_connection(answer: ClientResponse) -> Iterator[None]:
    """Let reading raise ClientPayloadError if the connection is lost before the answer's end."""

    def end(_: object = None) -> None:
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(ClientPayloadError("broke off"))

    protocol = answer.connection and answer.connection.protocol
    if protocol is None:  # the answer is complete
        yield
    elif (closed := protocol.closed) is None:  # the connection is lost
        end()
        yield
    else:
        closed.remove_done_callback(
            _consume_error
        )  # at most one, however many answers come over it
        closed.add_done_callback(_consume_error)
        closed.add_done_callback(end)
        try:
            yield
        finally:
            closed.remove_done_callback(end)


def _consume_error(closed: "asyncio.Future[None]") -> None:
    """Retrieve the error of an idle connection that was lost: unretrieved, it would be logged."""
    if not closed.cancelled():
        closed.exception()

"""Streams of inferences, one JSON object a line: all that match, with the memory of a page.

A stream is a loop of pages. Between two of them it has no connection, no transaction and no
admission, and each checks again whether the caller may: a revoked key ends the streams it began. If
the client disconnects or reads slowly, no page is searched; if it does not read at all, its stream
ends.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from inference_store.access.rights import Right
from inference_store.inference.errors import Fault, Invalid
from inference_store.platform.metrics import STREAMED, STREAMS
from inference_store.platform.settings import ApiSettings

from .access import Access
from .admission_control import AdmissionControl
from .answer import Answer, encode_json
from .dependencies import querying
from .inference_pages import FormattedPage
from .negotiation import NDJSON
from .openapi import make_ref
from .problems import build_body, find_refusal
from .schemas.inferences import LINES
from .schemas.questions import InferenceQuery

_SPELLINGS: Final = (NDJSON, "application/ndjson", "application/jsonl")
_PAGE = 1000
_MOST_OF_A_PAGE: Final = 1000  # the range of `limit`
# With these an inference may be large.
_LARGE: Final = {"metadata", "predictions", "urls"}
_PAGE_OF_LARGE = 100
# A client that takes longer for a piece does not read any more.
_STALLED_SECONDS = 60.0
_PIECE = 65_536
# How a stream ends: all was sent; the limit was reached; an error; the client disconnected, or
# reads no more.
ENDS: Final = ("complete", "limit", "failed", "stopped")
Ask = Callable[[AsyncConnection, Access, InferenceQuery], Awaitable[FormattedPage]]
_Following = Callable[[str, int], Awaitable[FormattedPage]]

STREAMING: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": f"A page; with `Accept: {NDJSON}` all that match, an object a line, for"
        " callers that also have the right `export`.",
        "content": {
            kind: {"schema": {"anyOf": [{"$ref": make_ref(kind)} for kind in LINES]}}
            for kind in _SPELLINGS
        },
    }
}
"""The answer of a route that streams, as its documentation has it."""


def _get_page_size(body: InferenceQuery) -> int:
    """Return how many inferences a page of a stream has."""
    shown = {name.partition(".")[0] for name in (*body.include, *(body.fields or ()))}
    size = _PAGE_OF_LARGE if shown & _LARGE else _PAGE
    return min(size, _get_limit(body) or size)


def _get_limit(body: InferenceQuery) -> int | None:
    """Return the most inferences that a stream has: a sample's size, or a given `limit`."""
    if body.sample is not None:
        return body.sample.size
    return body.limit if "limit" in body.model_fields_set else None


class _StalledError(Exception):
    """The client does not read."""


class Stream(StreamingResponse):
    """The answer that sends a stream, if the caller may have one more."""

    media_type = NDJSON

    def __init__(
        self,
        admission: AdmissionControl,
        caller: str,
        lines: AsyncIterator[bytes],
        *,
        stalled_seconds: float,
    ) -> None:
        super().__init__(lines)
        self._admission, self._caller, self._stalled_seconds = admission, caller, stalled_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Here, because it surely ends: an iterator that never begins has no end.
        async with self._admission.admit(self._caller), aclosing(self.body_iterator):  # type: ignore[type-var]
            # A stalled answer ends unfinished: the server closes the connection.
            with suppress(_StalledError):
                await super().__call__(scope, receive, self._in_time(send))

    def _in_time(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled_seconds):
                    await send(message)
            except TimeoutError:
                raise _StalledError from None

        return sending


async def answer_page_or_stream(  # noqa: PLR0917
    request: Request,
    connection: AsyncConnection,
    access: Access,
    settings: ApiSettings,
    body: InferenceQuery,
    ask: Ask,
) -> Response:
    """Return a page, or a stream that begins with one, so that its refusals are ordinary refusals.

    Raises Forbidden for a stream of what the caller may not export.
    """
    if request.state.media_type not in _SPELLINGS:
        return Answer((await _ask_page(connection, access, body, ask)).body())
    if body.explain:
        message = "a page's: a stream is many of them; ask without it, or for a page"
        raise Invalid(f"explain is {message}.", faults=[Fault("explain", message)])
    access.require(Right.EXPORT)
    size, app = _get_page_size(body), request.app

    async def following(cursor: str, limit: int) -> FormattedPage:
        again = await app.state.authenticator.authenticate(request, access.needed, counted=False)
        patience = settings.query_timeout_seconds
        async with querying(request, again, wait_seconds=patience) as anew:
            more = body.model_copy(update={"cursor": cursor, "limit": limit})
            page = await ask(anew, again, more)
        await again.finish(app.state.engine)
        return page

    app.state.streams.require_free(access.admission_name)  # before anything is done for it
    # The client waits for the whole stream anyway: each page has a query's whole time.
    whole = body.timeout_seconds or settings.query_timeout_seconds
    body = body.model_copy(update={"timeout_seconds": whole})
    first = await ask(connection, access, body.model_copy(update={"limit": size}))
    lines = _iterate_lines(first, following, size, _get_limit(body))
    return Stream(app.state.streams, access.admission_name, lines, stalled_seconds=_STALLED_SECONDS)


async def _ask_page(
    connection: AsyncConnection, access: Access, body: InferenceQuery, ask: Ask
) -> FormattedPage:
    """Return a page; for a sample all of it. Raises Invalid for a sample that is larger than a
    page."""
    if body.sample is None:
        return await ask(connection, access, body)
    if body.sample.size > _MOST_OF_A_PAGE:
        message = f"a page has at most {_MOST_OF_A_PAGE}: ask for a stream (Accept: {NDJSON})"
        raise Invalid(f"sample.size: {message}.", faults=[Fault("sample.size", message)])
    page = await ask(connection, access, body.model_copy(update={"limit": body.sample.size}))
    return replace(page, next=None)


async def _iterate_lines(
    page: FormattedPage, following: _Following, size: int, most: int | None
) -> AsyncIterator[bytes]:
    """Yield the lines in pieces; while the client reads, nothing else of a page is kept."""
    count, ended, after = 0, "stopped", page.next
    end: dict[str, Any] = {"warnings": page.warnings, "problem": None, **page.told}
    try:
        while True:
            count, after = count + len(page.items), page.next
            STREAMED.inc(len(page.items))
            lines = b"".join(_format_lines(page))
            del page
            for piece in _split_pieces(lines):
                yield piece
            left = size if most is None else most - count
            if after is None or left <= 0:
                ended = "complete" if after is None else "limit"
                break
            page = await following(after, min(size, left))
        yield _encode_line({"count": count, "next": after, **end})
    except Exception as exc:  # the answer has begun: its last line has the error
        ended = "failed"
        problem = build_body(find_refusal(exc))
        yield _encode_line({"count": count, "next": after, **end, "problem": problem})
    finally:
        STREAMS.labels(ended).inc()


def _format_lines(page: FormattedPage) -> list[bytes]:
    lines = [
        encode_json(item | {"cursor": cursor}, times_fit=True) + b"\n"
        for item, cursor in zip(page.items, page.cursors, strict=True)
    ]
    if page.searched_back_to is not None:
        lines.append(_encode_line({"cursor": page.next, "searched_back_to": page.searched_back_to}))
    return lines


def _split_pieces(lines: bytes) -> Iterator[bytes]:
    for begin in range(0, len(lines), _PIECE):
        yield lines[begin : begin + _PIECE]


def _encode_line(content: dict[str, Any]) -> bytes:
    return encode_json(content) + b"\n"

"""Streams of inferences: all that match, with the memory of a page, as lines or as columns.

A stream is a loop of pages. Between two of them it has no connection, no transaction and no
admission, and each checks again whether the caller may: a revoked key ends the streams it began. If
the client disconnects or reads slowly, no page is searched; if it does not read at all, its stream
ends. Each page gives way to ordinary requests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from inference_store.access.rights import Right
from inference_store.api.answer import build_body, find_refusal
from inference_store.export.columns import (
    DISTANCE,
    FIXED_COLUMNS,
    TRUTH_COLUMNS,
    Column,
    Columns,
    Kind,
    MetadataColumns,
    Values,
    choose_columns,
    link_columns,
    list_kinds,
    predictions_column,
)
from inference_store.export.formats import FORMATS, Encoder
from inference_store.index import key_registry
from inference_store.inference.errors import Invalid
from inference_store.platform.metrics import STREAMED, STREAMS
from inference_store.query.read import BLOBS, GROUND_TRUTH

from .access import Access
from .answer import NAME, Answer, encode_json, write_warnings
from .conditions import InferenceQuery
from .dependencies import AdmissionControl, querying
from .http import NDJSON, read_in_thread
from .inference_models import LINES
from .inference_pages import AnsweredPage
from .middleware import Foreground
from .routing import BINARY, make_ref

_SPELLINGS: Final = (NDJSON, "application/ndjson", "application/jsonl")
_STREAMED: Final = (*_SPELLINGS, *FORMATS)
# Nothing in such an answer can hold warnings.
_WITHOUT_ROOM: Final = {kind for kind, format in FORMATS.items() if not format.has_room}
_PAGE = 1000
_MOST_OF_A_PAGE: Final = 1000  # the range of `limit`
# With these an inference may be large.
_LARGE: Final = {"metadata", "predictions", "urls", GROUND_TRUTH}
_PAGE_OF_LARGE = 100
_LEAST_OF_A_PAGE = 10
_PAGE_BYTES = 1_048_576
# While ordinary requests run or ran just now, a page is small, and waits for them for so long at
# most.
_PAGE_BESIDE_OTHERS = 50
_GIVE_WAY_SECONDS = 0.05
# A client that takes longer for a piece does not read any more.
_STALLED_SECONDS = 60.0
_PIECE = 65_536
# How a stream ends: all was sent; the limit was reached; an error; the client disconnected, or
# reads no more.
ENDS: Final = ("complete", "limit", "failed", "stopped")
_CURSOR = Column("cursor", Kind.TEXT)
_log = structlog.get_logger()
Ask = Callable[[AsyncConnection, Access, InferenceQuery], Awaitable[AnsweredPage]]
_Following = Callable[[str, int], Awaitable[AnsweredPage]]

STREAMING: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": f"A page. With `Accept: {NDJSON}` all that match, one object a line, for"
        f" callers that also have the right `export`; with `Accept: {' or '.join(FORMATS)}` the"
        " same as columns.",
        "content": {
            **{
                kind: {"schema": {"anyOf": [{"$ref": make_ref(kind)} for kind in LINES]}}
                for kind in _SPELLINGS
            },
            **dict.fromkeys(FORMATS, BINARY),
        },
        "headers": {
            NAME: {
                "description": "Of CSV: the warnings, as a JSON array of texts in ASCII.",
                "schema": {"type": "string"},
            }
        },
    }
}
"""The answer of a route that streams, as its documentation has it."""


@dataclass(slots=True)
class _PageSize:
    size: int

    @classmethod
    def of(cls, body: InferenceQuery) -> "_PageSize":
        """Return the size of the first page."""
        chosen = {name.partition(".")[0] for name in (*body.include, *(body.fields or ()))}
        size = _PAGE_OF_LARGE if chosen & _LARGE else _PAGE
        return cls(min(size, _PAGE, _get_limit(body) or size))

    def adapt(self, count: int, bytes: int) -> None:
        """Set the size of the next page, after one with so many inferences and bytes."""
        if count and bytes:
            fitting = max(_LEAST_OF_A_PAGE, count * _PAGE_BYTES // bytes)
            self.size = min(_PAGE, 2 * self.size, fitting)


def _get_limit(body: InferenceQuery) -> int | None:
    if body.sample is not None:
        return body.sample.size
    return body.limit if "limit" in body.model_fields_set else None


class Stream(StreamingResponse):
    """The answer that sends a stream, if the caller may have one more."""

    def __init__(
        self,
        admission: AdmissionControl,
        caller: str,
        pieces: AsyncIterator[bytes],
        *,
        media_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        stalled_seconds: float,
    ) -> None:
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._admission, self._caller, self._stalled_seconds = admission, caller, stalled_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Here, because it surely ends: an iterator that never begins has no end.
        async with self._admission.admit(self._caller), aclosing(self.body_iterator):  # type: ignore[type-var]
            # An unfinished answer has no end: the server closes the connection.
            with suppress(UnfinishedError):
                await super().__call__(scope, receive, self._in_time(send))

    def _in_time(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            try:
                async with asyncio.timeout(self._stalled_seconds):
                    await send(message)
            except TimeoutError:
                raise UnfinishedError from None

        return sending


async def answer_page_or_stream(
    connection: AsyncConnection, access: Access, body: InferenceQuery, ask: Ask
) -> Response:
    """Return a page, or a stream that begins with one, so that its refusals are ordinary refusals.

    Raises Forbidden for a stream of what the caller may not export.
    """
    request, app = access.request, access.app
    media_type = request.state.media_type
    if media_type not in _STREAMED:
        return Answer((await _ask_page(connection, access, body, ask)).body())
    if body.explain:
        raise Invalid.of("explain", "a stream cannot be explained: leave it out, or request a page")
    access.require(Right.EXPORT)
    size = _PageSize.of(body)

    async def following(cursor: str, limit: int) -> AnsweredPage:
        again = await app.authenticator.authenticate(request, access.needed, counted=False)
        wait_seconds = access.settings.query_timeout_seconds
        async with querying(again, wait_seconds=wait_seconds) as page_connection:
            more = body.model_copy(update={"cursor": cursor, "limit": limit})
            page = await ask(page_connection, again, more)
        await again.finish()
        return page

    app.streams.require_free(access.admission_name)  # before anything is done for it
    # The client waits for the whole stream anyway: each page has a query's whole time.
    whole = body.timeout_seconds or access.settings.query_timeout_seconds
    body = body.model_copy(update={"timeout_seconds": whole})
    first = await ask(connection, access, body.model_copy(update={"limit": size.size}))
    format = FORMATS.get(media_type)
    encoder: LineStream | ColumnStream = (
        LineStream(first)
        if format is None
        else await _make_column_stream(connection, format, first)
    )
    return Stream(
        app.streams,
        access.admission_name,
        _iterate_pieces(first, following, size, _get_limit(body), encoder, app.foreground),
        media_type=NDJSON if format is None else media_type,
        headers=write_warnings(first.warnings) if media_type in _WITHOUT_ROOM else None,
        stalled_seconds=_STALLED_SECONDS,
    )


async def _ask_page(
    connection: AsyncConnection, access: Access, body: InferenceQuery, ask: Ask
) -> AnsweredPage:
    if body.sample is None:
        return await ask(connection, access, body)
    if body.sample.size > _MOST_OF_A_PAGE:
        message = f"a page has at most {_MOST_OF_A_PAGE:,}: ask for a stream (Accept: {NDJSON})"
        raise Invalid.of("sample.size", message)
    page = await ask(connection, access, body.model_copy(update={"limit": body.sample.size}))
    return replace(page, next=None)


async def _iterate_pieces(  # noqa: PLR0917
    page: AnsweredPage,
    following: _Following,
    size: _PageSize,
    most: int | None,
    encoder: "LineStream | ColumnStream",
    foreground: Foreground,
) -> AsyncIterator[bytes]:
    """Yield the stream in pieces; while the client reads, nothing else of a page is kept."""
    count, ended, after = 0, "stopped", page.next
    started = foreground.clock()  # its own request has left the foreground
    try:
        while True:
            count, after = count + len(page.rows), page.next
            STREAMED.inc(len(page.rows))
            if len(page.rows) > _PAGE_BESIDE_OTHERS:
                await foreground.wait_until_idle(_GIVE_WAY_SECONDS, since=started)
            content = await read_in_thread(encoder.encode_page, page)
            size.adapt(len(page.rows), len(content))
            del page
            for begin in range(0, len(content), _PIECE):
                yield content[begin : begin + _PIECE]
            if await foreground.wait_until_idle(_GIVE_WAY_SECONDS, since=started):
                size.size = min(size.size, _PAGE_BESIDE_OTHERS)
            rest = size.size if most is None else most - count
            if after is None or rest <= 0:
                ended = "complete" if after is None else "limit"
                break
            page = await following(after, min(size.size, rest))
        yield encoder.encode_end(count, after)
    except Exception as exc:  # the answer has begun: a format of lines says so in its last one
        ended = "failed"
        yield encoder.encode_failure(count, after, build_body(find_refusal(exc)))
    finally:
        STREAMS.labels(ended).inc()


class LineStream:
    """Encodes the pages of one stream as lines."""

    def __init__(self, first: AnsweredPage) -> None:
        self._end = {"warnings": first.warnings, "problem": None, **first.answer_members}

    def encode_page(self, page: AnsweredPage) -> bytes:
        """Return a line for each inference, and one that says how far the search has come."""
        lines = [
            encode_json(item | {"cursor": page.make_cursor(number)}, times_fit=True) + b"\n"
            for number, item in enumerate(page.format_items())
        ]
        if page.searched_back_to is not None:
            progress = {"cursor": page.next, "searched_back_to": page.searched_back_to}
            lines.append(_encode_line(progress))
        return b"".join(lines)

    def encode_end(self, count: int, after: str | None) -> bytes:
        """Return the last line."""
        return _encode_line({"count": count, "next": after, **self._end})

    def encode_failure(self, count: int, after: str | None, problem: dict[str, Any]) -> bytes:
        """Return the last line of a stream that ended early."""
        return _encode_line({"count": count, "next": after, **self._end, "problem": problem})


def _encode_line(content: dict[str, Any]) -> bytes:
    return encode_json(content) + b"\n"


class ColumnStream:
    """Encodes the pages of one stream as columns (Arrow, CSV).

    They cannot say that they failed: the answer ends unfinished, and the server closes the
    connection.
    """

    def __init__(
        self, format: type[Encoder], first: AnsweredPage, metadata: MetadataColumns | None
    ) -> None:
        self._columns = _choose_columns(first, metadata)
        self._shows_cursors = first.shows_cursors
        self._cursors = [_CURSOR] if format.has_cursors or first.shows_cursors else []
        self._encoder = format([*self._columns.list_all(), *self._cursors])
        self._head = self._encoder.encode_head(
            {"warnings": list(first.warnings), **first.answer_members}
        )

    def encode_page(self, page: AnsweredPage) -> bytes:
        """Return a page, and what comes before it if it is the first."""
        head, self._head = self._head, b""
        if not page.rows:
            return head
        return head + self._encoder.encode_page(self._read(page), len(page.rows))

    def encode_end(self, count: int, after: str | None) -> bytes:  # noqa: ARG002
        """Return what comes after the last page."""
        return self._encoder.encode_end()

    def encode_failure(self, count: int, after: str | None, problem: dict[str, Any]) -> bytes:
        """Raise UnfinishedError: the client sees that the answer is cut off."""
        _log.warning("stream cut off", action="stream_cut_off", count=count, problem=problem)
        raise UnfinishedError(after)

    def _read(self, page: AnsweredPage) -> list[Values]:
        values, count = self._columns.read(page.rows), len(page.rows)
        if self._cursors:  # of each row, or of the last one: each costs time and bytes
            first = 0 if self._shows_cursors else count - 1
            values.append([None] * first + [page.make_cursor(n) for n in range(first, count)])
        return values


async def _make_column_stream(
    connection: AsyncConnection, format: type[Encoder], first: AnsweredPage
) -> ColumnStream:
    metadata = None
    if "metadata" in first.selection.include:
        keys = list_kinds(await key_registry.keys(connection, first.models))
        metadata = choose_columns(keys, first.selection.find_parts("metadata") or None)
    return ColumnStream(format, first, metadata)


def _choose_columns(first: AnsweredPage, metadata: MetadataColumns | None) -> Columns:
    chosen = first.selection
    return Columns(
        fixed=[
            column
            for column in FIXED_COLUMNS
            if (column.name != DISTANCE or first.has_distances)
            and (chosen.fields is None or column.name in chosen.fields)
        ],
        links=link_columns(chosen.find_parts("urls") or BLOBS) if "urls" in chosen.include else [],
        metadata=metadata,
        predictions=(
            predictions_column(chosen.find_parts("predictions"))
            if "predictions" in chosen.include
            else None
        ),
        truth=TRUTH_COLUMNS if GROUND_TRUTH in chosen.include else (),
    )


class UnfinishedError(Exception):
    """The answer cannot be finished: the client does not read, or its format cannot say why."""

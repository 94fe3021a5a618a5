"""One call on its way to the upstream and back."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from io import BytesIO
from typing import Final

import structlog
from aiohttp import ClientResponse, ClientSession
from yarl import URL

from inference_store.proxy.capture import id_for_answer
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Strip
from inference_store.proxy.routing import Route

from .asgi import Receive, Send
from .ending import ended_with_connection
from .failures import (
    AWAY,
    body_of,
    failure_of,
    is_of_the_request,
    not_a_path,
    not_an_answer,
    not_passed_on,
)
from .headers import Raw, as_raw, as_text, end_to_end, length_of, to_upstream
from .kept import Kept, Ticket
from .stripping import Stripping

CALLER_GONE: Final = "the caller went away before it had the answer"
_LARGE: Final = 1 << 20
_log = structlog.get_logger()


class Passing:
    """One call. Nothing it does for capture can fail the call."""

    def __init__(
        self,
        route: Route,
        session: ClientSession | None,
        exchange: Exchange,
        *,
        ticket: Ticket | None,
        stripping: Stripping,
        receive: Receive,
        send: Send,
    ) -> None:
        self._upstream = route.upstream
        self._strip = _strip_of(route)
        self._held = stripping.hold()
        self._session = session
        self._exchange = exchange
        self._ticket = ticket
        self._receive = receive
        self._send = send
        self._all_asked = False
        self._leaving: asyncio.Future[None] | None = None
        # who answers, as long as it may be told that the caller has gone
        self._task: asyncio.Task[None] | None = None
        self._answer_began = False
        self._all_told = True
        self.has_empty_query = False
        """The request's target ends with a question mark, behind which nothing stands."""

    async def run(self, headers: Raw) -> None:
        """Pass it through; it ends with the answer, or when the caller has gone."""
        reserved = length_of(headers) or 0
        self._asked = Kept(self._exchange.request, self._ticket, reserved)
        self._told = Kept(self._exchange.response, self._ticket)
        self._task = asyncio.current_task()
        try:
            await self._answered(headers)
        except asyncio.CancelledError:
            if self._exchange.error != CALLER_GONE or self._task is None or self._task.uncancel():
                raise  # it is somebody else who wants us to end
        finally:
            self._task = None
            if self._leaving is not None:
                self._leaving.cancel()
            self._held.release()
            self._exchange.request.whole &= self._all_asked
            self._exchange.response.whole &= self._all_told

    async def _caller_left(self) -> None:
        """Once the request is here, all that can still come is that the caller leaves."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._exchange.error = CALLER_GONE
            self._task.cancel()

    async def _answered(self, headers: Raw) -> None:
        """Ask the upstream and send on what it answers. What fails on the way is answered by us,
        or, where the answer had begun, breaks the connection off."""
        try:
            first = await self._part()
            if self._strip is None:
                body = self._rest(first) if not self._all_asked else first
            else:
                headers, body = await self._stripped(self._strip, headers, first)
            await self._ask(headers, body)
        except (ValueError, *AWAY) as error:
            await self._failed(error)

    async def _failed(self, error: Exception) -> None:
        if is_of_the_request(error):
            if self._answer_began:
                raise error
            await self._refuse(400, not_passed_on(error))
            return
        if self._exchange.error == CALLER_GONE:
            return
        status, sentence = failure_of(self._upstream.name, error)
        self._exchange.error = sentence
        _log.warning("upstream failed", action="upstream_failed", error=sentence)
        if self._answer_began:  # the server logs what is raised: not what quotes the answer
            raise ConnectionAbortedError(sentence) from None
        await self._refuse(status, sentence)

    async def _part(self) -> bytes:
        """The next part of the request. Raises ConnectionAbortedError."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._exchange.error = CALLER_GONE
            raise ConnectionAbortedError(CALLER_GONE)
        part: bytes = message.get("body", b"")
        self._asked.add(part)
        if not message.get("more_body", False):
            self._all_asked = True
            self._leaving = asyncio.ensure_future(self._caller_left())
        return part

    async def _rest(self, *first: bytes) -> AsyncIterator[bytes]:
        """The request's parts, those that are here and the others as they come."""
        for part in filter(None, first):
            yield part
        while not self._all_asked:
            part = await self._part()
            if part:
                yield part

    async def _stripped(
        self, strip: Strip, headers: Raw, first: bytes
    ) -> tuple[Raw, bytes | AsyncIterator[bytes]]:
        """The request without its metadata, or as it came."""
        fits = self._held.add(first)
        while fits and not self._all_asked:
            fits = self._held.add(await self._part())
        if not fits:
            return headers, self._rest(*self._held.parts)
        body, changed = await self._held.stripped(strip, self._exchange.request_headers)
        return (headers if changed is None else as_raw(changed)), body

    async def _ask(self, headers: Raw, body: bytes | AsyncIterator[bytes]) -> None:
        exchange = self._exchange
        if self._session is None:
            await self._refuse(502, f"the upstream {self._upstream.name} answers gRPC alone")
            return
        if (why := not_a_path(exchange.path)) is not None:
            await self._refuse(400, why)
            return
        exchange.forwarded_at = datetime.now(UTC)
        async with self._session.request(
            exchange.method,
            self._url(),
            headers=to_upstream(headers),
            data=_readable(body),
            allow_redirects=False,
        ) as answer:
            exchange.responded_at = datetime.now(UTC)
            with ended_with_connection(answer):
                await self._send_on(answer)

    def _url(self) -> URL:
        exchange = self._exchange
        query = f"?{exchange.query}" if exchange.query else ""
        url = URL(f"{self._upstream.url}{exchange.path}{query}", encoded=True)
        if not self.has_empty_query or query:
            return url
        # yarl would leave a lone question mark out: here it belongs to the path
        path = f"{url.raw_path}?"
        return URL.build(scheme=url.scheme, authority=url.raw_authority, path=path, encoded=True)

    async def _send_on(self, answer: ClientResponse) -> None:
        headers = end_to_end(answer.raw_headers)
        if (why := not_an_answer(answer.status, headers)) is not None:
            sentence = f"the upstream {self._upstream.name} {why}"
            _log.warning("upstream failed", action="upstream_failed", error=sentence)
            await self._refuse(502, sentence)
            return
        self._exchange.http_status = answer.status
        if self._ticket is not None:
            name, value = id_for_answer(self._exchange.request_headers)
            headers.append((name.encode(), value.encode("latin-1")))
            self._exchange.response_headers = as_text(headers)
        self._answer_began, self._all_told = True, False
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await self._send(start)
        left = length_of(headers)
        async for part in answer.content.iter_any():
            self._told.add(part)
            left = None if left is None else left - len(part)
            if left == 0:
                await self._finish(part)
            else:
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        if self._task is not None:
            await self._finish(b"")

    async def _finish(self, body: bytes) -> None:
        """The answer's end. What is heard of the caller from now on is that all is over."""
        self._task, self._all_told = None, True
        await self._send({"type": "http.response.body", "body": body})

    async def _refuse(self, status: int, sentence: str) -> None:
        body = body_of(sentence)
        self._exchange.error = self._exchange.error or sentence
        self._answer_began = True
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._finish(body)


def _readable(body: bytes | AsyncIterator[bytes]) -> BytesIO | bytes | AsyncIterator[bytes] | None:
    """As the client takes it: a large body in pieces, for it is written whole at once else."""
    if isinstance(body, bytes) and len(body) > _LARGE:
        return BytesIO(body)
    return body or None


def _strip_of(route: Route) -> Strip | None:
    """How metadata are taken out of the request; None: it goes on as it came."""
    if route.call is None or not route.rules.strip_metadata:
        return None
    return route.call.protocol.strip

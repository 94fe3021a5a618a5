"""The route of the REST port that takes CloudEvents of request loggers.

A request and its answer come as two events, in any order. The first one waits here for the other,
within the memory of captures; together they are captured as a call that went through the proxy.
"""

import asyncio
import hmac
from base64 import b64decode
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Final

import orjson

from inference_store.platform.metrics import CLOUD_EVENTS, CLOUD_EVENTS_WAITING, from_zero
from inference_store.platform.serving import Receive, Scope, Send
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import ID_HEADER, Captures, Reservation, head_size
from inference_store.proxy.capture.logged_calls import LOGGED
from inference_store.proxy.cloud_events import (
    STRUCTURED,
    LoggedEvent,
    Refused,
    cut_documents,
    read_binary,
    read_structured,
)
from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.exchange import Body, CapturedBody, Exchange, Headers, header
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.protocols.documents import NotDecoded, decode, media_type
from inference_store.proxy.rest_messages import as_text, end_to_end, read_length
from inference_store.proxy.routing import Route, normalize

# The most events that wait, and their share of the memory of captures: beyond, the oldest is
# captured alone.
_MOST_WAITING: Final = 10_000
_WAITING_SHARE: Final = 1 / 2
# The most events that are remembered, to recognise those that come again.
_MOST_KNOWN: Final = 100_000
# A batch is read up to so many mistakes, each of which is named.
_MOST_REFUSED: Final = 100
# What an answer of a status says beside its body.
_HEADERS: Final = {
    HTTPStatus.UNAUTHORIZED: (b"www-authenticate", b"Bearer"),
    HTTPStatus.METHOD_NOT_ALLOWED: (b"allow", b"POST"),
    HTTPStatus.SERVICE_UNAVAILABLE: (b"retry-after", b"5"),
}
# The beginning of the data is enough to distinguish two events of one id and time.
_COMPARED: Final = 64 * 1024
_ANSWERED: Final = 200  # KServe's and Seldon's loggers send no answers of calls that failed
_NO_ANSWER: Final = "no answer was logged; KServe and Seldon log none of a call that failed"


def _describe(refused: Sequence[Refused]) -> bytes:
    """Return problem details."""
    first, *_ = refused
    errors = [{"path": each.field, "message": str(each)} for each in refused]
    problem = {"title": first.status.phrase, "status": first.status}
    return orjson.dumps(problem | {"detail": f"{first.field}: {first}.", "errors": errors})


@dataclass(slots=True)
class _Half:
    """A request or an answer, with the memory that it holds."""

    event: LoggedEvent
    logger: UpstreamEntry
    reservation: Reservation
    body: Body = field(default_factory=Body)
    arrived: datetime = field(default_factory=lambda: datetime.now(UTC))
    until: float = 0.0
    """When it stops to wait, by the loop's clock."""

    @property
    def call(self) -> tuple[str, ...]:
        return (self.logger.name, *self.event.call)

    @property
    def at(self) -> datetime:
        return self.event.time(self.arrived)

    def fingerprint(self) -> bytes:
        """Return what an event that is sent again has in common with it, and no other one."""
        parts = (*self.call, self.event.side, self.event.attributes.get("time", ""))
        told = repr((parts, self.body.size)).encode("utf-8", "backslashreplace")
        return blake2b(told + self.body.bytes[:_COMPARED], digest_size=16).digest()


class EventIntake:
    """Takes events at the paths of the loggers that the configuration names. For the loop's
    thread."""

    def __init__(
        self, upstreams: Sequence[UpstreamEntry], captures: Captures, settings: ProxySettings
    ) -> None:
        self._loggers = {entry.cloud_events: entry for entry in upstreams if entry.cloud_events}
        self._captures = captures
        self._token = settings.proxy_cloud_events_token.get_secret_value().encode()
        self._most_bytes = settings.proxy_body_bytes
        most_waiting = int(settings.proxy_capture_bytes * _WAITING_SHARE)
        seconds = settings.proxy_cloud_events_seconds
        self._waiting = _Waiting(seconds, most_waiting, captures.expect)
        self.close = self._waiting.close
        if self._loggers:
            from_zero(CLOUD_EVENTS, ("joined", "alone", "duplicate", "refused", "no_room"))
            CLOUD_EVENTS_WAITING.set_function(lambda: len(self._waiting))

    def find(self, path: bytes) -> UpstreamEntry | None:
        """Return the logger that sends to a path."""
        return self._loggers.get(normalize(path.decode("latin-1"))) if self._loggers else None

    async def take(self, logger: UpstreamEntry, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the events of one request, and answer it."""
        status, headers, body = HTTPStatus.OK, list[tuple[bytes, bytes]](), b""
        parts = _read_parts(receive)
        try:
            refused = await self._take(logger, scope, parts)
        except ConnectionAbortedError:
            CLOUD_EVENTS.labels("refused").inc()
            return
        except Refused as refusal:
            refused = [refusal]
        if refused:
            status, body = refused[0].status, _describe(refused)
            headers = [(b"content-type", b"application/problem+json")]
            headers += [_HEADERS[status]] if status in _HEADERS else []
            is_full = status == HTTPStatus.SERVICE_UNAVAILABLE
            CLOUD_EVENTS.labels("no_room" if is_full else "refused").inc(len(refused))
            with suppress(ConnectionAbortedError):
                async for _ in parts:  # a sender that still writes would not see the answer
                    pass
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _take(
        self, logger: UpstreamEntry, scope: Scope, parts: AsyncIterator[bytes]
    ) -> list[Refused]:
        """Take the events, and return those of a batch that are none. Raises Refused."""
        headers = as_text(end_to_end(scope["headers"]))
        length = read_length(scope["headers"]) or 0
        if scope["method"] != "POST":
            raise Refused("method", "expected POST", HTTPStatus.METHOD_NOT_ALLOWED)
        self._check_token(header(headers, "authorization") or "")
        if self._captures.queue.is_needed:
            await self._captures.queue.wait(length)
        if media_type(headers).startswith(STRUCTURED):
            return await self._take_structured(logger, headers, length, parts)
        half = self._begin(logger, read_binary(headers), length)
        captured = CapturedBody(half.body, half.reservation, length)
        async for part in parts:
            captured.add(part)
        self._waiting.add(half)
        return []

    async def _take_structured(
        self, logger: UpstreamEntry, headers: Headers, length: int, parts: AsyncIterator[bytes]
    ) -> list[Refused]:
        envelope, refused = Body(), list[Refused]()
        held = self._reserve(length, 0)
        try:
            captured = CapturedBody(envelope, held, length)
            async for part in parts:
                captured.add(part)
            if not envelope.whole:
                sentence = f"it is over {self._most_bytes} bytes, or there is no memory for it"
                raise Refused("body", sentence, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            for where, text in cut_documents(decode(envelope.bytes, headers, self._most_bytes)):
                try:
                    event = read_structured(where, text)
                except Refused as refusal:
                    refused.append(refusal)
                    if len(refused) == _MOST_REFUSED:
                        break
                    continue
                half = self._begin(logger, event, len(event.data))
                half.body = Body(parts=[event.data], size=len(event.data))
                self._waiting.add(half)
        except NotDecoded as exc:
            raise Refused("content-encoding", str(exc)) from None
        finally:
            held.pass_through()
        return refused

    def _begin(self, logger: UpstreamEntry, event: LoggedEvent, size: int) -> _Half:
        return _Half(event, logger, self._reserve(size, head_size(event.headers)))

    def _reserve(self, size: int, head: int) -> Reservation:
        reservation = self._captures.begin(size, head)
        if reservation is None:
            sentence = "there is no memory for it: send it later"
            raise Refused("body", sentence, HTTPStatus.SERVICE_UNAVAILABLE)
        return reservation

    def _check_token(self, credentials: str) -> None:
        """Take a bearer's token, or a password: KServe's logger sends that of its URL."""
        scheme, _, text = credentials.partition(" ")
        token = text.strip().encode("latin-1")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                token = b64decode(token).partition(b":")[2]
        if self._token and not hmac.compare_digest(token, self._token):
            sentence = "expected the token of INFERENCE_STORE_PROXY_CLOUD_EVENTS_TOKEN"
            raise Refused("authorization", sentence, HTTPStatus.UNAUTHORIZED)


async def _read_parts(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the parts of a request's body. Raises ConnectionAbortedError if it breaks off."""
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError
        has_more = message["more_body"]
        if message["body"]:
            yield message["body"]


class _Waiting:
    """Events that wait for their other half, and those that came lately. For the loop's thread."""

    def __init__(self, seconds: float, most_bytes: int, expect: Callable[[int], None]) -> None:
        """`expect` counts exchanges that wait."""
        self._expect = expect
        self._seconds, self._most_bytes, self._bytes = seconds, most_bytes, 0
        self._halves: OrderedDict[tuple[str, ...], _Half] = OrderedDict()
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, half: _Half) -> None:
        """Capture an event with its other half, if that is here; else let it wait."""
        loop = asyncio.get_running_loop()
        half.until = loop.time() + self._seconds
        half.body.parts = [half.body.bytes] if half.body.parts else []
        if self._has_come(half):
            half.reservation.pass_through()
            CLOUD_EVENTS.labels("duplicate").inc()
            return
        other = self._pop(half.call)
        if other is not None and other.event.side != half.event.side:
            request, answer = sorted((half, other), key=lambda each: each.event.side)
            request.reservation.absorb(answer.reservation)
            _capture(request, answer)
            return
        if other is not None:  # another call with the id of this one
            _capture(other)
        self._halves[half.call] = half
        self._bytes += len(half.body.bytes)
        self._expect(1)
        while len(self._halves) > _MOST_WAITING or self._bytes > self._most_bytes:
            self._capture_oldest()
        self._timer = self._timer or loop.call_at(half.until, self._expire)

    def close(self) -> None:
        """Capture all that waits."""
        while self._halves:
            self._capture_oldest()

    def _has_come(self, half: _Half) -> bool:
        """Return whether the same event came before; remember it."""
        now = half.until - self._seconds
        while self._known and (
            len(self._known) >= _MOST_KNOWN or next(iter(self._known.values())) <= now
        ):
            self._known.popitem(last=False)
        fingerprint = half.fingerprint()
        if fingerprint in self._known:
            return True
        self._known[fingerprint] = half.until
        return False

    def _pop(self, call: tuple[str, ...]) -> _Half | None:
        half = self._halves.pop(call, None)
        if half is not None:
            self._bytes -= len(half.body.bytes)
            self._expect(-1)
        return half

    def _capture_oldest(self) -> None:
        if half := self._pop(next(iter(self._halves))):
            _capture(half)

    def _expire(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        while self._halves:
            oldest = next(iter(self._halves.values()))
            if oldest.until > loop.time():
                self._timer = loop.call_at(oldest.until, self._expire)
                return
            self._capture_oldest()


def _capture(first: _Half, answer: _Half | None = None) -> None:
    """Hand over the call of a request and its answer, or of one half alone."""
    event, is_alone = first.event, answer is None
    request = first if event.side == "request" else None
    answer = first if request is None else answer
    missing = Body(whole=False, lost="missing")
    exchange = Exchange(
        transport="rest",
        method="POST",
        path="",  # until the bodies tell it
        request_headers=[*event.headers, *(request.event.content if request else ())],
        request=request.body if request else missing,
        response_headers=[*(answer.event.content if answer else ()), (ID_HEADER, event.id)],
        response=answer.body if answer else missing,
        http_status=_ANSWERED if answer else None,
        error=None if answer else _NO_ANSWER,
        received_at=first.at,
        forwarded_at=first.at if request else None,
        responded_at=max(answer.at, first.at) if answer else None,
        finished_at=max(answer.at, first.at) if answer else None,
    )
    call = Call(PROTOCOLS["raw"], "infer", model=event.model, operation=LOGGED)
    first.reservation.finish(exchange, Route(first.logger, call, model=event.model))
    CLOUD_EVENTS.labels("alone" if is_alone else "joined").inc(1 if is_alone else 2)

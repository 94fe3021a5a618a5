"""A call that is relayed and recorded. Each request of a stream with its answers is an exchange of
its own, handed over when its answer is complete. A call with one message each way is one exchange,
and so is a stream whose messages its protocol does not know.

Memory: each exchange has a reservation of its own. A request for which there is no room keeps its
place among the open ones, so that the answers after it still find theirs.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.proxy.capture import Captures, Reservation, head_size, id_for_answer
from inference_store.proxy.exchange import CapturedBody, Exchange
from inference_store.proxy.routing import Route

from .captured_call import (
    STREAM,
    AnswerHead,
    Metadata,
    metadata_as_headers,
    read_answer,
    read_request,
    select_metadata,
)

UpstreamCall: TypeAlias = Any
"""A call of grpc.aio, of either arity."""


class OpenRequest:
    """A request and its answers, until it is complete. It passes uncaptured if it has no
    reservation."""

    reservation: Reservation | None = None
    exchange: Exchange
    route: Route
    answered_at: float | None = None
    has_more = False
    is_pipelined = False
    """True if another request was unanswered at the same time."""
    is_in_doubt = False
    """True if neither ids nor the order tell that its answers are its own."""
    is_given_up = False
    """True if there are too many to wait for its answer."""

    def __init__(self, position: int, id_: str = "", asks_for_end: bool = False) -> None:
        self.position, self.id, self.asks_for_end = position, id_, asks_for_end

    def capture(
        self, reservation: Reservation, exchange: Exchange, route: Route, message: bytes | None
    ) -> None:
        """Capture it with this memory; `message`: the first of the request, if it is known."""
        self.reservation, self.exchange, self.route = reservation, exchange, route
        self._answers = CapturedBody(exchange.response, reservation)
        self._requests = CapturedBody(exchange.request, reservation, len(message or b""))
        if message is not None:
            self._requests.add(message)

    def add_request(self, message: bytes) -> None:
        if self.reservation is not None:
            self._requests.add(message)

    def add_answer(self, message: bytes, *, is_reserved: bool = False) -> None:
        """Add a message of the answer; `is_reserved`: there is room for it already."""
        if self.reservation is not None:
            self.exchange.finished_at = now = datetime.now(UTC)
            self.exchange.responded_at = self.exchange.responded_at or now
            self._answers.add(message, is_reserved=is_reserved)


# Matches the answers of a stream to its requests as they come: by the id, else in order.
#
# An answer says at times that it is the last of its request (Triton's `triton_final_response`).
# Otherwise a request is complete when answers of later ones have begun, or after some silence.
#
# Some servers (MLServer 1.7) put the first request's id on every answer. Until another id or a mark
# shows that ids tell, further answers with the first id are held while other requests wait: they
# belong to the first request, or one to each request in order.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one stream."""

    open_requests: int = 1_000
    """Most requests that wait for answers, or for more of them. Further ones end the oldest."""
    answered: int = 16
    """Most requests whose answers have ids and may go on, without saying so."""
    quiet_seconds: float = 5.0
    """A request is complete so long after its last answer, if another was sent after it."""
    longest_quiet_seconds: float = 60.0
    """The same for the last request that was sent, and for one whose answer says that more come:
    the last one may never say so."""


class AnswerMatching:
    """The open requests of one stream."""

    def __init__(self, begin_stray: Callable[[OpenRequest], None], limits: Limits) -> None:
        """`begin_stray`: captures answers whose request is not known."""
        self._begin_stray, self._limits = begin_stray, limits
        self._waiting: dict[int, OpenRequest] = {}
        self.answered: dict[int, OpenRequest] = {}
        """Requests that have answers, and may get more; the last one answered is the last."""
        self._complete: list[OpenRequest] = []
        self._do_ids_tell: bool | None = None
        """Whether ids tell, or else the order; None until an answer shows it."""
        self._held: list[bytes] = []
        self._holder: OpenRequest | None = None
        self._first_id = ""
        self._has_ends = False
        self._given_up = 0
        self._last_sent, self._next_stray = -1, -1

    def add_request(self, request: OpenRequest) -> None:
        self._make_room()
        if self._is_full and self._waiting:
            oldest = next(iter(self._waiting.values()))
            oldest.is_given_up = True
            self._given_up += not (oldest.id and self._do_ids_tell)
            self._finish(oldest)
        if self._waiting:
            request.is_pipelined = next(reversed(self._waiting.values())).is_pipelined = True
        if request.position == 0:
            self._first_id = request.id
        self._last_sent = request.position
        self._waiting[request.position] = request

    def add_answer(self, message: bytes, head: AnswerHead, now: float) -> None:
        request = self._find_by_id(head)
        # an answer with the first id may be another request's
        is_again = request is not None and request.answered_at is not None
        if request and is_again and self._do_ids_tell is None and self._waiting:
            if request.reservation and request.reservation.reserve_more(len(message)):
                self._held.append(message)
                self._holder, request.answered_at = request, now
                return
            self._settle(do_ids_tell=False)
            request = None
        self._answer(request or self._find_by_order(head), message, head, now)

    def complete_quiet(self, now: float) -> None:
        """Complete requests whose last answer came long ago."""
        if self._holder is not None and self._is_quiet(self._holder, now):
            self._settle(do_ids_tell=False)
        for request in [each for each in self.answered.values() if self._is_quiet(each, now)]:
            self._finish(request)

    def complete_answered(self, *, even_if_more: bool = False) -> None:
        """Complete the answered requests, except those whose answers said that more come."""
        if self._holder is not None:
            self._settle(do_ids_tell=False)
        for request in list(self.answered.values()):
            if even_if_more or not request.has_more:
                self._finish(request)

    def take_complete(self) -> list[OpenRequest]:
        """Return the complete requests, once."""
        complete, self._complete = self._complete, []
        return complete

    def take_open(self) -> Iterator[OpenRequest]:
        """Return the open requests, once, in the order in which they were sent."""
        requests = (*self.answered.values(), *self._waiting.values())
        self.answered, self._waiting = {}, {}
        yield from sorted(requests, key=attrgetter("position"))

    def _find_by_id(self, head: AnswerHead) -> OpenRequest | None:
        if not head.id or (self._do_ids_tell is False and head.id == self._first_id):
            return None
        candidates = chain(self._waiting.values(), reversed(self.answered.values()))
        request = next((each for each in candidates if each.id == head.id), None)
        if request is None or request.position < 0:
            return request
        if head.is_last is not None or head.id != self._first_id:
            self._settle(do_ids_tell=True)
        return request

    def _settle(self, *, do_ids_tell: bool) -> None:
        """Note whether ids tell, and assign the held answers."""
        self._do_ids_tell = do_ids_tell
        held, self._held, holder, self._holder = self._held, [], self._holder, None
        at = (holder and holder.answered_at) or 0.0
        head = AnswerHead(self._first_id)
        for message in held:
            if do_ids_tell and holder is not None:
                holder.add_answer(message, is_reserved=True)
            else:
                self._answer(self._find_by_order(head), message, head, at)

    def _find_by_order(self, head: AnswerHead) -> OpenRequest:
        """Return the request that is next in order; one without an id first."""
        if (head.id and self._do_ids_tell) or self._given_up:
            self._given_up -= not (head.id and self._do_ids_tell)
            return self._add_stray(head)
        answered, waiting = list(reversed(self.answered.values())), list(self._waiting.values())
        last = answered[0] if answered else None
        if not head.id:
            last = next((each for each in answered if not each.id), last)
        if last is not None and last.has_more and (last.asks_for_end or self._has_ends):
            return last
        if waiting:
            request = waiting[0]
            if request.id and self._do_ids_tell is not False:
                request = next((each for each in waiting if not each.id), request)
            if head.id:  # that of another request, or of none
                is_other = head.id != request.id
                request.is_in_doubt = is_other and (bool(request.id) or request.is_pipelined)
            return request
        if last is None:
            return self._add_stray(head)
        last.is_in_doubt = last.is_in_doubt or last.is_pipelined
        return last

    def _add_stray(self, head: AnswerHead) -> OpenRequest:
        self._make_room()
        stray = OpenRequest(self._next_stray, head.id)
        self._begin_stray(stray)
        self._next_stray -= 1
        stray.is_in_doubt = True
        return stray

    def _answer(self, request: OpenRequest, message: bytes, head: AnswerHead, now: float) -> None:
        request.add_answer(message)
        self._waiting.pop(request.position, None)
        self.answered.pop(request.position, None)
        self.answered[request.position] = request
        request.answered_at, request.has_more = now, head.is_last is False
        if head.is_last:
            self._has_ends = True
            self._finish(request)
        is_by_order = self._do_ids_tell is False
        keeps = 1 if is_by_order or not head.id else self._limits.answered
        only_nameless = not is_by_order and not head.id
        earlier = [  # they are complete
            each
            for each in self.answered.values()
            if not (each is request or each.has_more or each is self._holder)
            and not (only_nameless and each.id)
        ]
        for each in earlier[: max(0, len(self.answered) - keeps)]:
            self._finish(each)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) + len(self.answered) >= self._limits.open_requests

    def _make_room(self) -> None:
        """If too many are open, end the request that was answered longest ago."""
        if self._is_full and self._holder is not None:
            self._settle(do_ids_tell=False)
        if self._is_full and self.answered:
            request = next(iter(self.answered.values()))
            request.is_given_up = request.has_more
            self._finish(request)

    def _finish(self, request: OpenRequest) -> None:
        self._waiting.pop(request.position, None)
        self.answered.pop(request.position, None)
        self._complete.append(request)

    def _is_quiet(self, request: OpenRequest, now: float) -> bool:
        goes_on = request.has_more or request.position == self._last_sent
        limits = self._limits
        seconds = limits.longest_quiet_seconds if goes_on else limits.quiet_seconds
        return now - (request.answered_at or 0.0) >= seconds


_UNANSWERED: Final = "not waited for: too many requests of the stream are unanswered"
_OK: Final = 0
# If the upstream has ended the call: nothing can be sent, and its status is due.
_ENDED: Final = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
_STATUS_SECONDS: Final = 5.0
# How long a call that the upstream refused waits for its first message: without it the call has no
# model, and is not captured.
_FIRST_SECONDS: Final = 1.0


class RecordedCall:
    """One call, as far as it is captured. The model that a request names decides whether and how it
    is."""

    def __init__(
        self,
        captures: Captures,
        find_route: Callable[[bytes], Route | None],
        path: str,
        context: Any,
        limits: Limits = Limits(),
    ) -> None:
        """`find_route` by a request's message; None if no upstream serves the model."""
        self._captures, self._find_route = captures, find_route
        self._path, self._context, self._limits = path, context, limits
        self._headers = metadata_as_headers(context.invocation_metadata())
        self._id_header = id_for_answer(self._headers)
        self._route: Route | None = None
        self._is_captured = self._is_whole = False
        self._whole = OpenRequest(0)
        """All messages of the call, if they are one exchange."""
        self._matching = AnswerMatching(self._capture, limits)
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self._initial: Metadata = ()
        self._trailing: Metadata = ()
        self._error: str | None = None
        self.code: int | None = None

    @property
    def _id_trailers(self) -> tuple[tuple[str, str], ...]:
        """The trailers to add to the answer: an id by which all its inferences are found. Trailers,
        because initial metadata may be sent before the request arrives."""
        _, value = self._id_header
        # outside HTTP an id may be any text
        is_plain = value.isascii() and value.isprintable()
        return (self._id_header,) if self._is_captured and is_plain else ()

    def record_request(self, message: bytes) -> None:
        """Record a request. `hand_over_complete` hands over what it shows to be complete."""
        if self._is_whole:
            self._whole.add_request(message)
            return
        self._route = route = self._find_route(message)
        call = None if route is None else route.call
        if not self._next:
            self._context.add_done_callback(self._end)
            is_single = call is not None and call.kind == "infer"
            self._is_whole = self._path != STREAM or is_single
        if self._is_whole:
            self._capture(self._whole, message)
            return
        request = OpenRequest(self._next, *read_request(message))
        self._capture(request, message)
        if request.reservation is None and call is not None:
            self._matching.complete_answered()  # gives back what they hold
        self._matching.add_request(request)

    def _capture(self, request: OpenRequest, message: bytes | None = None) -> None:
        """Begin its exchange, if it is captured and there is room. `message`: the first of the
        request; None if that is not known."""
        route, position = self._route, self._next
        self._next += 1
        if route is None or not route.call:
            return
        reservation = self._captures.begin(len(message or b""), head_size(self._headers))
        if reservation is None:
            return
        self._is_captured = True
        now = datetime.now(UTC)
        exchange = Exchange(
            transport="grpc",
            method=self._path,
            path=self._path,
            position=position,
            request_headers=self._headers,
            received_at=now,
            forwarded_at=now,
        )
        request.capture(reservation, exchange, route, message)

    def record_response(self, message: bytes) -> None:
        """Record an answer. `hand_over_complete` hands over what it completes."""
        if self._is_whole:
            self._whole.add_answer(message)
        elif self._route is not None:
            head = read_answer(message, self._route.upstream.dialect)
            self._matching.add_answer(message, head, asyncio.get_running_loop().time())

    def hand_over_complete(self) -> None:
        """Hand complete exchanges over; never blocks."""
        for request in self._matching.take_complete():
            self._hand_over(request, _OK, None)
        if self._timer is None and self._matching.answered:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limits.quiet_seconds, self._complete_quiet)

    def _complete_quiet(self) -> None:
        self._timer = None
        self._matching.complete_quiet(asyncio.get_running_loop().time())
        self.hand_over_complete()

    def record_cut_off(self) -> None:
        """Record that the caller is gone: its deadline has passed, or it cancelled the call."""
        code, sentence = StatusCode.CANCELLED, "the caller was gone before the answer's end"
        remaining = self._context.time_remaining()
        if remaining is not None and remaining <= 0:
            code, sentence = StatusCode.DEADLINE_EXCEEDED, "the caller's deadline passed"
        self.record_end(code.value[0], sentence)

    def record_end(self, code: int, error: str | None) -> None:
        self.code, self._error = code, error or None

    def _end(self, _: object) -> None:
        """Hand the rest over: what is answered has succeeded; how the call ended says the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over(self._whole, self.code, self._error)
        self._matching.complete_answered(even_if_more=self.code == _OK)
        for request in self._matching.take_complete():
            self._hand_over(request, _OK, None)
        for request in self._matching.take_open():
            self._hand_over(request, self.code, self._error)

    def _hand_over(self, request: OpenRequest, code: int | None, error: str | None) -> None:
        if request.reservation is None:
            return
        exchange = request.exchange
        exchange.grpc_code, exchange.error = code, error
        if request.is_given_up:
            exchange.grpc_code, exchange.error = None, _UNANSWERED
        if request.answered_at is not None and (request.is_given_up or code != _OK):
            exchange.response.whole = False
        exchange.is_matched_in_doubt = request.is_in_doubt
        exchange.finished_at = exchange.finished_at or datetime.now(UTC)
        exchange.response_headers = (*metadata_as_headers(self._initial), *self._id_trailers)
        exchange.response_trailers = metadata_as_headers(self._trailing)
        request.reservation.finish(exchange, request.route)

    async def relay(self, first: Any, call: UpstreamCall) -> None:
        """Forward messages until the upstream has ended the call; `first`: a message that was
        already read, or EOF; None if nothing was read."""
        forwarding = asyncio.create_task(self._forward_requests(first, call))
        try:
            # Even if it is empty: a caller may wait for it before it sends.
            initial = await call.initial_metadata()
            await self._context.send_initial_metadata(select_metadata(initial))
            self._initial = initial
            # not `read`: once the status has arrived, it omits the messages before it
            async for message in call:
                self.record_response(message)
                await self._context.write(message)
                self.hand_over_complete()
        except grpc.aio.AioRpcError:  # the call has its status
            # an unavailable upstream answers before the request arrives
            if not self._next:
                await asyncio.wait([forwarding], timeout=_FIRST_SECONDS)
        finally:
            forwarding.cancel()
            call.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)

    async def _forward_requests(self, first: Any, call: UpstreamCall) -> None:
        try:
            message = await self._context.read() if first is None else first
            while message is not grpc.aio.EOF:
                self.record_request(message)
                # If the upstream has already ended the call, the library's own `write` would
                # replace the upstream's status by INTERNAL (grpc/grpc#36066).
                await call.wait_for_connection()
                await call._cython_call.send_serialized_message(message)
                self.hand_over_complete()
                message = await self._context.read()
            await call.done_writing()
        except _ENDED:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_SECONDS):
                    await call.code()
            call.cancel()

    async def finish(self, call: UpstreamCall) -> None:
        """Give the caller the status, the message and the trailers of a call that is over."""
        code, details = await call.code(), await call.details()
        self._trailing = await call.trailing_metadata() or ()
        self._initial = await call.initial_metadata() or ()
        if trailing := (*select_metadata(self._trailing), *self._id_trailers):
            self._context.set_trailing_metadata(trailing)
        if code is not StatusCode.OK:
            self._context.set_code(code)
        if details:
            self._context.set_details(details)
        self.record_end(code.value[0], details)

"""A recorded call. Each request of a stream with its answers is an exchange of its own, handed over
when its answer is complete. A call with one message each way is one exchange, and so is a stream
whose messages its protocol does not know.

Memory: each exchange has a reservation of its own. A request for which there is no room keeps its
place among the open ones, so that the answers after it still find theirs.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import grpc
from grpc import StatusCode

from inference_store.proxy.capture import Captures, head_size, id_for_answer
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.routing import Route

from .captured_call import (
    METHODS,
    AnswerHead,
    CapturedExchange,
    Context,
    FindTarget,
    Metadata,
    UpstreamCall,
    metadata_as_headers,
    number,
    read_answer,
    read_request,
    select_metadata,
)

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
    held: int = 1_000
    """Most answers that are held until it is known whether ids tell."""
    quiet_seconds: float = 5.0
    """A request is complete so long after its last answer, if another was sent after it."""
    longest_quiet_seconds: float = 60.0
    """The same for the last request that was sent, and for one whose answer says that more come:
    the last one may never say so."""


class OpenRequest:
    """A request that is not complete. `capture` is None if it passes uncaptured."""

    def __init__(
        self,
        position: int,
        capture: CapturedExchange | None,
        id_: str = "",
        asks_for_end: bool = False,
    ) -> None:
        self.id, self.asks_for_end = id_, asks_for_end
        self.is_named = bool(id_)
        self.position, self.capture = position, capture
        self.answered_at = 0.0
        self.is_answered = self.has_more = False
        self.is_pipelined = False
        """True if another request was unanswered at the same time."""
        self.is_in_doubt = False
        """True if neither ids nor the order tell that its answers are its own."""
        self.is_given_up = False
        """True if there are too many to wait for its answer."""


class AnswerMatching:
    """The open requests of one stream."""

    def __init__(self, begin_stray: Callable[[], CapturedExchange | None], limits: Limits) -> None:
        """`begin_stray`: begins the exchange of answers whose request is not known."""
        self._begin_stray, self._limits = begin_stray, limits
        self._waiting: dict[int, OpenRequest] = {}
        self._answered: dict[int, OpenRequest] = {}  # the last one answered is the last
        self._complete: list[OpenRequest] = []
        self._held: list[bytes] = []
        self._holder: OpenRequest | None = None
        self._first_id = ""
        self._do_ids_tell = self._is_by_order = self._has_ends = False
        self._given_up = 0
        self._last_sent, self._next_stray = -1, -1

    @property
    def has_answered(self) -> bool:
        """Whether an answered request is open."""
        return bool(self._answered)

    def add_request(self, request: OpenRequest) -> None:
        """Add a request that was sent."""
        self._make_room()
        if self._is_full and self._waiting:
            self._give_up(next(iter(self._waiting.values())))
        if self._waiting:
            request.is_pipelined = True
            next(reversed(self._waiting.values())).is_pipelined = True
        if request.position == 0:
            self._first_id = request.id
        self._last_sent = request.position
        self._waiting[request.position] = request

    def add_answer(self, message: bytes, head: AnswerHead, now: float) -> None:
        """Add an answer to its request, or hold it."""
        request = self._find_by_id(head)
        if request is not None and self._is_doubtful(request):
            if self._hold(message, request, now):
                return
            request = None
        if request is None:
            request = self._find_by_order(head)
        self._answer(request, message, head, now)

    def complete_quiet(self, now: float) -> None:
        """Complete requests whose last answer came long ago."""
        if self._holder is not None and self._is_quiet(self._holder, now):
            self._go_by_order(now)
        for request in [each for each in self._answered.values() if self._is_quiet(each, now)]:
            self._finish(request)

    def complete_answered(self, *, even_if_more: bool = False) -> None:
        """Complete the answered requests, except those whose answers said that more come."""
        if self._holder is not None:
            self._go_by_order(self._holder.answered_at)
        for request in list(self._answered.values()):
            if even_if_more or not request.has_more:
                self._finish(request)

    def take_complete(self) -> list[OpenRequest]:
        """Return the complete requests, once."""
        complete, self._complete = self._complete, []
        return complete

    def take_open(self) -> Iterator[OpenRequest]:
        """Return the open requests, once, in the order in which they were sent."""
        yield from sorted(
            (*self._answered.values(), *self._waiting.values()), key=attrgetter("position")
        )
        self._answered, self._waiting = {}, {}

    def _find_by_id(self, head: AnswerHead) -> OpenRequest | None:
        if not head.id or (self._is_by_order and head.id == self._first_id):
            return None
        waiting = (each for each in self._waiting.values() if each.id == head.id)
        answered = (each for each in reversed(self._answered.values()) if each.id == head.id)
        request = next(waiting, None) or next(answered, None)
        is_known = request is not None and request.position >= 0
        if is_known and (head.is_last is not None or head.id != self._first_id):
            self._trust_ids()
        return request

    def _is_doubtful(self, request: OpenRequest) -> bool:
        """Return whether an answer with the first id may be another request's."""
        return request.is_answered and not self._do_ids_tell and bool(self._waiting)

    def _hold(self, message: bytes, request: OpenRequest, now: float) -> bool:
        """Hold an answer; if there is no room, divide the held ones in order."""
        capture = request.capture
        has_room = len(self._held) < self._limits.held and capture is not None
        if capture is not None and has_room and capture.reserve(len(message)):
            self._held.append(message)
            self._holder, request.answered_at = request, now
            return True
        self._go_by_order(now)
        return False

    def _trust_ids(self) -> None:
        self._do_ids_tell, self._is_by_order = True, False
        if self._holder is not None and self._holder.capture is not None:
            for message in self._held:
                self._holder.capture.add_answer(message, is_reserved=True)
        self._held, self._holder = [], None

    def _go_by_order(self, now: float) -> None:
        self._is_by_order = True
        held, self._held, self._holder = self._held, [], None
        for message in held:
            head = AnswerHead(self._first_id)
            self._answer(self._find_by_order(head), message, head, now)

    def _find_by_order(self, head: AnswerHead) -> OpenRequest:
        """Return the request that is next in order; one without an id first."""
        if head.id and self._do_ids_tell:
            return self._add_stray(head)
        if self._given_up:
            self._given_up -= 1
            return self._add_stray(head)
        last = self._find_last_answered(head)
        if last is not None and last.has_more and (last.asks_for_end or self._has_ends):
            return last
        request = self._find_waiting()
        if request is not None:
            self._note_order(request, head)
            return request
        if last is not None:
            last.is_in_doubt = last.is_in_doubt or last.is_pipelined
            return last
        return self._add_stray(head)

    def _find_waiting(self) -> OpenRequest | None:
        first = next(iter(self._waiting.values()), None)
        if first is None or not first.is_named or self._is_by_order:
            return first
        return next((each for each in self._waiting.values() if not each.is_named), first)

    def _find_last_answered(self, head: AnswerHead) -> OpenRequest | None:
        nameless = (each for each in reversed(self._answered.values()) if not each.is_named)
        last = next(reversed(self._answered.values()), None)
        return last if head.id else next(nameless, last)

    def _note_order(self, request: OpenRequest, head: AnswerHead) -> None:
        if not head.id:
            return
        if request.is_named or (head.id == self._first_id and request.position != 0):
            request.is_in_doubt = head.id != request.id
            return
        request.id = head.id  # the server makes the ids
        if request.position == 0:
            self._first_id = head.id
        else:
            self._trust_ids()

    def _add_stray(self, head: AnswerHead) -> OpenRequest:
        self._make_room()
        stray = OpenRequest(self._next_stray, self._begin_stray(), head.id)
        self._next_stray -= 1
        stray.is_in_doubt = True
        return stray

    def _answer(self, request: OpenRequest, message: bytes, head: AnswerHead, now: float) -> None:
        if request.capture is not None:
            request.capture.add_answer(message)
        self._waiting.pop(request.position, None)
        self._answered.pop(request.position, None)
        self._answered[request.position] = request
        request.is_answered, request.answered_at = True, now
        request.has_more = head.is_last is False
        if head.is_last:
            self._has_ends = True
            self._finish(request)
        keeps = 1 if self._is_by_order or not head.id else self._limits.answered
        self._complete_earlier(keeps, only_nameless=not self._is_by_order and not head.id)

    def _complete_earlier(self, keeps: int, *, only_nameless: bool) -> None:
        if len(self._answered) <= keeps:
            return
        ended = [
            request
            for request in self._answered.values()
            if not (request.has_more or request is self._holder or (only_nameless and request.id))
        ]
        for request in ended[: max(0, len(self._answered) - keeps)]:
            if request is not next(reversed(self._answered.values())):
                self._finish(request)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) + len(self._answered) >= self._limits.open_requests

    def _make_room(self) -> None:
        """If too many are open, end the request that was answered longest ago."""
        if self._is_full and self._holder is not None:
            self._go_by_order(self._holder.answered_at)
        if self._is_full and self._answered:
            request = next(iter(self._answered.values()))
            request.is_given_up = request.has_more
            self._finish(request)

    def _give_up(self, request: OpenRequest) -> None:
        request.is_given_up = True
        self._given_up += not (request.id and self._do_ids_tell)
        self._finish(request)

    def _finish(self, request: OpenRequest) -> None:
        self._waiting.pop(request.position, None)
        self._answered.pop(request.position, None)
        self._complete.append(request)

    def _is_quiet(self, request: OpenRequest, now: float) -> bool:
        goes_on = request.has_more or request.position == self._last_sent
        limits = self._limits
        seconds = limits.longest_quiet_seconds if goes_on else limits.quiet_seconds
        return now - request.answered_at >= seconds


_UNANSWERED: Final = "not waited for: too many requests of the stream are unanswered"
_OK: Final = 0


class RecordedCall:
    """One call, as far as it is captured. The model that a request names decides whether and how it
    is."""

    def __init__(
        self,
        captures: Captures,
        find_target: FindTarget,
        path: str,
        context: Any,
        limits: Limits = Limits(),
    ) -> None:
        self._captures, self._find_target = captures, find_target
        self._path, self._context = path, context
        self._headers = metadata_as_headers(context.invocation_metadata())
        self._id_header = id_for_answer(self._headers)
        self._target: Route | None = None
        self._is_captured = self._is_whole = False
        self._whole: CapturedExchange | None = None
        self.initial: Metadata = ()
        """The metadata before the answers."""
        self._trailing: Metadata = ()
        self._error: str | None = None
        self._matching = AnswerMatching(self._begin_stray, limits)
        self._seconds = limits.quiet_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self.code: int | None = None

    @property
    def has_request(self) -> bool:
        """Whether a request has arrived."""
        return self._next > 0

    @property
    def id_trailers(self) -> tuple[tuple[str, str], ...]:
        """The trailers to add to the answer: an id by which all its inferences are found. Trailers,
        because initial metadata may be sent before the request arrives."""
        _, value = self._id_header
        # outside HTTP an id may be any text
        is_plain = value.isascii() and value.isprintable()
        return (self._id_header,) if self._is_captured and is_plain else ()

    def record_request(self, message: bytes) -> None:
        """Record a request. `hand_over_complete` hands over what it shows to be complete."""
        if self._is_whole:
            if self._whole is not None:
                self._whole.add_request(message)
            return
        self._target = self._find_target(message)
        if not self.has_request:
            self._context.add_done_callback(self._end)
            self._is_whole = _is_whole(self._path, self._target)
        capture = self._begin(message)
        if self._is_whole:
            self._whole = capture
        else:
            if capture is None and self._target is not None and self._target.call:
                self._matching.complete_answered()  # gives back what they hold
            self._matching.add_request(OpenRequest(self._next, capture, *read_request(message)))
        self._next += 1

    def _begin(self, message: bytes | None) -> CapturedExchange | None:
        """Begin an exchange; None if it is not captured, or there is no room. `message`: its
        request; None if that is not known."""
        target = self._target
        if target is None or not target.call:
            return None
        reservation = self._captures.begin(len(message or b""), head_size(self._headers))
        if reservation is None:
            return None
        self._is_captured = True
        now = datetime.now(UTC)
        exchange = Exchange(
            transport="grpc",
            method=self._path,
            path=self._path,
            position=self._next,
            request_headers=self._headers,
            received_at=now,
            forwarded_at=now,
        )
        return CapturedExchange(reservation, target, exchange, message)

    def _begin_stray(self) -> CapturedExchange | None:
        capture = self._begin(None)
        self._next += 1
        return capture

    def record_response(self, message: bytes) -> None:
        """Record an answer. `hand_over_complete` hands over what it completes."""
        if self._whole is not None:
            self._whole.add_answer(message)
        elif self._target is not None and not self._is_whole:
            dialect = self._target.upstream.dialect
            self._matching.add_answer(message, read_answer(message, dialect), self._now())

    def hand_over_complete(self) -> None:
        """Hand complete exchanges over; never blocks."""
        for request in self._matching.take_complete():
            self._hand_over(request, _OK, None)
        if self._timer is None and self._matching.has_answered:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._complete_quiet)

    def _complete_quiet(self) -> None:
        self._timer = None
        self._matching.complete_quiet(self._now())
        self.hand_over_complete()

    def record_cut_off(self) -> None:
        """Record that the caller is gone: its deadline has passed, or it cancelled the call."""
        remaining = self._context.time_remaining()
        if remaining is not None and remaining <= 0:
            self.record_end(number(StatusCode.DEADLINE_EXCEEDED), "the caller's deadline passed")
        else:
            sentence = "the caller was gone before the answer's end"
            self.record_end(number(StatusCode.CANCELLED), sentence)

    async def end(self, call: UpstreamCall) -> None:
        """Send the caller the status, the message and the trailers of a call that is over."""
        code, details = await call.code(), await call.details()
        trailers = await call.trailing_metadata()
        if trailing := (*select_metadata(trailers), *self.id_trailers):
            self._context.set_trailing_metadata(trailing)
        if code is not StatusCode.OK:
            self._context.set_code(code)
        if details:
            self._context.set_details(details)
        self.record_end(number(code), details, await call.initial_metadata() or (), trailers or ())

    def record_end(
        self, code: int, error: str | None, initial: Metadata = (), trailing: Metadata = ()
    ) -> None:
        """Record the end of the call."""
        self.code, self._error = code, error or None
        self.initial, self._trailing = initial or self.initial, trailing

    def _end(self, _: object) -> None:
        """Hand the rest over: what is answered has succeeded; how the call ended says the rest."""
        if self._timer is not None:
            self._timer.cancel()
        if self._whole is not None:
            self._hand_over(OpenRequest(0, self._whole), self.code, self._error)
        self._matching.complete_answered(even_if_more=self.code == _OK)
        for request in self._matching.take_complete():
            self._hand_over(request, _OK, None)
        for request in self._matching.take_open():
            self._hand_over(request, self.code, self._error)

    def _hand_over(self, request: OpenRequest, code: int | None, error: str | None) -> None:
        capture = request.capture
        if capture is None:
            return
        exchange = capture.exchange
        exchange.grpc_code, exchange.error = code, error
        if request.is_given_up:
            exchange.grpc_code, exchange.error = None, _UNANSWERED
        if request.is_answered and (request.is_given_up or code != _OK):
            exchange.response.whole = False
        exchange.is_matched_in_doubt = request.is_in_doubt
        exchange.finished_at = exchange.finished_at or datetime.now(UTC)
        exchange.response_headers = (*metadata_as_headers(self.initial), *self.id_trailers)
        exchange.response_trailers = metadata_as_headers(self._trailing)
        capture.hand_over()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_whole(path: str, target: Route | None) -> bool:
    method = METHODS.get(path)
    if method is None or method.unary:
        return True
    return target is not None and target.call is not None and target.call.kind == "infer"


_FAILED: Final = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
_STATUS_SECONDS: Final = 5.0


async def exchange_messages(
    first: Any, context: Context, call: UpstreamCall, recorded: RecordedCall, seconds: float
) -> None:
    """Forward messages until the upstream has ended the call; `first`: a message that was already
    read, or EOF; None if nothing was read. A call that failed before its request arrived waits at
    most so many `seconds` for it."""
    forwarding = asyncio.create_task(_forward_requests(first, context, call, recorded))
    try:
        await _forward_answers(context, call, recorded)
    except grpc.aio.AioRpcError:  # the call has its status
        # an unavailable upstream answers before the request arrives
        if not recorded.has_request:
            await asyncio.wait([forwarding], timeout=seconds)
    finally:
        forwarding.cancel()
        call.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)


async def _forward_requests(
    first: Any, context: Context, call: UpstreamCall, recorded: RecordedCall
) -> None:
    try:
        message = await context.read() if first is None else first
        while message is not grpc.aio.EOF:
            recorded.record_request(message)
            await _write(call, message)
            recorded.hand_over_complete()
            message = await context.read()
        await call.done_writing()
    except _FAILED:  # the upstream has ended the call: nothing can be sent, and its status is due
        with suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_SECONDS):
                await call.code()
        call.cancel()


async def _write(call: UpstreamCall, message: bytes) -> None:
    """Send a message. If the upstream has already ended the call, the library's own `write` would
    replace the upstream's status by INTERNAL (grpc/grpc#36066)."""
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(message)


async def _forward_answers(context: Context, call: UpstreamCall, recorded: RecordedCall) -> None:
    # Even if it is empty: a caller may wait for it before it sends.
    initial = await call.initial_metadata()
    await context.send_initial_metadata(select_metadata(initial))
    recorded.initial = initial
    # not `read`: once the status has arrived, it omits the messages before it
    async for message in call:
        recorded.record_response(message)
        await context.write(message)
        recorded.hand_over_complete()

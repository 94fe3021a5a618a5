"""A captured stream: each request with its answers is an exchange of its own, handed over when its
answer is complete. Where a protocol does not know the messages, the whole stream is one.

Memory: each exchange has a reservation of its own. A request for which there is no room keeps its
place among the open ones, so that the answers after it still find theirs.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from inference_store.proxy.capture import id_for_answer

from .answer_matching import AnswerMatching, Limits, OpenRequest
from .call_target import CallTarget
from .captured_call import CapturedExchange, Captures, FindTarget, IdHeader, id_trailers
from .metadata import Metadata, metadata_as_headers
from .methods import METHODS
from .stream_messages import RequestHead, read_answer, read_request

_UNANSWERED: Final = "not waited for: too many requests of the stream are unanswered"
_OK: Final = 0


class CapturedStream:
    """One stream, as far as it is captured. The model that a request names decides whether and how
    it is."""

    def __init__(
        self,
        captures: Captures,
        find_target: FindTarget,
        path: str,
        context: Any,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
    ) -> None:
        self._captures, self._find_target = captures, find_target
        self._path, self._context = path, context
        self._headers = metadata_as_headers(context.invocation_metadata())
        self._id_header: IdHeader = id_for_answer(self._headers)
        self._target: CallTarget | None = None
        self._is_captured = self._is_whole = False
        self._whole: CapturedExchange | None = None
        self._initial: Metadata = ()
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
    def id_trailers(self) -> tuple[IdHeader, ...]:
        """The trailers to add to the answer: an id by which all its inferences are found."""
        return id_trailers(self._id_header) if self._is_captured else ()

    def record_request(self, message: bytes) -> None:
        """Record a request. `hand_over_complete` hands over what it shows to be complete."""
        if self._is_whole:
            if self._whole is not None:
                self._whole.add_request(message)
            return
        self._target = self._find_target(message)
        if not self.has_request:
            self._context.add_done_callback(self._end)
            self._is_whole = self._path not in METHODS or _is_whole(self._target)
        capture = self._begin(message)
        if self._is_whole:
            self._whole = capture
        else:
            if capture is None and self._target is not None and self._target.call:
                self._matching.complete_answered()  # gives back what they hold
            self._matching.add_request(OpenRequest(read_request(message), self._next, capture))
        self._next += 1

    def _begin(self, message: bytes | None) -> CapturedExchange | None:
        capture = CapturedExchange.begin(
            self._captures,
            self._target,
            message,
            path=self._path,
            headers=self._headers,
            id_header=self._id_header,
            position=self._next,
        )
        self._is_captured = self._is_captured or capture is not None
        return capture

    def _begin_stray(self) -> CapturedExchange | None:
        """Begin the exchange of an answer whose request is not known."""
        capture = self._begin(None)
        self._next += 1
        return capture

    def record_initial(self, metadata: Metadata) -> None:
        """Record the metadata before the answers."""
        self._initial = metadata

    def record_response(self, message: bytes) -> None:
        """Record an answer. `hand_over_complete` hands over what it completes."""
        if self._whole is not None:
            self._whole.add_answer(message)
        elif self._target is not None and not self._is_whole:
            dialect = self._target.rules.dialect
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

    def record_end(
        self, code: int, error: str | None, initial: Metadata = (), trailing: Metadata = ()
    ) -> None:
        """Record the end of the call."""
        self.code, self._error = code, error or None
        self._initial, self._trailing = initial or self._initial, trailing

    def _end(self, _: object) -> None:
        """Hand the rest over: what is answered has succeeded; how the call ended says the rest."""
        if self._timer is not None:
            self._timer.cancel()
        if self._whole is not None:
            self._hand_over(OpenRequest(RequestHead(), 0, self._whole), self.code, self._error)
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
            capture.response.whole = False
        exchange.is_matched_in_doubt = request.is_in_doubt
        exchange.finished_at = exchange.finished_at or datetime.now(UTC)
        exchange.response_headers = (*metadata_as_headers(self._initial), *self.id_trailers)
        exchange.response_trailers = metadata_as_headers(self._trailing)
        capture.hand_over()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _is_whole(target: CallTarget | None) -> bool:
    return target is not None and target.call is not None and target.call.kind == "infer"

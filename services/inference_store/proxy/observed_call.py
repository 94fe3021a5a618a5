"""A call as the operator sees it: in progress, then its time and outcome, and a span if it is
traced.

The values of labels and spans are bounded: protocols are ours, upstreams the configuration's; they
contain no path, no id and no model. The request is forwarded unchanged: the model server gets the
caller's `traceparent`, not the span's.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, Literal, Protocol, TypeAlias

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from inference_store.platform import traces
from inference_store.platform.metrics import CALL_SECONDS, CALLS_IN_PROGRESS
from inference_store.proxy.exchange import Exchange, Transport
from inference_store.proxy.protocols import Call
from inference_store.proxy.rules import Rules

Outcome: TypeAlias = Literal["ok", "refused", "failed", "gone"]
"""`refused`: the caller's mistake; `failed`: the model server's, or it gave no whole answer;
`gone`: the caller went away before it had the answer."""
Describe: TypeAlias = Callable[[], tuple[traces.Attributes, Mapping[str, str]]]
"""Returns a span's attributes, and the headers of the caller's context; called if the call is
traced."""

TRACE_HEADERS: Final = ("traceparent", "tracestate")
_PASSED: Final = "none"
_UNRECOGNISED: Final = "unrecognised"
# looking up a series takes longer than counting
_timed = cache(CALL_SECONDS.labels)
_in_progress = cache(CALLS_IN_PROGRESS.labels)
_STATUS: Final[Mapping[Transport, str]] = {
    "rest": "http.response.status_code",
    "grpc": "rpc.grpc.status_code",
}


class Reservation(Protocol):
    """The memory that an exchange may use; `proxy.capture` implements it."""

    @property
    def refused(self) -> bool:
        """True if the declared size is over the cap of a body, which is not kept then."""
        ...

    def reserve_more(self, size: int) -> bool:
        """Reserve more bytes; return False if no more parts may be kept."""
        ...

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None:
        """Hand over the captured exchange."""
        ...


class ObservedCall:
    """One call to an upstream, from here to `end`. Only calls that are captured have a span."""

    __slots__ = ("_began", "_protocol", "_transport", "_upstream", "span")

    def __init__(
        self,
        transport: Transport,
        call: Call | None,
        upstream: str,
        describe: Describe,
        *,
        is_unrecognised: bool = False,
    ) -> None:
        """`call` is None if it only passes through; `is_unrecognised`: it passes through, but may
        be an inference."""
        self._transport, self._upstream = transport, upstream
        passed = _UNRECOGNISED if is_unrecognised else _PASSED
        self._protocol = passed if call is None else call.protocol.name
        self._began = time.perf_counter()
        _in_progress(transport).inc()
        is_traced = call is not None and traces.is_on()
        self.span = _begin_span(call, upstream, describe) if call and is_traced else INVALID_SPAN

    def end(self, outcome: Outcome, status: int | None) -> None:
        """End the call; call it once. `status`: the model server's, by HTTP or gRPC; None if there
        is none."""
        _in_progress(self._transport).dec()
        seconds = time.perf_counter() - self._began
        _timed(self._protocol, self._upstream, outcome).observe(seconds)
        if self.span is not INVALID_SPAN:
            self._end_span(outcome, status)

    def _end_span(self, outcome: Outcome, status: int | None) -> None:
        self.span.set_attribute("inference_store.outcome", outcome)
        if status is not None:
            self.span.set_attribute(_STATUS[self._transport], status)
        if outcome == "failed":
            has_failure_status = status is not None and (self._transport == "grpc" or status >= 500)
            traces.failed(self.span, str(status) if has_failure_status else "no_answer")
        self.span.end()


def _begin_span(call: Call, upstream: str, describe: Describe) -> Span:
    attributes, headers = describe()
    ours = {
        "inference_store.protocol": call.protocol.name,
        "inference_store.upstream": upstream,
    }
    name = f"{call.protocol.name} {call.kind}"
    return traces.begin(name, SpanKind.SERVER, {**attributes, **ours}, headers=headers)

"""Observes a gRPC call until it is over, however it ends."""

from collections.abc import Mapping
from typing import Any, Final

from grpc import StatusCode

from inference_store.platform import traces
from inference_store.proxy.observed_call import TRACE_HEADERS, ObservedCall, Outcome

from .call_end import Context, number
from .call_target import CallTarget
from .captured_call import RecordedCall
from .methods import METHODS

# Codes of a server that are not the caller's mistake.
_FAILED: Final = frozenset(
    number(code)
    for code in (
        *(StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.INTERNAL),
        *(StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS),
    )
)


def observe(target: CallTarget, path: str, context: Context, captured_call: RecordedCall) -> None:
    """Observe a call from now on; `captured_call` knows its status code at the end."""
    observed = ObservedCall(
        "grpc",
        target.call,
        target.upstream,
        lambda: _describe(path, context),
        is_unrecognised=target.is_unrecognised,
    )
    add_done_callback: Any = context.add_done_callback  # the stubs require an instance of a class
    add_done_callback(lambda _: observed.end(_classify(captured_call.code), captured_call.code))


def _describe(path: str, context: Context) -> tuple[traces.Attributes, Mapping[str, str]]:
    """Return a span's attributes, and the caller's context."""
    attributes = {"rpc.system": "grpc"}
    if path in METHODS:  # any other is untrusted text
        _, attributes["rpc.service"], attributes["rpc.method"] = path.split("/")
    pairs = context.invocation_metadata() or ()
    return attributes, {
        name: value for name, value in pairs if name in TRACE_HEADERS and isinstance(value, str)
    }


def _classify(code: int | None) -> Outcome:
    if code == number(StatusCode.OK):
        return "ok"
    if code == number(StatusCode.CANCELLED):
        return "gone"
    return "failed" if code is None or code in _FAILED else "refused"

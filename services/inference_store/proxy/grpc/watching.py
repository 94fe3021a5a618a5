"""A call over gRPC, watched until it is over, however it ends."""

from collections.abc import Mapping
from typing import Any, Final

from grpc import StatusCode

from inference_store.platform import traces
from inference_store.proxy.watched import TRACE_HEADERS, Outcome, Watched

from .ending import Context, number
from .methods import METHODS
from .onward import Onward
from .seen import Seen

# Of what a server answers, what is no mistake of its caller.
_FAILED: Final = frozenset(
    number(code)
    for code in (
        *(StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED, StatusCode.INTERNAL),
        *(StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS),
    )
)


def watch(onward: Onward, path: str, context: Context, seen: Seen) -> None:
    """From now on; `seen` knows at its end how the call ended."""
    watched = Watched(
        "grpc",
        onward.call,
        onward.upstream,
        lambda: _said(path, context),
        is_unrecognised=onward.is_unrecognised,
    )
    add_done_callback: Any = context.add_done_callback  # the stubs want an instance of a class
    add_done_callback(lambda _: watched.end(_outcome_of(seen.code), seen.code))


def _said(path: str, context: Context) -> tuple[traces.Attributes, Mapping[str, str]]:
    """A span's attributes, and the caller's context."""
    attributes = {"rpc.system": "grpc"}
    if path in METHODS:  # any other is a stranger's text
        _, attributes["rpc.service"], attributes["rpc.method"] = path.split("/")
    pairs = context.invocation_metadata() or ()
    return attributes, {
        name: value for name, value in pairs if name in TRACE_HEADERS and isinstance(value, str)
    }


def _outcome_of(code: int | None) -> Outcome:
    if code == number(StatusCode.OK):
        return "ok"
    if code == number(StatusCode.CANCELLED):
        return "gone"
    return "failed" if code is None or code in _FAILED else "refused"

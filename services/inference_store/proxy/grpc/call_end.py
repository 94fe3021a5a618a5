"""Ends a call: with the upstream's status unchanged, or ours if the upstream was not called."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from grpc import StatusCode

from .call_target import CallTarget
from .captured_call import RecordedCall
from .metadata import select_metadata

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
UpstreamCall: TypeAlias = Any
"""A call of grpc.aio, of either arity."""


async def end(call: UpstreamCall, context: Context, captured_call: RecordedCall) -> None:
    """Send the caller the status, the message and the trailers of a call that is over."""
    code, details = await call.code(), await call.details()
    trailers = await call.trailing_metadata()
    if trailing := (*select_metadata(trailers), *captured_call.id_trailers):
        context.set_trailing_metadata(trailing)
    if code is not StatusCode.OK:
        context.set_code(code)
    if details:
        context.set_details(details)
    captured_call.record_end(
        number(code), details, await call.initial_metadata() or (), trailers or ()
    )


async def fail(context: Context) -> None:
    """Send the status of a call with one answer, if it failed: returning would send an empty answer
    before it. Does not return then. Raises CancelledError if the caller is gone."""
    code: Any = context.code()
    if code:
        with cancelled_if_gone():
            await context.abort(code)


@contextmanager
def cancelled_if_gone() -> Iterator[None]:
    """Raise CancelledError if the caller is gone: grpc notices that only when it writes, and would
    log its own error as a fault of ours."""
    try:
        yield
    except grpc.aio.AbortError:  # the status is sent
        raise
    except grpc.aio.BaseError as exc:
        raise asyncio.CancelledError from exc


def record_cut_off(context: Context, captured_call: RecordedCall) -> None:
    """Record that the caller is gone: its deadline has passed, or it cancelled the call."""
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        captured_call.record_end(
            number(StatusCode.DEADLINE_EXCEEDED), "the caller's deadline passed"
        )
    else:
        captured_call.record_end(
            number(StatusCode.CANCELLED), "the caller was gone before the answer's end"
        )


def refuse(context: Context, target: CallTarget | None) -> None:
    """Set the status of a call that is not forwarded."""
    if target is None:
        context.set_code(StatusCode.NOT_FOUND)
        context.set_details("no upstream of this proxy serves that model")
    else:
        context.set_code(StatusCode.PERMISSION_DENIED)
        context.set_details("Shutdown is not passed on: the proxy's configuration can allow it")


def number(code: StatusCode) -> int:
    """Return the code on the wire."""
    value: int = code.value[0]
    return value

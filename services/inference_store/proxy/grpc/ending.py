"""How a call ends: the upstream's status as it is, ours where the upstream was never asked."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from grpc import StatusCode

from .metadata import passed
from .onward import Onward
from .seen import Seen

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
UpstreamCall: TypeAlias = Any
"""A call of grpc.aio, of either arity."""


async def end(call: UpstreamCall, context: Context, seen: Seen) -> None:
    """Give the caller the status, the message and the trailers of a call that is over."""
    code, details = await call.code(), await call.details()
    trailers = await call.trailing_metadata()
    if trailing := (*passed(trailers), *seen.named):
        context.set_trailing_metadata(trailing)
    if code is not StatusCode.OK:
        context.set_code(code)
    if details:
        context.set_details(details)
    seen.ended(number(code), details, await call.initial_metadata() or (), trailers or ())


async def fail(context: Context) -> None:
    """Send the status of a call with one answer, if it failed: returning would send an empty answer
    before it. Does not return then. Raises CancelledError where the caller is gone."""
    code: Any = context.code()
    if code:
        with cancelled_if_gone():
            await context.abort(code)


@contextmanager
def cancelled_if_gone() -> Iterator[None]:
    """Raise CancelledError where nobody is there to write to: grpc notices that first when it
    writes, and logs its own error as a fault of ours."""
    try:
        yield
    except grpc.aio.AbortError:  # the status is sent
        raise
    except grpc.aio.BaseError as exc:
        raise asyncio.CancelledError from exc


def cut_off(context: Context, seen: Seen) -> None:
    """Note that the caller is gone: by its deadline, or because it had enough."""
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        seen.ended(number(StatusCode.DEADLINE_EXCEEDED), "the caller's deadline passed")
    else:
        seen.ended(number(StatusCode.CANCELLED), "the caller was gone before the answer's end")


def refused(context: Context, onward: Onward | None) -> None:
    """Say why a call does not go on."""
    if onward is None:
        context.set_code(StatusCode.NOT_FOUND)
        context.set_details("no upstream of this proxy serves that model")
    else:
        context.set_code(StatusCode.PERMISSION_DENIED)
        context.set_details("Shutdown is not passed on: the proxy's configuration can allow it")


def number(code: StatusCode) -> int:
    """The code on the wire."""
    value: int = code.value[0]
    return value

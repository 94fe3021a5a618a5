"""Messages of a stream, both ways at once, each as soon as it is there."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import grpc

from .ending import Context, UpstreamCall
from .metadata import passed
from .seen import Seen

_FAILED: Final = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
_STATUS_SECONDS: Final = 5.0
_FIRST_SECONDS: Final = 0.02
"""So long a failed call waits for the request that it was about, if that is on its way."""


async def exchanged(first: Any, context: Context, call: UpstreamCall, seen: Seen) -> None:
    """Pass messages until the upstream has ended the call; `first`: what was read already,
    EOF too; None: nothing."""
    asking = asyncio.create_task(_ask(first, context, call, seen))
    try:
        await _answer(context, call, seen)
    except grpc.aio.AioRpcError:  # the call knows its status
        if not seen.has_asked:  # an upstream that is away answers before it was asked
            await asyncio.wait([asking], timeout=_FIRST_SECONDS)
    finally:
        asking.cancel()
        call.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _ask(first: Any, context: Context, call: UpstreamCall, seen: Seen) -> None:
    try:
        message = await context.read() if first is None else first
        while message is not grpc.aio.EOF:
            seen.asked(message)
            await _write(call, message)
            message = await context.read()
        await call.done_writing()
    except _FAILED:
        await _status(call)


async def _write(call: UpstreamCall, message: bytes) -> None:
    """The library's own `write`, where it fails because the upstream has ended the call already,
    puts INTERNAL in place of the upstream's status (grpc/grpc#36066)."""
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(message)


async def _status(call: UpstreamCall) -> None:
    """What cannot be sent is no matter where the upstream has ended the call; it must have."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_STATUS_SECONDS):
            await call.code()
    call.cancel()


async def _answer(context: Context, call: UpstreamCall, seen: Seen) -> None:
    # Even where there is nothing in it: a caller may wait for it before it sends.
    initial = await call.initial_metadata()
    await context.send_initial_metadata(passed(initial))
    # not `read`: once the status is there, it leaves out the messages before it
    async for message in call:
        seen.answered(message)
        await context.write(message)

"""Forwards messages of a stream both ways at once, each as soon as it arrives."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import grpc

from .call_end import Context, UpstreamCall
from .captured_stream import CapturedStream
from .metadata import select_metadata

_FAILED: Final = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
_STATUS_SECONDS: Final = 5.0


async def exchange_messages(
    first: Any,
    context: Context,
    call: UpstreamCall,
    captured_stream: CapturedStream,
    *,
    first_message_seconds: float,
) -> None:
    """Forward messages until the upstream has ended the call; `first`: a message that was already
    read, or EOF; None if nothing was read. A call that failed before its request arrived waits at
    most `first_message_seconds` for it."""
    forwarding = asyncio.create_task(_forward_requests(first, context, call, captured_stream))
    try:
        await _forward_answers(context, call, captured_stream)
    except grpc.aio.AioRpcError:  # the call has its status
        # an unavailable upstream answers before the request arrives
        if not captured_stream.has_request:
            await asyncio.wait([forwarding], timeout=first_message_seconds)
    finally:
        forwarding.cancel()
        call.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)


async def _forward_requests(
    first: Any, context: Context, call: UpstreamCall, captured_stream: CapturedStream
) -> None:
    try:
        message = await context.read() if first is None else first
        while message is not grpc.aio.EOF:
            captured_stream.record_request(message)
            await _write(call, message)
            captured_stream.hand_over_complete()
            message = await context.read()
        await call.done_writing()
    except _FAILED:
        await _await_status(call)


async def _write(call: UpstreamCall, message: bytes) -> None:
    """Send a message. If the upstream has already ended the call, the library's own `write` would
    replace the upstream's status by INTERNAL (grpc/grpc#36066)."""
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(message)


async def _await_status(call: UpstreamCall) -> None:
    """Wait for the status, and cancel the call: the upstream has ended it, so nothing can be
    sent."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_STATUS_SECONDS):
            await call.code()
    call.cancel()


async def _forward_answers(
    context: Context, call: UpstreamCall, captured_stream: CapturedStream
) -> None:
    # Even if it is empty: a caller may wait for it before it sends.
    initial = await call.initial_metadata()
    await context.send_initial_metadata(select_metadata(initial))
    captured_stream.record_initial(initial)
    # not `read`: once the status has arrived, it omits the messages before it
    async for message in call:
        captured_stream.record_response(message)
        await context.write(message)
        captured_stream.hand_over_complete()

"""Forwards the bytes of calls both ways without decoding them.

The caller's answer never waits for capture: an exchange is handed over after the call's status is
sent.
"""

import asyncio
from typing import Any

import grpc
from grpc import StatusCode

from . import shutdown
from .call_end import (
    Context,
    UpstreamCall,
    cancelled_if_gone,
    end,
    fail,
    number,
    record_cut_off,
    refuse,
)
from .call_target import CallTarget, Route
from .calls import Calls
from .captured_call import CapturedCall, Captures
from .captured_stream import CapturedStream
from .metadata import select_metadata
from .methods import SHUTDOWN, Method, read_names
from .observation import observe
from .omi_versions import OmiVersions
from .streams import exchange_messages


class Forwarding:
    """The handler of every method."""

    def __init__(self, route: Route, captures: Captures, calls: Calls, *, by_model: bool) -> None:
        self._route = route
        self._captures = captures
        self._calls = calls
        self._by_model = by_model
        self._omi_versions = OmiVersions()

    async def unary(self, path: str, method: Method, _: Any, context: Context) -> bytes:
        """Forward a call with one message each way."""
        request = await self._read_message(context)
        if request is None:
            await fail(context)
            return b""
        target = self._find_target(path, method, request)
        if target is None or (path == SHUTDOWN and not target.allow_shutdown):
            refuse(context, target)
            await fail(context)
            return b""
        captured_call = CapturedCall(self._captures, target, path, context, request)
        observe(target, path, context, captured_call)
        may_drop = path == SHUTDOWN and await shutdown.is_connected(target.channel)
        ask: Any = target.channel.unary_unary(path)
        call: UpstreamCall = ask(request, **_options(target, context))
        try:
            answer = await _read_answer(call)
            if answer is None and may_drop and shutdown.has_dropped(await call.code()):
                captured_call.record_end(number(StatusCode.OK), None)
                return shutdown.build_answer()
            await _finish(call, context, captured_call, answer or b"")
        except asyncio.CancelledError:
            record_cut_off(context, captured_call)
            raise
        self._omi_versions.note(target, path, answer or b"")
        await fail(context)
        return answer or b""

    async def stream(self, path: str, method: Method, _: Any, context: Context) -> None:
        """Forward a call with any number of messages each way."""
        if not self._has_room(context):
            return
        first = await context.read() if self._by_model and method.model else None
        target = self._find_target(path, method, first)
        if target is None:
            refuse(context, target)
            return
        # each request names its model
        captured_stream = CapturedStream(
            self._captures, lambda msg: self._find_target(path, method, msg), path, context
        )
        observe(target, path, context, captured_stream)
        call: UpstreamCall = target.channel.stream_stream(path)(**_options(target, context))
        try:
            await exchange_messages(
                first,
                context,
                call,
                captured_stream,
                first_message_seconds=self._calls.first_message_seconds,
            )
        except asyncio.CancelledError:
            record_cut_off(context, captured_stream)
            raise
        except grpc.aio.BaseError:  # the caller is gone
            record_cut_off(context, captured_stream)
            return
        await end(call, context, captured_stream)

    def _has_room(self, context: Context) -> bool:
        """Return whether the call is taken; if not, set its status."""
        reason = self._calls.take(context.peer())
        if reason is not None:
            context.set_code(StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(reason)
        return reason is None

    async def _read_message(self, context: Context) -> bytes | None:
        """Read the message of a call that has one; if it is refused, set its status and return
        None."""
        if not self._has_room(context):
            return None
        seconds = self._calls.message_seconds
        try:
            async with asyncio.timeout(seconds):
                message: Any = await context.read()
        except TimeoutError:
            context.set_code(StatusCode.DEADLINE_EXCEEDED)
            context.set_details(f"the request was not whole after {seconds:g} s")
            return None
        if message is grpc.aio.EOF:
            context.set_code(StatusCode.INVALID_ARGUMENT)
            context.set_details("this method takes one message, and the request has none")
            return None
        return bytes(message)

    def _find_target(self, path: str, method: Method, first: Any) -> CallTarget | None:
        """Return the target by the first message, if there is one."""
        model_and_version = read_names(method, first) if isinstance(first, bytes) else (None, None)
        target = self._route(path, *model_and_version)
        return target and self._omi_versions.add_version(target, path)


async def _read_answer(call: UpstreamCall) -> bytes | None:
    """Return the message of an answer; None if the call failed."""
    try:
        answer: bytes = await call
    except grpc.aio.AioRpcError:
        return None
    return answer


async def _finish(
    call: UpstreamCall, context: Context, captured_call: CapturedCall, answer: bytes
) -> None:
    """Send the metadata and the status after a single answer."""
    if await call.code() is StatusCode.OK:
        captured_call.record_response(answer)
    if initial := select_metadata(await call.initial_metadata()):
        with cancelled_if_gone():
            await context.send_initial_metadata(initial)
    await end(call, context, captured_call)


def _options(target: CallTarget, context: Context) -> dict[str, Any]:
    """Return the options of a request: its metadata, and the time that is left for it."""
    remaining = context.time_remaining()
    limits = [limit for limit in (remaining, target.timeout_seconds) if limit is not None]
    return {
        "metadata": select_metadata(context.invocation_metadata()),
        "timeout": min(limits, default=None),
    }

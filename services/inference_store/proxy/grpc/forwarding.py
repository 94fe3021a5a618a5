"""Bytes of calls, passed on both ways without being decoded.

The caller's answer waits for nothing of ours: what is captured is handed over when the call is
over, its status sent.
"""

import asyncio
from typing import Any

import grpc
from grpc import StatusCode

from . import shutdown
from .ending import (
    Context,
    UpstreamCall,
    cancelled_if_gone,
    cut_off,
    end,
    fail,
    number,
    refused,
)
from .metadata import passed
from .methods import SHUTDOWN, Method, names
from .omi_versions import OmiVersions
from .onward import Onward, Route
from .seen import Captures, Seen
from .streams import exchanged
from .watching import watch


class Forwarding:
    """The behaviour of every method."""

    def __init__(self, route: Route, captures: Captures, *, by_model: bool) -> None:
        self._route = route
        self._captures = captures
        self._by_model = by_model
        self._omi_versions = OmiVersions()

    async def unary(self, path: str, method: Method, request: bytes, context: Context) -> bytes:
        """One message each way."""
        onward = self._onward(path, method, request)
        if onward is None or (path == SHUTDOWN and not onward.allow_shutdown):
            refused(context, onward)
            await fail(context)
            return b""
        seen = Seen(self._captures, lambda _: onward, path, context)
        watch(onward, path, context, seen)
        seen.asked(request)
        may_drop = path == SHUTDOWN and await shutdown.reached(onward.channel)
        ask: Any = onward.channel.unary_unary(path)
        call: UpstreamCall = ask(request, **_options(onward, context))
        try:
            answer = await _answer(call)
            if answer is None and may_drop and shutdown.dropped(await call.code()):
                seen.ended(number(StatusCode.OK), None)
                return shutdown.answer()
            await _finish(call, context, seen, answer or b"")
        except asyncio.CancelledError:
            cut_off(context, seen)
            raise
        self._omi_versions.note(onward, path, answer or b"")
        await fail(context)
        return answer or b""

    async def stream(self, path: str, method: Method, _: Any, context: Context) -> None:
        """Any number of messages each way."""
        first = await context.read() if self._by_model and method.model else None
        onward = self._onward(path, method, first)
        if onward is None:
            refused(context, onward)
            return
        # a stream may be opened long before its first message says what it is about
        seen = Seen(self._captures, lambda msg: self._onward(path, method, msg), path, context)
        watch(onward, path, context, seen)
        call: UpstreamCall = onward.channel.stream_stream(path)(**_options(onward, context))
        try:
            await exchanged(first, context, call, seen)
        except asyncio.CancelledError:
            cut_off(context, seen)
            raise
        except grpc.aio.BaseError:  # nobody is there to write to
            cut_off(context, seen)
            return
        await end(call, context, seen)

    def _onward(self, path: str, method: Method, first: Any) -> Onward | None:
        """By the first message, where there is one."""
        named = names(method, first) if isinstance(first, bytes) else (None, None)
        onward = self._route(path, *named)
        return onward and self._omi_versions.added(onward, path)


async def _answer(call: UpstreamCall) -> bytes | None:
    """The message of an answer; None: the call failed."""
    try:
        answer: bytes = await call
    except grpc.aio.AioRpcError:
        return None
    return answer


async def _finish(call: UpstreamCall, context: Context, seen: Seen, answer: bytes) -> None:
    """After one message's answer: metadata and status."""
    if await call.code() is StatusCode.OK:
        seen.answered(answer)
    if initial := passed(await call.initial_metadata()):
        with cancelled_if_gone():
            await context.send_initial_metadata(initial)
    await end(call, context, seen)


def _options(onward: Onward, context: Context) -> dict[str, Any]:
    """What goes with a request: its metadata, and the time that is left for it."""
    left = context.time_remaining()
    limits = [limit for limit in (left, onward.timeout_seconds) if limit is not None]
    return {
        "metadata": passed(context.invocation_metadata()),
        "timeout": min(limits, default=None),
    }

"""OMI's Shutdown: a container may drop the connection in place of an answer."""

import asyncio
from contextlib import suppress
from typing import Final

import grpc
from grpc import ChannelConnectivity, StatusCode

from inference_store.grpc_messages import message

_SECONDS: Final = 5.0
_UNDECIDED: Final = frozenset({ChannelConnectivity.IDLE, ChannelConnectivity.CONNECTING})
_DROPPED: Final = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.UNKNOWN})


async def reached(channel: grpc.aio.Channel) -> bool:
    """Whether there is a connection, so that one that drops can be told from none at all."""
    state = channel.get_state(try_to_connect=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            while state in _UNDECIDED:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
    return state is ChannelConnectivity.READY


def dropped(code: StatusCode) -> bool:
    """Whether a call over a connection ended because that was dropped."""
    return code in _DROPPED


def answer() -> bytes:
    """What the container did not say itself: accepted."""
    said = message("ShutdownResponse")(
        status_code=202, status="Accepted", message="The container closed the connection."
    )
    written: bytes = said.SerializeToString()
    return written

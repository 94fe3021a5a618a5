"""OMI's Shutdown: a container may drop the connection instead of answering."""

import asyncio
from contextlib import suppress
from typing import Final

import grpc
from grpc import ChannelConnectivity, StatusCode

from inference_store.grpc_messages import message

_SECONDS: Final = 5.0
_UNDECIDED: Final = frozenset({ChannelConnectivity.IDLE, ChannelConnectivity.CONNECTING})
_DROPPED: Final = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.UNKNOWN})


async def is_connected(channel: grpc.aio.Channel) -> bool:
    """Return whether there is a connection, to distinguish a dropped connection from a missing
    one."""
    state = channel.get_state(try_to_connect=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            while state in _UNDECIDED:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
    return state is ChannelConnectivity.READY


def has_dropped(code: StatusCode) -> bool:
    """Return whether a call ended because its connection was dropped."""
    return code in _DROPPED


def build_answer() -> bytes:
    """Return the answer that the container did not send: accepted."""
    response = message("ShutdownResponse")(
        status_code=202, status="Accepted", message="The container closed the connection."
    )
    written: bytes = response.SerializeToString()
    return written

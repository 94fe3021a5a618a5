"""The loop that the services run on: its transports are none of asyncio's classes."""

import asyncio
from collections.abc import Callable, Mapping

from .stepped_loop import SteppedLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use the event loop of `inference_store.cli`, with timers that the test holds."""
    return {"uvloop": SteppedLoop}

"""The loop that the services run on: its transports are none of asyncio's classes."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use the event loop of `inference_store.cli`."""
    return {"uvloop": uvloop.new_event_loop}

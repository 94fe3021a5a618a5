"""Upstreams that are OMI containers, each behind a bridge of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.grpc_port import open_channel

from .bridge import Bridge
from .container import Container


@asynccontextmanager
async def open_bridges(
    configuration: Configuration, message_bytes: int
) -> AsyncIterator[Configuration]:
    """Yield the configuration in which every upstream answers V2; bridges stop with the context."""
    async with AsyncExitStack() as open_bridges:
        entries = [
            entry
            if entry.omi is None
            else await _open_bridge(entry, entry.omi, message_bytes, open_bridges)
            for entry in configuration.upstreams
        ]
        yield Configuration(entries, configuration.models)


async def _open_bridge(
    entry: UpstreamEntry, target: str, message_bytes: int, open_bridges: AsyncExitStack
) -> UpstreamEntry:
    """Return the upstream at its bridge, which is on this machine and without TLS."""
    channel = await open_bridges.enter_async_context(open_channel(entry, target, message_bytes))
    container = Container(
        channel, status_seconds=entry.read_seconds, run_seconds=entry.read_seconds
    )
    bridge = await open_bridges.enter_async_context(Bridge(container, message_bytes=message_bytes))
    addresses = {"omi": None, "url": bridge.url, "grpc": bridge.target}
    secrets = dict.fromkeys(("ca_file", "certificate_file", "key_file"))
    return entry.model_copy(update=addresses | secrets)

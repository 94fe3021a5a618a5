"""The proxy over gRPC in front of an upstream, both in this process."""

from collections.abc import AsyncIterator

import pytest

from .grpc_upstream import ProxySetup, start_proxy


@pytest.fixture
async def setup() -> AsyncIterator[ProxySetup]:
    async with start_proxy() as proxy_setup:
        yield proxy_setup

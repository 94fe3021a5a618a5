"""Each test is about both clients."""

import pytest

from tests.both_clients import CLIENTS, Client


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """The client that blocks, and the one of an event loop."""
    chosen: Client = request.param
    return chosen

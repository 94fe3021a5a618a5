"""The client before the real api, over TCP."""

import pytest

from tests.both_clients import CLIENTS, Client
from tests.integration.api.conftest import (  # noqa: F401
    blobs,
    forget_apps,
    make_app,
    settings,
)


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def both(request: pytest.FixtureRequest) -> Client:
    """The client that blocks, and the one of an event loop."""
    chosen: Client = request.param
    return chosen

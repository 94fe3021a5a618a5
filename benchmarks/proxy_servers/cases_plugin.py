"""A plugin of pytest: the proxy's tests run on another server. Nothing else of them is changed but
how long they wait, and that heads are compared by their meaning."""

import asyncio
import os
from typing import Final

import pytest

from .plain_heads import open_connection
from .servers import SERVERS

SERVER: Final = "INFERENCE_STORE_BENCH_SERVER"
"""The variable that names the server."""

_SECONDS: Final = 15.0


def pytest_configure(config: pytest.Config) -> None:  # noqa: ARG001 (pytest calls it by name)
    """Replace the server before tests import it."""
    from tests.integration.proxy import rest_server  # noqa: PLC0415 (pytest rewrites it first)

    vars(rest_server)["build_server"] = SERVERS[os.environ[SERVER]]
    rest_server.DEADLINE = _SECONDS
    vars(asyncio)["open_connection"] = open_connection

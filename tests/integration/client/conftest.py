"""The client before the real api, over TCP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp

from tests.both_clients import Client, both  # noqa: F401
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import (  # noqa: F401
    blobs,
    forget_apps,
    make_app,
    settings,
)
from tests.integration.api.hallway import make_frames
from tests.integration.stored_inferences import store as store_inferences


@pytest.fixture
async def frames(engine: AsyncEngine) -> None:
    await store_inferences(engine, *make_frames())


@asynccontextmanager
async def open_api(app: ASGIApp, client: Client, key: str | None = None) -> AsyncIterator[Any]:
    async with serve_app(app) as http, client.open_store(str(http.base_url), key) as store:
        yield store

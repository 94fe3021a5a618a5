"""The api on a real database and a real object store, asked in this process."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import _lru_cache_wrapper
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies import models as dependants
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.servers.minio import S3
from tests.settings import make_settings

MakeApp = Callable[..., FastAPI]
# What a test asks for is searched whole, however busy the machine is.
_UNHURRIED = {
    "page_seconds": 300.0,
    "query_timeout_seconds": 300.0,
    "query_wait_seconds": 120.0,
    "policy_preview_seconds": 300.0,
}


@pytest.fixture(autouse=True)
def forgotten_apps() -> Iterator[None]:
    """After a test nothing holds its apps: FastAPI remembers their functions, thousands of them."""
    yield
    for remembered in vars(dependants).values():
        if isinstance(remembered, _lru_cache_wrapper):
            remembered.cache_clear()


@pytest.fixture
def settings(database: str, minio_server: S3, bucket: str) -> Callable[..., ApiSettings]:
    """A factory of the api's settings on this test's servers."""

    def make(**changes: Any) -> ApiSettings:
        return make_settings(
            ApiSettings,
            postgres_dsn=database,
            s3_endpoint=minio_server.endpoint,
            s3_access_key=minio_server.access_key,
            s3_secret_key=minio_server.secret_key,
            s3_bucket=bucket,
            **({"auth": "off"} | _UNHURRIED | changes),
        )

    return make


@pytest.fixture
async def blobs(settings: Callable[..., ApiSettings]) -> AsyncIterator[Blobs]:
    """The object store."""
    with Blobs(settings()) as made:
        yield made


@pytest.fixture
def make_app(settings: Callable[..., ApiSettings], engine: AsyncEngine, blobs: Blobs) -> MakeApp:
    """A factory: `make_app(api_token="…")` with other settings."""

    def make(**changes: Any) -> FastAPI:
        return create_app(settings(**changes), engine, blobs)

    return make


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client of an app in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


@pytest.fixture
async def client(make_app: MakeApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the api."""
    async with client_of(make_app()) as made:
        yield made

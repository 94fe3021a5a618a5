"""The api on a real database and a real object store, in the process of the tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import _lru_cache_wrapper
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.dependencies import models as dependants
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.retention import exporter
from tests.servers.minio import S3
from tests.settings import make_settings

from .api_client import LINES, OWNER, Api, MakeApp, make_client
from .people import make_person, store_people

__all__ = [
    "LINES",
    "OWNER",
    "Api",
    "MakeApp",
    "api",
    "blobs",
    "client",
    "forget_apps",
    "make_app",
    "make_client",
    "patient_exports",
    "people",
    "settings",
]
# Long enough that a query always completes, however busy the machine is.
_UNHURRIED = {"query_timeout_seconds": 600.0}


@pytest.fixture(autouse=True)
def patient_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of retention writes every export, however busy the machine is."""
    monkeypatch.setattr(exporter, "SHARE_SECONDS", 300.0)


@pytest.fixture(autouse=True)
def forget_apps() -> Iterator[None]:
    """Release the apps of each test: FastAPI caches their functions, thousands of them."""
    yield
    for value in vars(dependants).values():
        if isinstance(value, _lru_cache_wrapper):
            value.cache_clear()


@pytest.fixture
def settings(database: str, minio_server: S3, bucket: str) -> Callable[..., ApiSettings]:
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
    with Blobs(settings()) as blob_store:
        yield blob_store


@pytest.fixture
def make_app(settings: Callable[..., ApiSettings], engine: AsyncEngine, blobs: Blobs) -> MakeApp:
    """A factory: `make_app(api_token="…")` with other settings."""

    def make(**changes: Any) -> FastAPI:
        return create_app(settings(**changes), engine, blobs)

    return make


@pytest.fixture
async def client(make_app: MakeApp) -> AsyncIterator[Api]:
    async with make_client(make_app()) as one_api:
        yield one_api


@pytest.fixture
def api(client: Api) -> Api:
    """The api, under the name by which tests reach the database and the bucket too."""
    return client


@pytest.fixture
async def people(api: Api) -> None:
    """Six inferences of `model`, of ann and bob in turn, each with an object; one of `other`."""
    await store_people(api)
    await api.store(make_person(9, "ann", model_id="other"))

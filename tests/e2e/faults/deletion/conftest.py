"""One Postgres and one MinIO for all cases; of each a database, a bucket and an api of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inference_store.api.app import create_app
from inference_store.erasure.log import new_key
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.api.conftest import make_client
from tests.integration.retention.stored import Storing
from tests.servers.fixtures import migrate, unique
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer

from .world import Asking, World


@pytest.fixture(scope="module")
def own_template(own_postgres: PostgresServer) -> str:
    """A migrated database without connections."""
    name = unique("template")
    migrate(own_postgres.create_database(name))
    return name


@pytest.fixture
def settings(
    own_postgres: PostgresServer, own_template: str, own_minio: MinioServer
) -> Iterator[RetentionSettings]:
    name = unique()
    values = {
        "postgres_dsn": own_postgres.create_database(name, template=own_template),
        **own_minio.settings,
        "s3_bucket": own_minio.create_bucket(unique(), object_lock=True),
    }
    yield RetentionSettings.model_validate(values)
    own_postgres.drop_database(name)


@pytest.fixture
async def world(settings: RetentionSettings, tmp_path: Path) -> AsyncIterator[World]:
    """All is stored, held and decided; no retention service runs yet."""
    dsn = settings.postgres_dsn.get_secret_value()
    engine = create_engine(dsn)
    names = ("s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    values = {name: getattr(settings, name) for name in names} | {"postgres_dsn": dsn}
    api = ApiSettings.model_validate({**values, "auth": "off"})
    with Blobs(settings) as blobs:
        async with make_client(create_app(api, engine, blobs)) as client:
            storing = Storing(engine, blobs)
            opened = World(storing, settings, Asking(client), new_key(), tmp_path)
            await opened.begin()
            try:
                yield opened
            finally:
                await asyncio.to_thread(opened.close)
                await engine.dispose()

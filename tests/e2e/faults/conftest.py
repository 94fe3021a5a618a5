"""Fixtures of the fault matrix: blobs that the cases of a module share."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.e2e.faults.traffic import Published, make_captures
from tests.producer import Capture, Producer
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import MakeTopic, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3

NUMBERS = range(300)


@pytest.fixture(scope="module")
def shared_bucket(minio_server: S3) -> str:
    """A bucket that holds the blobs of the captures NUMBERS."""
    bucket = minio_server.create_bucket(unique())
    environment = {
        "INFERENCE_STORE_S3_BUCKET": bucket,
        "INFERENCE_STORE_S3_ENDPOINT": minio_server.endpoint,
        "INFERENCE_STORE_S3_ACCESS_KEY": minio_server.access_key,
        "INFERENCE_STORE_S3_SECRET_KEY": minio_server.secret_key,
    }
    asyncio.run(Producer(environment, "").put_all(make_captures(NUMBERS)))
    return bucket


@pytest.fixture
def many(shared_bucket: str) -> list[Capture]:  # noqa: ARG001  (their blobs are in it)
    return make_captures(NUMBERS)


@pytest.fixture
def environment(
    database: str, kafka_server: Kafka, minio_server: S3, shared_bucket: str, topic: MakeTopic
) -> dict[str, str]:
    """An ingester's environment: small batches, three partitions, the shared bucket."""
    changes = {
        "KAFKA_TOPIC": topic(3),
        "KAFKA_GROUP": unique("group"),
        "INGESTER_INSTANCE": unique("ingester"),
        "INGESTER_BATCH_EVENTS": "50",
        # The wait between two tries doubles: on a slow machine the next would come too late.
    }
    return environment_of(database, kafka_server, minio_server, shared_bucket, **changes)


@pytest.fixture
async def published(
    environment: dict[str, str], engine: AsyncEngine, shared_bucket: str
) -> AsyncIterator[Published]:
    async with Producer(environment, environment["INFERENCE_STORE_KAFKA_TOPIC"]) as producer:
        yield Published(producer, engine, shared_bucket)

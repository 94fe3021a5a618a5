"""Postgres, MinIO and Kafka stopped, killed and started again while events keep coming."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine
from tests.e2e.faults.away import AWAY_SECONDS, check_it_did_not_spin, read_unready_parts
from tests.e2e.faults.books_close import check_ingested, counted
from tests.e2e.faults.traffic import Published, make_captures
from tests.polling import until
from tests.producer import Producer
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.service_process import Service

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
PARTS = {"postgres": "postgres", "minio": "object store", "kafka": "kafka"}


@pytest.fixture
def servers(
    own_postgres: PostgresServer, own_minio: MinioServer, own_kafka: KafkaServer
) -> dict[str, Server]:
    return {"postgres": own_postgres, "minio": own_minio, "kafka": own_kafka}


@pytest.fixture
def own_environment(
    own_postgres: PostgresServer, own_minio: MinioServer, own_kafka: KafkaServer
) -> dict[str, str]:
    dsn = own_postgres.create_database(unique())
    migrate(dsn)
    return environment_of(
        dsn,
        own_kafka,
        own_minio,
        own_minio.create_bucket(unique()),
        KAFKA_TOPIC=own_kafka.create_topic(unique(), partitions=3),
        KAFKA_GROUP=unique("group"),
        INGESTER_BATCH_EVENTS="50",
        INGESTER_RETRY_SECONDS="0.2",
        INGESTER_POLL_SECONDS="0.1",
    )


@pytest.fixture
async def own_engine(own_environment: dict[str, str]) -> AsyncIterator[AsyncEngine]:
    opened_engine = create_engine(own_environment["INFERENCE_STORE_POSTGRES_DSN"])
    yield opened_engine
    await opened_engine.dispose()


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("name", PARTS)
async def test_a_server_goes_and_comes_back(
    name: str,
    how: str,
    servers: dict[str, Server],
    own_environment: dict[str, str],
    own_engine: AsyncEngine,
    tmp_path: Path,
) -> None:
    server, bucket = servers[name], own_environment["INFERENCE_STORE_S3_BUCKET"]
    some = make_captures(range(600))
    topic = own_environment["INFERENCE_STORE_KAFKA_TOPIC"]
    service = Service("ingester", own_environment, tmp_path)
    try:
        await asyncio.to_thread(service.wait_ready)
        async with Producer(own_environment, topic) as producer:
            await producer.put_all(some)
            published = Published(producer)
            await published.publish(some[:200], again=20)
            await until(lambda: counted(own_engine), lambda counts: counts.total() > 0)
            await asyncio.to_thread(getattr(server, how))
            later = asyncio.create_task(published.publish(some[200:], again=100))
            await until(lambda: read_unready_parts(service), lambda away: PARTS[name] in away)
            await asyncio.sleep(AWAY_SECONDS)
            await until(lambda: read_unready_parts(service), lambda away: PARTS[name] in away)
            await asyncio.to_thread(server.start)
            await later
            await check_ingested(own_engine, published.captures, bucket, records=published.records)
        await asyncio.to_thread(service.wait_ready)
        check_it_did_not_spin(service)
    finally:
        print(service.text[-6000:])
        service.stop()
        await asyncio.to_thread(server.start_if_ended)

"""The whole line as in production: TLS and logins everywhere."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform.settings import PostgresSettings
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.certificates import Authority
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.ports import free_port
from tests.servers.secured import PASSWORD, SecuredKafka, SecuredMinio, SecuredPostgres
from tests.service_process import Service
from tests.transactions import opened, scalar

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]


@pytest.fixture
def database(secured_postgres: SecuredPostgres) -> str:
    """The name of a migrated database that the user `alice` may use."""
    return secured_postgres.create_users_database(unique())


@pytest.fixture
async def engine(secured_postgres: SecuredPostgres, database: str) -> AsyncIterator[AsyncEngine]:
    """An engine of the user `postgres`, to look at the tables."""
    async with opened(secured_postgres.dsn_of(database)) as opened_engine:
        yield opened_engine


@pytest.fixture
def environment(
    secured_postgres: SecuredPostgres,
    secured_kafka: SecuredKafka,
    secured_minio: SecuredMinio,
    database: str,
    authority: Authority,
    tmp_path: Path,
) -> dict[str, str]:
    """The services' environment: passwords in files, every certificate checked."""
    dsn, ca = secured_postgres.dsn_of_user(database), str(authority.ca_file)
    checked = {"postgres_tls": "verify-full", "postgres_ca_file": ca}
    migrate(
        PostgresSettings.model_validate(
            {"postgres_dsn": dsn, "postgres_password": PASSWORD, **checked}
        )
    )
    (tmp_path / "password").write_text(PASSWORD + "\n")
    topic = secured_kafka.create_topic(unique())
    service_settings = service_environment(
        dsn,
        Kafka("replaced"),
        secured_minio,
        secured_minio.create_bucket(unique()),
        KAFKA_TOPIC=topic,
        API_PORT=str(free_port()),
        S3_CA_FILE=ca,
        S3_ENCRYPTION="SSE-KMS",
        S3_KMS_KEY_ID="tests",
        POSTGRES_TLS="verify-full",
        POSTGRES_CA_FILE=ca,
        POSTGRES_PASSWORD_FILE=str(tmp_path / "password"),
        **secured_kafka.login("SCRAM-SHA-512"),
    )
    service_settings["INFERENCE_STORE_KAFKA_SASL_PASSWORD_FILE"] = str(tmp_path / "password")
    del service_settings["INFERENCE_STORE_KAFKA_SASL_PASSWORD"]
    return service_settings


async def produce(
    environment: dict[str, str], kafka: SecuredKafka, authority: Authority, *numbers: int
) -> None:
    """Store blobs and publish events of these numbers."""
    topic = environment["INFERENCE_STORE_KAFKA_TOPIC"]
    certificate = authority.ca_file.read_bytes()
    producer = Producer(environment, topic, root_certificate=certificate)
    captures = [capture(number) for number in numbers]
    await producer.put_all(captures)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as sending:
        for captured in captures:
            await sending.send_and_wait(topic, captured.event)


async def count_rows(engine: AsyncEngine, table: str = "inference") -> Any:
    return await scalar(engine, f"SELECT count(*) FROM {table}")


async def test_an_event_becomes_a_typed_answer(
    environment: dict[str, str],
    secured_kafka: SecuredKafka,
    authority: Authority,
    engine: AsyncEngine,
    tmp_path: Path,
) -> None:
    pair = authority.issue("api")
    environment["INFERENCE_STORE_API_TLS_CERTIFICATE_FILE"] = str(pair.certificate)
    environment["INFERENCE_STORE_API_TLS_KEY_FILE"] = str(pair.key)
    services = [Service(name, environment, tmp_path) for name in ("ingester", "api", "retention")]
    trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    port = environment["INFERENCE_STORE_API_PORT"]
    url = f"https://localhost:{port}/v1/models/people-detector/inferences"
    try:
        for service in services:
            await asyncio.to_thread(service.wait_ready)
        await produce(environment, secured_kafka, authority, 7)
        await until(lambda: count_rows(engine), lambda number: number == 1, seconds=180)
        body: dict[str, Any] = {
            "metadata_filter": [
                {"key": "frame_number", "type": "int", "operator": "eq", "value": "7"}
            ],
            "include": ["urls"],
        }
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}/query", json=body, ssl=trusted) as answer:
                [item] = (await answer.json())["items"]
            async with http.get(item["urls"]["data"], ssl=trusted) as answer:
                assert await answer.read() == b"datum 7"
            async with http.get(f"{url}/inference-7/data", ssl=trusted) as answer:
                assert await answer.read() == b"datum 7"
        for service in services:
            assert PASSWORD not in service.text
    finally:
        for service in services:
            service.stop()


async def test_a_wrong_authority_makes_the_line_wait_and_loses_nothing(
    environment: dict[str, str],
    secured_kafka: SecuredKafka,
    authority: Authority,
    stranger: Authority,
    engine: AsyncEngine,
    tmp_path: Path,
) -> None:
    parts = {"KAFKA_CA_FILE": "kafka", "S3_CA_FILE": "object store", "POSTGRES_CA_FILE": "postgres"}
    with Service("ingester", environment, tmp_path) as ingester:
        for number, (setting, part) in enumerate(parts.items()):
            await asyncio.to_thread(ingester.stop)
            await produce(environment, secured_kafka, authority, number)
            ingester.restart(**{setting: str(stranger.ca_file)})

            async def read_health(part: str = part) -> str:
                return str((await asyncio.to_thread(ingester.health))["parts"][part])

            reason = await until(read_health, lambda text: "certificate" in text.lower())
            assert "certificate verify failed" in reason, part
            assert ingester.health()["ready"] is False, part
            assert await count_rows(engine) == number, part
            await asyncio.to_thread(ingester.stop)
            ingester.restart(**{setting: str(authority.ca_file)})
            await until(partial(count_rows, engine), partial(eq, number + 1))
        assert await count_rows(engine, "unsettled_event") == 0

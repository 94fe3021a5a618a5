"""The whole line as in production: TLS and logins everywhere, S3 keys with the least rights."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from io import BytesIO
from operator import eq
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiokafka import AIOKafkaProducer
from minio.error import S3Error
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log import new_key
from inference_store.platform.settings import PostgresSettings
from tests.e2e.capture.test_line import detector
from tests.integration.proxy.rest_server import upstream
from tests.integration.retention.exported import Exporting
from tests.polling import until
from tests.producer import Producer, capture
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.certificates import Authority
from tests.servers.environment import service_environment
from tests.servers.fixtures import MakeEnvironment, migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3, MinioUser
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


_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "retention.md"
_POLICY = re.compile(r"^### Policy of the (\w+).*?^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A small object, a large one, one with a name that the other client writes.
_CALLS = {"small": 10, "large": 12 * 2**20, "odd%7Fname": 10}
_STORED = len(_CALLS) + 2


@pytest.fixture
def bucket(minio_server: S3) -> str:
    """A bucket that keeps versions, and may lock them: it needs most rights."""
    return minio_server.create_bucket(unique(), object_lock=True)


@pytest.fixture
def users(minio_server: S3, bucket: str) -> dict[str, MinioUser]:
    """A user for each service, with the rights of the page."""
    policies = dict(_POLICY.findall(_PAGE.read_text()))
    users = {service: MinioUser(minio_server, unique(service)) for service in policies}
    for service, policy in policies.items():
        users[service].may(*json.loads(policy.replace("inference-store", bucket)))
    return users


async def test_the_documented_rights_are_enough(
    service_environment: MakeEnvironment,
    users: dict[str, MinioUser],
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Capture, ingest with sidecars, read, edit, decide, export with copies, erase and certify."""
    port, key = str(free_port()), new_key().pem
    more = {"INGESTER_SIDECARS": "on", "API_PORT": port}
    common = {"KAFKA_TOPIC": topic(), "KAFKA_REPORTS_TOPIC": topic(), "CERTIFICATE_KEY": key}
    environments = {
        name: service_environment(
            **common, **more, S3_ACCESS_KEY=user.access_key, S3_SECRET_KEY=user.secret_key
        )
        for name, user in users.items()
    }
    async with AsyncExitStack() as stack:
        address = f"http://127.0.0.1:{await stack.enter_async_context(upstream(detector))}"
        entries = [upstream_entry("one", "v2", url=address)]
        proxy = Proxy(environments.pop("proxy"), tmp_path, entries)
        services = [proxy, *(Service(name, e, tmp_path) for name, e in environments.items())]
        for service in services:
            stack.callback(service.stop)
        for service in services:
            await asyncio.to_thread(service.wait_ready)
        producer = Producer(service_environment(), common["KAFKA_TOPIC"])
        await stack.enter_async_context(producer)
        await producer.produce(capture(3, model_id="model"), capture(4, model_id="model"))
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300)
        caller = Exporting(await stack.enter_async_context(client))
        for model, size in _CALLS.items():
            data = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a" * size]}
            url = f"{proxy.url}/v2/models/{model}/infer"
            assert (await client.post(url, json={"inputs": [data]})).status_code == 200

        async def count() -> int:
            return int((await caller.call("POST", "/inferences/count", {}))["count"])

        await until(count, lambda number: number == _STORED)
        path = "/models/model/inferences"
        assert (await client.get(f"/v1{path}/inference-3/data")).content == b"datum 3"
        item = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
        await caller.call("POST", f"{path}/inference-3/metadata", item)
        policy = {"level": "default", "id": None, "rules": [{"keep_inference": "P9Y"}]}
        await caller.call("PUT", "/retention-policy", policy)
        await caller.wait_until_ended(await caller.request_all())
        await caller.wait_until_certified(await caller.erase(["inference-3"]))
        for service in services:
            assert not re.search("access ?denied|object store", service.text, re.IGNORECASE)


def test_they_grant_no_more(minio_server: S3, users: dict[str, MinioUser], bucket: str) -> None:
    """Whoever captures, indexes or answers cannot delete, nor write what proves."""
    root = minio_server.client()
    version = root.put_object(bucket, "captures/a", BytesIO(), 0).version_id
    for name in ("proxy", "ingester", "api"):
        client = S3(minio_server.endpoint, users[name].access_key, users[name].secret_key).client()
        with pytest.raises(S3Error, match="AccessDenied"):
            client.remove_object(bucket, "captures/a", version_id=version)
        with pytest.raises(S3Error, match="AccessDenied"):
            client.put_object(bucket, "certificates/a", BytesIO(), 0)

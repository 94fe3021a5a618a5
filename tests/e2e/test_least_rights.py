"""Each service with an S3 key of its own, which may do what the docs grant it, and no more."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from minio.error import S3Error

from inference_store.erasure.log.keys import new_key
from tests.integration.retention.exported import Exporting
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser
from tests.service_process import Service

pytestmark = pytest.mark.real_minio
_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "retention.md"
_POLICY = re.compile(r"^### Policy of the (\w+).*?^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r'"port": (\d+)[^\n]*"api_listening"|"api_listening"[^\n]*"port": (\d+)')


@pytest.fixture
def bucket(minio_server: S3) -> str:
    """A bucket that keeps versions, and may lock them: it needs most rights."""
    return minio_server.create_bucket(unique(), object_lock=True)


@pytest.fixture
def users(minio_server: S3, bucket: str) -> dict[str, MinioUser]:
    """A user for each service, with the rights of the page."""
    users: dict[str, MinioUser] = {}
    for service, policy in _POLICY.findall(_PAGE.read_text()):
        users[service] = MinioUser(minio_server, unique(service))
        users[service].may(*json.loads(policy.replace("inference-store", bucket)))
    assert set(users) == {"proxy", "ingester", "api", "retention"}
    return users


@pytest.fixture
async def services(
    service_environment: MakeEnvironment,
    users: dict[str, MinioUser],
    topic: Any,
    tmp_path: Path,
) -> AsyncIterator[dict[str, Service]]:
    more = {"INGESTER_SIDECARS": "on", "RETENTION_POLL_SECONDS": "0.1", "API_PORT": "0"}
    common = {"KAFKA_TOPIC": topic(), "CERTIFICATE_KEY": new_key().pem, **more}
    services: dict[str, Service] = {}
    async with AsyncExitStack() as stack:
        for name in ("ingester", "api", "retention"):
            user = users[name]
            keys = {"S3_ACCESS_KEY": user.access_key, "S3_SECRET_KEY": user.secret_key}
            services[name] = Service(name, service_environment(**common, **keys), tmp_path)
            stack.callback(services[name].stop)
        for service in services.values():
            await asyncio.to_thread(service.wait_ready)
        yield services


async def test_the_documented_rights_are_enough(
    service_environment: MakeEnvironment, services: dict[str, Service]
) -> None:
    """Ingest with sidecars, read, edit, decide, export with copies, erase and certify."""
    producer = Producer(service_environment(), services["ingester"].setting("KAFKA_TOPIC"))
    found = _ADDRESS.search(services["api"].text)
    assert found is not None
    address = f"http://127.0.0.1:{found[1] or found[2]}"
    async with producer, httpx.AsyncClient(base_url=address, timeout=300) as client:
        await producer.produce(*map(capture, range(3)))
        await producer.produce(capture(3, model_id="model"), capture(4, model_id="model"))
        caller, path = Exporting(client), "/models/model/inferences"

        async def count() -> int:
            answer = await client.post("/v1/inferences/count", json={})
            return int(answer.json().get("count", 0)) if answer.is_success else 0

        await until(count, lambda number: number == 5)
        assert (await client.get(f"/v1{path}/inference-3/data")).content == b"datum 3"
        item = {"key": "reviewed", "type": "bool", "value": "true"}
        await caller.call("POST", f"{path}/inference-3/metadata", item)
        rules = [{"name": "all", "keep_inference": "P9Y"}]
        await caller.call("PUT", "/retention-policy", {"rules": rules})
        exports = await caller.request_all()
        await caller.wait_until_done(exports)
        erasure = await caller.erase(["inference-3"])
        await caller.wait_until_certified(erasure)
        assert (await caller.call("GET", f"/erasures/{erasure}"))["state"] == "deleted"
    for service in services.values():
        assert "AccessDenied" not in service.text
        assert "Access Denied" not in service.text


def test_they_grant_no_more(minio_server: S3, users: dict[str, MinioUser], bucket: str) -> None:
    """Who answers or indexes cannot delete, nor write what proves; who captures cannot read."""
    root = minio_server.client()
    for key in ("captures/a", "certificates/a"):
        root.put_object(bucket, key, BytesIO(), 0)
    for service in ("proxy", "ingester", "api"):
        s3 = S3(minio_server.endpoint, users[service].access_key, users[service].secret_key)
        client = s3.client()
        version = root.stat_object(bucket, "captures/a").version_id
        with pytest.raises(S3Error, match="AccessDenied"):
            client.remove_object(bucket, "captures/a", version_id=version)
        with pytest.raises(S3Error, match="AccessDenied"):
            client.put_object(bucket, "certificates/a", BytesIO(), 0)
        if service == "proxy":
            with pytest.raises(S3Error, match="AccessDenied"):
                client.get_object(bucket, "captures/a")

"""The rights in S3 that the documentation names: they are enough, and grant no more."""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from minio.error import S3Error

from inference_store.erasure.log import new_key
from tests.e2e.capture.test_line import detector
from tests.integration.proxy.rest_server import upstream
from tests.integration.retention.exported import Exporting
from tests.polling import until
from tests.producer import Producer, capture
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.minio import S3, MinioUser
from tests.servers.ports import free_port
from tests.service_process import Service

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]

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
    """Capture, ingest with sidecars and labels, read, edit, decide, export with copies, erase and
    certify."""
    port, key = str(free_port()), new_key().pem
    more = {"INGESTER_SIDECARS": "on", "API_PORT": port, "POLICY_GRACE_SECONDS": "0"}
    common = {"KAFKA_TOPIC": topic(), "KAFKA_REPORTS_TOPIC": topic(), "CERTIFICATE_KEY": key}
    common["KAFKA_TRUTH_TOPIC"] = topic()
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
        truths = Producer(service_environment(), common["KAFKA_TRUTH_TOPIC"])
        await stack.enter_async_context(truths)
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
        await truths.publish(b'{"model_id": "model", "inference_id": "inference-4", "label": "x"}')
        labelled = {"filter": "truth_label = 'x'"}
        await until(
            lambda: caller.call("POST", "/models/model/inferences/count", labelled),
            lambda answer: answer["count"] == 1,
        )
        path = "/models/model/inferences"
        assert (await client.get(f"/v1{path}/inference-3/data")).content == b"datum 3"
        item = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
        await caller.call("POST", f"{path}/inference-3/metadata", item)
        policy = {"level": "default", "id": None, "rules": [{"keep_inference": "P9Y"}]}
        await caller.call("PUT", "/retention-policy", policy)
        await caller.wait_until_ended(await caller.request_all())
        await caller.wait_until_certified(await caller.erase(["inference-3"]))
        # what is left of its metadata and its sidecar is written again
        rules = [{"keep_input": "PT1S", "keep_inference": "P9Y"}]
        policy = {"level": "model", "id": "model", "rules": rules}
        await caller.call("PUT", "/models/model/retention-policy", policy)
        await caller.call("POST", "/models/model/retention-policy/run")

        async def list_input_erasures() -> list[Any]:
            items = (await caller.call("GET", "/erasures"))["items"]
            return [item["id"] for item in items if item["scope"] == "input"]

        [erasure] = await until(list_input_erasures, bool, seconds=180)
        await caller.wait_until_certified(erasure)
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

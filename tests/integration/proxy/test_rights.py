"""The S3 rights that docs/how-to/retention.md gives a proxy are enough: it only puts objects."""

import asyncio
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.capture.test_line import detector
from tests.polling import until
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement

from .rest_server import upstream

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio]
# A small object; one that is uploaded in parts; one with a name that the other client writes.
CALLS = {"small": 10, "large": 12 * 2**20, "odd%7Fname": 10}


async def test_a_key_that_may_only_put_is_enough(
    service_environment: MakeEnvironment,
    topic: Callable[..., str],
    minio_server: S3,
    tmp_path: Path,
) -> None:
    environment = service_environment(KAFKA_TOPIC=topic(), KAFKA_REPORTS_TOPIC=topic())
    bucket = environment["INFERENCE_STORE_S3_BUCKET"]
    user = MinioUser(minio_server, unique("user"))
    user.may(statement("Allow", ["PutObject"], f"{bucket}/captures/*"))
    environment |= {
        "INFERENCE_STORE_S3_ACCESS_KEY": user.access_key,
        "INFERENCE_STORE_S3_SECRET_KEY": user.secret_key,
    }
    async with upstream(detector) as port:
        entries = [upstream_entry("one", "v2", url=f"http://127.0.0.1:{port}")]
        with Proxy(environment, tmp_path, entries) as proxy:
            await asyncio.to_thread(proxy.wait_ready)
            async with aiohttp.ClientSession() as http:
                for model, size in CALLS.items():
                    data = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a" * size]}
                    body = json.dumps({"inputs": [data]}).encode()
                    address = f"{proxy.url}/v2/models/{model}/infer"
                    async with http.post(address, data=BytesIO(body)) as answer:
                        assert answer.status == 200
                        await answer.read()

            async def list_stored() -> list[str]:
                objects = minio_server.client().list_objects(bucket, recursive=True)
                return [str(item.object_name) for item in objects]

            names = await until(
                list_stored, lambda stored: len(stored) == 3 * len(CALLS), seconds=180
            )
            waits = [wait["server"] for wait in proxy.read_log("waiting")]
            assert "object store" not in waits  # a busy Kafka may be waited for
    assert all(name.startswith("captures/") for name in names)
    assert {name.rsplit("/", 1)[1] for name in names} == {"data", "metadata", "response"}

"""The whole line: a model server, the proxy before it, Kafka and MinIO, ingester, Postgres, api."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service
from tests.upstreams.model_servers import Stub

from .real_line import RealLine


@contextmanager
def run_line(
    environment: dict[str, str],
    folder: Path,
    upstreams: Mapping[str, Sequence[Mapping[str, Any]]],
    s3: S3,
    bucket: str,
) -> Iterator[RealLine]:
    """Run a proxy before each list of upstreams, an ingester and an api."""
    api_port = free_port()
    environment = environment | {"INFERENCE_STORE_API_PORT": str(api_port)}
    proxies = {
        name: Proxy(environment, folder / name, entries, MODELS, PROXY_GRACE_SECONDS="120")
        for name, entries in upstreams.items()
    }
    services: list[Service] = [*proxies.values()]
    try:
        services += [Service(name, environment, folder) for name in ("ingester", "api")]
        for service in services:
            service.wait_ready()
        yield RealLine(proxies, f"http://127.0.0.1:{api_port}/v1", s3, bucket)
    finally:
        for service in services:
            service.stop()


SERVERS = {
    "mlserver": "mlserver",
    "huggingface": "huggingface",
    "kserve": "kserve",
    "triton": "triton",
    "chariot": "chariot_engine",
    "omi": "omi_container",
}
MODELS = [
    {"model": "faces*", "task_type": "object_detection"},
    {"model": "digits", "task_type": "tabular", "project_id": "tests"},
    {"model": "sentiment", "task_type": "text_classification"},
    {"model": "story", "task_type": "text_generation"},
    {"model": "chariot", "model_id": "detector", "task_type": "object_detection"},
]


def proxied(servers: Mapping[str, Any]) -> Mapping[str, list[Mapping[str, Any]]]:
    """The upstreams of each proxy; the first serves two of them, selected by model."""
    mlserver, kserve, triton = servers["mlserver"], servers["kserve"], servers["triton"]
    huggingface = servers["huggingface"]
    v2 = ("v2", "v2-grpc")
    return {
        "mlserver": [
            upstream_entry(
                "mlserver",
                *v2,
                url=mlserver.url,
                grpc=mlserver.grpc,
                models=["digits", "faces*", "words"],
            ),
            upstream_entry(
                "kserve", *v2, "kserve-v1", url=kserve.url, grpc=kserve.grpc, models=["sums"]
            ),
        ],
        "huggingface": [
            upstream_entry("huggingface", *v2, url=huggingface.url, grpc=huggingface.grpc)
        ],
        "triton": [upstream_entry("triton", *v2, url=triton.url, grpc=triton.grpc)],
        "chariot": [upstream_entry("chariot", "chariot-v2", url=servers["chariot"].url)],
        "omi": [upstream_entry("friendly", "omi", grpc=servers["omi"].address)],
        "stub": [upstream_entry("stub", "openai", url=servers["stub"].url)],
    }


@pytest.fixture(scope="package")
def real_line(
    request: pytest.FixtureRequest,
    postgres_server: Postgres,
    kafka_server: Kafka,
    minio_server: S3,
    tmp_path_factory: pytest.TempPathFactory,
    stub: Stub,  # asked for here: so its tests run where others have started these servers
) -> Iterator[RealLine]:
    """The proxies before the real servers, and all that is behind them."""
    database = unique()
    bucket = minio_server.create_bucket(unique())
    dsn = postgres_server.create_database(database)
    migrate(dsn)
    environment = environment_of(
        dsn,
        kafka_server,
        minio_server,
        bucket,
        KAFKA_TOPIC=kafka_server.create_topic(unique(), partitions=2),
        KAFKA_REPORTS_TOPIC=kafka_server.create_topic(unique()),
        KAFKA_GROUP=unique("group"),
    )
    servers = {name: request.getfixturevalue(fixture) for name, fixture in SERVERS.items()}
    servers["stub"] = stub
    folder = tmp_path_factory.mktemp("line")
    with run_line(environment, folder, proxied(servers), minio_server, bucket) as line:
        yield line
    postgres_server.drop_database(database)

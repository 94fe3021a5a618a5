"""A real proxy before each real server. What goes through is captured, on real S3 and Kafka."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.proxy_process import Proxy, upstream
from tests.servers.environment import service_environment
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.upstreams.huggingface import HuggingFace
from tests.upstreams.kserve import KServe
from tests.upstreams.mlserver import MLServer
from tests.upstreams.triton import Triton
from tests.upstreams.written import ChariotEngine, OmiContainer, Stub

V2 = ("v2", "v2-grpc")
Start = Callable[..., Any]


@pytest.fixture(scope="session")
def proxy_before(
    kafka_server: Kafka, minio_server: S3, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """A factory: `with proxy_before("stub", "raw", url=stub.url) as proxy`; `rules`: of all models.

    On leaving, everything that went through it must have been captured.
    """
    environment = service_environment(
        "",
        kafka_server,
        minio_server,
        minio_server.create_bucket(unique()),
        KAFKA_TOPIC=kafka_server.create_topic(unique()),
        KAFKA_REPORTS_TOPIC=kafka_server.create_topic(unique()),
    )

    @contextmanager
    def start(
        name: str, *protocols: str, rules: Mapping[str, Any] | None = None, **where: Any
    ) -> Iterator[Proxy]:
        folder = tmp_path_factory.mktemp(name)
        models = [] if rules is None else [rules]
        upstreams = [upstream(name, *protocols, **where)]
        # At its end a busy machine may still have much to publish.
        with Proxy(environment, folder, upstreams, models, PROXY_GRACE_SECONDS="60") as proxy:
            proxy.wait_ready()
            yield proxy
            assert proxy.process.running, proxy.text[-4000:]
        assert proxy.read_log("capture_failed") == []
        assert [stopped["lost"] for stopped in proxy.read_log("capture_stopped")] == [0]

    return start


@pytest.fixture(scope="session")
def before_mlserver(mlserver: MLServer, proxy_before: Start) -> Iterator[Proxy]:
    with proxy_before("mlserver", *V2, url=mlserver.url, grpc=mlserver.grpc) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_huggingface(huggingface: HuggingFace, proxy_before: Start) -> Iterator[Proxy]:
    with proxy_before("huggingface", *V2, url=huggingface.url, grpc=huggingface.grpc) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_triton(triton: Triton, proxy_before: Start) -> Iterator[Proxy]:
    with proxy_before("triton", *V2, url=triton.url, grpc=triton.grpc) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_kserve(kserve: KServe, proxy_before: Start) -> Iterator[Proxy]:
    spoken = (*V2, "kserve-v1")
    with proxy_before("kserve", *spoken, url=kserve.url, grpc=kserve.grpc) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_chariot(chariot_engine: ChariotEngine, proxy_before: Start) -> Iterator[Proxy]:
    with proxy_before("chariot", "chariot-v2", url=chariot_engine.url) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_omi(omi_container: OmiContainer, proxy_before: Start) -> Iterator[Proxy]:
    with proxy_before("omi", "omi", grpc=omi_container.address) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_bridge(omi_container: OmiContainer, proxy_before: Start) -> Iterator[Proxy]:
    """V2 before the container."""
    with proxy_before("friendly", *V2, omi=omi_container.address) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def before_stub(stub: Stub, proxy_before: Start) -> Iterator[Proxy]:
    spoken = ("v2", "openai", "kserve-v1", "raw")
    with proxy_before("stub", *spoken, url=stub.url) as proxy:
        yield proxy

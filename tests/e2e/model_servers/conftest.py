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


def _make_fixture(name: str, server: str, *protocols: str, **addresses: str) -> Any:
    """Make the fixture of a proxy before a server; `addresses`: the server's, by its attributes."""

    @pytest.fixture(scope="session")
    def before(request: pytest.FixtureRequest, proxy_before: Start) -> Iterator[Proxy]:
        running = request.getfixturevalue(server)
        where = {kind: getattr(running, attribute) for kind, attribute in addresses.items()}
        with proxy_before(name, *protocols, **where) as proxy:
            yield proxy

    return before


_BOTH = {"url": "url", "grpc": "grpc"}
before_mlserver = _make_fixture("mlserver", "mlserver", *V2, **_BOTH)
before_huggingface = _make_fixture("huggingface", "huggingface", *V2, **_BOTH)
before_triton = _make_fixture("triton", "triton", *V2, **_BOTH)
before_kserve = _make_fixture("kserve", "kserve", *V2, "kserve-v1", **_BOTH)
before_chariot = _make_fixture("chariot", "chariot_engine", "chariot-v2", url="url")
before_omi = _make_fixture("omi", "omi_container", "omi", grpc="address")
before_stub = _make_fixture("stub", "stub", "v2", "openai", "kserve-v1", "raw", url="url")

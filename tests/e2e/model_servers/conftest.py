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

Start = Callable[..., Any]


@pytest.fixture(scope="session")
def proxy_before(
    kafka_server: Kafka, minio_server: S3, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """A factory: `with proxy_before("a", "raw", url=url) as proxy`; `rules`: of all models.

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


def _make_fixture(name: str, *protocols: str) -> Any:
    """Make the fixture of a proxy before the server of this name."""

    @pytest.fixture(scope="session")
    def before(request: pytest.FixtureRequest, proxy_before: Start) -> Iterator[Proxy]:
        server = request.getfixturevalue(name)
        where = {"url": server.url, "grpc": server.grpc}
        with proxy_before(name, "v2", "v2-grpc", *protocols, **where) as proxy:
            yield proxy

    return before


before_mlserver = _make_fixture("mlserver")
before_triton = _make_fixture("triton")
before_kserve = _make_fixture("kserve", "kserve-v1")

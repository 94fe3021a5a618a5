"""The settings of the store's own programs on one machine."""

from types import SimpleNamespace
from typing import Any

from inference_store.local.programs import ServicePorts, settings


def test_the_captures_of_a_busy_machine_find_a_processor() -> None:
    servers: Any = SimpleNamespace(
        postgres=SimpleNamespace(dsn="postgresql://a/b"),
        kafka=SimpleNamespace(bootstrap_servers="127.0.0.1:1"),
        s3=SimpleNamespace(endpoint="http://127.0.0.1:2", access_key="a", secret_key="b"),
    )
    model_server: Any = SimpleNamespace(rest="http://127.0.0.1:3", grpc="127.0.0.1:4")
    ports = ServicePorts(api=5, proxy=6, proxy_grpc=7, admin={})
    assert settings(servers, model_server, ports)["PROXY_CAPTURE_PRIORITY"] == "normal"

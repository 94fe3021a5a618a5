"""The comparison of answers: a server does not differ from itself, but from another one."""

import json

import pytest

from tests.upstreams.asking import Asked
from tests.upstreams.clients import V2, Clients
from tests.upstreams.compare import compared, compared_calls
from tests.upstreams.mlserver import MLServer
from tests.upstreams.pictures import photograph, pictures
from tests.upstreams.written import Stub

pytestmark = pytest.mark.real_upstreams

JSON = ("Content-Type", "application/json")


async def test_the_same_server(mlserver: MLServer, way: str) -> None:
    body = json.dumps(pictures(photograph())).encode()
    for path in (
        "/v2/models/faces/infer",
        "/v2/models/nobody/infer",
        "/v2/models/faces/infer/",
    ):
        request = Asked("POST", path, [JSON, ("Accept-Encoding", "gzip")], body)
        assert await compared(way, mlserver.http, mlserver.http, request) == []


async def test_another_server(mlserver: MLServer, stub: Stub) -> None:
    result = await compared("socket", mlserver.http, stub.address, Asked("GET", "/v2"))
    assert any(difference.startswith("body: ") for difference in result)


def test_the_same_server_over_grpc(mlserver: MLServer, clients: Clients) -> None:
    fields = {"model_name": "nobody"}
    for method, message in (
        ("ServerMetadata", b""),
        ("ModelInfer", clients.encode("ModelInferRequest", fields)),
        ("Nothing", b""),
    ):
        address = mlserver.grpc
        assert compared_calls(clients, address, address, f"{V2}/{method}", message) == []

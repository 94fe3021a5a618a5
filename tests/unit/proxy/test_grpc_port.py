"""The gRPC port that cannot be opened."""

import socket
from typing import Any, cast

import pytest

from inference_store.platform.serving import Connections, PortTaken
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.grpc import Calls
from inference_store.proxy.grpc_port import GrpcPort
from inference_store.proxy.routing import Routing
from tests.settings import make_settings


async def test_a_port_that_is_taken_is_named_with_its_settings() -> None:
    configuration = Configuration([UpstreamEntry(name="one", grpc="127.0.0.1:1")])
    nobody = cast(Captures, cast(Any, None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port_number = listener.getsockname()[1]
        settings = make_settings(
            ProxySettings, proxy_upstream_grpc="127.0.0.1:1", proxy_grpc_port=port_number
        )
        connections = Connections("proxy", 10, 10)
        routing = Routing(configuration)
        port = GrpcPort(
            settings, configuration, routing, nobody, connections=connections, calls=Calls()
        )
        try:
            with pytest.raises(PortTaken) as refused:
                await port.start()
        finally:
            await port.stop(0)
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{port_number} for gRPC."
        " Change INFERENCE_STORE_PROXY_HOST and INFERENCE_STORE_PROXY_GRPC_PORT."
    )

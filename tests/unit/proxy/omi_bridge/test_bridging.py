"""A container in the configuration answers V2 over REST and gRPC."""

from typing import Any

import grpc
import pytest
from aiohttp import ClientSession
from pydantic import ValidationError

from inference_store.grpc_messages import message
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.omi_bridge import open_bridges

from .omi import Omi, served


async def test_an_upstream_that_is_a_container_answers_v2() -> None:
    async with served(Omi()) as target:
        plain = UpstreamEntry(name="plain", url="http://127.0.0.1:1", models=("other",))
        omi = UpstreamEntry(name="omi", omi=target, models=("counter",))
        async with open_bridges(Configuration([plain, omi]), 1 << 20) as bridged:
            assert bridged.upstreams[0] is plain
            entry = bridged.upstream("counter")
            assert (entry.name, entry.omi) == ("omi", None)
            async with (
                ClientSession() as client,
                client.get(f"{entry.url}/v2/models/counter") as answer,
            ):
                assert (await answer.json())["platform"] == "omi"
            async with grpc.aio.insecure_channel(entry.grpc or "") as channel:
                ask: Any = channel.unary_unary(
                    "/inference.GRPCInferenceService/ServerReady",
                    response_deserializer=message("inference.ServerReadyResponse").FromString,
                )
                assert (await ask(b"")).ready


def test_a_container_replaces_other_addresses() -> None:
    with pytest.raises(ValidationError, match="omi stands in place of url and grpc"):
        UpstreamEntry(name="a", omi="localhost:1", url="http://localhost:2")

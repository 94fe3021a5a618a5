"""A V2 client, the proxy, the bridge and an OMI container: the answer and the captured reading."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import grpc
from aiohttp import ClientSession

from inference_store.grpc_messages import message
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.omi_bridge import open_bridges
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, Reading
from tests.unit.proxy.omi_bridge.omi import Omi, served

from .grpc_upstream import INFER
from .rest_server import FakeCaptures, proxy

CLASSES = {"result": {"classPredictions": [{"class": "friendly", "score": 0.75}]}}
TASK_TYPE = "text_classification"


@asynccontextmanager
async def open_bridge(omi: Omi) -> AsyncIterator[UpstreamEntry]:
    """Put a bridge before a container; yield the upstream that the bridge is."""
    async with served(omi) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with open_bridges(configuration, 1 << 20) as bridges:
            yield bridges.upstreams[0]


async def call_rest(omi: Omi, *texts: str) -> Reading:
    """Make a call over REST; return the reading of its exchange."""
    tensor = {"name": "input.txt", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    captures = FakeCaptures()
    async with (
        open_bridge(omi) as bridge,
        proxy(urlsplit(bridge.url or "").port or 0, captures) as here,
        ClientSession(f"http://127.0.0.1:{here}") as client,
    ):
        body = {"id": "7", "inputs": [tensor]}
        async with client.post("/v2/models/words/infer", json=body) as answer:
            if answer.status == 200:
                assert (await answer.json())["id"] == "7"
            exchange = await captures.wait_for_first()
    call = captures.exchanges[0][1].call
    assert call is not None
    return call.protocol.read(exchange, call, Model(task_type=TASK_TYPE))


async def call_grpc(omi: Omi, *texts: str) -> Reading:
    """Make a call over gRPC; return the reading of its exchange."""
    request = message("inference.ModelInferRequest")(model_name="words", id="7")
    tensor = request.inputs.add(name="input.txt", datatype="BYTES", shape=[len(texts)])
    tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    written = request.SerializeToString()
    async with open_bridge(omi) as bridge, grpc.aio.insecure_channel(bridge.grpc or "") as channel:
        ask: Any = channel.unary_unary(INFER)
        call = ask(written)
        code = await call.code()
        answer = [await call] if code is grpc.StatusCode.OK else []
        trailers = [(name, str(value)) for name, value in await call.trailing_metadata()]
    exchange = Exchange(
        transport="grpc",
        method=INFER,
        path=INFER,
        request=Body(parts=[written], size=len(written)),
        response=Body(parts=answer, size=sum(map(len, answer))),
        response_trailers=trailers,
        grpc_code=code.value[0],
        received_at=datetime.now(UTC),
    )
    protocol = PROTOCOLS["v2-grpc"]
    return protocol.read(exchange, Call(protocol, "infer"), Model())


def _read_rows(response: bytes | None) -> list[tuple[Any, Any]]:
    rows = read_predictions(response, task_type=task_type_of(TASK_TYPE)).items or ()
    return [(row.label, row.score) for row in rows]


async def test_each_item_is_an_inference_and_failed_ones_are_not_ok() -> None:
    for call in (call_rest, call_grpc):
        reading = await call(Omi(result=CLASSES), "good", "bad", "fine")
        assert reading.request_id == "7"
        assert [inference.data for inference in reading.inferences] == [b"good", b"bad", b"fine"]
        assert [inference.ok for inference in reading.inferences] == [None, False, None]
        assert [inference.error for inference in reading.inferences] == [None, "bad is bad", None]
        rows = [_read_rows(inference.response) for inference in reading.inferences]
        assert rows == [[("friendly", 0.75)], [], [("friendly", 0.75)]]
        assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 200)
        assert reading.problem is None


async def test_a_failed_run_has_its_status_code() -> None:
    """Because all of its items failed, or it was refused."""
    reading = await call_rest(Omi(), "bad", "bad")
    assert [inference.data for inference in reading.inferences] == [b"bad", b"bad"]
    assert (reading.ok, reading.error) == (False, "bad is bad")
    assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 422)
    for call in (call_rest, call_grpc):
        reading = await call(Omi(refuses="too large"), "a", "b")
        assert [inference.data for inference in reading.inferences] == [b"a", b"b"]
        assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 422)

"""A V2 client, the proxy, the bridge and an OMI container: the answer and the captured reading."""

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

from .rest_server import FakeCaptures, proxy

CLASSES = {"result": {"classPredictions": [{"class": "friendly", "score": 0.75}]}}


async def test_classes_of_a_container_become_predictions() -> None:
    captures = FakeCaptures()
    tensor = {"name": "input.txt", "shape": [1], "datatype": "BYTES", "data": ["What a day."]}
    async with served(Omi(result=CLASSES)) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with open_bridges(configuration, 1 << 20) as bridges, ClientSession() as client:
            port = urlsplit(bridges.upstreams[0].url or "").port
            async with proxy(port or 0, captures) as here:
                url = f"http://127.0.0.1:{here}/v2/models/words/infer"
                async with client.post(url, json={"id": "7", "inputs": [tensor]}) as answer:
                    assert answer.status == 200
                    assert (await answer.json())["id"] == "7"
                exchange = await captures.wait_for_first()
    call = captures.exchanges[0][1]
    task_type = "text_classification"
    reading = call.protocol.read(exchange, call, Model(task_type=task_type))
    (inference,) = reading.inferences
    assert (inference.data, reading.request_id) == (b"What a day.", "7")
    rows = read_predictions(inference.response, task_type=task_type_of(task_type)).items or ()
    assert [(row.label, row.score) for row in rows] == [("friendly", 0.75)]


def make_tensor(*texts: str) -> dict[str, Any]:
    return {"name": "input.txt", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


async def call_rest(omi: Omi, *texts: str) -> Reading:
    """Make a call over REST; return the reading of its exchange."""
    captures = FakeCaptures()
    async with served(omi) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with open_bridges(configuration, 1 << 20) as bridges, ClientSession() as client:
            port = urlsplit(bridges.upstreams[0].url or "").port
            async with proxy(port or 0, captures) as here:
                url = f"http://127.0.0.1:{here}/v2/models/words/infer"
                async with client.post(url, json={"inputs": [make_tensor(*texts)]}):
                    exchange = await captures.wait_for_first()
    call = captures.exchanges[0][1]
    return call.protocol.read(exchange, call, Model(task_type="text_classification"))


async def call_grpc(omi: Omi, *texts: str) -> Reading:
    """Make a call over gRPC; return the reading of its exchange."""
    path = "/inference.GRPCInferenceService/ModelInfer"
    request = message("inference.ModelInferRequest")(model_name="words")
    tensor_ = request.inputs.add(name="input.txt", datatype="BYTES", shape=[len(texts)])
    tensor_.contents.bytes_contents.extend(text.encode() for text in texts)
    written = request.SerializeToString()
    async with served(omi) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with (
            open_bridges(configuration, 1 << 20) as bridges,
            grpc.aio.insecure_channel(bridges.upstreams[0].grpc or "") as channel,
        ):
            ask: Any = channel.unary_unary(path)
            call = ask(written)
            code = await call.code()
            answer = [await call] if code is grpc.StatusCode.OK else []
            trailers = [(name, str(value)) for name, value in await call.trailing_metadata()]
    exchange = Exchange(
        transport="grpc",
        method=path,
        path=path,
        request=Body(parts=[written], size=len(written)),
        response=Body(parts=answer, size=sum(map(len, answer))),
        response_trailers=trailers,
        grpc_code=code.value[0],
        received_at=datetime.now(UTC),
    )
    protocol = PROTOCOLS["v2-grpc"]
    return protocol.read(exchange, Call(protocol, "infer"), Model())


def _read_rows(response: bytes | None) -> list[tuple[Any, Any]]:
    rows = read_predictions(response, task_type=task_type_of("text_classification")).items or ()
    return [(row.label, row.score) for row in rows]


async def test_each_item_is_an_inference_and_failed_ones_are_not_ok() -> None:
    for call in (call_rest, call_grpc):
        reading = await call(Omi(result=CLASSES), "good", "bad", "fine")
        assert [inference.data for inference in reading.inferences] == [b"good", b"bad", b"fine"]
        assert [inference.ok for inference in reading.inferences] == [None, False, None]
        assert [inference.error for inference in reading.inferences] == [None, "bad is bad", None]
        rows = [_read_rows(inference.response) for inference in reading.inferences]
        assert rows == [[("friendly", 0.75)], [], [("friendly", 0.75)]]
        assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 200)
        assert reading.problem is None


async def test_each_item_is_an_inference_if_all_failed() -> None:
    reading = await call_rest(Omi(), "bad", "bad")
    assert [inference.data for inference in reading.inferences] == [b"bad", b"bad"]
    assert (reading.ok, reading.error) == (False, "bad is bad")
    assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 422)


async def test_refused_run_has_its_status_code() -> None:
    for call in (call_rest, call_grpc):
        reading = await call(Omi(refuses="too large"), "a", "b")
        assert [inference.data for inference in reading.inferences] == [b"a", b"b"]
        assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 422)

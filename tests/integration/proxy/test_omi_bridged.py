"""A V2 client, the proxy, the bridge, an OMI container: what the client gets, and what is kept."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import grpc
from aiohttp import ClientSession

from inference_store.grpc_messages import message
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.omi_bridge import bridged
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, Reading
from tests.unit.proxy.omi_bridge.omi import Omi, served

from .rest_server import Kept, proxy

CLASSES = {"result": {"classPredictions": [{"class": "friendly", "score": 0.75}]}}


async def test_a_containers_classes_come_from_the_client_to_the_predictions() -> None:
    kept = Kept()
    tensor = {"name": "input.txt", "shape": [1], "datatype": "BYTES", "data": ["What a day."]}
    async with served(Omi(result=CLASSES)) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with bridged(configuration, 1 << 20) as found, ClientSession() as client:
            port = urlsplit(found.upstreams[0].url or "").port
            async with proxy(port or 0, kept) as here:
                url = f"http://127.0.0.1:{here}/v2/models/words/infer"
                async with client.post(url, json={"id": "7", "inputs": [tensor]}) as answer:
                    assert answer.status == 200
                    assert (await answer.json())["id"] == "7"
                exchange = await kept.first()
    call = kept.exchanges[0][1]
    task_type = "text_classification"
    reading = call.protocol.read(exchange, call, Model(task_type=task_type))
    (inference,) = reading.inferences
    assert (inference.data, reading.request_id) == (b"What a day.", "7")
    rows = read_predictions(inference.response, task_type=task_type_of(task_type)).items or ()
    assert [(row.label, row.score) for row in rows] == [("friendly", 0.75)]


def tensor(*texts: str) -> dict[str, Any]:
    return {"name": "input.txt", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


async def rest(omi: Omi, *texts: str) -> Reading:
    """What is read of a call over REST."""
    kept = Kept()
    async with served(omi) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with bridged(configuration, 1 << 20) as found, ClientSession() as client:
            port = urlsplit(found.upstreams[0].url or "").port
            async with proxy(port or 0, kept) as here:
                url = f"http://127.0.0.1:{here}/v2/models/words/infer"
                async with client.post(url, json={"inputs": [tensor(*texts)]}):
                    exchange = await kept.first()
    call = kept.exchanges[0][1]
    return call.protocol.read(exchange, call, Model(task_type="text_classification"))


async def grpc_call(omi: Omi, *texts: str) -> Reading:
    """What is read of a call over gRPC."""
    path = "/inference.GRPCInferenceService/ModelInfer"
    request = message("inference.ModelInferRequest")(model_name="words")
    asked = request.inputs.add(name="input.txt", datatype="BYTES", shape=[len(texts)])
    asked.contents.bytes_contents.extend(text.encode() for text in texts)
    written = request.SerializeToString()
    async with served(omi) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with (
            bridged(configuration, 1 << 20) as found,
            grpc.aio.insecure_channel(found.upstreams[0].grpc or "") as channel,
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


def _rows(response: bytes | None) -> list[tuple[Any, Any]]:
    rows = read_predictions(response, task_type=task_type_of("text_classification")).items or ()
    return [(row.label, row.score) for row in rows]


async def test_an_item_is_an_inference_and_one_that_failed_is_not_ok() -> None:
    for call in (rest, grpc_call):
        found = await call(Omi(result=CLASSES), "good", "bad", "fine")
        assert [each.data for each in found.inferences] == [b"good", b"bad", b"fine"]
        assert [each.ok for each in found.inferences] == [None, False, None]
        assert [each.error for each in found.inferences] == [None, "bad is bad", None]
        rows = [_rows(each.response) for each in found.inferences]
        assert rows == [[("friendly", 0.75)], [], [("friendly", 0.75)]]
        assert (found.version, found.standard["status_code"]) == ("1.2.0", 200)
        assert found.problem is None


async def test_where_all_items_failed_each_is_an_inference_that_says_so() -> None:
    found = await rest(Omi(), "bad", "bad")
    assert [each.data for each in found.inferences] == [b"bad", b"bad"]
    assert (found.ok, found.error) == (False, "bad is bad")
    assert (found.version, found.standard["status_code"]) == ("1.2.0", 422)


async def test_a_run_that_is_refused_has_its_status_code_over_grpc_too() -> None:
    for call in (rest, grpc_call):
        found = await call(Omi(refuses="too large"), "a", "b")
        assert [each.data for each in found.inferences] == [b"a", b"b"]
        assert (found.version, found.standard["status_code"]) == ("1.2.0", 422)

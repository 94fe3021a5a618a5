"""Clients of V2 before an OMI container, over REST and gRPC.

The container is written from its public specification.
"""

import asyncio
import gzip
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import orjson
import pytest
from aiohttp import ClientSession
from grpc import StatusCode

from inference_store.grpc_messages import message
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.omi_bridge import open_bridges, parse_seconds, start_bridge
from inference_store.proxy.protocols import Reading
from tests.exchanges import exchange
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange, read_by
from tests.unit.proxy.protocols.v2_grpc.calls import INFER as GRPC_INFER

INFER = "/v2/models/counter/infer"
NAMES = ("Status", "Run", "Shutdown")


@dataclass
class Omi:
    """Counts the bytes of `input.txt`; `bad` fails as an item, `late` never ends."""

    batch_size: int = 2
    run: str = "60s"
    inputs: tuple[tuple[str, str], ...] = (("input.txt", "text/plain"),)
    broken: int = 0
    """So many calls of Status fail."""
    result: dict[str, Any] | None = None
    """What results.json holds; left out: the size."""
    code: int | None = None
    """The status of a Run with items; left out: 422 if all failed."""
    refuses: str | None = None
    """A Run is a 422 that says this."""
    called: list[str] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)

    async def answer(self, name: str, request: Any) -> Any:
        self.called.append(name)
        return self._status() if name == "Status" else await self._run(request)

    def _status(self) -> Any:
        if self.broken:
            self.broken -= 1
            return message("StatusResponse")(status_code=500, message="no weights")
        return message("StatusResponse")(
            status_code=200,
            model_info={"model_name": "Counter", "model_version": "1.2.0"},
            inputs=[
                {"filename": name, "accepted_media_types": [kind]} for name, kind in self.inputs
            ],
            outputs=[{"filename": "results.json", "media_type": "application/json"}],
            timeout={"status": "60s", "run": self.run},
            features={"batch_size": self.batch_size},
        )

    async def _run(self, request: Any) -> Any:
        self.runs.append(request)
        if self.refuses is not None:
            return message("RunResponse")(status_code=422, message=self.refuses)
        contents = [b"".join(item.input.values()) for item in request.inputs]
        if b"late" in contents:
            await asyncio.sleep(600)
        outputs = [_make_item(content, request.explain, self.result) for content in contents]
        code = self.code or (200 if any(output["success"] for output in outputs) else 422)
        return message("RunResponse")(status_code=code, outputs=outputs, message="no item is good")


def _make_item(content: bytes, explain: bool, result: dict[str, Any] | None) -> dict[str, Any]:
    if content == b"bad":
        return {"success": False, "output": {"error": b"bad is bad"}}
    if content == b"binary":
        return {"success": True, "output": {"results.json": b"\xff"}}
    output = result or {"size": len(content)} | ({"why": "it is so long"} if explain else {})
    return {"success": True, "output": {"results.json": orjson.dumps(output)}}


@asynccontextmanager
async def served(omi: Omi) -> AsyncIterator[str]:
    """The container on a free port."""
    server = grpc.aio.server()
    methods = {name: _make_method(omi, name) for name in NAMES}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ModzyModel", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def open_bridge(omi: Omi) -> AsyncIterator[UpstreamEntry]:
    async with served(omi) as target, start_bridge(UpstreamEntry(name="omi", omi=target)) as bridge:
        yield bridge


def _make_method(omi: Omi, name: str) -> Any:
    async def answered(request: Any, _context: Any) -> Any:
        return await omi.answer(name, request)

    return grpc.unary_unary_rpc_method_handler(
        answered,
        request_deserializer=message(f"{name}Request").FromString,
        response_serializer=message(f"{name}Response").SerializeToString,
    )


def make_request(*texts: Any, name: str = "input.txt", **parameters: Any) -> dict[str, Any]:
    tensor = {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    return {"id": "7", "inputs": [tensor], "parameters": parameters}


async def post(bridge: UpstreamEntry, body: Any) -> tuple[int, Any]:
    async with ClientSession() as client, client.post(f"{bridge.url}{INFER}", json=body) as answer:
        return answer.status, await answer.json()


async def get(bridge: UpstreamEntry, path: str) -> tuple[int, Any]:
    async with ClientSession() as client, client.get(f"{bridge.url}{path}") as answer:
        return answer.status, await answer.json()


async def call(bridge: UpstreamEntry, name: str, /, **fields: Any) -> Any:
    async with grpc.aio.insecure_channel(str(bridge.grpc)) as channel:
        ask = channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=message(f"inference.{name}Request").SerializeToString,
            response_deserializer=message(f"inference.{name}Response").FromString,
        )
        return await ask(message(f"inference.{name}Request")(**fields))


async def test_files_are_tensors_both_ways() -> None:
    """A sole tensor is the sole file, whatever its name; Runs have the size that is taken."""
    omi = Omi(batch_size=2)
    async with open_bridge(omi) as bridge, ClientSession() as client:
        status, answer = await post(bridge, make_request("abc", "é", "c", name="args"))
        _, explained = await post(bridge, make_request("a", explain=True))
        packed = gzip.compress(orjson.dumps(make_request("abc")))
        sent = client.post(
            f"{bridge.url}{INFER}", data=packed, headers={"Content-Encoding": "gzip"}
        )
        async with sent as unpacked:
            assert (await unpacked.json())["outputs"][0]["data"] == ['{"size":3}']
    assert status == 200
    (output,) = answer.pop("outputs")
    assert answer == {"model_name": "counter", "model_version": "1.2.0", "id": "7"}
    assert (output["name"], output["shape"], output["datatype"]) == ("results.json", [3], "BYTES")
    assert output["data"] == ['{"size":3}', '{"size":2}', '{"size":1}']
    assert dict(omi.runs[0].inputs[0].input) == {"input.txt": b"abc"}
    assert [len(run.inputs) for run in omi.runs] == [2, 1, 1, 1]
    assert [run.explain for run in omi.runs] == [False, False, True, False]
    assert "it is so long" in explained["outputs"][0]["data"][0]


async def test_calls_status_once_and_never_as_a_probe() -> None:
    omi = Omi()
    async with open_bridge(omi) as bridge:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/counter/ready"):
            assert (await get(bridge, path))[0] == 200
        assert (await call(bridge, "ModelReady", name="counter")).ready
        assert omi.called == []
        await asyncio.gather(*(post(bridge, make_request("a")) for _ in range(5)))
        await get(bridge, "/v2/models/counter")
    assert omi.called.count("Status") == 1


async def test_repeats_a_status_that_failed() -> None:
    omi = Omi(broken=1)
    async with open_bridge(omi) as bridge:
        assert await post(bridge, make_request("a")) == (500, {"error": "no weights"})
        assert (await post(bridge, make_request("a")))[0] == 200


async def test_metadata_are_the_statuss() -> None:
    tensor = {"datatype": "BYTES", "shape": [-1]}
    async with open_bridge(Omi()) as bridge:
        status, answer = await get(bridge, "/v2/models/counter/versions/1.2.0")
        metadata = await call(bridge, "ModelMetadata", name="counter")
    assert status == 200
    assert answer == {
        "name": "counter",
        "versions": ["1.2.0"],
        "platform": "omi",
        "inputs": [{"name": "input.txt", **tensor}],
        "outputs": [{"name": "results.json", **tensor}],
    }
    (told,) = metadata.inputs
    assert (metadata.platform, told.name, list(told.shape)) == ("omi", "input.txt", [-1])


async def test_files_that_are_no_text_are_base64_or_binary() -> None:
    omi, raw = Omi(inputs=(("image.png", "image/png"),)), b"\x89PNG\x00"
    tensor = {"name": "image.png", "shape": [1], "datatype": "BYTES"}
    head = orjson.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 7}}]})
    length = {"Inference-Header-Content-Length": str(len(head))}
    async with open_bridge(omi) as bridge, ClientSession() as client:
        await post(bridge, make_request(b64encode(raw).decode(), name="image.png"))
        body = head + b"\x03\x00\x00\x00\xff\xd8\xff"
        async with client.post(f"{bridge.url}{INFER}", data=body, headers=length) as answer:
            assert answer.status == 200
        # and so are its answers; heads may be as large as the proxy's
        body_of_two = make_request(*(b64encode(text).decode() for text in (b"binary", b"abc")))
        long = {"X-Long": "x" * 500_000}
        async with client.post(f"{bridge.url}{INFER}", json=body_of_two, headers=long) as answer:
            (output,) = (await answer.json())["outputs"]
    sent = [run.inputs[0].input["image.png"] for run in omi.runs[:2]]
    assert sent == [raw, b"\xff\xd8\xff"]
    assert output["parameters"] == {"content_type": "base64"}
    assert output["data"] == ["/w==", b64encode(b'{"size":3}').decode()]


async def test_reports_each_item_that_failed() -> None:
    async with open_bridge(Omi(batch_size=1)) as bridge:
        status, answer = await post(bridge, make_request("a", "bad"))
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert status == 200
        assert outputs == {"results.json": ['{"size":1}', ""], "error": ["", "bad is bad"]}
        assert await post(bridge, make_request("bad")) == (422, {"error": "bad is bad"})
    async with open_bridge(Omi(code=500)) as bridge:
        assert await post(bridge, make_request("bad")) == (500, {"error": "bad is bad"})


async def test_reports_a_refused_run() -> None:
    async with open_bridge(Omi(refuses="too large")) as bridge:
        assert await post(bridge, make_request("a")) == (422, {"error": "too large"})
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(bridge, "ModelInfer", **_make_message(b"a"))
    assert failed.value.code() == StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == "too large"


async def test_a_run_has_the_timeout_of_its_container() -> None:
    async with open_bridge(Omi(run="1ms")) as bridge:
        status, answer = await post(bridge, make_request("late"))
    assert status == 504
    assert "Run of the container" in answer["error"]


async def test_reports_an_unavailable_container_as_not_ready() -> None:
    async with start_bridge(UpstreamEntry(name="omi", omi="127.0.0.1:1")) as bridge:
        assert (await post(bridge, make_request("a")))[0] == 503
        assert await get(bridge, "/v2/health/ready") == (503, {"ready": False})
        assert (await call(bridge, "ServerLive")).live


async def test_rejects_files_that_the_model_does_not_take() -> None:
    numbers = {"name": "input.txt", "shape": [1], "datatype": "FP32", "data": [1]}
    two = [*make_request("a")["inputs"], *make_request("a", name="other")["inputs"]]
    omi = Omi()
    async with open_bridge(omi) as bridge:
        for body, sentence in (
            ({"inputs": []}, "there are no inputs"),
            ({"inputs": 3}, "`inputs` is not a list"),
            ({"inputs": [numbers]}, "send BYTES"),
            (make_request(1), "is no string"),
            (make_request(), "there are 0 items"),
            ({"inputs": two}, "its inputs are 'input.txt'"),
        ):
            status, answer = await post(bridge, body)
            assert status == 400, sentence
            assert sentence in answer["error"]
    assert omi.runs == []


async def test_other_paths_are_not_found() -> None:
    async with open_bridge(Omi()) as bridge:
        assert (await get(bridge, "/v1/models"))[0] == 404
        assert (await get(bridge, INFER))[0] == 405


def _make_message(*elements: bytes) -> dict[str, Any]:
    tensor = {"name": "input.txt", "datatype": "BYTES", "shape": [len(elements)]}
    contents = {"bytes_contents": list(elements)}
    return {"model_name": "counter", "id": "7", "inputs": [{**tensor, "contents": contents}]}


async def test_grpc_answers_the_same() -> None:
    """In the form of the request: a raw one has a raw answer."""
    tensor = {"name": "input.txt", "datatype": "BYTES", "shape": [2]}
    raw = [b"\3\0\0\0abc\1\0\0\0\xff"]
    async with open_bridge(Omi()) as bridge:
        answer = await call(bridge, "ModelInfer", **_make_message(b"abc", b"\xff"))
        fields = {"model_name": "counter", "inputs": [tensor], "raw_input_contents": raw}
        raw_answer = await call(bridge, "ModelInfer", **fields)
        metadata = await call(bridge, "ServerMetadata")
    assert (answer.model_name, answer.model_version, answer.id) == ("counter", "1.2.0", "7")
    (output,) = answer.outputs
    assert (output.name, list(output.shape)) == ("results.json", [2])
    assert list(output.contents.bytes_contents) == [b'{"size":3}', b'{"size":1}']
    (output,) = raw_answer.raw_output_contents
    assert output == b'\x0a\0\0\0{"size":3}\x0a\0\0\0{"size":1}'
    assert not raw_answer.outputs[0].contents.bytes_contents
    assert metadata.name


def test_durations_as_containers_write_them() -> None:
    for text, seconds in (
        ("60s", 60.0),
        ("1.5m", 90.0),
        ("500ms", 0.5),
        ("2 h", 7200.0),
        ("30", 30.0),
        ("10 seconds", 10.0),
        ("5 minutes", 300.0),
        ("", None),
        ("0s", None),
        ("soon", None),
        ("-3s", None),
    ):
        assert parse_seconds(text) == seconds


async def test_an_empty_status_is_a_model_of_one_item_at_a_time() -> None:
    omi = Omi(batch_size=0, run="", inputs=())
    async with open_bridge(omi) as bridge:
        assert (await post(bridge, make_request("a", "b", name="any.txt")))[0] == 200
    assert [dict(item.input) for run in omi.runs for item in run.inputs] == [
        {"any.txt": b"a"},
        {"any.txt": b"b"},
    ]
    assert len(omi.runs) == 2


# A proxy before a bridge reads its answers as those of a model server.

CLASSES = {"result": {"classPredictions": [{"class": "friendly", "score": 0.75}]}}
TASK = task_type_of("text_classification")


async def read_calls(omi: Omi, *texts: str) -> tuple[Reading, Reading]:
    """Make the same call over REST and gRPC; return the readings of the exchanges."""
    body = orjson.dumps(make_request(*texts))
    fields = _make_message(*(text.encode() for text in texts))
    sent = message("inference.ModelInferRequest")(**fields).SerializeToString()
    async with (
        served(omi) as target,
        open_bridges(Configuration([UpstreamEntry(name="omi", omi=target)]), 1 << 20) as bridged,
        ClientSession(bridged.upstreams[0].url) as client,
        grpc.aio.insecure_channel(bridged.upstreams[0].grpc or "") as channel,
    ):
        async with client.post(INFER, data=body) as answer:
            headers = [(name.lower(), value) for name, value in answer.headers.items()]
            rest = exchange(
                body,
                await answer.read(),
                path=INFER,
                response_headers=headers,
                http_status=answer.status,
            )
        call: Any = channel.unary_unary(GRPC_INFER)(sent)
        code = await call.code()
        answers = [await call] if code is StatusCode.OK else []
        trailers = [(name, str(value)) for name, value in await call.trailing_metadata()]
    over_grpc = make_grpc_exchange(
        GRPC_INFER, [sent], answers, code.value[0], response_trailers=trailers
    )
    return read_by("v2", rest), read_by("v2-grpc", over_grpc)


async def test_each_item_is_an_inference_and_failed_ones_are_not_ok() -> None:
    for reading in await read_calls(Omi(result=CLASSES), "good", "bad", "fine"):
        assert reading.request_id == "7"
        assert [inference.data for inference in reading.inferences] == [b"good", b"bad", b"fine"]
        assert [inference.error for inference in reading.inferences] == [None, "bad is bad", None]
        read = [read_predictions(item.response, task_type=TASK) for item in reading.inferences]
        rows = [[(row.label, row.score) for row in predictions.items or ()] for predictions in read]
        assert rows == [[("friendly", 0.75)], [], [("friendly", 0.75)]]
        assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 200)
        assert reading.problem is None


async def test_a_failed_run_has_its_status_code() -> None:
    """Because all of its items failed, or it was refused."""
    failed, _ = await read_calls(Omi(), "bad", "bad")
    assert failed.error == "bad is bad"
    for reading in (failed, *await read_calls(Omi(refuses="too large"), "bad", "bad")):
        assert [inference.data for inference in reading.inferences] == [b"bad", b"bad"]
        assert (reading.version, reading.standard["status_code"]) == ("1.2.0", 422)

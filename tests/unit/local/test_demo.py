"""The demo's model server keeps the Open Inference Protocol, and its commands can be pasted."""

import base64
import json
import shlex
import subprocess
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cv2", reason="the demo's packages are not installed")
pytest.importorskip("sklearn", reason="the demo's packages are not installed")

import aiohttp
import grpc
import orjson

from inference_store.grpc_messages import message
from inference_store.local.demo.detectors import demo_models
from inference_store.local.demo.feed import grpc_message, rest_body
from inference_store.local.demo.model_server import serve_grpc
from inference_store.local.demo.models import FACES, Rest
from inference_store.local.demo.served_models import Serving, serve_rest
from inference_store.local.demo.sources import frame_requests
from inference_store.local.demo.story import QUERIES, own_picture, short
from inference_store.local.folder import HOST
from tests.servers.ports import free_port

IMAGE = {"name": "image", "datatype": "BYTES", "shape": [1]}


@pytest.fixture(scope="module")
def serving() -> Serving:
    return Serving(demo_models())


@pytest.fixture
async def address(serving: Serving) -> AsyncIterator[tuple[str, str]]:
    # outside the range from which the system gives ports to whoever connects
    rest = over_grpc = free_port()
    while over_grpc == rest:
        over_grpc = free_port()
    server = await serve_grpc(serving, over_grpc)
    runner = await serve_rest(serving, rest)
    yield f"http://{HOST}:{rest}", f"{HOST}:{over_grpc}"
    await runner.cleanup()
    await server.stop(0)


@pytest.fixture
async def session(address: tuple[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(address[0]) as open_session:
        yield open_session


@pytest.fixture
async def channel(address: tuple[str, str]) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address[1]) as open_channel:
        yield open_channel


async def infer(channel: grpc.aio.Channel, request: Any) -> Any:
    stub: Any = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=lambda written: written.SerializeToString(),
        response_deserializer=message("inference.ModelInferResponse").FromString,
    )
    return await stub(request)


async def test_a_picture_has_the_same_output_over_rest_and_grpc(
    session: aiohttp.ClientSession, channel: grpc.aio.Channel
) -> None:
    request = next(islice(frame_requests(FACES), 3, None))  # the first visitor at the entrance
    async with session.post("/v2/models/face-detector/infer", json=rest_body(request)) as answer:
        over_rest = await answer.json()
    over_grpc = await infer(channel, grpc_message(request))
    (output,), (tensor,) = over_rest["outputs"], over_grpc.outputs
    assert over_rest["id"] == over_grpc.id == "frame-00003"
    assert over_rest["model_name"] == over_grpc.model_name == "face-detector"
    assert output["name"] == tensor.name == "image"
    assert output["shape"] == [len(output["data"])] == [*tensor.shape]
    assert output["data"][0]["label"] == "face"
    assert output["data"] == [orjson.loads(finding) for finding in tensor.contents.bytes_contents]


async def test_answers_each_path_or_bad_body_with_its_status(
    session: aiohttp.ClientSession,
) -> None:
    for path, status in (
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2/models/cars", 404),
        ("/v3", 404),
    ):
        async with session.get(path) as answer:
            assert answer.status == status, path
            if status != 200:
                assert set(await answer.json()) == {"error"}, path
    for body in (
        b"{",
        b"[]",
        b'{"inputs": {}}',
        b'{"inputs": []}',
        b'{"inputs": [7]}',
        orjson.dumps({"inputs": [{**IMAGE, "data": ["no base64"]}]}),
        orjson.dumps({"inputs": [{**IMAGE, "data": ["", ""]}]}),
        orjson.dumps({"inputs": [{**IMAGE, "datatype": "FP32", "data": [1.5]}]}),
    ):
        async with session.post("/v2/models/face-detector/infer", data=body) as answer:
            assert answer.status == 400, body
            assert (await answer.json())["error"], body


async def test_a_chat_answers_as_openai_does_and_knows_what_it_said(
    session: aiohttp.ClientSession,
) -> None:
    messages: list[dict[str, str]] = []
    for _ in range(2):
        messages.append({"role": "user", "content": "How do I find edges?"})
        body = {"model": "docs-assistant", "messages": messages}
        async with session.post("/v1/chat/completions", json=body) as answer:
            choice = (await answer.json())["choices"][0]
        messages.append(choice["message"])
    assert messages[1]["role"] == messages[3]["role"] == "assistant"
    assert messages[1]["content"].startswith("skimage.filters.sobel: ")
    assert messages[1]["content"] != messages[3]["content"]
    for wrong in ({"model": "x", "messages": messages[:1]}, {**body, "messages": messages * 20}, 7):
        async with session.post("/v1/chat/completions", json=wrong) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_answers_over_grpc_with_the_status_of_the_case(channel: grpc.aio.Channel) -> None:
    raw: dict[str, Any] = {"inputs": [IMAGE], "raw_input_contents": [b"\x00\x00\x00\x00"]}
    for fields, code in (
        ({"model_name": "cars"}, grpc.StatusCode.NOT_FOUND),
        ({"model_name": "face-detector", **raw}, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        request = message("inference.ModelInferRequest")(**fields)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(channel, request)
        assert refused.value.code() is code


REST = Rest("http://127.0.0.1:8080")


def test_queries_and_ones_own_picture_are_commands_of_a_shell(tmp_path: Path) -> None:
    for query in QUERIES:
        words = shlex.split(REST.curl(query.path, query.body).replace("\\\n", " "))
        assert words[:3] == ["curl", "-s", REST.address + query.path]
    printed = own_picture("http://127.0.0.1:8090", REST)
    send, _, _ = printed.partition("\\\n  | curl")
    (tmp_path / "frame.jpg").write_bytes(bytes(range(256)) * 8)
    written = subprocess.check_output(send, shell=True, text=True, cwd=tmp_path)
    (image,) = json.loads(written)["inputs"]
    assert base64.b64decode(image["data"][0], validate=True) == bytes(range(256)) * 8


def test_an_answer_is_shown_in_one_line_an_inference() -> None:
    metadata = [{"key": "photograph", "type": "string", "value": "coins"}]
    predictions = [{"label": "face", "score": 0.314}]
    item = {"inference_id": "frame-00007", "metadata": metadata, "predictions": predictions}
    assert short({"items": [item]}) == "→ frame-00007 (coins): face 0.31"
    assert short({"items": []}) == "→ none"
    # the true label and the best three of a digit
    predictions = [{"label": label, "score": 0.4} for label in "1742"]
    metadata = [{"key": "true_label", "type": "string", "value": "8"}]
    item = {"inference_id": "digit-1553", "metadata": metadata, "predictions": predictions}
    assert short({"items": [item]}) == "→ digit-1553 (it is 8): 1 0.40, 7 0.40, 4 0.40"

"""Each protocol with a real server: from the call to the answered query, and back again."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from sklearn.datasets import load_digits

from tests.servers.waiting import wait_until
from tests.upstreams.asking import OMI, Clients, tensor
from tests.upstreams.model_servers import (
    ChariotEngine,
    HuggingFace,
    MLServer,
    OmiContainer,
    Stub,
    Triton,
    ask,
)
from tests.upstreams.pictures import COINS, photograph, pictures

from .real_line import LIST, RealLine, hash_content, post, read_metadata

pytestmark = [
    pytest.mark.real_upstreams,
    pytest.mark.real_huggingface,
    pytest.mark.real_triton,
    pytest.mark.real_kserve,
]


def test_digits_over_rest_and_grpc(
    real_line: RealLine, clients: Clients, mlserver: MLServer
) -> None:
    images, _ = load_digits(return_X_y=True)
    pixels = images[0].tolist()
    proxy = real_line.proxies["mlserver"]
    inputs = [{"name": "pixels", "datatype": "FP64", "shape": [1, 64], "data": pixels}]
    request = {"id": "digit-1", "inputs": inputs, "parameters": {"metadata": LIST}}
    answer = post(
        f"{proxy.url}/v2/models/digits/versions/v1/infer", request, **{"X-Request-ID": "r"}
    )
    tensors = [tensor("pixels", "FP64", [1, 64], pixels)]
    headers = {"inference-store-metadata": LIST, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    clients.infer("grpc", proxy.grpc, "digits", tensors, id="digit-2", headers=headers)

    rest, over_grpc = real_line.captured("digits", 2)
    assert (rest["inference_id"], over_grpc["inference_id"]) == ("digit-1", "digit-2")
    assert (rest["protocol"], over_grpc["protocol"]) == ("v2", "v2-grpc")
    assert {"r", answer.headers["inference-store-id"]} & {*rest["aliases"]}
    assert (rest["http_status"], over_grpc["grpc_code"]) == (200, 0)
    assert over_grpc["trace_id"] == "a" * 32
    for item in (rest, over_grpc):
        assert read_metadata(item)["frame_number"] == "9001"
        assert (item["ok"], item["model_version"]) == (True, "v1")
        assert [prediction["value"] for prediction in item["predictions"]] == [0]
        data = real_line.blob(item, "data")
        assert (item["data_hash"], item["data_size_bytes"]) == (hash_content(data), len(data))
    assert json.loads(real_line.blob(rest, "response")) == answer.json()

    first, second = real_line.again("digits")
    assert [json.loads(body) for body in first.messages] == [request]
    assert first.send_to(mlserver.url).content == answer.content
    called = clients.call(mlserver.grpc, second.path, *second.messages)
    assert clients.decode("ModelInferResponse", called.responses[0])["id"] == "digit-2"


def test_two_images_are_two_inferences(real_line: RealLine) -> None:
    images = [photograph(), photograph(COINS)]
    request = pictures(*images)
    for number, input_tensor in enumerate(request["inputs"]):
        camera = [{"key": "camera", "type": "string", "value": f"c{number}"}]
        input_tensor["parameters"]["metadata"] = json.dumps(camera)
    proxy = real_line.proxies["mlserver"]
    answer = post(f"{proxy.url}/v2/models/faces/infer", request).json()
    items = real_line.captured("faces", 2)
    assert [item["inference_id"] for item in items] == ["pictures-0", "pictures-1"]
    assert [item["data_hash"] for item in items] == [hash_content(image) for image in images]
    assert [(item["width"], item["height"]) for item in items] == [(512, 512), (384, 303)]
    assert [read_metadata(item)["camera"] for item in items] == ["c0", "c1"]
    assert {(item["task_type"], item["action"]) for item in items} == {
        ("object_detection", "predict")
    }
    assert items[0]["top_label"] == "face"
    assert items[0]["predictions"][0]["xmin"] == answer["outputs"][0]["data"][0]["xmin"]
    assert [item["prediction_count"] for item in items] == [
        len(output["data"]) for output in answer["outputs"]
    ]
    assert real_line.blob(items[1], "data") == images[1]
    (again,) = real_line.again("faces")
    assert [json.loads(body) for body in again.messages] == [request]


def test_a_stream_over_rest_is_one_inference(real_line: RealLine) -> None:
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["one two three"]}
    request = {"id": "streamed", "inputs": [text]}
    answer = post(f"{real_line.proxies['mlserver'].url}/v2/models/words/infer_stream", request)
    assert answer.text.count("data: ") == 3
    (item,) = real_line.captured("words", 1, protocol="v2")
    assert (item["inference_id"], item["ok"], item["batch_size"]) == ("streamed", True, 1)
    response = (real_line.blob(item, "response")).decode()
    assert [response.index(word) for word in ("one", "two", "three")] == sorted(
        response.index(word) for word in ("one", "two", "three")
    )
    assert real_line.blob(item, "data") == b"one two three"


def test_binary_tensors_of_triton(real_line: RealLine, clients: Clients, triton: Triton) -> None:
    proxy = real_line.proxies["triton"]
    x = [tensor("x", "FP32", [1, 3], [1, 2.5, -0.0])]
    options: Any = {"outputs": ["y"], "parameters": {"metadata": LIST}}
    direct = clients.infer("http", triton.http, "twice", x, id="b", **options)
    assert clients.infer("http", proxy.http, "twice", x, id="b", **options) == direct
    clients.infer("grpc", proxy.grpc, "twice", x, id="g", **options)
    failed = clients.infer("http", proxy.http, "twice", [tensor("x", "FP32", [1, 1], [-1])], id="f")
    assert failed["status"] == "500"
    items = real_line.captured("twice", 3)
    assert [item["inference_id"] for item in items] == ["b", "g", "f"]
    assert [item["ok"] for item in items] == [True, True, False]
    assert items[2]["error"] == failed["error"]
    for answered in items[:2]:
        assert read_metadata(answered)["frame_number"] == "9001"
        assert answered["data_hash"] == hash_content(real_line.blob(answered, "data"))
        answer = json.loads(real_line.blob(answered, "response"))
        assert answer["outputs"][0]["data"] == [2, 5, 0]
    binary, message, _ = real_line.again("twice")
    assert "inference-header-content-length" in binary.headers
    sent = binary.send_to(triton.url)
    assert sent.status_code == 200
    assert sent.content.endswith(b"\x00\x00\x00\x40\x00\x00\xa0\x40\x00\x00\x00\x80")
    assert clients.call(triton.grpc, message.path, *message.messages).code == "OK"


def test_a_stream_of_triton_is_one_inference(real_line: RealLine, clients: Clients) -> None:
    proxy, text_tensor = real_line.proxies["triton"], tensor("text", "BYTES", [1], [b"one two"])
    answers = clients.stream(proxy.grpc, "words", [text_tensor], id="s")
    (item,) = real_line.captured("words", 1, protocol="v2-grpc")
    assert (item["inference_id"], item["grpc_code"], item["ok"]) == ("s", 0, True)
    response = json.loads(real_line.blob(item, "response"))
    words = [base64.b64decode(answer["outputs"]["word"][0]).decode() for answer in answers]
    assert words == ["one", "two"]
    result = json.dumps(response)
    assert 0 < result.index("one") < result.index("two")


def test_json_lines_of_chariot(real_line: RealLine, chariot_engine: ChariotEngine) -> None:
    images = [photograph(), photograph(COINS)]
    lines = [
        {
            "input": base64.b64encode(image).decode(),
            "parameters": {"action": "detect", "metadata": json.loads(LIST)},
        }
        for image in images
    ]
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    url = f"{real_line.proxies['chariot'].url}/infer"
    answer = post(url, body, **{"Content-Type": "application/jsonl", "X-Request-ID": "lines"})
    items = real_line.captured("detector", 2)
    assert [item["inference_id"] for item in items] == ["lines-0", "lines-1"]
    assert [item["data_hash"] for item in items] == [hash_content(image) for image in images]
    assert {read_metadata(item)["frame_number"] for item in items} == {"9001"}
    assert {(item["protocol"], item["action"]) for item in items} == {("chariot-v2", "detect")}
    assert (items[0]["top_label"], items[0]["width"]) == ("face", 512)
    (again,) = real_line.again("detector")
    assert [json.loads(line) for line in again.messages[0].splitlines()] == lines
    assert again.send_to(chariot_engine.url).content == answer.content


def test_items_of_omi(real_line: RealLine, clients: Clients, omi_container: OmiContainer) -> None:
    proxy = real_line.proxies["omi"]
    inputs = [
        {"input": {"input.txt": base64.b64encode(text).decode()}} for text in (b"great thanks", b"")
    ]
    message = clients.encode("RunRequest", {"inputs": inputs, "explain": True})
    metadata = [("inference-store-metadata", LIST), ("x-request-id", "run")]
    called = clients.call(proxy.grpc, f"{OMI}/Run", message, metadata=metadata)
    assert called.code == "OK"
    good, failed = real_line.captured("friendly", 2)
    assert [good["inference_id"], failed["inference_id"]] == ["run-0", "run-1"]
    assert (good["ok"], good["protocol"], good["action"]) == (True, "omi", "run")
    assert (good["top_label"], good["top_score"]) == ("friendly", 0.75)
    assert real_line.blob(good, "data") == b"great thanks"
    assert b"wordImportances" in real_line.blob(good, "response")
    assert (failed["ok"], failed["error"]) == (False, "input.txt is missing or empty")
    assert read_metadata(failed)["frame_number"] == "9001"
    (again,) = real_line.again("friendly")
    rebuilt = [clients.decode("RunRequest", part) for part in again.messages]
    assert rebuilt == [clients.decode("RunRequest", message)]
    sent = clients.call(omi_container.address, again.path, *again.messages)
    assert sent.responses == called.responses


def test_a_chat_that_is_streamed(real_line: RealLine, stub: Stub) -> None:
    request = {
        "model": "chat",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "c b a"}],
    }
    url = f"{real_line.proxies['stub'].url}/v1/chat/completions"
    answer = post(url, request, **{"inference-store-metadata": LIST})
    (item,) = real_line.captured("chat", 1)
    assert (item["protocol"], item["action"], item["ok"]) == ("openai", "chat", True)
    assert item["inference_id"] == "stub-1"
    assert answer.headers["inference-store-id"] in item["aliases"]
    assert [prediction["text"] for prediction in item["predictions"]] == ["abc"]
    metadata = read_metadata(item)
    assert (metadata["frame_number"], metadata["completion_tokens"]) == ("9001", "3")
    data = real_line.blob(item, "data")
    assert b"c b a" in data
    assert item["data_hash"] == hash_content(data)
    (again,) = real_line.again("chat")
    assert [json.loads(body) for body in again.messages] == [request]
    assert again.send_to(stub.url).content == answer.content


def test_kserves_own_protocol(real_line: RealLine) -> None:
    proxy = real_line.proxies["mlserver"]
    rows: list[list[float]] = [[1, 2.5], [3, 4]]
    assert ask("v1", proxy.http, "sums", rows)["values"] == [3.5, 7]
    items = real_line.captured("sums", 2, protocol="kserve-v1")
    assert [item["batch_index"] for item in items] == [0, 1]
    assert [json.loads(real_line.blob(item, "data")) for item in items] == rows
    assert [b"3.5" in real_line.blob(item, "response") for item in items] == [True, False]
    assert len(real_line.again("sums")) == 1


PROMPT = "once upon a time"
ARGUMENTS = {"max_new_tokens": ("INT64", 5), "do_sample": ("INT8", False)}


def make_arguments() -> list[Any]:
    return [
        {
            "name": name,
            "datatype": datatype,
            "shape": [1],
            "data": [value],
            "parameters": {"content_type": "raw"},
        }
        for name, (datatype, value) in ARGUMENTS.items()
    ]


def test_a_generated_text(real_line: RealLine, huggingface: HuggingFace) -> None:
    text = {"name": "args", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
    body = {"id": "story-1", "parameters": {"metadata": LIST}, "inputs": [text, *make_arguments()]}
    answer = post(f"{real_line.proxies['huggingface'].url}/v2/models/story/infer", body)
    generated = json.loads(answer.json()["outputs"][0]["data"][0])["generated_text"]
    assert generated.startswith(PROMPT)

    (item,) = real_line.captured("story", 1)
    assert (item["inference_id"], item["ok"], item["batch_size"]) == ("story-1", True, 1)
    assert real_line.blob(item, "data") == PROMPT.encode()
    assert item["data_hash"] == hash_content(PROMPT.encode())
    assert [prediction["text"] for prediction in item["predictions"]] == [generated]
    metadata = read_metadata(item)
    assert metadata["frame_number"] == "9001"
    assert json.loads(metadata["arguments"]) == {name: v for name, (_, v) in ARGUMENTS.items()}

    (again,) = real_line.again("story")
    assert [json.loads(sent) for sent in again.messages] == [body]
    assert again.send_to(huggingface.url).content == answer.content


def test_classified_texts(real_line: RealLine) -> None:
    url = f"{real_line.proxies['huggingface'].url}/v2/models/sentiment/infer"
    text = {"name": "args", "datatype": "BYTES", "shape": [1], "data": ["a good day"]}
    post(url, {"id": "good", "inputs": [text]})
    two = text | {"shape": [2], "data": ["one", "two"]}
    failed = httpx.post(url, json={"id": "failed", "inputs": [two]}, timeout=120)
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    items = real_line.captured("sentiment", 2)
    assert [(item["inference_id"], item["ok"], item["top_label"]) for item in items] == [
        ("good", True, "POSITIVE"),
        ("failed", False, None),
    ]
    assert items[0]["top_score"] > 0.9
    assert (items[1]["http_status"], items[1]["error"]) == (500, "Internal Server Error")


CAPTURE = (Path(__file__).parents[3] / "docs" / "how-to" / "capture.md").read_text()
WIDTH, HEIGHT = 6, 4
# Class 1 of three, in two columns of the second row.
GREEN = {(2, 1), (3, 1)}


def read_registration() -> object:
    result = re.search(r"^PUT /v1/models/yolo\n(\{.*?\})\n```", CAPTURE, re.DOTALL | re.MULTILINE)
    assert result is not None
    return json.loads(result[1])


def test_binary_tensors_become_boxes(real_line: RealLine, clients: Clients) -> None:
    registered = httpx.put(f"{real_line.api}/models/blobs", json=read_registration(), timeout=120)
    assert registered.status_code in (200, 201), registered.text
    pixels = [
        255 if (x, y) in GREEN and channel == 1 else 0
        for y in range(HEIGHT)
        for x in range(WIDTH)
        for channel in range(3)
    ]
    proxy, image = real_line.proxies["triton"], tensor("image", "UINT8", [HEIGHT, WIDTH, 3], pixels)
    outputs = ["boxes", "scores", "classes"]
    clients.infer("http", proxy.http, "blobs", [image], id="b-http", outputs=outputs)
    clients.infer("grpc", proxy.grpc, "blobs", [image], id="b-grpc")
    items = real_line.captured("blobs", 2)
    assert [item["inference_id"] for item in items] == ["b-http", "b-grpc"]
    for item in items:
        (box,) = item["predictions"]
        assert (box["label"], box["score"]) == ("bicycle", 1)
        assert [box[side] for side in ("xmin", "ymin", "xmax", "ymax")] == [2, 1, 4, 2]
        assert real_line.blob(item, "data") == bytes(pixels)


def test_the_books_close(real_line: RealLine) -> None:
    def has_all() -> bool:
        producers = real_line.accounting()["producers"]
        is_closed = all(producer["closes"] and not producer["missing"] for producer in producers)
        return is_closed and len(producers) == len(real_line.proxies)

    wait_until(has_all, seconds=180, what="the reports of every proxy")
    books = real_line.accounting()
    assert books["closes"]
    for producer in books["producers"]:
        assert producer["closes"], producer
        assert producer["reason"] is None, producer

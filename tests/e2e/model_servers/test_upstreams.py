"""Upstreams without the proxy: real servers answer real clients."""

import base64
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sklearn.datasets import load_digits

from tests.upstreams.asking import Asked, arrivals
from tests.upstreams.clients import V2, Clients, tensor
from tests.upstreams.gate import Gate
from tests.upstreams.huggingface import HuggingFace
from tests.upstreams.kserve import KServe, ask
from tests.upstreams.mlserver import MLServer, batch
from tests.upstreams.pictures import COINS, photograph, pictures
from tests.upstreams.triton import Triton

pytestmark = pytest.mark.real_upstreams

CLOSE = ("Connection", "close")
JSON = ("Content-Type", "application/json")
# Every fifth image was left out when the classifier was trained.
UNSEEN = slice(0, 500, 5)


def post(url: str, body: Any) -> Any:
    answer = httpx.post(url, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_reads_digits_over_rest_and_grpc(mlserver: MLServer, clients: Clients) -> None:
    images, labels = load_digits(return_X_y=True)
    unseen, true = images[UNSEEN], labels[UNSEEN].tolist()
    pixels = tensor("pixels", "FP64", unseen.shape, unseen.ravel().tolist())
    answer = post(f"{mlserver.url}/v2/models/digits/infer", {"id": "x", "inputs": [pixels]})
    read = answer["outputs"][0]["data"]
    right = sum(predicted == actual for predicted, actual in zip(read, true, strict=True))
    assert right > 0.9 * len(true)
    assert answer["id"] == "x"

    over_grpc = clients.infer("grpc", mlserver.grpc, "digits", [pixels], id="x")
    assert [row[0] for row in over_grpc["outputs"]["predict"]] == read
    over_http = clients.infer("http", mlserver.http, "digits", [pixels], binary=False)
    assert over_http["outputs"] == over_grpc["outputs"]


def test_it_finds_faces_in_two_pictures(mlserver: MLServer, clients: Clients) -> None:
    request = pictures(photograph(), photograph(COINS), metadata='{"a": 1}')
    answer = post(f"{mlserver.url}/v2/models/faces/infer", request)
    names = [output["name"] for output in answer["outputs"]]
    assert names == ["image-0", "image-1"]
    best = answer["outputs"][0]["data"][0]
    assert best["label"] == "face"
    assert best["score"] > 0.9
    assert answer["parameters"]["metadata"] == '{"a": 1}'
    assert answer["outputs"][0]["parameters"]["action"] == "predict"

    inputs = [tensor(name, "BYTES", [1], [photograph()]) for name in names]
    over_grpc = clients.infer("grpc", mlserver.grpc, "faces-text", inputs)["outputs"]
    assert list(over_grpc) == names
    assert json.loads(base64.b64decode(over_grpc["image-0"][0])) == best
    assert best not in answer["outputs"][1]["data"]


def test_rejects_data_that_is_no_picture(mlserver: MLServer, clients: Clients) -> None:
    answer = httpx.post(
        f"{mlserver.url}/v2/models/faces/infer", json=pictures(b"none"), timeout=120
    )
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "input image-0: 4 bytes that are no image"},
    )
    refused = clients.infer("grpc", mlserver.grpc, "faces", [tensor("i", "BYTES", [1], [b"-"])])
    assert refused["status"] == "StatusCode.INVALID_ARGUMENT"


def test_mlserver_does_not_know_the_binary_extension(mlserver: MLServer, clients: Clients) -> None:
    pixels = tensor("pixels", "FP64", [1, 64], [0.0] * 64)
    refused = clients.infer("http", mlserver.http, "digits", [pixels])
    assert refused["status"] == "422"


async def test_mlserver_streams(mlserver: MLServer, clients: Clients, tmp_path: Path) -> None:
    text, gate, wire = {"name": "text", "datatype": "BYTES", "shape": [1]}, Gate(tmp_path), b""
    document = {"inputs": [text | {"data": ["one two"]}], "parameters": {"gate": str(tmp_path)}}
    body = json.dumps(document).encode()
    request = Asked("POST", "/v2/models/words/infer_stream", [JSON, CLOSE], body)
    async with aclosing(arrivals(mlserver.http, request)) as coming:
        for word in (b'["one"]', b'["two"]'):  # the second one is held back until the first came
            while word not in wire:
                wire += await anext(coming)
            gate.let_next()

    inputs = [text | {"contents": {"bytes_contents": ["YSBi"]}}]
    message = clients.encode("ModelInferRequest", {"model_name": "words", "inputs": inputs})
    streamed = clients.call(mlserver.grpc, f"{V2}/ModelStreamInfer", message)
    read = [clients.decode("ModelInferResponse", response) for response in streamed.responses]
    contents = [part["outputs"][0]["contents"]["bytes_contents"] for part in read]
    assert contents == [["YQ=="], ["Yg=="]]


def test_its_own_client_works(mlserver: MLServer) -> None:
    text = {"name": "args", "datatype": "BYTES", "shape": [1]}
    texts = ("a good day", "a day")
    requests = [{"id": str(at), "inputs": [text | {"data": [t]}]} for at, t in enumerate(texts)]
    answers = batch(mlserver.http, "echo", requests)
    assert {answer["id"]: answer["outputs"][0]["data"] for answer in answers} == {
        str(at): [text] for at, text in enumerate(texts)
    }


@pytest.mark.real_huggingface
def test_it_distinguishes_good_from_bad(huggingface: HuggingFace) -> None:
    texts = {"name": "array_inputs", "datatype": "BYTES", "shape": [2]}
    body = {"inputs": [texts | {"data": ["a good day", "a bad day"]}]}
    answer = post(f"{huggingface.url}/v2/models/sentiment/infer", body)
    (output,) = answer["outputs"]
    assert output["parameters"]["content_type"] == "hg_jsonlist"
    assert [json.loads(datum)["label"] for datum in output["data"]] == ["POSITIVE", "NEGATIVE"]


def test_models_are_unloaded_and_loaded(mlserver: MLServer) -> None:
    ready = f"{mlserver.url}/v2/models/echo/ready"
    models = f"{mlserver.url}/v2/repository/models"
    assert httpx.get(ready, timeout=120).status_code == 200
    assert httpx.post(f"{models}/echo/unload", timeout=120).status_code == 200
    assert httpx.get(ready, timeout=120).status_code == 404
    assert httpx.post(f"{models}/echo/load", timeout=120).status_code == 200
    assert httpx.get(ready, timeout=120).status_code == 200
    index = post(f"{mlserver.url}/v2/repository/index", {})
    assert {model["state"] for model in index} == {"READY"}


@pytest.mark.real_triton
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_tensors_come_back_in_binary(triton: Triton, clients: Clients, transport: Any) -> None:
    address = getattr(triton, transport)
    inputs = [
        tensor("bool", "BOOL", [2], [True, False]),
        tensor("uint64", "UINT64", [1], [2**64 - 1]),
        tensor("int8", "INT8", [2], [-128, 127]),
        tensor("fp16", "FP16", [1], [0.5]),
        tensor("fp64", "FP64", [1], [0.1]),
        tensor("bytes", "BYTES", [2], [b"\xff\x00", b""]),
    ]
    answer = clients.infer(transport, address, "echo", inputs, id="e")
    assert answer["id"] == "e"
    assert answer["outputs"] == {
        input_tensor["name"]: input_tensor["data"] for input_tensor in inputs
    }


@pytest.mark.real_triton
def test_boxes_are_numbers(triton: Triton, clients: Clients) -> None:
    image = [[[0, 0, 0]] * 6 for _ in range(4)]
    image[1] = [[0, 0, 0]] * 2 + [[0, 255, 0]] * 2 + [[0, 0, 0]] * 2
    pixels = [channel for row in image for pixel in row for channel in pixel]
    answer = clients.infer(
        "http", triton.http, "blobs", [tensor("image", "UINT8", [4, 6, 3], pixels)]
    )
    assert answer["outputs"] == {"boxes": [[2, 1, 4, 2]], "scores": [1], "classes": [1]}


@pytest.mark.real_triton
def test_triton_streams(triton: Triton, clients: Clients) -> None:
    text = [tensor("text", "BYTES", [1], [b"one two three"])]
    answers = clients.stream(triton.grpc, "words", text)
    words = [base64.b64decode(answer["outputs"]["word"][0]) for answer in answers]
    assert words == [b"one", b"two", b"three"]
    events = httpx.post(
        f"{triton.url}/v2/models/words/generate_stream", json={"text": "a b"}, timeout=120
    )
    assert events.text.count("data: ") == 2


@pytest.mark.real_triton
def test_an_error_is_one(triton: Triton, clients: Clients) -> None:
    tensors = [tensor("x", "FP32", [1, 1], [-1])]
    assert clients.infer("http", triton.http, "twice", tensors)["status"] == "500"
    assert clients.infer("grpc", triton.grpc, "twice", tensors)["error"] == "x is negative"


@pytest.mark.real_kserve
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("protocol", ["v1", "v2", "grpc"])
def test_kserve_answers_its_own_clients(kserve: KServe, protocol: Any, binary: bool) -> None:
    address = kserve.grpc if protocol == "grpc" else kserve.http
    answer = ask(protocol, address, "sums", [[1, 2.5], [3, 4]], binary=binary, request_id="k-1")
    assert answer == {"id": None if protocol == "v1" else "k-1", "values": [3.5, 7]}


@pytest.mark.real_kserve
def test_kserve_answers_tritons_client(kserve: KServe, clients: Clients) -> None:
    rows = [tensor("rows", "FP64", [2, 2], [1, 2.5, 3, 4])]
    over_http = clients.infer("http", kserve.http, "sums", rows, id="k")
    over_grpc = clients.infer("grpc", kserve.grpc, "sums", rows, id="k")
    assert over_http["outputs"] == over_grpc["outputs"] == {"output-0": [3.5, 7]}
    assert over_http["id"] == over_grpc["id"] == "k"

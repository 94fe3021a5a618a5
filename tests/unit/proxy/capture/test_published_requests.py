"""Requests in the shapes that the protocols' documents show are rebuilt, byte for byte."""

import base64
import json

import pytest

from inference_store.proxy.rules import Rules
from tests.exchanges import png

from .captured import JSON
from .sample_requests import (
    BATCHED,
    INFER_REST,
    UNKNOWN,
    VISION,
    SampleRequest,
    check_rebuilt,
    make_binary_request,
)

IMAGE = base64.b64encode(png()).decode()
METADATA = json.dumps({"metadata": json.dumps([{"key": "k", "type": "int", "value": "1"}])})


def make_rest_request(
    protocol: str, path: str, body: str, *, answer: str = "{}", rules: Rules = UNKNOWN
) -> SampleRequest:
    return SampleRequest(protocol, path, [body.encode()], answer.encode(), JSON, rules)


def make_tensor(data: str, shape: str = "[ 1 ]", datatype: str = "BYTES") -> str:
    """An input as documents write it."""
    about = f'"shape" : {shape},\n  "datatype" : "{datatype}",\n  "parameters" : {METADATA}'
    return f'{{\n  "name" : "in",\n  {about},\n  "data" : {data}\n}}'


def make_v2_request(*inputs: str, rules: Rules = UNKNOWN) -> SampleRequest:
    body = '{ "id" : "42",\n "inputs" : [%s],\n "outputs" : [{"name" : "out"}] }'
    return make_rest_request("v2", INFER_REST, body % ", ".join(inputs), rules=rules)


def make_kserve_request(instances: str) -> SampleRequest:
    body = f'{{\n  "instances": {instances},\n  "signature_name": "s"\n}}'
    count = len(json.loads(instances))
    answer = json.dumps({"predictions": [0] * count})
    return make_rest_request("kserve-v1", "/v1/models/m:predict", body, answer=answer)


def make_chat_request(content: str) -> SampleRequest:
    body = '{"model": "m",\n "messages": [{"role": "user", "content": %s}], "stream": false}'
    return make_rest_request("openai", "/v1/chat/completions", body % content)


SIZES = (
    b'{"inputs" : [{"name" : "a", "shape" : [2, 2], "datatype" : "UINT32",'
    b' "parameters" : {"binary_data_size" : 16}}, {"name" : "b", "shape" : [3],'
    b' "datatype" : "BOOL", "parameters" : {"binary_data_size" : 3}}]}'
)
REQUESTS = {
    "an image": make_v2_request(make_tensor(f'["{IMAGE}"]', "[4, 3, 1]"), rules=VISION),
    "metadata that break the JSON": make_rest_request(
        "v2", INFER_REST, '{"inputs": [{"data": [1], "metadata": "{"a": 1}"}]}'
    ),
    "named arguments": make_v2_request(
        make_tensor('["a prompt"]'), make_tensor("[0.8]", datatype="FP64")
    ),
    "columns of several datatypes": make_v2_request(
        make_tensor('["Ann", "Bob"]', "[2]"), make_tensor("[34, 22]", "[2]", "INT32")
    ),
    "tensors of several shapes": make_v2_request(
        make_tensor("[1, 2, 3, 4]", "[2, 2]", "UINT32"),
        make_tensor("[true]", datatype="BOOL"),
        rules=BATCHED,
    ),
    "BYTES that are no list": make_v2_request(make_tensor('"caf\\u00e9 \\ud83d\\ude01"', "[6]")),
    "generate": make_rest_request(
        "v2", "/v2/models/m/generate", '{"text_input" :  "a", "parameters" : {"top_k": 0}}'
    ),
    "binary tensors": make_binary_request(SIZES, bytes(range(19)), BATCHED),
    "a binary tensor alone": make_binary_request(b"", bytes(range(16)), BATCHED),
    "an instance of named values": make_kserve_request('[ {"x": [6.8,  2.8], "n": 1} ]'),
    "an instance of base64": make_kserve_request(
        f'[{{"image": {{"b64": "{IMAGE}"}}, "key": "1"}}]'
    ),
    "a chat": make_chat_request('"What is it?"'),
    "a chat with an image": make_chat_request(
        '[{"type": "text", "text": "What is it?"},'
        f' {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,{IMAGE}"}}}}]'
    ),
    "a completion": make_rest_request(
        "openai", "/v1/completions", '{"model":"m","prompt":"a","max_tokens":5}'
    ),
    "an input in base64": make_rest_request("chariot-v2", "/infer", f'{{"input": "{IMAGE}"}}'),
}
# each with the number of its data
BATCHES = {
    "two images": (
        2,
        make_v2_request(
            make_tensor(f'["{IMAGE}"]'), make_tensor(f'["{IMAGE[:-8]}"]'), rules=VISION
        ),
    ),
    "rows of two flat tensors": (
        3,
        make_v2_request(
            make_tensor("[1, 2, 3, 4, 5, 6]", "[3, 2]", "FP32"),
            make_tensor("[7, 8, 9]", "[3]", "INT64"),
            rules=BATCHED,
        ),
    ),
    "columns with the same values": (
        3,
        make_v2_request(
            make_tensor("[30, 34, 7]", "[3]", "INT32"),
            make_tensor("[34, 7, 42]", "[3]", "INT32"),
            rules=BATCHED,
        ),
    ),
    "instances of numbers": (2, make_kserve_request("[\n    [6.8,  2.8],\n    [6.0, 3.4]\n  ]")),
    "instances of text": (2, make_kserve_request('["My name is Ann", "My name is Bob"]')),
}
ROWS = {
    "nested": make_tensor("[ [1, 2], [3, 4] ]", "[ 2, 2 ]", "UINT32"),
    "flat": make_tensor("[ 1, 2, 3, 4 ]", "[ 2, 2 ]", "UINT32"),
    "flat, without blanks": make_tensor("[1,2,3,4]", "[2,2]", "INT8"),
    "flat, on lines": make_tensor("[\n 1.0,\n -2,\n null,\n 4e0\n]", "[2, 2]", "FP64"),
    "rows of texts": make_tensor('["a", "b", "b","c"]', "[2, 2]"),
    "texts": make_tensor('["a", "b"]', "[2]"),
}


def test_a_published_request_is_rebuilt(subtests: pytest.Subtests) -> None:
    for name, request in REQUESTS.items():
        with subtests.test(name):
            check_rebuilt(request)


def test_a_published_batch_is_rebuilt(subtests: pytest.Subtests) -> None:
    rows = {name: (2, make_v2_request(tensor, rules=BATCHED)) for name, tensor in ROWS.items()}
    for name, (count, request) in (BATCHES | rows).items():
        with subtests.test(name):
            check_rebuilt(request, count=count)

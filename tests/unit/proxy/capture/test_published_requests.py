"""Requests in the shapes that the protocols' documents show are rebuilt, byte for byte."""

import base64
import json

import pytest

from inference_store.proxy.rules import Rules
from tests.exchanges import png

from .rebuilding import Asked, captured, is_rebuilt

BATCHED, VISION, UNKNOWN = Rules(batched=True), Rules(task_type="object_detection"), Rules()
IMAGE = base64.b64encode(png()).decode()
METADATA = json.dumps({"metadata": json.dumps([{"key": "k", "type": "int", "value": "1"}])})


def rest(
    protocol: str, path: str, body: str, *, answer: str = "{}", rules: Rules = UNKNOWN
) -> Asked:
    headers = [("content-type", "application/json")]
    return Asked(protocol, path, [body.encode()], answer.encode(), headers, rules)


def tensor(data: str, shape: str = "[ 1 ]", datatype: str = "BYTES") -> str:
    """An input as documents write it."""
    about = f'"shape" : {shape},\n  "datatype" : "{datatype}",\n  "parameters" : {METADATA}'
    return f'{{\n  "name" : "in",\n  {about},\n  "data" : {data}\n}}'


def v2(*inputs: str, rules: Rules = UNKNOWN) -> Asked:
    body = '{ "id" : "42",\n "inputs" : [%s],\n "outputs" : [{"name" : "out"}] }'
    return rest("v2", "/v2/models/m/infer", body % ", ".join(inputs), rules=rules)


def binary(head: str, tensors: bytes) -> Asked:
    headers = [("inference-header-content-length", str(len(head)))]
    return Asked("v2", "/v2/models/m/infer", [head.encode() + tensors], b"{}", headers, BATCHED)


def kserve(instances: str) -> Asked:
    body = f'{{\n  "instances": {instances},\n  "signature_name": "s"\n}}'
    count = len(json.loads(instances))
    answer = json.dumps({"predictions": [0] * count})
    return rest("kserve-v1", "/v1/models/m:predict", body, answer=answer)


def chat(content: str) -> Asked:
    body = '{"model": "m",\n "messages": [{"role": "user", "content": %s}], "stream": false}'
    return rest("openai", "/v1/chat/completions", body % content)


SIZES = (
    '{"inputs" : [{"name" : "a", "shape" : [2, 2], "datatype" : "UINT32",'
    ' "parameters" : {"binary_data_size" : 16}}, {"name" : "b", "shape" : [3],'
    ' "datatype" : "BOOL", "parameters" : {"binary_data_size" : 3}}]}'
)
REQUESTS = {
    "an image": v2(tensor(f'["{IMAGE}"]', "[4, 3, 1]"), rules=VISION),
    "metadata that break the JSON": rest(
        "v2", "/v2/models/m/infer", '{"inputs": [{"data": [1], "metadata": "{"a": 1}"}]}'
    ),
    "named arguments": v2(tensor('["a prompt"]'), tensor("[0.8]", datatype="FP64")),
    "columns of several datatypes": v2(
        tensor('["Ann", "Bob"]', "[2]"), tensor("[34, 22]", "[2]", "INT32")
    ),
    "tensors of several shapes": v2(
        tensor("[1, 2, 3, 4]", "[2, 2]", "UINT32"), tensor("[true]", datatype="BOOL"), rules=BATCHED
    ),
    "BYTES that are no list": v2(tensor('"caf\\u00e9 \\ud83d\\ude01"', "[6]")),
    "generate": rest(
        "v2", "/v2/models/m/generate", '{"text_input" :  "a", "parameters" : {"top_k": 0}}'
    ),
    "binary tensors": binary(SIZES, bytes(range(19))),
    "a binary tensor alone": binary("", bytes(range(16))),
    "an instance of named values": kserve('[ {"x": [6.8,  2.8], "n": 1} ]'),
    "an instance of base64": kserve(f'[{{"image": {{"b64": "{IMAGE}"}}, "key": "1"}}]'),
    "a chat": chat('"What is it?"'),
    "a chat with an image": chat(
        '[{"type": "text", "text": "What is it?"},'
        f' {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,{IMAGE}"}}}}]'
    ),
    "a completion": rest("openai", "/v1/completions", '{"model":"m","prompt":"a","max_tokens":5}'),
    "an input in base64": rest("chariot-v2", "/infer", f'{{"input": "{IMAGE}"}}'),
}
BATCHES = {
    "two images": (
        2, v2(tensor(f'["{IMAGE}"]'), tensor(f'["{IMAGE[:-8]}"]'), rules=VISION),
    ),
    "rows, nested": (2, v2(tensor("[ [1, 2], [3, 4] ]", "[ 2, 2 ]", "UINT32"), rules=BATCHED)),
    "rows, flat": (2, v2(tensor("[ 1, 2, 3, 4 ]", "[ 2, 2 ]", "UINT32"), rules=BATCHED)),
    "rows, flat, without blanks": (2, v2(tensor("[1,2,3,4]", "[2,2]", "INT8"), rules=BATCHED)),
    "rows, flat, on lines": (
        2, v2(tensor("[\n 1.0,\n -2,\n null,\n 4e0\n]", "[2, 2]", "FP64"), rules=BATCHED),
    ),
    "rows of two flat tensors": (
        3,
        v2(
            tensor("[1, 2, 3, 4, 5, 6]", "[3, 2]", "FP32"),
            tensor("[7, 8, 9]", "[3]", "INT64"),
            rules=BATCHED,
        ),
    ),
    "columns with the same values": (
        3,
        v2(
            tensor("[30, 34, 7]", "[3]", "INT32"),
            tensor("[34, 7, 42]", "[3]", "INT32"),
            rules=BATCHED,
        ),
    ),
    "rows of texts, flat": (2, v2(tensor('["a", "b", "b","c"]', "[2, 2]"), rules=BATCHED)),
    "texts, flat": (2, v2(tensor('["a", "b"]', "[2]"), rules=BATCHED)),
    "instances of numbers": (2, kserve("[\n    [6.8,  2.8],\n    [6.0, 3.4]\n  ]")),
    "instances of text": (2, kserve('["My name is Ann", "My name is Bob"]')),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_published_request_is_rebuilt(name: str) -> None:
    is_rebuilt(REQUESTS[name])


@pytest.mark.parametrize("name", BATCHES)
def test_a_published_batch_is_rebuilt(name: str) -> None:
    count, asked = BATCHES[name]
    assert len(captured(asked).data) == count
    is_rebuilt(asked)

"""Every request is rebuilt from its blobs, equal as JSON or as a message, whatever its protocol."""

import base64
import json
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.capture.stored_request import MOST_BYTES, build_requests
from inference_store.proxy.configuration import Rules
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols import PROTOCOLS, Inference, Reading
from tests.exchanges import exchange, png
from tests.properties import draw_json

from .captured import (
    BATCHED,
    INFER_REST,
    STREAM,
    UNKNOWN,
    VISION,
    SampleRequest,
    capture_request,
    check_rebuilt,
    encode_run,
    make_sized_request,
    write_binary,
    write_message,
)

IMAGE = png(5, 4)
LARGE = 400_000
"""Bytes of a datum that would find no room in the metadata object."""


def _write_indented(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def _write_as_php(value: Any) -> bytes:
    return json.dumps(value).replace("/", "\\/").encode()


def _write_as_dotnet(value: Any) -> bytes:
    return json.dumps(value).replace("+", "\\u002B").encode()


def _write_as_python(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


WRITERS: Sequence[Callable[[Any], bytes]] = (
    orjson.dumps,
    _write_indented,
    _write_as_php,
    _write_as_python,
)
_WRITE = st.sampled_from(WRITERS)
_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
_BYTES = st.binary(min_size=1, max_size=60)
_BASE64 = _BYTES.map(lambda raw: base64.b64encode(raw).decode())
_SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _SINGLES | _TEXT
_JSON = draw_json(_SCALARS, _TEXT, leaves=10)


def make_json_tensor(name: str, datatype: str, data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}


def make_outputs(count: int) -> bytes:
    return orjson.dumps(
        {"outputs": [make_json_tensor(f"o{at}", "BYTES", ["x"]) for at in range(count)]}
    )


def _make_v2_request(
    tensors: list[dict[str, Any]], write: Callable[[Any], bytes], rules: Rules
) -> SampleRequest:
    body = write({"id": "7", "inputs": tensors, "parameters": {"x/y": 1}})
    answer = b"" if rules.batched else make_outputs(len(tensors))
    return SampleRequest("v2", INFER_REST, [body], answer, rules=rules)


_NUMBERS = st.lists(st.integers(-9, 10**12) | _SINGLES, min_size=1, max_size=40)
_TENSORS = st.lists(
    st.builds(
        make_json_tensor, _TEXT, st.just("BYTES"), st.lists(_TEXT | _JSON, min_size=1, max_size=3)
    )
    | st.builds(make_json_tensor, _TEXT, st.just("FP64"), _NUMBERS),
    max_size=4,
)
_IMAGES = st.lists(
    st.builds(make_json_tensor, _TEXT, st.just("BYTES"), st.lists(_BASE64, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)
_ROWS = st.lists(st.lists(_SINGLES, min_size=2, max_size=2), min_size=2, max_size=4).map(
    lambda rows: [make_json_tensor("rows", "FP64", rows)]
)
_FLAT = st.lists(st.integers(0, 99) | _SINGLES, min_size=1, max_size=3).map(
    lambda row: [
        make_json_tensor("flat", "FP64", [*row, *row[::-1]]) | {"shape": [2, len(row)]},
        make_json_tensor("column", "FP64", [row[-1], 7]),
    ]
)
_SHAPE = st.just([-1])
_TYPED = st.lists(
    st.tuples(st.just("FP32"), _SHAPE, st.lists(_SINGLES, max_size=20))
    | st.tuples(st.just("INT64"), _SHAPE, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
    | st.tuples(st.just("BYTES"), _SHAPE, st.lists(_BYTES, max_size=3)),
    max_size=3,
)
_DATATYPES = st.sampled_from(["FP32", "BF16", "BYTES", "INT8"])
_RAW = st.lists(st.tuples(_DATATYPES, _SHAPE, _BYTES), max_size=3)
_GRPC = st.builds(write_message, _TYPED, raw=st.just(False)) | st.builds(
    write_message, _RAW, raw=st.just(True)
)
_FILES = st.dictionaries(_TEXT, _BYTES | _TEXT.map(str.encode), min_size=1, max_size=3)
_PART = st.fixed_dictionaries({"type": st.just("text"), "text": _TEXT}) | _BASE64.map(
    lambda text: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
)
_TURN = st.fixed_dictionaries({"role": _TEXT, "content": _TEXT | st.lists(_PART, max_size=3)})
_LINES = st.lists(st.fixed_dictionaries({"input": _BASE64 | _JSON}), min_size=1, max_size=3)


def _make_instances_request(instances: list[Any], write: Callable[[Any], bytes]) -> SampleRequest:
    answer = orjson.dumps({"predictions": [0] * len(instances)})
    return SampleRequest(
        "kserve-v1", "/v1/models/m:predict", [write({"instances": instances})], answer
    )


def _make_lines_request(lines: list[Any], write: Callable[[Any], bytes]) -> SampleRequest:
    body = b"\n".join(write(line).replace(b"\n", b" ") for line in lines)
    answer = b"\n".join([b'{"output": []}'] * len(lines))
    return SampleRequest(
        "chariot-v2", "/infer", [body], answer, [("content-type", "application/jsonl")]
    )


def _make_prompts_request(
    prompts: list[Any], write: Callable[[Any], bytes], name: str, path: str, key: str
) -> SampleRequest:
    answer = {"choices": [{"index": at, "text": "x"} for at in range(len(prompts))]}
    return SampleRequest(name, path, [write({key: prompts})], orjson.dumps(answer))


def _prompts(*where: str) -> st.SearchStrategy[SampleRequest]:
    texts = st.lists(_TEXT, max_size=3)
    return st.builds(_make_prompts_request, texts, _WRITE, *map(st.just, where))


def _chats(name: str, path: str, key: str) -> st.SearchStrategy[SampleRequest]:
    turns = st.lists(_TURN, max_size=3)
    return st.builds(
        lambda turns, write: SampleRequest(name, path, [write({key: turns})]), turns, _WRITE
    )


REQUESTS: dict[str, st.SearchStrategy[SampleRequest]] = {
    "v2": st.builds(_make_v2_request, _TENSORS, _WRITE, st.just(Rules()))
    | st.builds(_make_v2_request, _IMAGES, _WRITE, st.just(VISION))
    | st.builds(_make_v2_request, _ROWS | _FLAT, _WRITE, st.just(Rules(batched=True)))
    | st.builds(write_binary, _RAW, write=_WRITE),
    "v2-grpc": _GRPC | _GRPC.map(lambda request: request._replace(path=STREAM)),
    "chariot-v2": st.builds(_make_lines_request, _LINES, _WRITE)
    | st.builds(
        lambda value, write: SampleRequest("chariot-v2", "/infer", [write(value)]), _JSON, _WRITE
    ),
    "kserve-v1": st.builds(_make_instances_request, st.lists(_JSON | _BASE64, max_size=3), _WRITE),
    "openai": _prompts("openai", "/v1/completions", "prompt")
    | _chats("openai", "/v1/chat/completions", "messages"),
    "openai-responses": _chats("openai-responses", "/v1/responses", "input"),
    "openai-embeddings": _prompts("openai-embeddings", "/v1/embeddings", "input"),
    "anthropic": _chats("anthropic", "/v1/messages", "messages"),
    "mlflow": _chats("mlflow", "/invocations", "messages"),
    "torchserve": st.binary(max_size=60).map(
        lambda body: SampleRequest("torchserve", "/predictions/m", [body])
    ),
    "omi": st.lists(_FILES, max_size=3).map(
        lambda items: SampleRequest("omi", "/ModzyModel/Run", [encode_run(*items)], b"")
    ),
    "raw": st.binary(max_size=60).map(lambda body: SampleRequest("raw", "/any", [body])),
    "raw-grpc": st.lists(_BYTES, max_size=3).map(
        lambda all: SampleRequest("raw-grpc", "/a/B", all)
    ),
}


@pytest.mark.parametrize("name", PROTOCOLS)
@given(st.data())
def test_any_request_is_rebuilt(name: str, data: st.DataObject) -> None:
    check_rebuilt(data.draw(REQUESTS[name]))


NUMBERS = [at / 8 for at in range(LARGE // 8)]
TEXT = "What a day; caf\u00e9s / bars. " * (LARGE // 20)
LARGE_IMAGE = IMAGE + bytes(range(256)) * (LARGE // 256)
"""Its base64 has each character that there is."""
CODED = base64.b64encode(LARGE_IMAGE).decode()
PACKED = struct.pack(f"<{len(NUMBERS)}f", *NUMBERS)
CHAT = [{"role": "system", "content": TEXT}, {"role": "user", "content": TEXT + "?"}]
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{CODED}"}}
TENSORS = [
    make_json_tensor("a", "FP64", NUMBERS),
    make_json_tensor("b", "BYTES", [TEXT, "x"]),
    make_json_tensor("c", "BYTES", ["y", "z"]),
]


def _make_chat_request(messages: Any, write: Callable[[Any], bytes]) -> SampleRequest:
    return SampleRequest("openai", "/v1/chat/completions", [write({"messages": messages})])


def _make_image_request(text: str, write: Callable[[Any], bytes]) -> SampleRequest:
    return _make_v2_request([make_json_tensor("a", "BYTES", [text])], write, VISION)


LARGE_REQUESTS = {
    "two tensors": _make_v2_request(TENSORS, _write_as_python, Rules()),
    "two binary tensors": write_binary([("FP32", [-1], PACKED), ("INT64", [-1], bytes(LARGE))]),
    "an instance of numbers": _make_instances_request(
        [{"a": NUMBERS, "b": [1.50]}], _write_as_python
    ),
    "instances of numbers": _make_instances_request([NUMBERS, NUMBERS[1:]], _write_indented),
    "an item of two files": SampleRequest(
        "omi", "/ModzyModel/Run", [encode_run({"a.png": LARGE_IMAGE, "b.txt": b"a text"})], b""
    ),
    "typed tensors": write_message(
        [("FP32", [-1], NUMBERS), ("INT64", [-1], range(LARGE // 8))], raw=False
    ),
    "raw tensors": write_message(
        [("FP32", [-1], PACKED), ("INT8", [-1], bytes(LARGE // 4))], raw=True
    ),
    "a chat with two images": _make_chat_request(
        [{"role": "user", "content": [PICTURE, PICTURE]}], _write_indented
    ),
    "an input that is an object": SampleRequest(
        "chariot-v2", "/infer", [_write_indented({"input": CHAT})]
    ),
    "base64 in an indented list": _make_image_request(CODED, _write_indented),
    "base64 as PHP writes it": _make_image_request(CODED, _write_as_php),
    "base64 as .NET writes it": _make_image_request(CODED, _write_as_dotnet),
}
ROWS = [[at / 4, at / 8, at / 16, -at / 32] for at in range(400)]
"""So many that looking for each in the whole request would take too long."""


TWO_TENSORS = [make_json_tensor("a", "FP64", ROWS), make_json_tensor("b", "FP64", ROWS[::-1])]
LARGE_BATCHES = {
    "rows": _make_v2_request(TWO_TENSORS[:1], _write_as_python, BATCHED),
    "rows of two tensors": _make_v2_request(TWO_TENSORS, _write_as_python, BATCHED),
    "typed rows of two tensors": write_message(
        [("FP32", [len(ROWS), 4], [*chain.from_iterable(ROWS)])] * 2, BATCHED, raw=False
    ),
    "instances": _make_instances_request(ROWS, _write_as_python),
}


IMAGE_TEXT = base64.b64encode(IMAGE).decode()
PARAMETERS = json.dumps({"metadata": json.dumps([{"key": "k", "type": "int", "value": "1"}])})


def write_inputs(rules: Rules, *inputs: tuple[str, ...]) -> SampleRequest:
    """Make a request as documents write it, of the data, shape and datatype of inputs."""
    written = []
    for data, shape, datatype in inputs:
        about = f'"shape" : {shape},\n  "datatype" : "{datatype}",\n  "parameters" : {PARAMETERS}'
        written.append(f'{{\n  "name" : "in",\n  {about},\n  "data" : {data}\n}}')
    body = '{ "id" : "42",\n "inputs" : [%s],\n "outputs" : [{"name" : "out"}] }'
    return SampleRequest("v2", INFER_REST, [(body % ", ".join(written)).encode()], rules=rules)


# each with the number of its data
WRITTEN: list[tuple[int, Rules, list[tuple[str, str, str]]]] = [
    (1, VISION, [(f'["{IMAGE_TEXT}"]', "[4, 3, 1]", "BYTES")]),
    (2, VISION, [(f'["{text}"]', "[ 1 ]", "BYTES") for text in (IMAGE_TEXT, IMAGE_TEXT[:-8])]),
    (1, BATCHED, [("[1, 2, 3, 4]", "[2, 2]", "UINT32"), ("[true]", "[ 1 ]", "BOOL")]),
    (1, UNKNOWN, [('"caf\\u00e9 \\ud83d\\ude01"', "[ 1 ]", "BYTES")]),
    (3, BATCHED, [("[1, 2, 3, 4, 5, 6]", "[3, 2]", "FP32"), ("[7, 8, 9]", "[3]", "INT64")]),
    (2, BATCHED, [("[ [1, 2], [3, 4] ]", "[ 2, 2 ]", "UINT32")]),
    (2, BATCHED, [("[ 1, 2, 3, 4 ]", "[ 2, 2 ]", "UINT32")]),
    (2, BATCHED, [("[1,2,3,4]", "[2,2]", "INT8")]),
    (2, BATCHED, [("[\n 1.0,\n -2,\n null,\n 4e0\n]", "[2, 2]", "FP64")]),
    (2, BATCHED, [('["a", "b", "b","c"]', "[2, 2]", "BYTES")]),
    (2, BATCHED, [('["a", "b"]', "[2]", "BYTES")]),
]
BROKEN = b'{"inputs": [{"data": [1], "metadata": "{"a": 1}"}]}'
GENERATE = b'{"text_input" :  "a", "parameters" : {"top_k": 0}}'
OTHERS_WRITTEN = {
    "metadata that break the JSON": SampleRequest("v2", INFER_REST, [BROKEN]),
    "generate": SampleRequest("v2", "/v2/models/m/generate", [GENERATE]),
    "a binary tensor alone": make_sized_request(b"", bytes(range(16)), BATCHED),
}


def test_requests_are_rebuilt(subtests: pytest.Subtests) -> None:
    """Large ones, whose content is not a second time beside the metadata, those of many data, and
    those that documents write."""
    cases: dict[str, tuple[SampleRequest, int | None]] = {
        **{name: (request, None) for name, request in LARGE_REQUESTS.items()},
        **{name: (request, len(ROWS)) for name, request in LARGE_BATCHES.items()},
        **{name: (request, 1) for name, request in OTHERS_WRITTEN.items()},
        **{str(inputs): (write_inputs(rules, *inputs), n) for n, rules, inputs in WRITTEN},
    }
    for name, (request, count) in cases.items():
        with subtests.test(name):
            check_rebuilt(request, count=count)


def test_says_why_a_request_is_not_kept() -> None:
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (b"x" * (MOST_BYTES + 1), {}, "over"),
        (b"no gzip", {"request_headers": [("content-encoding", "gzip")]}, "is not gzip"),
        (b"", {"request": Body(size=7, whole=False)}, "over a cap"),
    ]
    for body, changes, why in cases:
        reading = Reading(inferences=[Inference()])
        (request,) = build_requests(exchange(body, **changes), reading, (), limit=1 << 24)
        assert request["messages"] is None
        assert why in request["why"]
    flat = SampleRequest("v2", "/v2/models/m/generate", [b'{"a": "x", "b": "y"}'], rules=VISION)
    requests = capture_request(flat._replace(answer=b"")).requests
    assert len(requests) == 2
    assert "generate" in requests[1]["why"]

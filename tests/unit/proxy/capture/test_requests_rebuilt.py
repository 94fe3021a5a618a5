"""Every request is rebuilt from its blobs, byte for byte, whatever protocol it is of."""

import base64
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.grpc_messages import message
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.proxy.rules import Rules
from tests.exchanges import png

from .sample_requests import (
    BATCHED,
    INFER,
    INFER_REST,
    STREAM,
    UNKNOWN,
    VISION,
    SampleRequest,
    check_rebuilt,
    encode_run,
    make_binary_request,
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
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _SINGLES | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=10,
)


def make_json_tensor(name: str, datatype: str, data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}


def make_outputs(count: int) -> bytes:
    return orjson.dumps(
        {"outputs": [make_json_tensor(f"o{at}", "BYTES", ["x"]) for at in range(count)]}
    )


def make_tensors_request(
    tensors: Sequence[tuple[str, bytes]], write: Callable[[Any], bytes] = orjson.dumps
) -> SampleRequest:
    """Make a V2 request with the tensors behind the JSON."""
    sizes = [
        {"name": f"t{at}", "datatype": datatype, "shape": [-1]}
        | {"parameters": {"binary_data_size": len(raw)}}
        for at, (datatype, raw) in enumerate(tensors)
    ]
    return make_binary_request(write({"inputs": sizes}), b"".join(raw for _, raw in tensors))


def make_grpc_request(tensors: Sequence[tuple[str, Any]], *, raw: bool) -> bytes:
    """Make a gRPC request. `raw`: contents are bytes; otherwise lists of values of the datatype."""
    names = {"BYTES": "bytes", "FP32": "fp32", "INT64": "int64", "INT32": "int", "BOOL": "bool"}
    built = message("inference.ModelInferRequest")(model_name="m")
    for at, (datatype, content) in enumerate(tensors):
        tensor = built.inputs.add(name=f"t{at}", datatype=datatype, shape=[-1])
        if raw:
            built.raw_input_contents.append(content)
        else:
            getattr(tensor.contents, f"{names[datatype]}_contents").extend(content)
    return bytes(built.SerializeToString())


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
_TYPED = st.lists(
    st.tuples(st.just("FP32"), st.lists(_SINGLES, max_size=20))
    | st.tuples(st.just("INT64"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
    | st.tuples(st.just("BYTES"), st.lists(_BYTES, max_size=3)),
    max_size=3,
)
_RAW = st.lists(st.tuples(st.sampled_from(["FP32", "BF16", "BYTES", "INT8"]), _BYTES), max_size=3)
_GRPC = _TYPED.map(lambda tensors: make_grpc_request(tensors, raw=False)) | _RAW.map(
    lambda tensors: make_grpc_request(tensors, raw=True)
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


def _make_prompts_request(prompts: list[Any], write: Callable[[Any], bytes]) -> SampleRequest:
    answer = {"choices": [{"index": at, "text": "x"} for at in range(len(prompts))]}
    return SampleRequest(
        "openai", "/v1/completions", [write({"prompt": prompts})], orjson.dumps(answer)
    )


REQUESTS: dict[str, st.SearchStrategy[SampleRequest]] = {
    "v2": st.builds(_make_v2_request, _TENSORS, _WRITE, st.just(Rules()))
    | st.builds(_make_v2_request, _IMAGES, _WRITE, st.just(VISION))
    | st.builds(_make_v2_request, _ROWS | _FLAT, _WRITE, st.just(Rules(batched=True)))
    | st.builds(make_tensors_request, _RAW, _WRITE),
    "v2-grpc": _GRPC.map(lambda body: SampleRequest("v2-grpc", INFER, [body], b""))
    | st.lists(_GRPC, min_size=1, max_size=3).map(
        lambda all: SampleRequest("v2-grpc", STREAM, all, b"")
    ),
    "chariot-v2": st.builds(_make_lines_request, _LINES, _WRITE)
    | st.builds(
        lambda value, write: SampleRequest("chariot-v2", "/infer", [write(value)]), _JSON, _WRITE
    ),
    "kserve-v1": st.builds(_make_instances_request, st.lists(_JSON | _BASE64, max_size=3), _WRITE),
    "openai": st.builds(_make_prompts_request, st.lists(_TEXT, max_size=3), _WRITE)
    | st.builds(
        lambda turns, write: SampleRequest(
            "openai", "/v1/chat/completions", [write({"messages": turns})]
        ),
        st.lists(_TURN, max_size=3),
        _WRITE,
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
LINES = base64.encodebytes(LARGE_IMAGE).decode()
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


def _make_grpc(body: bytes, rules: Rules = UNKNOWN) -> SampleRequest:
    return SampleRequest("v2-grpc", INFER, [body], b"", rules=rules)


def _make_image_request(text: str, write: Callable[[Any], bytes]) -> SampleRequest:
    return _make_v2_request([make_json_tensor("a", "BYTES", [text])], write, VISION)


LARGE_REQUESTS = {
    "two tensors": _make_v2_request(TENSORS, _write_as_python, Rules()),
    "two binary tensors": make_tensors_request([("FP32", PACKED), ("INT64", bytes(LARGE))]),
    "a text beside a large tensor": make_tensors_request(
        [("BYTES", b"\1\0\0\0x"), ("UINT8", bytes(range(256)) * 500)]
    ),
    "an instance of numbers": _make_instances_request(
        [{"a": NUMBERS, "b": [1.50]}], _write_as_python
    ),
    "instances of numbers": _make_instances_request([NUMBERS, NUMBERS[1:]], _write_indented),
    "an item of two files": SampleRequest(
        "omi", "/ModzyModel/Run", [encode_run({"a.png": bytes(LARGE), "b.txt": TEXT.encode()})], b""
    ),
    "typed tensors": _make_grpc(
        make_grpc_request([("FP32", NUMBERS), ("INT64", list(range(LARGE // 8)))], raw=False)
    ),
    "raw tensors": _make_grpc(
        make_grpc_request([("FP32", PACKED), ("INT8", bytes(LARGE // 4))], raw=True)
    ),
    "a chat": _make_chat_request(CHAT, _write_as_php),
    "a chat with two images": _make_chat_request(
        [{"role": "user", "content": [PICTURE, PICTURE]}], _write_indented
    ),
    "an input that is an object": SampleRequest(
        "chariot-v2", "/infer", [_write_indented({"input": CHAT})]
    ),
    "base64 as PHP writes it": _make_image_request(CODED, _write_as_php),
    "base64 as .NET writes it": _make_image_request(CODED, _write_as_dotnet),
    "base64 in lines": _make_image_request(LINES, _write_as_python),
    "base64 in lines, as MIME has it": _make_image_request(
        LINES.replace("\n", "\r\n"), orjson.dumps
    ),
    "base64 in lines, as PHP writes it": _make_image_request(LINES, _write_as_php),
}
ROWS = [[at / 4, at / 8, at / 16, -at / 32] for at in range(400)]
"""So many that looking for each in the whole request would take too long."""


def _make_grpc_batch() -> SampleRequest:
    built = message("inference.ModelInferRequest")(model_name="m")
    for name in "ab":
        tensor = built.inputs.add(name=name, datatype="FP32", shape=[len(ROWS), 4])
        tensor.contents.fp32_contents.extend(value for row in ROWS for value in row)
    return _make_grpc(bytes(built.SerializeToString()), BATCHED)


TWO_TENSORS = [make_json_tensor("a", "FP64", ROWS), make_json_tensor("b", "FP64", ROWS[::-1])]
LARGE_BATCHES = {
    "rows": _make_v2_request(TWO_TENSORS[:1], _write_as_python, BATCHED),
    "rows of two tensors": _make_v2_request(TWO_TENSORS, _write_as_python, BATCHED),
    "typed rows of two tensors": _make_grpc_batch(),
    "instances": _make_instances_request(ROWS, _write_as_python),
}


def test_a_batch_of_many_is_rebuilt(subtests: pytest.Subtests) -> None:
    for name, request in LARGE_BATCHES.items():
        with subtests.test(name):
            check_rebuilt(request, count=len(ROWS))


def test_a_large_request_is_rebuilt(subtests: pytest.Subtests) -> None:
    """Its content is in the data, and not a second time beside the metadata."""
    for name, request in LARGE_REQUESTS.items():
        with subtests.test(name):
            check_rebuilt(request)

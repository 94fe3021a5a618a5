"""Whatever went through: it is read without an error, and nothing of the datum is lost."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_store.inference.json_text import read_json
from inference_store.inference.stored_requests import CODES
from inference_store.inference.task_types import TASK_TYPES, read_predictions, task_type_of
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols import PROTOCOLS, Reading
from inference_store.proxy.protocols.protocol import Model
from tests.properties import draw_json, examples

from .exchanged import make_body, make_exchange, read_by
from .v2.calls import JPEG, make_text_tensor, prefix_lengths, read

_WORDS = (
    "model messages role content type text image_url url prompt choices index delta message "
    "finish_reason usage prompt_tokens total_tokens tool_calls function name arguments error "
    "metadata stream instances predictions explanations b64 image input output parameters action "
    "prompts detail id input_audio data format file file_data inputs outputs shape datatype "
    "binary_data_size model_name text_input"
)
_NAMES = st.sampled_from(_WORDS.split()) | st.text(max_size=3)
_DATATYPES = st.sampled_from([*CODES, "BYTES", "FP8", ""])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**25)
    | st.floats()
    | st.text(max_size=6)
    | _DATATYPES
    | st.sampled_from(["image_url", "text", "input_audio", "data:image/png;base64,aGk=", "aGk="])
)
_JSON = draw_json(_SCALARS, _NAMES, leaves=25)
_HUGE = st.sampled_from([-(2**63), 2**31, 2**63 - 1, 2**64, 10**30])
_SIZES = st.integers(-1, 20) | _HUGE
_TENSORS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=3), "datatype": _DATATYPES},
        optional={
            "shape": st.lists(_SIZES, max_size=3) | _JSON,
            "data": st.lists(_SCALARS | st.lists(_SCALARS, max_size=2), max_size=3) | _JSON,
            "parameters": st.fixed_dictionaries(
                {},
                optional={
                    "binary_data_size": _SIZES,
                    "metadata": _JSON,
                    "content_type": st.just("base64") | _JSON,
                },
            ),
        },
    ),
    max_size=3,
)
_PARTS = st.lists(st.dictionaries(_NAMES, _JSON, max_size=3) | _JSON, max_size=3)
_TURN = st.fixed_dictionaries({"role": _JSON, "content": _PARTS})
_CHOICE = st.dictionaries(
    st.sampled_from(["index", "text", "delta", "message", "finish_reason"]), _JSON, max_size=5
)
_LISTED = st.sampled_from(["instances", "predictions", "prompt", "input", "output"])
_EVENT_NAMES = st.sampled_from(
    ["type", "index", "delta", "content_block", "message", "response", "content", "output", "usage"]
)
_KINDS = (
    "message_start content_block_start content_block_delta message_delta message_stop tool_use "
    "response.output_text.delta response.completed function_call error"
)
_EVENT = st.sampled_from(_KINDS.split()) | st.dictionaries(_EVENT_NAMES, _JSON, max_size=4)
DOCUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "v2": st.fixed_dictionaries(
        {},
        optional={
            "inputs": _TENSORS,
            "outputs": _TENSORS,
            "parameters": _JSON,
            "id": _SCALARS,
            "error": _JSON,
            "text_input": _JSON,
        },
    ),
    "openai": st.fixed_dictionaries({"messages": st.lists(_TURN | _JSON)})
    | st.fixed_dictionaries({"choices": st.lists(_CHOICE, max_size=3)}),
    "openai-responses": st.dictionaries(_EVENT_NAMES, _JSON | _EVENT, max_size=5),
    "anthropic": st.dictionaries(_EVENT_NAMES, _JSON | _EVENT, max_size=5),
}
_ANY_DOCUMENT = _JSON | st.dictionaries(_LISTED, st.lists(_JSON, max_size=4))
_ODD_TEXTS = st.sampled_from(
    [b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff\xfe{\x00}\x00", b"[" * 500, b'{"messages":' * 200]
)
_TAILS = st.binary(max_size=24) | st.lists(st.binary(max_size=5)).map(
    lambda elements: prefix_lengths(*elements)
)
_HEADERS = st.lists(
    st.sampled_from(
        [
            ("content-type", "application/json"),
            ("content-type", "application/jsonl"),
            ("content-type", "text/event-stream"),
            ("content-type", "image/png"),
            ("content-encoding", "deflate, br"),
            ("chariot-inference-parameters", '{"metadata": [1]}'),
            ("chariot-inference-parameters", "\xff{"),
        ]
    ),
    max_size=2,
)
CODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
_PATH = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/v1/models/m:predict", "/infer", "/x:explain"]
    + ["/v1/embeddings", "/v1/responses", "/v1/messages", "/invocations", "/predictions/m"]
    + [f"/v2/models/m/{call}" for call in ("infer", "infer_stream", "generate", "generate_stream")]
)
_MODELS = st.builds(
    Model,
    task_type=st.none() | st.sampled_from([*sorted(TASK_TYPES), "odd"]),
    batched=st.booleans(),
)
REST = [name for name, protocol in PROTOCOLS.items() if protocol.transport == "rest"]


@st.composite
def _contents(draw: st.DrawFn, name: str) -> tuple[bytes, Headers]:
    """A body of a protocol and its headers: right, nearly right, or anything."""
    documents = DOCUMENTS.get(name, _ANY_DOCUMENT) | _ANY_DOCUMENT
    texts = documents.map(lambda document: json.dumps(document).encode()) | _ODD_TEXTS
    lines = st.lists(texts, max_size=3).map(b"\n".join)
    content, headers = draw(texts | lines | st.binary(max_size=60)), list(draw(_HEADERS))
    length = draw(st.sampled_from(["none", "right", "odd"]))
    if length == "right":
        headers.append(("inference-header-content-length", str(len(content))))
        content += draw(_TAILS)
    elif length == "odd":
        odd = draw(st.text(max_size=4) | (st.integers(-2, 99) | _HUGE).map(str))
        headers.append(("inference-header-content-length", odd))
    if draw(st.booleans()):
        events = [b"data: " + content.replace(b"\n", b"\ndata: "), draw(st.binary(max_size=20))]
        content = b"\n\n".join(events)
    coding = draw(st.sampled_from(sorted(CODERS)))
    if coding:
        headers.append(("content-encoding", draw(st.sampled_from([coding, coding, "gzip"]))))
    coded = CODERS[coding](content)
    return draw(st.sampled_from([coded, coded, coded[: len(coded) // 2]])), headers


def assert_sound(reading: Reading, task_type: str | None) -> None:
    """Check that each has data or a reason for having none, and that JSON is valid."""
    assert reading.inferences
    orjson.dumps(dict(reading.standard), default=str)
    for inference in reading.inferences:
        assert inference.data is not None or reading.problem is not None
        for envelope in inference.metadata:
            read_json(envelope)
        if inference.response is not None:
            chosen = task_type_of(task_type or reading.task_type)
            read_predictions(inference.response, task_type=chosen)


@pytest.mark.parametrize("name", REST)
@settings(max_examples=examples(300))
@given(st.data(), _PATH, _MODELS, st.sampled_from([None, 200, 400, 503]), st.booleans())
def test_every_exchange_is_read(
    name: str, data: st.DataObject, path: str, model: Model, status: int | None, whole: bool
) -> None:
    request, sent = data.draw(_contents(name))
    answer, answered = data.draw(_contents(name))
    sample = make_exchange(path, request, answer, sent=sent, answered=answered, status=status)
    sample.response = make_body(answer, whole=whole)
    reading = read_by(name, sample, task_type=model.task_type, batched=model.batched)
    assert_sound(reading, model.task_type)


@pytest.mark.parametrize("name", [name for name in REST if PROTOCOLS[name].strip])
@settings(max_examples=examples(300))
@given(st.data())
def test_every_request_is_stripped_or_left(name: str, data: st.DataObject) -> None:
    strip = PROTOCOLS[name].strip
    assert strip is not None
    stripped_call = strip(*data.draw(_contents(name)))
    if stripped_call is not None:
        assert strip(*stripped_call) is None


@given(st.text(), st.sampled_from(["GET", "POST"]))
def test_every_path_is_recognised_or_not(path: str, method: str) -> None:
    for prefix in ("", "/v1/models/", "/v1/", "/v2/"):
        for protocol in PROTOCOLS.values():
            protocol.recognise(method, prefix + path)


def test_a_large_request_of_v2_is_read() -> None:
    """Large ones take no stack."""
    texts = {
        "deep": b'{"inputs": ' + b'[{"a":' * 60 + b"1" + b"}]" * 60 + b"}",
        "many": b'{"inputs": [{"datatype": "FP32", "data": [' + b"0.5," * 60_000 + b"1]}]}",
        "strings": b'{"inputs": [{"datatype": "BYTES", "data": [' + b'"a",' * 60_000 + b'"b"]}]}',
        "nested": b'{"inputs": [{"datatype": "INT8", "data": [' + b"[1]," * 40_000 + b"[1]]}]}",
        "escaped": b'{"inputs": [{"datatype": "BYTES", "data": ["' + b"\\n" * 100_000 + b'"]}]}',
    }
    outputs = {"outputs": [make_text_tensor(JPEG.hex())]}
    for content in texts.values():
        for model in (Model(), Model(task_type="object_detection", batched=True)):
            assert_sound(read(content, outputs, model), None)

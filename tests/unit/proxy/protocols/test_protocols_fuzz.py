"""Whatever went through: it is read without an error, and nothing of the datum is lost."""

import gzip
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.inference.json_text import read_json
from inference_store.inference.task_types import TASK_TYPES, read_predictions, task_type_of
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols import PROTOCOLS, Reading

from .exchanged import make_exchange, read_by

# Other work on the machine must not fail a test.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_WORDS = (
    "model messages role content type text image_url url prompt choices index delta message "
    "finish_reason usage prompt_tokens total_tokens tool_calls function name arguments error "
    "metadata stream instances predictions explanations b64 image input output parameters action "
    "prompts detail id input_audio data format file file_data"
)
_NAMES = st.sampled_from(_WORDS.split()) | st.text(max_size=3)
_SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(["image_url", "text", "input_audio", "data:image/png;base64,aGk=", "aGk="])
)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=25,
)
_PARTS = st.lists(st.dictionaries(_NAMES, _VALUE, max_size=3) | _VALUE, max_size=3)
_CHOICE = st.dictionaries(
    st.sampled_from(["index", "text", "delta", "message", "finish_reason"]), _VALUE, max_size=5
)
_CHAT = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"role": _VALUE, "content": _PARTS}) | _VALUE)}
)
_ANSWER = st.fixed_dictionaries({"choices": st.lists(_CHOICE, max_size=3)})
_LISTED = st.sampled_from(["instances", "predictions", "prompt", "input", "output"])
_DOCUMENT = _VALUE | _CHAT | _ANSWER | st.dictionaries(_LISTED, st.lists(_VALUE, max_size=4))


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer that it does not write
        return b'{"choices": 123456789012345678901234567890}'


_TEXT = _DOCUMENT.map(_json) | st.sampled_from(
    [b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff\xfe{\x00}\x00", b"[" * 500, b'{"messages":' * 200]
)
_LINES = st.lists(_TEXT, max_size=3).map(b"\n".join)
_EVENTS = st.lists(_TEXT, max_size=4).map(
    lambda texts: b"".join(b"data: " + text + b"\n\n" for text in texts)
)
_BODY = _TEXT | _LINES | _EVENTS | st.binary(max_size=40) | _TEXT.map(gzip.compress)
_HEADERS = st.lists(
    st.sampled_from(
        [
            ("content-type", "application/json"),
            ("content-type", "application/jsonl"),
            ("content-type", "text/event-stream"),
            ("content-type", "image/png"),
            ("content-encoding", "gzip"),
            ("content-encoding", "deflate, br"),
            ("chariot-inference-parameters", '{"metadata": [1]}'),
            ("chariot-inference-parameters", "\xff{"),
        ]
    ),
    max_size=3,
)
_PATH = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/v1/models/m:predict", "/infer", "/x:explain"]
)
_TASK_TYPE = st.none() | st.sampled_from(sorted(TASK_TYPES))
_STATUS = st.sampled_from([None, 200, 400, 503])
# V2's readers have fuzzers of their own.
REST = [
    name
    for name, protocol in PROTOCOLS.items()
    if protocol.transport == "rest" and not name.startswith("v2")
]


def _is_sound(reading: Reading, task_type: str | None) -> None:
    assert reading.inferences
    orjson.dumps(dict(reading.standard))
    for inference in reading.inferences:
        assert inference.data is not None
        for envelope in inference.metadata:
            read_json(envelope)
        if inference.response is not None:
            read_json(inference.response)
            chosen = task_type_of(task_type or reading.task_type)
            read_predictions(inference.response, task_type=chosen)


def _make_exchange(
    path: str, request: bytes, response: bytes, sent: Any, answered: Any
) -> Exchange:
    return make_exchange(path, request, response, sent=sent, answered=answered)


@pytest.mark.parametrize("name", REST)
@_UNHURRIED
@given(_PATH, _BODY, _BODY, _HEADERS, _HEADERS, _TASK_TYPE, _STATUS, st.booleans())
def test_every_exchange_is_read(
    name: str,
    path: str,
    request: bytes,
    response: bytes,
    sent: Any,
    answered: Any,
    task_type: str | None,
    status: int | None,
    whole: bool,
) -> None:
    sample = _make_exchange(path, request, response, sent, answered)
    sample.http_status, sample.response.whole = status, whole
    _is_sound(read_by(name, sample, task_type=task_type), task_type)


@pytest.mark.parametrize("name", [name for name in REST if PROTOCOLS[name].strip])
@_UNHURRIED
@given(_BODY, _HEADERS)
def test_every_request_is_stripped_or_left(name: str, body: bytes, headers: Any) -> None:
    strip = PROTOCOLS[name].strip
    assert strip is not None
    stripped_call = strip(body, headers)
    if stripped_call is not None:
        assert strip(*stripped_call) is None


@given(st.text(), st.sampled_from(["GET", "POST"]))
def test_every_path_is_recognised_or_not(path: str, method: str) -> None:
    for prefix in ("", "/v1/models/", "/v1/"):
        for protocol in PROTOCOLS.values():
            protocol.recognise(protocol, method, prefix + path)

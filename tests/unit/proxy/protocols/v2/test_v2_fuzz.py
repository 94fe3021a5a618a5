"""Whatever comes: nothing is raised, and nothing is lost without a word."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.protocols.protocol import Model, Reading
from inference_store.proxy.protocols.v2 import V2_REST, strip
from inference_store.proxy.protocols.v2.tensor_reading import read_inferences
from inference_store.proxy.protocols.v2.tensors import (
    CODES,
    InferRequest,
    InferResponse,
    Tensor,
)
from tests.properties import examples

from .calls import JPEG, make_exchange, make_text_tensor, prefix_lengths, read_exchange

_MODELS = st.builds(
    Model,
    task_type=st.sampled_from([None, "object_detection", "text_generation", "tabular", "odd"]),
    batched=st.booleans(),
)
_PATHS = st.sampled_from(
    [f"/v2/models/m/{call}" for call in ("infer", "infer_stream", "generate", "generate_stream")]
)
_NAMES = st.sampled_from(
    [
        *("inputs", "outputs", "data", "shape", "datatype", "name", "parameters", "metadata"),
        *("binary_data_size", "error", "model_name", "text_input", "prompts", "action", "id"),
    ]
)
_DATATYPES = st.sampled_from([*CODES, "BYTES", "BF16", ""])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**25)
    | st.floats()
    | st.text(max_size=6)
    | _DATATYPES
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=25,
)
_HUGE = st.sampled_from([-(2**63), 2**31, 2**63 - 1, 2**64, 10**30])
_SIZES = st.integers(-1, 20) | _HUGE
_TENSOR = st.fixed_dictionaries(
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
)
_ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(_TENSOR, max_size=3),
        "outputs": st.lists(_TENSOR, max_size=3),
        "parameters": _JSON,
        "id": _SCALARS,
        "error": _JSON,
        "text_input": _JSON,
    },
)
_DOCUMENTS = (_JSON | _ENVELOPES).map(lambda document: json.dumps(document).encode())
_TAILS = st.binary(max_size=24) | st.lists(st.binary(max_size=5)).map(
    lambda elements: prefix_lengths(*elements)
)


@st.composite
def _contents(draw: st.DrawFn) -> tuple[bytes, Headers]:
    """A body and its headers: right, nearly right, or anything."""
    content, headers = draw(st.binary(max_size=60) | _DOCUMENTS), []
    length = draw(st.sampled_from(["right", "none", "odd"]))
    if length == "right":
        headers.append(("inference-header-content-length", str(len(content))))
        content += draw(_TAILS)
    elif length == "odd":
        odd = draw(st.text(max_size=4) | (st.integers(-2, 99) | _HUGE).map(str))
        headers.append(("inference-header-content-length", odd))
    if draw(st.booleans()):
        events = [b"data: " + content.replace(b"\n", b"\ndata: "), draw(st.binary(max_size=20))]
        content = b"\n\n".join(events)
    coding = draw(st.sampled_from(["", "gzip", "deflate", "wrong", "br"]))
    if coding:
        headers.append(("content-encoding", "gzip" if coding == "wrong" else coding))
    coders: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
    coded = coders.get(coding, bytes)(content)
    return draw(st.sampled_from([coded, coded, coded[: len(coded) // 2]])), headers


def assert_sound(result: Reading) -> None:
    """Check that each has data or a reason for having none, and that JSON is valid."""
    assert len(result.inferences) >= 1
    assert result.problem is not None or all(
        inference.data is not None for inference in result.inferences
    )
    for inference in result.inferences:
        for text in inference.metadata:
            json.loads(text.decode("utf-8", "surrogateescape"))


@settings(max_examples=examples(400))
@given(request_and_headers=_contents(), response_and_headers=_contents(), model=_MODELS,
       path=_PATHS, status=st.sampled_from([200, 400, 500]), whole=st.booleans())  # fmt: skip
def test_any_exchange_is_read(
    request_and_headers: tuple[bytes, Headers],
    response_and_headers: tuple[bytes, Headers],
    model: Model,
    path: str,
    status: int,
    whole: bool,
) -> None:
    (request, request_headers), (response, response_headers) = (
        request_and_headers,
        response_and_headers,
    )
    sample = make_exchange(
        request, response, path=path, status=status,
        request_headers=request_headers, response_headers=response_headers,
    )  # fmt: skip
    sample.response = Body(parts=[response] if response else [], size=9, whole=whole)
    assert_sound(read_exchange(sample, model))


@settings(max_examples=examples(300))
@given(content=_contents())
def test_any_body_is_stripped_or_left_alone(content: tuple[bytes, Headers]) -> None:
    stripped_call = strip(*content)
    assert stripped_call is None or strip(*stripped_call) is None


@given(method=st.sampled_from(["POST", "GET"]), path=st.text() | st.text().map("/v2/{}".format))
def test_any_path_is_a_call_or_none(method: str, path: str) -> None:
    V2_REST.recognise(V2_REST, method, path)


_VALUES: st.SearchStrategy[Any] = st.lists(
    st.booleans() | st.integers() | st.floats() | st.binary(max_size=4), max_size=4
)
_TENSORS = st.lists(
    st.builds(
        Tensor,
        name=st.text(max_size=3),
        datatype=_DATATYPES,
        shape=st.lists(st.integers(-2, 5), max_size=3).map(tuple),
    )
    | st.builds(Tensor, datatype=_DATATYPES, raw=_TAILS, shape=st.just((2,)))
    | st.builds(Tensor, datatype=_DATATYPES, values=_VALUES, shape=st.just((-1, 2))),
    max_size=3,
)


@settings(max_examples=examples(300))
@given(request=_TENSORS, response=_TENSORS, model=_MODELS, stream=st.booleans())
@example([], [], Model(), False)
def test_any_tensors_are_read(
    request: list[Tensor], response: list[Tensor], model: Model, stream: bool
) -> None:
    result = read_inferences(
        InferRequest(inputs=request), InferResponse(outputs=response), model, stream=stream
    )
    assert_sound(result)
    for inference in result.inferences:
        assert len(json.loads(inference.response or b"")["outputs"]) <= len(response)


def test_a_megabyte_of_each_is_read() -> None:
    """Large ones take no stack and no minutes."""
    deep = b'{"inputs": ' + b'[{"a":' * 60 + b"1" + b"}]" * 60 + b"}"
    many = b'{"inputs": [{"datatype": "FP32", "data": [' + b"0.5," * 300_000 + b"1]}]}"
    strings = b'{"inputs": [{"datatype": "BYTES", "data": [' + b'"a",' * 300_000 + b'"b"]}]}'
    nested = b'{"inputs": [{"datatype": "INT8", "data": [' + b"[1]," * 200_000 + b"[1]]}]}"
    escaped = b'{"inputs": [{"datatype": "BYTES", "data": ["' + b"\\n" * 500_000 + b'"]}]}'
    for content in (deep, many, strings, nested, escaped):
        for model in (Model(), Model(task_type="object_detection", batched=True)):
            result = read_exchange(
                make_exchange(content, {"outputs": [make_text_tensor(JPEG.hex())]}), model
            )
            assert_sound(result)

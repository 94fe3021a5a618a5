"""Messages become the tensors that REST has too; what is no message is kept whole."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.protocols.protocol import Model, Reading
from inference_store.proxy.protocols.tensors import decode_raw
from inference_store.proxy.protocols.v2_grpc import find_dialect, request_in, response_in
from tests.unit.proxy.protocols.exchanged import list_data
from tests.unit.proxy.protocols.v2_grpc.calls import (
    INFER,
    JPEG,
    STREAM,
    Request,
    Response,
    StreamResponse,
    make_request,
    make_response,
    read_exchange,
)

VISION = Model(task_type="OBJECT_DETECTION")


def test_typed_contents() -> None:
    for datatype, member, values in (
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-5]),
        ("INT32", "int_contents", [1 << 30]),
        ("INT64", "int64_contents", [-(1 << 63)]),
        ("UINT8", "uint_contents", [255]),
        ("UINT16", "uint_contents", [1]),
        ("UINT32", "uint_contents", [(1 << 32) - 1]),
        ("UINT64", "uint64_contents", [(1 << 64) - 1]),
        ("FP32", "fp32_contents", [0.5, -2.0]),
        ("FP64", "fp64_contents", [0.1]),
        ("BYTES", "bytes_contents", [b"\xff", b""]),
        ("SOMETHING", "fp32_contents", [0.25]),
    ):
        written = Request()
        tensor = written.inputs.add(name="x", datatype=datatype, shape=[len(values)])
        getattr(tensor.contents, member).extend(values)
        result = request_in(written.SerializeToString())
        (read,) = result.value.tensors
        assert (read.name, read.datatype, read.shape) == ("x", datatype, (len(values),))
        if datatype == "SOMETHING":
            assert (read.raw, read.data) == (None, b"[0.25]")
        else:
            assert list(decode_raw(datatype, read.raw) or ()) == values


def add_tensors(tensors: Any, *names: str) -> Any:
    """Add tensors of numbers without contents. Return the last one."""
    return [tensors.add(name=name, datatype="UINT8", shape=[1]) for name in names][-1]


def test_raw_contents_belong_to_tensors_in_order() -> None:
    written = Response(raw_output_contents=[b"\1\2", b"\3"])
    add_tensors(written.outputs, "a", "b")
    result = response_in(written.SerializeToString())
    assert [output.raw for output in result.value.tensors] == [b"\1\2", b"\3"]
    assert result.problem is None


def test_a_tensor_in_shared_memory_has_no_raw_contents() -> None:
    written = Request(raw_input_contents=[b"\3"])
    shared = add_tensors(written.inputs, "a")
    shared.parameters["shared_memory_region"].string_param = "r"
    add_tensors(written.inputs, "b")
    result = request_in(written.SerializeToString())
    assert [tensor.raw for tensor in result.value.tensors] == [None, b"\3"]
    assert result.problem is None


def test_reports_raw_contents_of_another_number() -> None:
    for raw in ([b"\1"], [b"\1", b"\2", b"\3"]):
        written = Request(raw_input_contents=raw)
        add_tensors(written.inputs, "a", "b")
        problem = read_exchange([written]).problem
        assert problem == f"the request has {len(raw)} raw contents for 2 tensors"


def test_every_kind_of_parameter() -> None:
    written = Request()
    parameters = written.parameters
    parameters["bool"].bool_param = True
    parameters["int"].int64_param = -(1 << 63)
    parameters["string"].string_param = 'a "text"'
    parameters["double"].double_param = 0.1
    parameters["uint"].uint64_param = (1 << 64) - 1
    parameters["none"].SetInParent()
    result = request_in(written.SerializeToString())
    assert dict(result.value.parameters) == {
        "bool": b"true",
        "int": b"-9223372036854775808",
        "string": b'"a \\"text\\""',
        "double": b"0.1",
        "uint": b"18446744073709551615",
        "none": b"null",
    }


def test_a_call_is_read_as_over_rest() -> None:
    message = make_request(JPEG, id="7", model_version="2")
    message.parameters["metadata"].string_param = '[{"key":"a","type":"int","value":"1"}]'
    result = read_exchange([message], [make_response('[{"label":"cat"}]', id="7")], model=VISION)
    assert (result.model, result.version) == ("digits", "2")
    assert (result.request_id, result.response_id) == ("7", "7")
    assert (result.error, result.problem) == (None, None)
    (inference,) = result.inferences
    assert inference.data == JPEG
    assert len(inference.metadata) == 1
    assert json.loads(inference.response or b"")["outputs"][0]["data"] == ['[{"label":"cat"}]']


def test_raw_and_typed_contents_read_alike() -> None:
    typed, raw = make_request(JPEG), Request(model_name="digits")
    raw.inputs.add(name="image-0", datatype="BYTES", shape=[1])
    raw.raw_input_contents.append(struct.pack("<I", len(JPEG)) + JPEG)
    assert read_exchange([typed], model=VISION) == read_exchange([raw], model=VISION)


def test_keeps_bytes_that_are_no_message_whole() -> None:
    result = read_exchange([b"\x0a\xff"], [b"\x0a\xfe"])
    (inference,) = result.inferences
    assert (inference.data, inference.response) == (b"\x0a\xff", b"\x0a\xfe")
    assert "the request is no ModelInferRequest" in (result.problem or "")
    assert "the answer is no ModelInferResponse" in (result.problem or "")


MESSAGES = st.one_of(
    st.binary(max_size=200), st.builds(lambda: make_request(b"x").SerializeToString())
)


_DIALECTS = st.sampled_from(["", "mlserver", "triton"])


@given(st.lists(MESSAGES, max_size=4), st.lists(MESSAGES, max_size=4), _DIALECTS)
def test_any_bytes_are_read(requests: list[bytes], responses: list[bytes], dialect: str) -> None:
    for path in (INFER, STREAM):
        for task_type in (None, "OBJECT_DETECTION"):
            model = Model(task_type=task_type, dialect=dialect or None)
            assert read_exchange(requests, responses, path=path, model=model).inferences


# Streams: both dialects, and whose answer is whose.


def make_wrapped_answer(*texts: str, error: str = "", **members: Any) -> Any:
    """Make Triton's answer; MLServer's is `make_response`."""
    return StreamResponse(error_message=error, infer_response=make_response(*texts, **members))


DIALECTS = pytest.mark.parametrize(
    ("answer", "dialect"),
    [
        (make_response, "mlserver"),
        (make_response, None),
        (make_wrapped_answer, "triton"),
        (make_wrapped_answer, None),
    ],
)


def read_stream(requests: list[Any], responses: list[Any], **more: Any) -> Reading:
    return read_exchange(requests, responses, path=STREAM, **more)


def list_answers(reading: Reading) -> list[str]:
    (inference,) = reading.inferences
    outputs = json.loads(inference.response or b"{}").get("outputs", [])
    return [datum for output in outputs for datum in output["data"]]


@DIALECTS
def test_a_request_and_its_answers_are_one_inference(answer: Any, dialect: str | None) -> None:
    answers = [answer("a", id="1"), answer("b", "c", id="1")]
    request = make_request(JPEG + b"1", JPEG + b"2", id="1")
    result = read_stream([request], answers, model=Model(dialect=dialect))
    assert list_answers(result) == ["a", "b", "c"]
    assert (result.request_id, result.response_id, result.problem) == ("1", "1", None)
    assert result.model == "digits"
    vision = Model(dialect=dialect, task_type="OBJECT_DETECTION")
    assert list_data(read_stream([make_request(JPEG)], answers, model=vision)) == [JPEG]


def test_answers_that_may_be_another_requests_are_flagged() -> None:
    request, answer = make_request(JPEG, id="2"), make_response("a", id="1")
    result = read_stream([request], [answer], in_doubt=True)
    assert list_answers(result) == ["a"]
    assert (result.request_id, result.response_id) == ("2", None)
    assert result.problem is not None
    assert result.problem.reasons == (("response", "not_divided"),)


def test_tritons_error_in_band() -> None:
    result = read_stream([make_request(JPEG)], [StreamResponse(error_message="no such model")])
    assert result.error == "no such model"


def test_recognises_the_dialect_by_the_shape_of_an_answer() -> None:
    for answer, dialect in (
        (make_response("a"), "mlserver"),
        (Response(model_name="m", model_version="1"), "mlserver"),
        (Response(model_name="m", model_version="v0.1.3"), "mlserver"),
        (Response(id="7"), "mlserver"),
        (make_wrapped_answer("a"), "triton"),
        (make_wrapped_answer(error="why"), "triton"),
        (StreamResponse(error_message="why"), "triton"),
        (StreamResponse(infer_response=Response(id="\x01" * 200)), "triton"),
    ):
        assert find_dialect([b"", b"\xff", answer.SerializeToString()]) == dialect


def test_the_configured_dialect_wins() -> None:
    answer = StreamResponse(error_message="digits").SerializeToString()
    for dialect, error in (("mlserver", None), ("triton", "digits")):
        reading = read_stream([make_request(b"x")], [answer], model=Model(dialect=dialect))
        assert reading.error == error


def test_flags_incomplete_answers() -> None:
    result = read_stream([make_request(b"x")], [make_response("a")], whole=False)
    assert list_answers(result) == ["a"]
    assert "of the answer's" in (result.problem or "")


def test_a_message_that_cannot_be_read_is_named() -> None:
    result = read_stream([b"\xff"], [make_response("a"), b"\xff"])
    expected = "the request is no ModelInferRequest; answer 1 is no ModelInferResponse"
    assert result.problem == expected
    assert list_answers(result) == ["a"]
    assert list_data(result) == [b"\xff"]


def test_an_answer_without_a_request() -> None:
    assert list_answers(read_stream([], [make_response("a")])) == ["a"]
    assert len(read_stream([], []).inferences) == 1

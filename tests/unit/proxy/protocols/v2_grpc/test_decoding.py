"""Messages become the tensors that REST has too; what is no message is kept whole."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.protocols.protocol import Model
from inference_store.proxy.protocols.v2_grpc import V2_GRPC
from inference_store.proxy.protocols.v2_grpc.decoding import request_in, response_in
from tests.unit.proxy.protocols.v2_grpc.calls import (
    INFER,
    JPEG,
    STREAM,
    Request,
    Response,
    reading,
    request,
    response,
)

VISION = Model(task_type="OBJECT_DETECTION")


def test_infer_and_its_stream_are_captured_and_nothing_else() -> None:
    kinds = {}
    for path in (INFER, STREAM, "/inference.GRPCInferenceService/ModelReady", "/ModelInfer", ""):
        call = V2_GRPC.recognise(V2_GRPC, path, path)
        kinds[path] = call and (call.kind, call.model)
    assert kinds.pop(INFER) == ("infer", None)
    assert kinds.pop(STREAM) == ("stream", None)
    assert set(kinds.values()) == {None}


@pytest.mark.parametrize(
    ("datatype", "member", "values"),
    [
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
    ],
)
def test_typed_contents(datatype: str, member: str, values: list[Any]) -> None:
    written = Request()
    tensor = written.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, member).extend(values)
    found = request_in(written.SerializeToString())
    assert found.request is not None
    (read,) = found.request.inputs
    assert (read.name, read.datatype, read.shape) == ("x", datatype, (len(values),))
    assert (read.values, read.raw, read.data) == (values, None, None)
    assert [type(each) for each in read.values or ()] == [type(each) for each in values]


def test_a_tensor_without_data_and_one_of_no_elements() -> None:
    written = Request()
    written.inputs.add(name="none", datatype="FP32", shape=[1])
    written.inputs.add(name="empty", datatype="FP32", shape=[0]).contents.SetInParent()
    found = request_in(written.SerializeToString()).request
    assert found is not None
    assert [each.values for each in found.inputs] == [None, []]


def test_raw_contents_belong_to_tensors_in_order() -> None:
    written = Response(raw_output_contents=[b"\1\2", b"\3"])
    written.outputs.add(name="a", datatype="UINT8", shape=[2])
    written.outputs.add(name="b", datatype="UINT8", shape=[1])
    found = response_in(written.SerializeToString())
    assert found.response is not None
    assert [each.raw for each in found.response.outputs] == [b"\1\2", b"\3"]
    assert found.problem is None


def test_a_tensor_in_shared_memory_has_no_raw_contents() -> None:
    written = Request(raw_input_contents=[b"\3"])
    shared = written.inputs.add(name="a", datatype="UINT8", shape=[2])
    shared.parameters["shared_memory_region"].string_param = "r"
    written.inputs.add(name="b", datatype="UINT8", shape=[1])
    found = request_in(written.SerializeToString())
    assert found.request is not None
    assert [each.raw for each in found.request.inputs] == [None, b"\3"]
    assert found.problem is None


@pytest.mark.parametrize("raw", [[b"\1"], [b"\1", b"\2", b"\3"]])
def test_raw_contents_of_another_number_are_said(raw: list[bytes]) -> None:
    written = Request(raw_input_contents=raw)
    written.inputs.add(name="a", datatype="UINT8", shape=[1])
    written.inputs.add(name="b", datatype="UINT8", shape=[1])
    found = reading([written])
    assert found.problem == f"the request has {len(raw)} raw contents for 2 tensors"


def test_every_kind_of_parameter() -> None:
    written = Request()
    parameters = written.parameters
    parameters["bool"].bool_param = True
    parameters["int"].int64_param = -(1 << 63)
    parameters["string"].string_param = 'a "text"'
    parameters["double"].double_param = 0.1
    parameters["uint"].uint64_param = (1 << 64) - 1
    parameters["none"].SetInParent()
    found = request_in(written.SerializeToString()).request
    assert found is not None
    assert dict(found.parameters) == {
        "bool": b"true",
        "int": b"-9223372036854775808",
        "string": b'"a \\"text\\""',
        "double": b"0.1",
        "uint": b"18446744073709551615",
        "none": b"null",
    }


def test_a_call_is_read_as_over_rest() -> None:
    asked = request(JPEG, id="7", model_version="2")
    asked.parameters["metadata"].string_param = '[{"key":"a","type":"int","value":"1"}]'
    found = reading([asked], [response('[{"label":"cat"}]', id="7")], model=VISION)
    assert (found.model, found.version) == ("digits", "2")
    assert (found.request_id, found.response_id, found.ok, found.problem) == ("7", "7", None, None)
    (inference,) = found.inferences
    assert inference.data == JPEG
    assert len(inference.metadata) == 1
    assert json.loads(inference.response or b"")["outputs"][0]["data"] == ['[{"label":"cat"}]']


def test_images_are_split() -> None:
    found = reading([request(JPEG, JPEG + b"2")], [response("a", "b")], model=VISION)
    assert [each.data for each in found.inferences] == [JPEG, JPEG + b"2"]
    answers = [json.loads(each.response or b"")["outputs"] for each in found.inferences]
    assert [each[0]["data"] for each in answers] == [["a"], ["b"]]


def test_raw_and_typed_contents_read_alike() -> None:
    typed, raw = request(JPEG), Request(model_name="digits")
    raw.inputs.add(name="image-0", datatype="BYTES", shape=[1])
    raw.raw_input_contents.append(struct.pack("<I", len(JPEG)) + JPEG)
    assert reading([typed], model=VISION) == reading([raw], model=VISION)


def test_what_is_no_message_is_kept_whole() -> None:
    found = reading([b"\x0a\xff"], [b"\x0a\xfe"])
    (inference,) = found.inferences
    assert (inference.data, inference.response) == (b"\x0a\xff", b"\x0a\xfe")
    assert found.problem is not None
    assert "the request is no ModelInferRequest" in found.problem
    assert "the answer is no ModelInferResponse" in found.problem


def test_what_was_not_kept_is_said() -> None:
    found = reading([], [], whole=False)
    assert len(found.inferences) == 1
    assert found.problem is not None
    assert "the request was not kept: 0 bytes" in found.problem


def test_a_call_without_an_answer() -> None:
    found = reading([request(JPEG)], [], model=VISION, grpc_code=14)
    assert found.problem is None
    assert found.inferences[0].response is None


MESSAGES = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda: request(b"x").SerializeToString()),
)


@given(st.lists(MESSAGES, max_size=4), st.lists(MESSAGES, max_size=4), st.sampled_from(["", "x"]))
def test_any_bytes_are_read(requests: list[bytes], responses: list[bytes], dialect: str) -> None:
    for path in (INFER, STREAM):
        for task_type in (None, "OBJECT_DETECTION"):
            model = Model(task_type=task_type, dialect=dialect or None)
            assert reading(requests, responses, path=path, model=model).inferences


@given(st.data(), st.binary(min_size=1, max_size=8))
def test_a_message_changed_anywhere_is_read(data: st.DataObject, noise: bytes) -> None:
    written = [request(JPEG, id="1", raw_input_contents=[b"\4\0\0\0abcd"]), response("a", id="1")]
    changed = []
    for each in map(bytes, (one.SerializeToString() for one in written)):
        at = data.draw(st.integers(0, len(each) - 1))
        changed.append(each[:at] + noise + each[at + len(noise) :])
    for path in (INFER, STREAM):
        found = reading(changed[:1], changed[1:], path=path, model=VISION)
        assert found.inferences

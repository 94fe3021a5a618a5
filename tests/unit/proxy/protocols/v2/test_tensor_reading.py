"""Reading an exchange: the published examples, and what goes wrong."""

import gzip
import json
import struct
import zlib
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols.content_encoding import MOST_BYTES
from inference_store.proxy.protocols.protocol import MOST_ERROR, Model
from inference_store.proxy.protocols.v2.documents import Document, request_of
from inference_store.proxy.protocols.v2.tensor_reading import read_inferences
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, Tensor

from .calls import (
    JPEG,
    PNG,
    VISION,
    encode_body,
    make_exchange,
    make_text_tensor,
    prefix_lengths,
    read,
    read_exchange,
)

IMAGE, DRAWING = b64encode(JPEG).decode(), b64encode(PNG).decode()
LIST = '[{"key": "frame_number", "type": "int", "value": "987"}]'
SECTIONS = json.dumps(
    {"standard_metadata": {}, "extended_metadata": [{"key": "a", "type": "int", "value": "1"}]}
)
CAT = {"label": "cat", "score": 0.6, "xmin": 7, "xmax": 17, "ymin": 50, "ymax": 77}
DOG = {"label": "dog", "score": 0.2, "xmin": 12, "xmax": 21, "ymin": 17, "ymax": 71}


def make_answer(*outputs: Any, **more: Any) -> dict[str, Any]:
    defaults = {"model_name": "mymodel", "model_version": "1.0.0", "id": "output-1"}
    return {**defaults, "outputs": list(outputs), "parameters": {}, **more}


def test_one_image() -> None:
    image = make_text_tensor(
        IMAGE, shape=[4, 4, 3], parameters={"action": "predict", "metadata": LIST}
    )
    response = encode_body(make_answer(make_text_tensor(CAT, DOG)))
    result = read({"id": "1", "inputs": [image]}, response, VISION)
    (inference,) = result.inferences
    assert inference.data == JPEG
    assert inference.response == response
    assert [json.loads(text) for text in inference.metadata] == [LIST]
    assert (result.request_id, result.response_id, result.action) == ("1", "output-1", "predict")
    assert (result.model, result.version) == ("mymodel", "1.0.0")
    assert (result.ok, result.error, result.problem) == (None, None, None)


def test_each_image_has_its_own_answer_and_metadata() -> None:
    images = [
        make_text_tensor(IMAGE, name="a", parameters={"metadata": LIST}),
        make_text_tensor(DRAWING, name="b", parameters={"metadata": SECTIONS}),
    ]
    root = {"metadata": [{"key": "site", "type": "string", "value": "north"}]}
    response = make_answer(
        make_text_tensor([CAT, DOG], name="a"),
        make_text_tensor([], name="b"),
        parameters={"took": 1e400},
    )
    result = read({"parameters": root, "inputs": images}, response, VISION)
    assert [inference.data for inference in result.inferences] == [JPEG, PNG]
    documents = [json.loads(inference.response or b"") for inference in result.inferences]
    assert [document["outputs"][0]["name"] for document in documents] == ["a", "b"]
    assert [document["id"] for document in documents] == ["output-1", "output-1"]
    envelopes = [json.loads(text) for inference in result.inferences for text in inference.metadata]
    assert envelopes == [root["metadata"], LIST, root["metadata"], SECTIONS]
    assert [list_labels(inference.response) for inference in result.inferences] == [
        ["cat", "dog"],
        [],
    ]


def list_labels(response: bytes | None) -> list[str | None]:
    predictions = read_predictions(response, task_type=task_type_of("object_detection"))
    return [prediction.label for prediction in predictions.items or ()]


def test_named_arguments_of_the_hugging_face_runtime() -> None:
    arguments = [
        make_text_tensor("Prompt here", name="args", parameters={"metadata": LIST}),
        {"name": "max_new_tokens", "shape": [1], "datatype": "INT64", "data": [500],
         "parameters": {"content_type": "raw", "metadata": SECTIONS}},
    ]  # fmt: skip
    output = make_text_tensor(
        '{"generated_text": "And so on"}', parameters={"content_type": "hg_jsonlist"}
    )
    result = read({"inputs": arguments}, make_answer(output), Model(task_type="text-generation"))
    (inference,) = result.inferences
    assert inference.data == b"Prompt here"
    assert result.standard == {"arguments": {"max_new_tokens": 500}}
    entries = [entry.key for text in inference.metadata for entry in read_metadata(text).entries]
    assert entries == ["frame_number", "a"]


def test_prompts_about_an_image() -> None:
    prompts = ["what in picture?", "what colors in picture?"]
    image = make_text_tensor(IMAGE, parameters={"prompts": prompts})
    result = read({"inputs": [image]}, make_answer(), Model(task_type="IMAGE_TEXT_TO_TEXT"))
    assert result.standard == {"prompts": prompts}


def test_action_of_the_root_wins() -> None:
    image = make_text_tensor(IMAGE, parameters={"action": "predict"})
    result = read({"parameters": {"action": "predict_proba"}, "inputs": [image]}, make_answer())
    assert result.action == "predict_proba"


def test_numbers_of_a_divided_answer_are_exact() -> None:
    response = (
        b'{"model_name": "m", "outputs": [{"name": "y", "shape": [2, 2], "datatype": "FP64",'
        b' "data": [1e400, 12345678901234567890123, -0.0, 1.10]}]}'
    )
    request = {"inputs": [{"name": "x", "shape": [2, 1], "datatype": "INT8", "data": [[1], [2]]}]}
    result = read(request, response, Model(task_type="tabular", batched=True))
    first, second = result.inferences
    assert b"[1e400, 12345678901234567890123]" in (first.response or b"")
    assert b"[-0.0, 1.10]" in (second.response or b"")


@pytest.mark.parametrize(
    ("response", "status", "error"),
    [
        ({"error": "no such model"}, 404, "no such model"),
        ({"error": {"code": 3}}, 400, '{"code": 3}'),
        ({"error": "in-band"}, 200, "in-band"),
        ({"detail": "Not Found"}, 404, "Not Found"),
        (b"upstream connect error", 503, "upstream connect error"),
        ([], 500, "[]"),
        (make_answer(), 500, None),
    ],
)
def test_an_error(response: Any, status: int, error: str | None) -> None:
    images = {"inputs": [make_text_tensor(IMAGE), make_text_tensor(DRAWING)]}
    result = read(images, response, VISION, status=status)
    assert [inference.data for inference in result.inferences] == [JPEG, PNG]
    assert [inference.response for inference in result.inferences] == [encode_body(response)] * 2
    assert result.ok is False
    assert result.error == (error if error is not None else encode_body(response).decode())


def test_an_error_is_bounded() -> None:
    result = read({"inputs": [make_text_tensor(IMAGE)]}, {"error": "x" * 99_999}, status=500)
    assert len(result.error or "") == MOST_ERROR


def test_no_answer_at_all() -> None:
    result = read({"inputs": [make_text_tensor(IMAGE)]}, b"", VISION, status=204)
    assert [(inference.data, inference.response) for inference in result.inferences] == [
        (JPEG, None)
    ]
    assert result.ok is None


BROKEN = {
    b"": "the request: ",
    b"not json": "the request: ",
    b'{"inputs": [': "the request: ",
    b"[]": "the request: it is no JSON object",
    b"{}": "the request: `inputs` is not a list",
    b'{"inputs": {}}': "the request: `inputs` is not a list",
    b'{"inputs": [1]}': "the request: an element of `inputs` is not an object",
    b'{"inputs": [' + b"{}," * 5000 + b"{}]}": "the request: `inputs` has more than 4096",
    b"[" * 1000 + b"]" * 1000: "the request: ",
    b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}': "input 'x' has no data",
}


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_request_that_cannot_be_read_is_kept_whole(content: bytes) -> None:
    result = read(content, make_answer(make_text_tensor(CAT)), VISION)
    (inference,) = result.inferences
    assert inference.data == (None if b"FP32" in content else content)
    assert (result.problem or "").startswith(BROKEN[content])
    assert inference.response == encode_body(make_answer(make_text_tensor(CAT)))


def test_an_answer_that_cannot_be_read_is_kept_whole() -> None:
    result = read(
        {"inputs": [make_text_tensor(IMAGE), make_text_tensor(DRAWING)]}, b"<html>", VISION
    )
    assert [inference.response for inference in result.inferences] == [b"<html>"] * 2
    assert (result.problem or "").startswith("the answer: ")


def test_ids_and_names_of_any_json() -> None:
    tensor = {"name": 7, "shape": "big", "datatype": None, "data": [1], "parameters": []}
    result = read({"id": 12345678901234567890, "inputs": [tensor]}, {"outputs": [], "id": None})
    assert (result.request_id, result.response_id) == ("12345678901234567890", None)
    assert result.problem is None


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("identity", lambda data: data),
        ("deflate, GZIP", lambda data: gzip.compress(zlib.compress(data))),
    ],
)
def test_coded_bodies(coding: str, encode: Any) -> None:
    request, response = (
        encode_body({"inputs": [make_text_tensor(IMAGE)]}),
        encode_body(make_answer(make_text_tensor(CAT))),
    )
    coded = [("content-encoding", coding)]
    sample = make_exchange(
        encode(request), encode(response), request_headers=coded, response_headers=coded
    )
    (inference,) = read_exchange(sample, VISION).inferences
    assert (inference.data, inference.response) == (JPEG, response)


@pytest.mark.parametrize(
    ("coding", "content", "problem"),
    [
        ("br", b"\x1b", "the request: content-encoding 'br' is not read"),
        ("gzip", b"no gzip", "the request: the body is not gzip: "),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-9], "the request: the coded body breaks off"),
        ("gzip", gzip.compress(b"\0" * (MOST_BYTES + 1)), "the request: the body becomes larger"),
        ("gzip" + ",gzip" * 9, b"", "the request: content-encoding names 10 codings"),
    ],
)
def test_coded_bodies_that_are_not_read(coding: str, content: bytes, problem: str) -> None:
    result = read(content, make_answer(), request_headers=[("content-encoding", coding)])
    assert [inference.data for inference in result.inferences] == [content]
    assert (result.problem or "").startswith(problem)


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_json_in_other_encodings(codec: str) -> None:
    content = json.dumps({"inputs": [make_text_tensor("Grüße")]}, ensure_ascii=False).encode(codec)
    assert [inference.data for inference in read(content).inferences] == ["Grüße".encode()]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_json_nested_too_deep_is_kept_whole(content: bytes) -> None:
    result = read(content)
    assert [inference.data for inference in result.inferences] == [content]
    assert result.problem == "the request: nested deeper than 128 levels"


def test_json_nested_as_deep_as_it_is_read() -> None:
    data = b"[" * 1000 + b"1" + b"]" * 1000
    result = read(
        b'{"id": "7", "inputs": [{"name": "a", "datatype": "INT8", "data": ' + data + b"}]}"
    )
    assert (result.request_id, result.problem) == ("7", None)
    assert data in (result.inferences[0].data or b"")


def test_binary_tensors_both_ways() -> None:
    images = prefix_lengths(JPEG, PNG)
    tensor = {"name": "image", "shape": [2, 1], "datatype": "BYTES",
              "parameters": {"binary_data_size": len(images)}}  # fmt: skip
    requested_outputs = [{"name": "scores", "parameters": {"binary_data": True}}]
    request = encode_body({"inputs": [tensor], "outputs": requested_outputs})
    raw = struct.pack("<4e", 0.5, 0.25, 1, 2)
    scores = {"name": "scores", "shape": [2, 2], "datatype": "FP16",
              "parameters": {"binary_data_size": len(raw)}}  # fmt: skip
    response = encode_body(
        {"model_name": "m", "outputs": [scores, make_text_tensor("A", "B", name="labels")]}
    )
    sample = make_exchange(
        request + images,
        response + raw,
        request_headers=[("inference-header-content-length", str(len(request)))],
        response_headers=[("inference-header-content-length", str(len(response)))],
    )
    result = read_exchange(sample, VISION)
    assert result.problem is None
    assert [inference.data for inference in result.inferences] == [JPEG, PNG]
    documents = [
        json.loads(inference.response or b"")["outputs"] for inference in result.inferences
    ]
    assert [[output["data"] for output in outputs] for outputs in documents] == [
        [[0.5, 0.25], ["A"]],
        [[1.0, 2.0], ["B"]],
    ]
    assert "parameters" not in documents[0][0]


def test_a_binary_answer_becomes_json() -> None:
    head = b'{"outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "parameters": '
    head += b'{"binary_data_size": 4, "note": 1e400}}]}'
    length = [("inference-header-content-length", str(len(head)))]
    result = read({"inputs": [make_text_tensor("a")]}, head + b"\7\0\0\0", response_headers=length)
    expected = b'{"outputs":[{"name":"y","shape":[1],"datatype":"INT32","parameters":{"note":1e400}'
    assert result.inferences[0].response == expected + b',"data":[7]}]}'


def test_a_body_that_is_one_raw_tensor() -> None:
    length = [("inference-header-content-length", "0")]
    result = read(JPEG, make_answer(), VISION, request_headers=length)
    assert [inference.data for inference in result.inferences] == [JPEG]


@pytest.mark.parametrize("length", ["-1", "x", "9" * 40, "99999", "", "1e3", "²"])
def test_a_length_that_is_none(length: str) -> None:
    content = encode_body({"inputs": [make_text_tensor("a")]})
    headers = [("inference-header-content-length", length)]
    result = read(content, make_answer(), request_headers=headers)
    assert [inference.data for inference in result.inferences] == [content]
    assert "inference-header-content-length" in (result.problem or "")


@pytest.mark.parametrize("size", [3, 5, "x", -4, True, 10**30])
def test_sizes_that_do_not_fit(size: Any) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "INT32",
              "parameters": {"binary_data_size": size}}  # fmt: skip
    head = encode_body({"inputs": [tensor]})
    headers = [("inference-header-content-length", str(len(head)))]
    result = read(head + b"\1\0\0\0", make_answer(), request_headers=headers)
    assert "binary data has 4 bytes" in (result.problem or "")


@pytest.mark.parametrize("path", ["/v2/models/m/infer_stream", "/v2/models/m/generate_stream"])
def test_a_stream_of_answers(path: str) -> None:
    parts = [make_answer(make_text_tensor("He")), make_answer(make_text_tensor("llo"))]
    events = (
        b"".join(b"data: " + encode_body(part) + b"\n\n" for part in parts) + b"data: [DONE]\n\n"
    )
    sse = [("content-type", "text/event-stream; charset=utf-8")]
    result = read({"inputs": [make_text_tensor("Hi")]}, events, path=path, response_headers=sse)
    (inference,) = result.inferences
    assert [output["data"] for output in json.loads(inference.response or b"")["outputs"]] == [
        ["He"],
        ["llo"],
    ]
    assert (inference.data, result.response_id, result.problem) == (b"Hi", "output-1", None)


def test_a_stream_that_breaks_off() -> None:
    events = (
        b"data: " + encode_body(make_answer(make_text_tensor("He"))) + b'\n\ndata: {"outputs": ['
    )
    sample = make_exchange(
        {"inputs": [make_text_tensor("Hi")]}, events, path="/v2/models/m/infer_stream"
    )
    sample.response = replace(sample.response, whole=False)
    result = read_exchange(sample)
    assert (result.problem or "").startswith("part 1 of the answer: ")
    assert b'["He"]' in (result.inferences[0].response or b"")


def test_a_stream_that_fails() -> None:
    events = (
        b"data: "
        + encode_body(make_answer(make_text_tensor("He")))
        + b'\n\ndata: {"error": "out of memory"}\n\n'
    )
    result = read({"inputs": [make_text_tensor("Hi")]}, events, path="/v2/models/m/infer_stream")
    assert (result.ok, result.error) == (False, "out of memory")
    document = json.loads(result.inferences[0].response or b"")
    assert document["error"] == "out of memory"
    assert len(document["outputs"]) == 1


def test_generate() -> None:
    request = {"text_input": "Hi", "parameters": {"max_tokens": 9, "metadata": LIST}, "id": "7"}
    response = {"model_name": "llm", "model_version": "1", "text_output": "Hello", "score": 1.5}
    text = Model(task_type="text_generation")
    result = read(request, response, text, path="/v2/models/llm/generate")
    (inference,) = result.inferences
    assert (inference.data, result.request_id, result.model) == (b"Hi", "7", "llm")
    outputs = json.loads(inference.response or b"")["outputs"]
    assert outputs[0] == make_text_tensor("Hello", name="text_output")
    assert [output["name"] for output in outputs] == ["text_output", "score"]
    assert [json.loads(text) for text in inference.metadata] == [LIST]


def test_generate_in_a_stream() -> None:
    events = b'data: {"text_output": "He"}\n\ndata: {"text_output": "llo"}\n\n'
    result = read({"text_input": "Hi"}, events, path="/v2/models/llm/generate_stream")
    outputs = json.loads(result.inferences[0].response or b"")["outputs"]
    assert [output["data"] for output in outputs] == [["He"], ["llo"]]
    predictions = read_predictions(
        result.inferences[0].response, task_type=task_type_of("text_generation")
    )
    assert [row.text for row in predictions.items or ()] == ["He", "llo"]


def test_bodies_that_were_not_kept() -> None:
    sample = make_exchange({"inputs": [make_text_tensor("Hi")]}, make_answer())
    sample.request = Body(size=9_000_000, whole=False)
    sample.response = Body(parts=[b'{"outp'], size=9_000_000, whole=False)
    result = read_exchange(sample)
    assert [(inference.data, inference.response) for inference in result.inferences] == [
        (None, b'{"outp')
    ]
    expected = "the request was not kept: 9000000 bytes; the answer breaks off after 6 bytes"
    assert result.problem == expected


def test_the_same_from_the_messages_of_grpc() -> None:
    images = Tensor(name="image", datatype="BYTES", values=[JPEG, PNG])
    request = InferRequest(id="1", parameters={"metadata": LIST.encode()}, inputs=[images])
    boxes = Tensor(name="boxes", datatype="FP32", shape=(2, 1), raw=struct.pack("<2f", 1, 2))
    result = read_inferences(request, InferResponse(model="m", outputs=[boxes]), VISION)
    assert [inference.data for inference in result.inferences] == [JPEG, PNG]
    expected = b'{"model_name":"m","outputs":[{"name":"boxes","shape":[1, 1],"datatype":"FP32",'
    assert result.inferences[1].response == expected + b'"data":[2.0]}]}'
    assert [list(inference.metadata) for inference in result.inferences] == [[LIST.encode()]] * 2


def test_a_document_reads_the_last_of_names_that_come_twice() -> None:
    text = b'{"id": "1", "inputs": [1], "\\u0069d": "2", "inputs": []}'
    assert request_of(Document(text)).id == "2"

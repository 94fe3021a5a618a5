"""What an exchange was about: the published examples, and what goes wrong."""

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
from inference_store.proxy.protocols.v2.reading import reading_of
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, Tensor

from .calls import JPEG, PNG, VISION, body, exchange, prefixed, read, reading, texts

IMAGE, DRAWING = b64encode(JPEG).decode(), b64encode(PNG).decode()
LIST = '[{"key": "frame_number", "type": "int", "value": "987"}]'
SECTIONS = json.dumps(
    {"standard_metadata": {}, "extended_metadata": [{"key": "a", "type": "int", "value": "1"}]}
)
CAT = {"label": "cat", "score": 0.6, "xmin": 7, "xmax": 17, "ymin": 50, "ymax": 77}
DOG = {"label": "dog", "score": 0.2, "xmin": 12, "xmax": 21, "ymin": 17, "ymax": 71}


def answer(*outputs: Any, **more: Any) -> dict[str, Any]:
    named = {"model_name": "mymodel", "model_version": "1.0.0", "id": "output-1"}
    return {**named, "outputs": list(outputs), "parameters": {}, **more}


def test_one_image() -> None:
    image = texts(IMAGE, shape=[4, 4, 3], parameters={"action": "predict", "metadata": LIST})
    response = body(answer(texts(CAT, DOG)))
    found = read({"id": "1", "inputs": [image]}, response, VISION)
    (inference,) = found.inferences
    assert inference.data == JPEG
    assert inference.response == response
    assert [json.loads(each) for each in inference.metadata] == [LIST]
    assert (found.request_id, found.response_id, found.action) == ("1", "output-1", "predict")
    assert (found.model, found.version) == ("mymodel", "1.0.0")
    assert (found.ok, found.error, found.problem) == (None, None, None)


def test_each_image_has_its_own_answer_and_metadata() -> None:
    images = [
        texts(IMAGE, name="a", parameters={"metadata": LIST}),
        texts(DRAWING, name="b", parameters={"metadata": SECTIONS}),
    ]
    root = {"metadata": [{"key": "site", "type": "string", "value": "north"}]}
    seen = answer(texts([CAT, DOG], name="a"), texts([], name="b"), parameters={"took": 1e400})
    found = read({"parameters": root, "inputs": images}, seen, VISION)
    assert [each.data for each in found.inferences] == [JPEG, PNG]
    documents = [json.loads(each.response or b"") for each in found.inferences]
    assert [each["outputs"][0]["name"] for each in documents] == ["a", "b"]
    assert [each["id"] for each in documents] == ["output-1", "output-1"]
    kept = [json.loads(text) for each in found.inferences for text in each.metadata]
    assert kept == [root["metadata"], LIST, root["metadata"], SECTIONS]
    assert [labels(each.response) for each in found.inferences] == [["cat", "dog"], []]


def labels(response: bytes | None) -> list[str | None]:
    found = read_predictions(response, task_type=task_type_of("object_detection"))
    return [each.label for each in found.items or ()]


def test_named_arguments_of_the_hugging_face_runtime() -> None:
    arguments = [
        texts("Prompt here", name="args", parameters={"metadata": LIST}),
        {"name": "max_new_tokens", "shape": [1], "datatype": "INT64", "data": [500],
         "parameters": {"content_type": "raw", "metadata": SECTIONS}},
    ]  # fmt: skip
    said = texts('{"generated_text": "And so on"}', parameters={"content_type": "hg_jsonlist"})
    found = read({"inputs": arguments}, answer(said), Model(task_type="text-generation"))
    (inference,) = found.inferences
    assert inference.data == b"Prompt here"
    assert found.standard == {"arguments": {"max_new_tokens": 500}}
    entries = [entry.key for each in inference.metadata for entry in read_metadata(each).entries]
    assert entries == ["frame_number", "a"]


def test_prompts_about_an_image() -> None:
    prompts = ["what in picture?", "what colors in picture?"]
    image = texts(IMAGE, parameters={"prompts": prompts})
    found = read({"inputs": [image]}, answer(), Model(task_type="IMAGE_TEXT_TO_TEXT"))
    assert found.standard == {"prompts": prompts}


def test_action_of_the_root_wins() -> None:
    image = texts(IMAGE, parameters={"action": "predict"})
    found = read({"parameters": {"action": "predict_proba"}, "inputs": [image]}, answer())
    assert found.action == "predict_proba"


def test_numbers_of_a_divided_answer_are_exact() -> None:
    response = (
        b'{"model_name": "m", "outputs": [{"name": "y", "shape": [2, 2], "datatype": "FP64",'
        b' "data": [1e400, 12345678901234567890123, -0.0, 1.10]}]}'
    )
    request = {"inputs": [{"name": "x", "shape": [2, 1], "datatype": "INT8", "data": [[1], [2]]}]}
    found = read(request, response, Model(task_type="tabular", batched=True))
    one, two = found.inferences
    assert b"[1e400, 12345678901234567890123]" in (one.response or b"")
    assert b"[-0.0, 1.10]" in (two.response or b"")


@pytest.mark.parametrize(
    ("response", "status", "error"),
    [
        ({"error": "no such model"}, 404, "no such model"),
        ({"error": {"code": 3}}, 400, '{"code": 3}'),
        ({"error": "in-band"}, 200, "in-band"),
        ({"detail": "Not Found"}, 404, "Not Found"),
        (b"upstream connect error", 503, "upstream connect error"),
        ([], 500, "[]"),
        (answer(), 500, None),
    ],
)
def test_an_error(response: Any, status: int, error: str | None) -> None:
    images = {"inputs": [texts(IMAGE), texts(DRAWING)]}
    found = read(images, response, VISION, status=status)
    assert [each.data for each in found.inferences] == [JPEG, PNG]
    assert [each.response for each in found.inferences] == [body(response)] * 2
    assert found.ok is False
    assert found.error == (error if error is not None else body(response).decode())


def test_an_error_is_bounded() -> None:
    found = read({"inputs": [texts(IMAGE)]}, {"error": "x" * 99_999}, status=500)
    assert len(found.error or "") == MOST_ERROR


def test_no_answer_at_all() -> None:
    found = read({"inputs": [texts(IMAGE)]}, b"", VISION, status=204)
    assert [(each.data, each.response) for each in found.inferences] == [(JPEG, None)]
    assert found.ok is None


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
    found = read(content, answer(texts(CAT)), VISION)
    (inference,) = found.inferences
    assert inference.data == (None if b"FP32" in content else content)
    assert (found.problem or "").startswith(BROKEN[content])
    assert inference.response == body(answer(texts(CAT)))


def test_an_answer_that_cannot_be_read_is_kept_whole() -> None:
    found = read({"inputs": [texts(IMAGE), texts(DRAWING)]}, b"<html>", VISION)
    assert [each.response for each in found.inferences] == [b"<html>"] * 2
    assert (found.problem or "").startswith("the answer: ")


def test_ids_and_names_of_any_json() -> None:
    tensor = {"name": 7, "shape": "big", "datatype": None, "data": [1], "parameters": []}
    found = read({"id": 12345678901234567890, "inputs": [tensor]}, {"outputs": [], "id": None})
    assert (found.request_id, found.response_id) == ("12345678901234567890", None)
    assert found.problem is None


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
    request, response = body({"inputs": [texts(IMAGE)]}), body(answer(texts(CAT)))
    coded = [("content-encoding", coding)]
    seen = exchange(
        encode(request), encode(response), request_headers=coded, response_headers=coded
    )
    (inference,) = reading(seen, VISION).inferences
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
    found = read(content, answer(), request_headers=[("content-encoding", coding)])
    assert [each.data for each in found.inferences] == [content]
    assert (found.problem or "").startswith(problem)


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_json_in_other_encodings(codec: str) -> None:
    content = json.dumps({"inputs": [texts("Grüße")]}, ensure_ascii=False).encode(codec)
    assert [each.data for each in read(content).inferences] == ["Grüße".encode()]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_json_nested_too_deep_is_kept_whole(content: bytes) -> None:
    found = read(content)
    assert [each.data for each in found.inferences] == [content]
    assert found.problem == "the request: nested deeper than 128 levels"


def test_json_nested_as_deep_as_it_is_read() -> None:
    data = b"[" * 1000 + b"1" + b"]" * 1000
    found = read(
        b'{"id": "7", "inputs": [{"name": "a", "datatype": "INT8", "data": ' + data + b"}]}"
    )
    assert (found.request_id, found.problem) == ("7", None)
    assert data in (found.inferences[0].data or b"")


def test_binary_tensors_both_ways() -> None:
    images = prefixed(JPEG, PNG)
    tensor = {"name": "image", "shape": [2, 1], "datatype": "BYTES",
              "parameters": {"binary_data_size": len(images)}}  # fmt: skip
    wanted = [{"name": "scores", "parameters": {"binary_data": True}}]
    request = body({"inputs": [tensor], "outputs": wanted})
    raw = struct.pack("<4e", 0.5, 0.25, 1, 2)
    scores = {"name": "scores", "shape": [2, 2], "datatype": "FP16",
              "parameters": {"binary_data_size": len(raw)}}  # fmt: skip
    response = body({"model_name": "m", "outputs": [scores, texts("A", "B", name="labels")]})
    seen = exchange(
        request + images,
        response + raw,
        request_headers=[("inference-header-content-length", str(len(request)))],
        response_headers=[("inference-header-content-length", str(len(response)))],
    )
    found = reading(seen, VISION)
    assert found.problem is None
    assert [each.data for each in found.inferences] == [JPEG, PNG]
    documents = [json.loads(each.response or b"")["outputs"] for each in found.inferences]
    assert [[each["data"] for each in outputs] for outputs in documents] == [
        [[0.5, 0.25], ["A"]],
        [[1.0, 2.0], ["B"]],
    ]
    assert "parameters" not in documents[0][0]


def test_one_binary_answer_becomes_json() -> None:
    head = b'{"outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "parameters": '
    head += b'{"binary_data_size": 4, "note": 1e400}}]}'
    length = [("inference-header-content-length", str(len(head)))]
    found = read({"inputs": [texts("a")]}, head + b"\7\0\0\0", response_headers=length)
    said = b'{"outputs":[{"name":"y","shape":[1],"datatype":"INT32","parameters":{"note":1e400}'
    assert found.inferences[0].response == said + b',"data":[7]}]}'


def test_a_body_that_is_one_raw_tensor() -> None:
    length = [("inference-header-content-length", "0")]
    found = read(JPEG, answer(), VISION, request_headers=length)
    assert [each.data for each in found.inferences] == [JPEG]


@pytest.mark.parametrize("length", ["-1", "x", "9" * 40, "99999", "", "1e3", "²"])
def test_a_length_that_is_none(length: str) -> None:
    content = body({"inputs": [texts("a")]})
    headers = [("inference-header-content-length", length)]
    found = read(content, answer(), request_headers=headers)
    assert [each.data for each in found.inferences] == [content]
    assert "inference-header-content-length" in (found.problem or "")


@pytest.mark.parametrize("size", [3, 5, "x", -4, True, 10**30])
def test_sizes_that_do_not_fit(size: Any) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "INT32",
              "parameters": {"binary_data_size": size}}  # fmt: skip
    head = body({"inputs": [tensor]})
    headers = [("inference-header-content-length", str(len(head)))]
    found = read(head + b"\1\0\0\0", answer(), request_headers=headers)
    assert "binary data has 4 bytes" in (found.problem or "")


@pytest.mark.parametrize("path", ["/v2/models/m/infer_stream", "/v2/models/m/generate_stream"])
def test_a_stream_of_answers(path: str) -> None:
    parts = [answer(texts("He")), answer(texts("llo"))]
    events = b"".join(b"data: " + body(part) + b"\n\n" for part in parts) + b"data: [DONE]\n\n"
    sse = [("content-type", "text/event-stream; charset=utf-8")]
    found = read({"inputs": [texts("Hi")]}, events, path=path, response_headers=sse)
    (inference,) = found.inferences
    assert [each["data"] for each in json.loads(inference.response or b"")["outputs"]] == [
        ["He"],
        ["llo"],
    ]
    assert (inference.data, found.response_id, found.problem) == (b"Hi", "output-1", None)


def test_a_stream_that_breaks_off() -> None:
    events = b"data: " + body(answer(texts("He"))) + b'\n\ndata: {"outputs": ['
    seen = exchange({"inputs": [texts("Hi")]}, events, path="/v2/models/m/infer_stream")
    seen.response = replace(seen.response, whole=False)
    found = reading(seen)
    assert (found.problem or "").startswith("part 1 of the answer: ")
    assert b'["He"]' in (found.inferences[0].response or b"")


def test_a_stream_that_fails() -> None:
    events = b"data: " + body(answer(texts("He"))) + b'\n\ndata: {"error": "out of memory"}\n\n'
    found = read({"inputs": [texts("Hi")]}, events, path="/v2/models/m/infer_stream")
    assert (found.ok, found.error) == (False, "out of memory")
    document = json.loads(found.inferences[0].response or b"")
    assert document["error"] == "out of memory"
    assert len(document["outputs"]) == 1


def test_generate() -> None:
    request = {"text_input": "Hi", "parameters": {"max_tokens": 9, "metadata": LIST}, "id": "7"}
    response = {"model_name": "llm", "model_version": "1", "text_output": "Hello", "score": 1.5}
    text = Model(task_type="text_generation")
    found = read(request, response, text, path="/v2/models/llm/generate")
    (inference,) = found.inferences
    assert (inference.data, found.request_id, found.model) == (b"Hi", "7", "llm")
    outputs = json.loads(inference.response or b"")["outputs"]
    assert outputs[0] == texts("Hello", name="text_output")
    assert [each["name"] for each in outputs] == ["text_output", "score"]
    assert [json.loads(each) for each in inference.metadata] == [LIST]


def test_generate_in_a_stream() -> None:
    events = b'data: {"text_output": "He"}\n\ndata: {"text_output": "llo"}\n\n'
    found = read({"text_input": "Hi"}, events, path="/v2/models/llm/generate_stream")
    outputs = json.loads(found.inferences[0].response or b"")["outputs"]
    assert [each["data"] for each in outputs] == [["He"], ["llo"]]
    predictions = read_predictions(
        found.inferences[0].response, task_type=task_type_of("text_generation")
    )
    assert [row.text for row in predictions.items or ()] == ["He", "llo"]


def test_bodies_that_were_not_kept() -> None:
    seen = exchange({"inputs": [texts("Hi")]}, answer())
    seen.request = Body(size=9_000_000, whole=False)
    seen.response = Body(parts=[b'{"outp'], size=9_000_000, whole=False)
    found = reading(seen)
    assert [(each.data, each.response) for each in found.inferences] == [(None, b'{"outp')]
    said = "the request was not kept: 9000000 bytes; the answer breaks off after 6 bytes"
    assert found.problem == said


def test_the_same_from_the_messages_of_grpc() -> None:
    images = Tensor(name="image", datatype="BYTES", values=[JPEG, PNG])
    request = InferRequest(id="1", parameters={"metadata": LIST.encode()}, inputs=[images])
    boxes = Tensor(name="boxes", datatype="FP32", shape=(2, 1), raw=struct.pack("<2f", 1, 2))
    found = reading_of(request, InferResponse(model="m", outputs=[boxes]), VISION)
    assert [each.data for each in found.inferences] == [JPEG, PNG]
    said = b'{"model_name":"m","outputs":[{"name":"boxes","shape":[1, 1],"datatype":"FP32",'
    assert found.inferences[1].response == said + b'"data":[2.0]}]}'
    assert [list(each.metadata) for each in found.inferences] == [[LIST.encode()]] * 2


def test_a_document_reads_the_last_of_names_that_come_twice() -> None:
    text = b'{"id": "1", "inputs": [1], "\\u0069d": "2", "inputs": []}'
    assert request_of(Document(text)).id == "2"

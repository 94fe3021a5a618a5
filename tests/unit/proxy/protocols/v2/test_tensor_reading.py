"""Reading an exchange: the published examples, and what goes wrong."""

import gzip
import json
import struct
from base64 import b64encode
from dataclasses import replace
from typing import Any

from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols.documents import MOST_BYTES
from inference_store.proxy.protocols.protocol import MOST_ERROR, Inference, Model
from inference_store.proxy.protocols.v2 import parse
from tests.unit.proxy.protocols.exchanged import list_data

from .calls import (
    JPEG,
    PNG,
    VISION,
    encode_body,
    make_exchange,
    make_lengths,
    make_tensor,
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
ONE_IMAGE = {"inputs": [make_text_tensor(IMAGE)]}
TWO_IMAGES = {"inputs": [make_text_tensor(IMAGE), make_text_tensor(DRAWING)]}
GREETING = {"inputs": [make_text_tensor("Hi")]}


def make_answer(*outputs: Any, **more: Any) -> dict[str, Any]:
    defaults = {"model_name": "mymodel", "model_version": "1.0.0", "id": "output-1"}
    return {**defaults, "outputs": list(outputs), "parameters": {}, **more}


def make_events(*documents: Any) -> bytes:
    return b"".join(b"data: " + encode_body(document) + b"\n\n" for document in documents)


def read_document(inference: Inference) -> Any:
    return json.loads(inference.response or b"")


def list_outputs(inference: Inference) -> list[Any]:
    return [output["data"] for output in read_document(inference)["outputs"]]


def test_one_image() -> None:
    parameters = {"action": "predict", "metadata": LIST}
    image = make_text_tensor(IMAGE, shape=[4, 4, 3], parameters=parameters)
    response = encode_body(make_answer(make_text_tensor(CAT, DOG)))
    result = read({"id": "1", "inputs": [image]}, response, VISION)
    (inference,) = result.inferences
    assert (inference.data, inference.response) == (JPEG, response)
    assert [json.loads(text) for text in inference.metadata] == [LIST]
    assert (result.request_id, result.response_id, result.action) == ("1", "output-1", "predict")
    assert (result.model, result.version) == ("mymodel", "1.0.0")
    assert (result.error, result.problem) == (None, None)


def test_each_image_has_its_own_answer_and_metadata() -> None:
    images = [
        make_text_tensor(IMAGE, name="a", parameters={"metadata": LIST}),
        make_text_tensor(DRAWING, name="b", parameters={"metadata": SECTIONS}),
    ]
    root = {"metadata": [{"key": "site", "type": "string", "value": "north"}]}
    outputs = make_text_tensor([CAT, DOG], name="a"), make_text_tensor([], name="b")
    response = make_answer(*outputs, parameters={"took": 1e400})
    result = read({"parameters": root, "inputs": images}, response, VISION)
    assert list_data(result) == [JPEG, PNG]
    documents = [read_document(inference) for inference in result.inferences]
    assert [document["outputs"][0]["name"] for document in documents] == ["a", "b"]
    assert [document["id"] for document in documents] == ["output-1", "output-1"]
    envelopes = [json.loads(text) for inference in result.inferences for text in inference.metadata]
    assert envelopes == [root["metadata"], LIST, root["metadata"], SECTIONS]
    detection = task_type_of("object_detection")
    labels = [
        [row.label for row in read_predictions(inference.response, task_type=detection).items or ()]
        for inference in result.inferences
    ]
    assert labels == [["cat", "dog"], []]


def test_named_arguments_of_the_hugging_face_runtime() -> None:
    raw = {"content_type": "raw", "metadata": SECTIONS}
    arguments = [
        make_text_tensor("Prompt here", name="args", parameters={"metadata": LIST}),
        make_tensor("INT64", [1], name="max_new_tokens", data=[500], parameters=raw),
    ]
    generated = '{"generated_text": "And so on"}'
    output = make_text_tensor(generated, parameters={"content_type": "hg_jsonlist"})
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
    request = {"inputs": [make_tensor("INT8", [2, 1], data=[[1], [2]])]}
    result = read(request, response, Model(task_type="tabular", batched=True))
    first, second = result.inferences
    assert b"[1e400, 12345678901234567890123]" in (first.response or b"")
    assert b"[-0.0, 1.10]" in (second.response or b"")


def test_an_error() -> None:
    cases: list[tuple[Any, int, str]] = [
        ({"error": "no such model"}, 404, "no such model"),
        ({"error": {"code": 3}}, 400, '{"code": 3}'),
        ({"error": "in-band"}, 200, "in-band"),
        ({"detail": "Not Found"}, 404, "Not Found"),
        (b"upstream connect error", 503, "upstream connect error"),
        ([], 500, "[]"),
        (make_answer(), 500, json.dumps(make_answer())),
        ({"error": "x" * 99_999}, 500, "x" * MOST_ERROR),
    ]
    for response, status, error in cases:
        result = read(TWO_IMAGES, response, VISION, status=status)
        assert list_data(result) == [JPEG, PNG]
        answers = [inference.response for inference in result.inferences]
        assert answers == [encode_body(response)] * 2
        assert result.error == error


def test_no_answer_at_all() -> None:
    result = read(ONE_IMAGE, b"", VISION, status=204)
    (inference,) = result.inferences
    assert (inference.data, inference.response, result.error) == (JPEG, None, None)


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
    b"[" * 100_000: "the request: nested deeper than 128 levels",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000: "the request: nested deeper than 128 levels",
    b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}': "input 'x' has no data",
}


def test_a_request_that_cannot_be_read_is_kept_whole() -> None:
    answer = encode_body(make_answer(make_text_tensor(CAT)))
    for content, problem in BROKEN.items():
        result = read(content, answer, VISION)
        (inference,) = result.inferences
        assert inference.data == (None if b"FP32" in content else content), content[:40]
        assert (result.problem or "").startswith(problem), content[:40]
        assert inference.response == answer


def test_an_answer_that_cannot_be_read_is_kept_whole() -> None:
    result = read(TWO_IMAGES, b"<html>", VISION)
    assert [inference.response for inference in result.inferences] == [b"<html>"] * 2
    assert (result.problem or "").startswith("the answer: ")


def test_ids_and_names_of_any_json() -> None:
    tensor = {"name": 7, "shape": "big", "datatype": None, "data": [1], "parameters": []}
    result = read({"id": 12345678901234567890, "inputs": [tensor]}, {"outputs": [], "id": None})
    assert (result.request_id, result.response_id) == ("12345678901234567890", None)
    assert result.problem is None


def test_coded_bodies_that_are_not_read() -> None:
    bomb = gzip.compress(b"\0" * (MOST_BYTES + 1), 1)
    for coding, content, problem in (
        ("br", b"\x1b", "content-encoding 'br' is not read"),
        ("gzip", b"no gzip", "the body is not gzip: "),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-9], "the coded body breaks off"),
        ("gzip", bomb, "the body becomes larger"),
        ("gzip" + ",gzip" * 9, b"", "content-encoding names 10 codings"),
    ):
        result = read(content, make_answer(), sent=[("content-encoding", coding)])
        assert list_data(result) == [content]
        sentence = f"the request is kept coded, as it came: {problem}"
        assert (result.problem or "").startswith(sentence)


def test_json_in_other_encodings() -> None:
    text = json.dumps({"inputs": [make_text_tensor("Grüße")]}, ensure_ascii=False)
    for codec in ("utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"):
        assert list_data(read(text.encode(codec))) == ["Grüße".encode()], codec


def test_json_nested_as_deep_as_it_is_read() -> None:
    data = b"[" * 1000 + b"1" + b"]" * 1000
    result = read(
        b'{"id": "7", "inputs": [{"name": "a", "datatype": "INT8", "data": ' + data + b"}]}"
    )
    assert (result.request_id, result.problem) == ("7", None)
    assert data in (result.inferences[0].data or b"")


def test_binary_tensors_both_ways() -> None:
    images, raw = prefix_lengths(JPEG, PNG), struct.pack("<4e", 0.5, 0.25, 1, 2)
    sizes = [{"binary_data_size": len(part)} for part in (images, raw)]
    tensor = make_tensor("BYTES", [2, 1], name="image", parameters=sizes[0])
    requested_outputs = [{"name": "scores", "parameters": {"binary_data": True}}]
    request = encode_body({"inputs": [tensor], "outputs": requested_outputs})
    scores = make_tensor("FP16", [2, 2], name="scores", parameters=sizes[1])
    labels = make_text_tensor("A", "B", name="labels")
    response = encode_body({"model_name": "m", "outputs": [scores, labels]})
    result = read(
        request + images,
        response + raw,
        VISION,
        sent=make_lengths(request),
        answered=make_lengths(response),
    )
    assert result.problem is None
    assert list_data(result) == [JPEG, PNG]
    outputs = [list_outputs(inference) for inference in result.inferences]
    assert outputs == [[[0.5, 0.25], ["A"]], [[1.0, 2.0], ["B"]]]
    assert "parameters" not in read_document(result.inferences[0])["outputs"][0]


def test_a_binary_answer_becomes_json() -> None:
    head = b'{"outputs": [{"name": "y", "datatype": "INT32", "shape": [1], "parameters": '
    head += b'{"binary_data_size": 4, "note": 1e400}}]}'
    result = read(GREETING, head + b"\7\0\0\0", answered=make_lengths(head))
    expected = b'{"outputs":[{"name":"y","shape":[1],"datatype":"INT32","parameters":{"note":1e400}'
    assert result.inferences[0].response == expected + b',"data":[7]}]}'


def test_a_body_that_is_one_raw_tensor() -> None:
    result = read(JPEG, make_answer(), VISION, sent=make_lengths(b""))
    assert list_data(result) == [JPEG]


def test_a_length_that_is_none() -> None:
    content = encode_body(GREETING)
    for length in ("-1", "x", "9" * 40, "99999", "", "1e3", "²"):
        headers = [("inference-header-content-length", length)]
        result = read(content, make_answer(), sent=headers)
        assert list_data(result) == [content], length
        assert "inference-header-content-length" in (result.problem or ""), length


def test_sizes_that_do_not_fit() -> None:
    for size in (3, 5, "x", -4, True, 10**30):
        tensor = make_tensor("INT32", [1], parameters={"binary_data_size": size})
        head = encode_body({"inputs": [tensor]})
        body = head + b"\1\0\0\0"
        result = read(body, make_answer(), sent=make_lengths(head))
        assert "binary data has 4 bytes" in (result.problem or ""), size


def test_a_stream_of_answers() -> None:
    parts = [make_answer(make_text_tensor("He")), make_answer(make_text_tensor("llo"))]
    events = make_events(*parts) + b"data: [DONE]\n\n"
    sse = [("content-type", "text/event-stream; charset=utf-8")]
    for path in ("/v2/models/m/infer_stream", "/v2/models/m/generate_stream"):
        result = read(GREETING, events, path=path, answered=sse)
        (inference,) = result.inferences
        assert list_outputs(inference) == [["He"], ["llo"]]
        assert (inference.data, result.response_id, result.problem) == (b"Hi", "output-1", None)


def test_a_stream_that_breaks_off() -> None:
    events = make_events(make_answer(make_text_tensor("He"))) + b'data: {"outputs": ['
    sample = make_exchange(GREETING, events, path="/v2/models/m/infer_stream")
    sample.response = replace(sample.response, whole=False)
    result = read_exchange(sample)
    assert "; part 1 of the answer: " in (result.problem or "")
    assert b'["He"]' in (result.inferences[0].response or b"")


def test_a_stream_that_fails() -> None:
    events = make_events(make_answer(make_text_tensor("He")), {"error": "out of memory"})
    result = read(GREETING, events, path="/v2/models/m/infer_stream")
    assert result.error == "out of memory"
    document = read_document(result.inferences[0])
    assert document["error"] == "out of memory"
    assert len(document["outputs"]) == 1


def test_generate() -> None:
    request = {"text_input": "Hi", "parameters": {"max_tokens": 9, "metadata": LIST}, "id": "7"}
    response = {"model_name": "llm", "model_version": "1", "text_output": "Hello", "score": 1.5}
    text = Model(task_type="text_generation")
    result = read(request, response, text, path="/v2/models/llm/generate")
    (inference,) = result.inferences
    assert (inference.data, result.request_id, result.model) == (b"Hi", "7", "llm")
    first, second = read_document(inference)["outputs"]
    assert first == make_text_tensor("Hello", name="text_output")
    assert second["name"] == "score"
    assert [json.loads(text) for text in inference.metadata] == [LIST]


def test_generate_in_a_stream() -> None:
    events = make_events({"text_output": "He"}, {"text_output": "llo"})
    result = read({"text_input": "Hi"}, events, path="/v2/models/llm/generate_stream")
    (inference,) = result.inferences
    assert list_outputs(inference) == [["He"], ["llo"]]
    rows = read_predictions(inference.response, task_type=task_type_of("text_generation")).items
    assert [row.text for row in rows or ()] == ["He", "llo"]


def test_bodies_that_were_not_kept() -> None:
    sample = make_exchange(GREETING, make_answer())
    sample.request = Body(size=9_000_000, whole=False)
    sample.response = Body(parts=[b'{"outp'], size=9_000_000, whole=False)
    result = read_exchange(sample)
    (inference,) = result.inferences
    assert inference.response == b'{"outp'
    assert "request's 9000000 bytes only 0 are there; of the answer's" in (result.problem or "")


def test_a_document_reads_the_last_of_names_that_come_twice() -> None:
    text = b'{"id": "1", "inputs": [1], "\\u0069d": "2", "inputs": []}'
    assert parse(text, "request").id == "2"


def test_a_shape_that_is_not_that_of_the_values_is_flagged() -> None:
    right = make_numbers([2, 2], [[1, 2], [3, 4]])
    for tensor, is_misshapen in (
        (right, False),
        (make_numbers([4], [[1, 2], [3, 4]]), False),
        (make_numbers([-1, 2], [1, 2, 3, 4]), False),
        (make_numbers([0], []), False),
        ({**make_numbers([480, 640], ["a picture"]), "datatype": "BYTES"}, False),
        (make_numbers([2, 3], [[1, 2], [3, 4]]), True),
        (make_numbers([1], []), True),
    ):
        for request, answer, side in ((tensor, right, "request"), (right, tensor, "response")):
            reading = read({"inputs": [request]}, {"outputs": [answer]})
            reasons = [] if reading.problem is None else list(reading.problem.reasons)
            assert reasons == [(side, "misshapen")] * is_misshapen, tensor
    binary = {"datatype": "BF16", "parameters": {"binary_data_size": 4}}
    head = encode_body({"outputs": [make_numbers([3], None) | binary]})
    lengths = make_lengths(head)
    reading = read({"inputs": [right]}, head + b"\x80\x3f\0\0", answered=lengths)
    assert "does not have the values of its shape" in (reading.problem or "")
    (output,) = json.loads(reading.inferences[0].response or b"")["outputs"]
    assert output["data"] == [1.0, 0.0]


def make_numbers(shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": "x", "shape": shape, "datatype": "FP32", "data": data}

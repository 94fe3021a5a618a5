"""KServe V1: an instance is a datum, a prediction what the model said of it."""

from base64 import b64encode
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson

from inference_store.proxy.protocols import Reading

from .exchanged import (
    list_data,
    list_predictions,
    make_body,
    make_exchange,
    make_grpc_exchange,
    read_by,
    read_call,
)

PATH = "/v1/models/flowers:predict"
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(64)
BASE64 = b64encode(PIXEL).decode()


def read_instances(instances: list[Any], answer: Any, **more: Any) -> Reading:
    return read_call(PATH, {"instances": instances}, answer, **more)


def test_an_instance_to_a_prediction_each() -> None:
    reading = read_instances([[5.1, 3.5], [6.2, 3.4]], {"predictions": [0, 2]})
    assert list_data(reading) == [b"[5.1,3.5]", b"[6.2,3.4]"]
    assert orjson.loads(reading.inferences[1].response or b"") == {
        "model_name": "flowers",
        "outputs": [{"name": "predictions", "datatype": "INT64", "shape": [1], "data": [2]}],
    }
    assert (reading.action, reading.problem) == ("predict", None)


def test_tabular_numbers_stay_as_they_were_written() -> None:
    answer = b'{"predictions": [1.10, 12345678901234567890]}'
    reading = read_instances([1, 2], answer, task_type="tabular")
    rows = [list_predictions(inference.response, "tabular") for inference in reading.inferences]
    assert [row.value for (row,) in rows] == [Decimal("1.10"), Decimal(12345678901234567890)]
    assert b"1.10" in (reading.inferences[0].response or b"")


def test_a_single_instance_has_the_answer_as_it_came() -> None:
    answer = b'{ "predictions": [{"label": "cat", "score": 0.5}] }'
    (inference,) = read_instances([{"b64": BASE64}], answer).inferences
    assert (inference.data, inference.response) == (PIXEL, answer)
    (row,) = list_predictions(inference.response, "image_classification")
    assert (row.label, row.score) == ("cat", 0.5)


def test_finds_the_datum_of_an_instance() -> None:
    two = {"left": {"b64": BASE64}, "right": {"b64": BASE64}}
    cases: list[tuple[Any, str | None, bytes]] = [
        ({"b64": BASE64}, None, PIXEL),
        ({"image": {"b64": BASE64}, "key": "1"}, None, PIXEL),
        ({"data": BASE64, "key": "1"}, "image_classification", PIXEL),
        (BASE64, "object_detection", PIXEL),
        (f"data:image/png;base64,{BASE64}", None, PIXEL),
        ("good morning", None, b"good morning"),
        (BASE64, "text_generation", BASE64.encode()),
        ({"a": 1}, None, b'{"a":1}'),
        (two, None, orjson.dumps(two)),
    ]
    for instance, task_type, data in cases:
        reading = read_instances([instance], {"predictions": [1]}, task_type=task_type)
        assert list_data(reading) == [data], instance


def test_predictions_that_do_not_match_make_one_inference() -> None:
    for predictions in ([1], {"a": 1}):
        answer = orjson.dumps({"predictions": predictions})
        reading = read_instances([1, 2], answer)
        (inference,) = reading.inferences
        assert (inference.data, inference.response) == (b'{"instances":[1,2]}', answer)
        assert "predictions to 2 instances" in (reading.problem or "")


def test_explanations_are_read_as_an_action() -> None:
    answer = {"explanations": [{"a": 1}, {}]}
    reading = read_call("/v1/models/m:explain", {"instances": [1, 2]}, answer)
    assert reading.action == "explain"
    assert len(reading.inferences) == 2


def test_a_failed_call_is_about_every_instance() -> None:
    error = b'{"error":"no such model"}'
    reading = read_instances(["a", "b"], error, status=404)
    assert list_data(reading) == [b"a", b"b"]
    assert {inference.response for inference in reading.inferences} == {error}
    assert reading.error == "no such model"


def test_an_answer_that_is_no_json_is_kept_in_a_document() -> None:
    reading = read_instances([1, 2], b"\xff\xfe<html>")
    assert len(reading.inferences) == 2
    assert orjson.loads(reading.inferences[0].response or b"") == {"body": {"b64": "//48aHRtbD4="}}
    assert "the answer is not JSON" in (reading.problem or "")


def test_very_many_instances_are_one_inference() -> None:
    many = list(range(1025))
    reading = read_instances(many, {"predictions": many})
    assert len(reading.inferences) == 1
    assert "1025 instances" in (reading.problem or "")


# Unknown protocols: bytes in, bytes out.


def test_json_is_kept_as_it_came() -> None:
    reading = read_by("raw", make_exchange("/classify", b"\x00\xff", b'{ "a": 1 }', sent=()))
    (inference,) = reading.inferences
    assert (inference.data, inference.data_content_type) == (b"\x00\xff", None)
    assert inference.response == b'{ "a": 1 }'
    assert reading.action == "POST /classify"


def test_other_answers_are_one_output() -> None:
    png = [("content-type", "image/png")]
    for raw, element in ((b"hi", "hi"), (b"\xff", {"b64": "/w=="})):
        reading = read_by("raw", make_exchange("/x", b"", raw, answered=png))
        document = orjson.loads(reading.inferences[0].response or b"")
        assert document["outputs"][0]["data"] == [element]
        assert reading.standard == {"response_content_type": "image/png"}


def test_an_error_is_found() -> None:
    reading = read_by("raw", make_exchange("/x", b"", {"detail": "no"}, status=404))
    assert reading.error == "no"


def test_messages_of_a_stream_are_elements() -> None:
    sample = make_grpc_exchange("/a.B/C", [b"a", b"b"], [b"\xff", b"c"], code=4)
    cut_off = replace(make_body(b"", whole=False, size=9), parts=[b"\xff", b"c"])
    trailers = [("grpc-message", "too late")]
    reading = read_by("raw-grpc", replace(sample, response=cut_off, response_trailers=trailers))
    assert reading.inferences[0].data == b"ab"
    document = orjson.loads(reading.inferences[0].response or b"")
    assert document["outputs"][0]["data"] == [{"b64": "/w=="}, "c"]
    assert (reading.error, reading.action) == ("too late", "/a.B/C")
    assert reading.problem == "of the answer's 9 bytes only 2 are there"

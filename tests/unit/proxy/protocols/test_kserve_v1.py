"""KServe V1: an instance is a datum, a prediction what the model said of it."""

from base64 import b64encode
from decimal import Decimal
from typing import Any

import orjson
import pytest

from inference_store.proxy.protocols import recognise_call

from .exchanged import list_predictions, make_exchange, read

PATH = "/v1/models/flowers:predict"
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(64)
BASE64 = b64encode(PIXEL).decode()


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        ("/v1/models/flowers:predict", "flowers", None),
        ("/v1/models/a%2Fb:explain", "a/b", None),
        ("/v1/models/flowers%3Apredict", "flowers", None),
        ("/v1/models/a:b:predict", "a:b", None),
        ("/v1/models/flowers/versions/3:predict", "flowers", "3"),
    ],
)
def test_the_model_is_in_the_path(path: str, model: str, version: str | None) -> None:
    call = recognise_call(["kserve-v1"], "rest", "POST", path)
    assert call is not None
    assert (call.model, call.version) == (model, version)


@pytest.mark.parametrize(
    "path", ["/v1/models/flowers", "/v1/models/flowers:classify", "/v1/models"]
)
def test_other_calls_pass_through(path: str) -> None:
    assert recognise_call(["kserve-v1"], "rest", "POST", path) is None
    assert recognise_call(["kserve-v1"], "rest", "GET", PATH) is None


def test_an_instance_to_a_prediction_each() -> None:
    instances = [[5.1, 3.5], [6.2, 3.4]]
    reading = read(make_exchange(PATH, {"instances": instances}, {"predictions": [0, 2]}))
    assert [inference.data for inference in reading.inferences] == [b"[5.1,3.5]", b"[6.2,3.4]"]
    first = orjson.loads(reading.inferences[1].response or b"")
    assert first == {
        "model_name": "flowers",
        "outputs": [{"name": "predictions", "datatype": "INT64", "shape": [1], "data": [2]}],
    }
    assert (reading.action, reading.problem) == ("predict", None)


def test_tabular_numbers_stay_as_they_were_written() -> None:
    answer = b'{"predictions": [1.10, 12345678901234567890]}'
    reading = read(make_exchange(PATH, {"instances": [1, 2]}, answer), task_type="tabular")
    rows = [list_predictions(inference.response, "tabular") for inference in reading.inferences]
    assert [row.value for (row,) in rows] == [Decimal("1.10"), Decimal(12345678901234567890)]
    assert b"1.10" in (reading.inferences[0].response or b"")


def test_a_single_instance_has_the_answer_as_it_came() -> None:
    answer = b'{ "predictions": [{"label": "cat", "score": 0.5}] }'
    reading = read(make_exchange(PATH, {"instances": [{"b64": BASE64}]}, answer))
    (inference,) = reading.inferences
    assert (inference.data, inference.response) == (PIXEL, answer)
    (row,) = list_predictions(inference.response, "image_classification")
    assert (row.label, row.score) == ("cat", 0.5)


@pytest.mark.parametrize(
    ("instance", "task_type", "data"),
    [
        ({"b64": BASE64}, None, PIXEL),
        ({"image": {"b64": BASE64}, "key": "1"}, None, PIXEL),
        ({"data": BASE64, "key": "1"}, "image_classification", PIXEL),
        (BASE64, "object_detection", PIXEL),
        (f"data:image/png;base64,{BASE64}", None, PIXEL),
        ("good morning", None, b"good morning"),
        (BASE64, "text_generation", BASE64.encode()),
        ({"a": 1}, None, b'{"a":1}'),
        ({"left": {"b64": BASE64}, "right": {"b64": BASE64}}, None, None),
    ],
)
def test_finds_the_datum_of_an_instance(
    instance: Any, task_type: str | None, data: bytes | None
) -> None:
    sample = make_exchange(PATH, {"instances": [instance]}, {"predictions": [1]})
    reading = read(sample, task_type=task_type).inferences[0].data
    assert reading == (orjson.dumps(instance) if data is None else data)


@pytest.mark.parametrize("answer", [{"predictions": [1]}, {"predictions": {"a": 1}}])
def test_predictions_that_do_not_match_make_one_inference(answer: Any) -> None:
    request = {"instances": [1, 2]}
    reading = read(make_exchange(PATH, request, answer))
    (inference,) = reading.inferences
    assert (inference.data, inference.response) == (orjson.dumps(request), orjson.dumps(answer))
    assert "predictions to 2 instances" in (reading.problem or "")


def test_explanations_are_read_as_an_action() -> None:
    reading = read(
        make_exchange(
            "/v1/models/m:explain", {"instances": [1, 2]}, {"explanations": [{"a": 1}, {}]}
        )
    )
    assert reading.action == "explain"
    assert len(reading.inferences) == 2


def test_a_failed_call_is_about_every_instance() -> None:
    sample = make_exchange(PATH, {"instances": ["a", "b"]}, {"error": "no such model"}, status=404)
    reading = read(sample)
    assert [inference.data for inference in reading.inferences] == [b"a", b"b"]
    assert {inference.response for inference in reading.inferences} == {
        b'{"error":"no such model"}'
    }
    assert (reading.ok, reading.error) == (None, "no such model")


@pytest.mark.parametrize("raw", [b"", b"{", b'{"inputs": [1]}', b"[1]"])
def test_a_request_without_instances_is_kept_whole(raw: bytes) -> None:
    reading = read(make_exchange(PATH, raw, {"predictions": [1, 2]}))
    (inference,) = reading.inferences
    assert inference.data == raw
    assert reading.problem


def test_an_answer_that_is_no_json_is_kept_in_a_document() -> None:
    reading = read(make_exchange(PATH, {"instances": [1, 2]}, b"\xff\xfe<html>"))
    assert len(reading.inferences) == 2
    assert orjson.loads(reading.inferences[0].response or b"") == {"body": {"b64": "//48aHRtbD4="}}
    assert "the answer is not JSON" in (reading.problem or "")


def test_very_many_instances_are_one_inference() -> None:
    many = list(range(1025))
    reading = read(make_exchange(PATH, {"instances": many}, {"predictions": many}))
    assert len(reading.inferences) == 1
    assert "1025 instances" in (reading.problem or "")

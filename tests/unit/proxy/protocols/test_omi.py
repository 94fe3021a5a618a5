"""OMI containers: an inference an input item, whatever the container answers."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from inference_store.grpc_messages import message
from inference_store.inference.json_text import read_json
from inference_store.inference.task_types import TASK_TYPES, read_predictions, task_type_of
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols import Reading

from .exchanged import PIXEL, list_data, list_predictions, make_grpc_exchange, read

RUN = "/ModzyModel/Run"
CLASSES = [{"class": "cat", "score": 0.75}, {"class": "dog", "score": 0.25}]


def make_request(*items: dict[str, bytes], **flags: bool) -> bytes:
    inputs = [message("InputItem")(input=item) for item in items]
    return bytes(message("RunRequest")(inputs=inputs, **flags).SerializeToString())


def make_response(*items: Any, status_code: int = 200, **fields: str) -> bytes:
    """An item that is no `(success, files)` is the JSON of its results.json."""
    pairs = [
        item if isinstance(item, tuple) else (True, {"results.json": orjson.dumps(item)})
        for item in items
    ]
    outputs = [message("OutputItem")(success=ok, output=files) for ok, files in pairs]
    run = message("RunResponse")(status_code=status_code, outputs=outputs, **fields)
    return bytes(run.SerializeToString())


def make_exchange(request: bytes, response: bytes | None) -> Exchange:
    if response is None:
        return make_grpc_exchange(RUN, [request], [], code=14)
    return make_grpc_exchange(RUN, [request], [response])


def read_run(*items: dict[str, bytes], response: bytes | None, **flags: bool) -> Reading:
    return read(make_exchange(make_request(*items, **flags), response))


def read_response(reading: Reading) -> dict[str, Any]:
    (inference,) = reading.inferences
    document: dict[str, Any] = orjson.loads(inference.response or b"")
    return document


def test_class_predictions_are_read() -> None:
    content = {"result": {"classPredictions": CLASSES}, "drift": None}
    for answer in (content, {"data": content}):
        for datum, task_type in (
            (PIXEL, "image_classification"),
            (b"What a day.", "text_classification"),
        ):
            reading = read_run({"input": datum}, response=make_response(answer))
            (inference,) = reading.inferences
            assert inference.data == datum
            rows = list_predictions(inference.response, reading.task_type)
            assert [(row.label, row.score) for row in rows] == [("cat", 0.75), ("dog", 0.25)]
            assert reading.task_type == task_type
            assert (reading.error, reading.problem) == (None, None)
            assert inference.error is None


def test_the_model_type_determines_how_the_answer_is_read() -> None:
    boxes = [{"class": "cat", "score": 0.5, "xMin": 1, "xMax": 3, "yMin": 2, "yMax": 5}]
    answer = {"modelType": "objectDetection", "result": {"detections": boxes}}
    reading = read_run({"image": PIXEL}, response=make_response(answer))
    assert reading.task_type == "object_detection"
    (row,) = list_predictions(reading.inferences[0].response, reading.task_type)
    assert (row.label, row.xmin, row.ymax) == ("cat", 1, 5)


def test_explanations_drift_and_all_files_are_kept() -> None:
    answer = {
        "modelType": "imageClassification",
        "result": {"classPredictions": CLASSES},
        "explanation": {"maskRLE": [[1, 2]], "dimensions": {"height": 3, "width": 4}},
    }
    files = {"results.json": orjson.dumps(answer), "drift.txt": b"low", "mask": b"\xff"}
    flags = {"explain": True, "detect_drift": True}
    reading = read_run({"image": PIXEL}, response=make_response((True, files)), **flags)
    kept = {"results.json": answer, "drift.txt": "low", "mask": {"b64": "/w=="}}
    assert read_response(reading)["files"] == kept
    assert reading.standard == {"status_code": 200, **flags, "input_files": ["image"]}
    assert len(list_predictions(reading.inferences[0].response, reading.task_type)) == 2


def test_items_fail_one_by_one() -> None:
    failed = (False, {"error": "not an image: é".encode()})
    answer = make_response({"result": {"classPredictions": CLASSES}}, failed, (False, {}))
    reading = read_run({"i": b"a"}, {"i": b"b"}, {"i": b"c"}, response=answer)
    assert list_data(reading) == [b"a", b"b", b"c"]
    assert [inference.error for inference in reading.inferences] == [
        None,
        "not an image: é",
        "the container says that it failed, and not why",
    ]
    assert reading.error is None


def test_a_failure_in_band_is_a_failure() -> None:
    for code in (422, 500):
        answer = make_response(status_code=code, message="too large")
        reading = read_run({"i": b"a"}, {"i": b"b"}, response=answer)
        assert reading.error == "too large"
        assert list_data(reading) == [b"a", b"b"]
        assert all(b"too large" in (inference.response or b"") for inference in reading.inferences)


def test_several_files_of_an_item_are_a_document_by_name() -> None:
    reading = read_run({"b.txt": b"text", "a.png": b"\xff"}, response=make_response({"x": 1}))
    (inference,) = reading.inferences
    assert inference.data == b'{"a.png":{"b64":"/w=="},"b.txt":"text"}'
    assert inference.data_content_type == "application/json"
    assert reading.standard["input_files"] == ["a.png", "b.txt"]


def test_other_results_are_an_output() -> None:
    cases: list[tuple[dict[str, bytes], list[Any]]] = [
        ({"out.txt": b"Hello."}, ["Hello."]),
        ({"out.json": b'{"result": [{"label": "x"}]}'}, [[{"label": "x"}]]),
        ({"results.json": b"{broken", "other": b"1"}, ["{broken"]),
    ]
    for files, data in cases:
        reading = read_run({"i": b"a"}, response=make_response((True, files)))
        assert read_response(reading)["outputs"][0]["data"] == data, files


def test_reads_no_predictions_from_several_unknown_files() -> None:
    reading = read_run({"i": b"a"}, response=make_response((True, {"a": b"1", "b": b"2"})))
    assert read_response(reading) == {"files": {"a": "1", "b": "2"}, "outputs": []}
    assert "neither results.json nor a single file" in (reading.problem or "")


def test_outputs_that_do_not_match_the_inputs_are_one_inference() -> None:
    items = {"i": b"a"}, {"i": b"b"}
    reading = read_run(*items, response=make_response({"x": 1}))
    assert list_data(reading) == [make_request(*items)]
    assert read_response(reading)["items"] == [{"results.json": {"x": 1}}]
    assert reading.problem == "1 output items to 2 input items: kept as one inference"


def test_without_an_answer_the_items_are_kept() -> None:
    reading = read_run({"i": b"a"}, {"i": b"b"}, response=None)
    assert list_data(reading) == [b"a", b"b"]
    assert [inference.response for inference in reading.inferences] == [None, None]
    assert reading.problem is None


def test_a_request_that_cannot_be_read_is_kept_whole() -> None:
    for request in (b"\xff\xff", make_request()):
        reading = read(make_exchange(request, make_response({"x": 1})))
        assert list_data(reading) == [request]
        assert reading.problem


_KEYS = ["data", "result", "classPredictions", "detections", "class", "score", "modelType", "xMin"]
_CONTENT = st.binary(max_size=20) | st.recursive(
    st.none() | st.integers(-9, 9) | st.sampled_from(["imageClassification", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)
    ),
    max_leaves=15,
).map(orjson.dumps)
_FILES = st.dictionaries(st.sampled_from(["results.json", "error", "a"]), _CONTENT, max_size=3)
_REQUEST = st.lists(_FILES, max_size=3).map(lambda items: make_request(*items))
_ITEMS = st.lists(st.tuples(st.booleans(), _FILES), max_size=3)
_RESPONSE = st.none() | st.builds(
    lambda items, code: make_response(*items, status_code=code), _ITEMS, st.integers(0, 600)
)
_BYTES = st.binary(max_size=30)


@given(_REQUEST | _BYTES, _RESPONSE | _BYTES, st.booleans(), st.booleans())
def test_every_run_is_read(
    request_bytes: bytes, response: bytes | None, first: bool, second: bool
) -> None:
    exchange = make_exchange(request_bytes, response)
    exchange.request.whole, exchange.response.whole = first, second
    reading = read(exchange)
    assert reading.inferences
    for inference in reading.inferences:
        assert inference.data is not None
        if inference.response is not None:
            read_json(inference.response)
            for task_type in TASK_TYPES:
                read_predictions(inference.response, task_type=task_type_of(task_type))

"""OMI containers: an inference an input item, whatever the container answers."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.grpc_messages import message
from inference_store.inference.json_text import read_json
from inference_store.inference.task_types import TASK_TYPES, read_predictions, task_type_of
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import Reading, recognise_call

from .exchanged import list_predictions, read

RUN = "/ModzyModel/Run"
PIXEL = b"\x89PNG\r\n\x1a\n\x00pixel"
CLASSES = [{"class": "cat", "score": 0.75}, {"class": "dog", "score": 0.25}]
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
    return Exchange(
        transport="grpc",
        method=RUN,
        path=RUN,
        request=Body(parts=[request], size=len(request)),
        response=Body(parts=[] if response is None else [response], size=len(response or b"")),
        grpc_code=0 if response is not None else 14,
        received_at=datetime.now(UTC),
    )


def read_response(reading: Reading) -> dict[str, Any]:
    """The only response."""
    (inference,) = reading.inferences
    document: dict[str, Any] = orjson.loads(inference.response or b"")
    return document


def test_run_alone_is_captured() -> None:
    assert recognise_call(["omi"], "grpc", RUN, RUN) is not None
    for other in ("/ModzyModel/Status", "/ModzyModel/Shutdown", "/x.ModzyModel/Run"):
        assert recognise_call(["omi"], "grpc", other, other) is None


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    ("datum", "task_type"),
    [(PIXEL, "image_classification"), (b"What a day.", "text_classification")],
)
def test_class_predictions_are_read(wrapped: bool, datum: bytes, task_type: str) -> None:
    content = {"result": {"classPredictions": CLASSES}, "drift": None}
    answer = {"data": content} if wrapped else content
    reading = read(make_exchange(make_request({"input": datum}), make_response(answer)))
    (inference,) = reading.inferences
    assert inference.data == datum
    rows = list_predictions(inference.response, reading.task_type)
    assert [(row.label, row.score) for row in rows] == [("cat", 0.75), ("dog", 0.25)]
    assert reading.task_type == task_type
    assert (reading.ok, reading.error, reading.problem, inference.ok) == (None, None, None, None)


def test_the_model_type_determines_how_the_answer_is_read() -> None:
    boxes = [{"class": "cat", "score": 0.5, "xMin": 1, "xMax": 3, "yMin": 2, "yMax": 5}]
    answer = {"modelType": "objectDetection", "result": {"detections": boxes}}
    reading = read(make_exchange(make_request({"image": PIXEL}), make_response(answer)))
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
    reading = read(
        make_exchange(
            make_request({"image": PIXEL}, explain=True, detect_drift=True),
            make_response((True, files)),
        )
    )
    assert read_response(reading)["files"] == {
        "results.json": answer,
        "drift.txt": "low",
        "mask": {"b64": "/w=="},
    }
    flags = {"explain": True, "detect_drift": True}
    assert reading.standard == {"status_code": 200, **flags, "input_files": ["image"]}
    assert len(list_predictions(reading.inferences[0].response, reading.task_type)) == 2


def test_items_fail_one_by_one() -> None:
    failed = (False, {"error": "not an image: é".encode()})
    answer = make_response({"result": {"classPredictions": CLASSES}}, failed, (False, {}))
    reading = read(make_exchange(make_request({"i": b"a"}, {"i": b"b"}, {"i": b"c"}), answer))
    assert [inference.data for inference in reading.inferences] == [b"a", b"b", b"c"]
    assert [inference.ok for inference in reading.inferences] == [None, False, False]
    assert [inference.error for inference in reading.inferences] == [
        None,
        "not an image: é",
        "the container says that it failed, and not why",
    ]
    assert (reading.ok, reading.error) == (None, None)


@pytest.mark.parametrize("code", [422, 500])
def test_a_failure_in_band_is_a_failure(code: int) -> None:
    reading = read(
        make_exchange(
            make_request({"i": b"a"}, {"i": b"b"}),
            make_response(status_code=code, message="too large"),
        )
    )
    assert (reading.ok, reading.error) == (False, "too large")
    assert [inference.data for inference in reading.inferences] == [b"a", b"b"]
    assert all(b"too large" in (inference.response or b"") for inference in reading.inferences)


def test_several_files_of_an_item_are_a_document_by_name() -> None:
    reading = read(
        make_exchange(make_request({"b.txt": b"text", "a.png": PIXEL}), make_response({"x": 1}))
    )
    (inference,) = reading.inferences
    assert inference.data == b'{"a.png":{"b64":"iVBORw0KGgoAcGl4ZWw="},"b.txt":"text"}'
    assert inference.data_content_type == "application/json"
    assert reading.standard["input_files"] == ["a.png", "b.txt"]


@pytest.mark.parametrize(
    ("files", "data"),
    [
        ({"out.txt": b"Hello."}, ["Hello."]),
        ({"out.json": b'{"result": [{"label": "x"}]}'}, [[{"label": "x"}]]),
        ({"results.json": b"{broken", "other": b"1"}, ["{broken"]),
    ],
)
def test_other_results_are_an_output(files: dict[str, bytes], data: list[Any]) -> None:
    assert (
        read_response(read(make_exchange(make_request({"i": b"a"}), make_response((True, files)))))[
            "outputs"
        ][0]["data"]
        == data
    )


def test_reads_no_predictions_from_several_unknown_files() -> None:
    reading = read(
        make_exchange(make_request({"i": b"a"}), make_response((True, {"a": b"1", "b": b"2"})))
    )
    assert read_response(reading) == {"files": {"a": "1", "b": "2"}, "outputs": []}
    assert "neither results.json nor a single file" in (reading.problem or "")


def test_outputs_that_do_not_match_the_inputs_are_one_inference() -> None:
    request = make_request({"i": b"a"}, {"i": b"b"})
    reading = read(make_exchange(request, make_response({"x": 1})))
    (inference,) = reading.inferences
    assert inference.data == request
    assert read_response(reading)["items"] == [{"results.json": {"x": 1}}]
    assert reading.problem == "1 output items to 2 input items: kept as one inference"


def test_without_an_answer_the_items_are_kept() -> None:
    reading = read(make_exchange(make_request({"i": b"a"}, {"i": b"b"}), None))
    assert [(inference.data, inference.response) for inference in reading.inferences] == [
        (b"a", None),
        (b"b", None),
    ]
    assert reading.problem is None


@pytest.mark.parametrize("request_bytes", [b"\xff\xff", make_request()])
def test_a_request_that_cannot_be_read_is_kept_whole(request_bytes: bytes) -> None:
    reading = read(make_exchange(request_bytes, make_response({"x": 1})))
    assert reading.inferences[0].data == request_bytes
    assert reading.problem


_CONTENT = st.binary(max_size=20) | st.recursive(
    st.none() | st.integers(-9, 9) | st.sampled_from(["imageClassification", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "result",
                    "classPredictions",
                    "detections",
                    "class",
                    "score",
                    "modelType",
                    "xMin",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
).map(orjson.dumps)
_FILES = st.dictionaries(st.sampled_from(["results.json", "error", "a"]), _CONTENT, max_size=3)
_REQUEST = st.lists(_FILES, max_size=3).map(lambda items: make_request(*items)) | st.binary(
    max_size=30
)
_ITEMS = st.lists(st.tuples(st.booleans(), _FILES), max_size=3)
_RESPONSE = (
    st.builds(
        lambda items, code: make_response(*items, status_code=code), _ITEMS, st.integers(0, 600)
    )
    | st.binary(max_size=30)
    | st.none()
)


@_UNHURRIED
@given(_REQUEST, _RESPONSE, st.booleans(), st.booleans())
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

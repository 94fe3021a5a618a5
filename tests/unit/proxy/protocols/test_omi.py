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
from inference_store.proxy.protocols import Reading, recognised

from .exchanged import predictions, read

RUN = "/ModzyModel/Run"
PIXEL = b"\x89PNG\r\n\x1a\n\x00pixel"
CLASSES = [{"class": "cat", "score": 0.75}, {"class": "dog", "score": 0.25}]
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def asked(*items: dict[str, bytes], **flags: bool) -> bytes:
    inputs = [message("InputItem")(input=item) for item in items]
    return bytes(message("RunRequest")(inputs=inputs, **flags).SerializeToString())


def told(*items: Any, status_code: int = 200, **said: str) -> bytes:
    """An item that is no `(success, files)` is the JSON of its results.json."""
    pairs = [
        item if isinstance(item, tuple) else (True, {"results.json": orjson.dumps(item)})
        for item in items
    ]
    outputs = [message("OutputItem")(success=ok, output=files) for ok, files in pairs]
    run = message("RunResponse")(status_code=status_code, outputs=outputs, **said)
    return bytes(run.SerializeToString())


def went(request: bytes, response: bytes | None) -> Exchange:
    return Exchange(
        transport="grpc",
        method=RUN,
        path=RUN,
        request=Body(parts=[request], size=len(request)),
        response=Body(parts=[] if response is None else [response], size=len(response or b"")),
        grpc_code=0 if response is not None else 14,
        received_at=datetime.now(UTC),
    )


def of(found: Reading) -> dict[str, Any]:
    """The only response."""
    (inference,) = found.inferences
    document: dict[str, Any] = orjson.loads(inference.response or b"")
    return document


def test_run_alone_is_captured() -> None:
    assert recognised(["omi"], "grpc", RUN, RUN) is not None
    for other in ("/ModzyModel/Status", "/ModzyModel/Shutdown", "/x.ModzyModel/Run"):
        assert recognised(["omi"], "grpc", other, other) is None


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    ("datum", "task_type"),
    [(PIXEL, "image_classification"), (b"What a day.", "text_classification")],
)
def test_class_predictions_are_read(wrapped: bool, datum: bytes, task_type: str) -> None:
    content = {"result": {"classPredictions": CLASSES}, "drift": None}
    answer = {"data": content} if wrapped else content
    found = read(went(asked({"input": datum}), told(answer)))
    (inference,) = found.inferences
    assert inference.data == datum
    rows = predictions(inference.response, found.task_type)
    assert [(row.label, row.score) for row in rows] == [("cat", 0.75), ("dog", 0.25)]
    assert found.task_type == task_type
    assert (found.ok, found.error, found.problem, inference.ok) == (None, None, None, None)


def test_the_model_type_says_what_the_answer_is() -> None:
    boxes = [{"class": "cat", "score": 0.5, "xMin": 1, "xMax": 3, "yMin": 2, "yMax": 5}]
    answer = {"modelType": "objectDetection", "result": {"detections": boxes}}
    found = read(went(asked({"image": PIXEL}), told(answer)))
    assert found.task_type == "object_detection"
    (row,) = predictions(found.inferences[0].response, found.task_type)
    assert (row.label, row.xmin, row.ymax) == ("cat", 1, 5)


def test_explanations_drift_and_all_files_are_kept() -> None:
    answer = {
        "modelType": "imageClassification",
        "result": {"classPredictions": CLASSES},
        "explanation": {"maskRLE": [[1, 2]], "dimensions": {"height": 3, "width": 4}},
    }
    files = {"results.json": orjson.dumps(answer), "drift.txt": b"low", "mask": b"\xff"}
    found = read(
        went(asked({"image": PIXEL}, explain=True, detect_drift=True), told((True, files)))
    )
    assert of(found)["files"] == {
        "results.json": answer,
        "drift.txt": "low",
        "mask": {"b64": "/w=="},
    }
    flags = {"explain": True, "detect_drift": True}
    assert found.standard == {"status_code": 200, **flags, "input_files": ["image"]}
    assert len(predictions(found.inferences[0].response, found.task_type)) == 2


def test_items_fail_one_by_one() -> None:
    failed = (False, {"error": "not an image: é".encode()})
    answer = told({"result": {"classPredictions": CLASSES}}, failed, (False, {}))
    found = read(went(asked({"i": b"a"}, {"i": b"b"}, {"i": b"c"}), answer))
    assert [each.data for each in found.inferences] == [b"a", b"b", b"c"]
    assert [each.ok for each in found.inferences] == [None, False, False]
    assert [each.error for each in found.inferences] == [
        None,
        "not an image: é",
        "the container says that it failed, and not why",
    ]
    assert (found.ok, found.error) == (None, None)


@pytest.mark.parametrize("code", [422, 500])
def test_a_failure_in_band_is_a_failure(code: int) -> None:
    found = read(went(asked({"i": b"a"}, {"i": b"b"}), told(status_code=code, message="too large")))
    assert (found.ok, found.error) == (False, "too large")
    assert [each.data for each in found.inferences] == [b"a", b"b"]
    assert all(b"too large" in (each.response or b"") for each in found.inferences)


def test_several_files_of_an_item_are_a_document_by_name() -> None:
    found = read(went(asked({"b.txt": b"text", "a.png": PIXEL}), told({"x": 1})))
    (inference,) = found.inferences
    assert inference.data == b'{"a.png":{"b64":"iVBORw0KGgoAcGl4ZWw="},"b.txt":"text"}'
    assert inference.data_content_type == "application/json"
    assert found.standard["input_files"] == ["a.png", "b.txt"]


@pytest.mark.parametrize(
    ("files", "data"),
    [
        ({"out.txt": b"Hello."}, ["Hello."]),
        ({"out.json": b'{"result": [{"label": "x"}]}'}, [[{"label": "x"}]]),
        ({"results.json": b"{broken", "other": b"1"}, ["{broken"]),
    ],
)
def test_other_results_are_an_output(files: dict[str, bytes], data: list[Any]) -> None:
    assert of(read(went(asked({"i": b"a"}), told((True, files)))))["outputs"][0]["data"] == data


def test_of_several_unknown_files_no_predictions_are_read() -> None:
    found = read(went(asked({"i": b"a"}), told((True, {"a": b"1", "b": b"2"}))))
    assert of(found) == {"files": {"a": "1", "b": "2"}, "outputs": []}
    assert "neither results.json nor a single file" in (found.problem or "")


def test_outputs_that_do_not_match_the_inputs_are_one_inference() -> None:
    request = asked({"i": b"a"}, {"i": b"b"})
    found = read(went(request, told({"x": 1})))
    (inference,) = found.inferences
    assert inference.data == request
    assert of(found)["items"] == [{"results.json": {"x": 1}}]
    assert found.problem == "1 output items to 2 input items: kept as one inference"


def test_without_an_answer_the_items_are_kept() -> None:
    found = read(went(asked({"i": b"a"}, {"i": b"b"}), None))
    assert [(each.data, each.response) for each in found.inferences] == [(b"a", None), (b"b", None)]
    assert found.problem is None


@pytest.mark.parametrize("request_bytes", [b"\xff\xff", asked()])
def test_a_request_that_cannot_be_read_is_kept_whole(request_bytes: bytes) -> None:
    found = read(went(request_bytes, told({"x": 1})))
    assert found.inferences[0].data == request_bytes
    assert found.problem


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
_REQUEST = st.lists(_FILES, max_size=3).map(lambda items: asked(*items)) | st.binary(max_size=30)
_ITEMS = st.lists(st.tuples(st.booleans(), _FILES), max_size=3)
_RESPONSE = (
    st.builds(lambda items, code: told(*items, status_code=code), _ITEMS, st.integers(0, 600))
    | st.binary(max_size=30)
    | st.none()
)


@_UNHURRIED
@given(_REQUEST, _RESPONSE, st.booleans(), st.booleans())
def test_every_run_is_read(
    request_bytes: bytes, response: bytes | None, first: bool, second: bool
) -> None:
    exchange = went(request_bytes, response)
    exchange.request.whole, exchange.response.whole = first, second
    found = read(exchange)
    assert found.inferences
    for inference in found.inferences:
        assert inference.data is not None
        if inference.response is not None:
            read_json(inference.response)
            for task_type in TASK_TYPES:
                read_predictions(inference.response, task_type=task_type_of(task_type))

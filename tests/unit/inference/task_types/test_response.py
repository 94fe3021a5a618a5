"""Unknown is not zero; shapes of answers; ranks; bounds."""

import json
import math
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference import task_types
from inference_store.inference.json_text import storable
from tests.properties import draw_json

from .answers import find_items, list_columns, make_v2, read

CAT = {"label": "cat", "score": 0.7}
DOG = {"label": "dog", "score": 0.3}


def test_flags_unreadable_responses() -> None:
    for response, flag in (
        (None, "response_missing"),
        (b"", "response_missing"),
        (b" \n", "response_missing"),
        (b"{", "response_unreadable"),
        (b"\xff\xfe\x00", "response_unreadable"),
        (b"[" * 100_000, "response_unreadable"),
        (b'{"outputs": 5}', "response_unreadable"),
        (b'{"error": "out of \\u0000 memory"}', "response_error"),
        (b'{"outputs": [{"name": "o", "datatype": "FP32", "shape": [4]}]}', "response_binary"),
        (b'{"weather": "fine"}', "response_unreadable"),
        (b"[1.5, {}]", "class_labels_mismatch"),
    ):
        predictions = read("image_classification", response, labels=("a", "b", "c"))
        assert predictions.items is None, response
        assert flag in predictions.flags, response
        assert predictions.problem or flag == "response_missing", response


def test_unknown_is_not_zero() -> None:
    predictions = read("image_classification", make_v2([CAT]), ok=False)
    assert (predictions.items, predictions.flags) == (None, ("response_failed",))
    assert find_items(read("image_classification", make_v2([CAT]), ok=True))
    predictions = read("unknown", make_v2([CAT]))
    assert (predictions.items, predictions.flags) == (None, ("task_type_unknown",))
    assert predictions.problem is None
    for task_type in ("object_detection", "image_classification", "ner"):
        for response in (make_v2([]), make_v2([[]]), make_v2(["[]"]), b"[]", b'{"outputs": []}'):
            assert read(task_type, response).items == ()


def test_all_wrappings_have_the_same_meaning() -> None:
    for document in (
        [CAT, DOG],
        [[CAT, DOG]],
        {"output": [CAT, DOG]},
        {"predictions": [CAT, DOG]},
        {"predictions": [[CAT, DOG]]},
        {"data": [CAT, DOG]},
        {"outputs": [CAT, DOG]},
        {"outputs": [[CAT, DOG]]},
        {"outputs": {"o": [CAT, DOG]}},
        {"outputs": [{"data": [CAT, DOG]}]},
        [{"name": "o", "data": [CAT, DOG]}],
        {"outputs": [{"name": "o", "shape": [777], "datatype": "BYTES", "data": [CAT, DOG]}]},
        {"outputs": [{"name": "o", "shape": [1], "data": [[CAT, DOG]]}]},
        {"outputs": [{"name": "o", "data": [json.dumps(CAT), json.dumps(DOG)]}]},
        {"outputs": [{"name": "o", "data": [json.dumps([CAT, DOG])]}]},
        {"outputs": [{"name": "o", "data": [json.dumps([[CAT, DOG]])]}]},
        {"outputs": [{"name": "o", "data": json.dumps([CAT, DOG])}]},
        json.dumps([CAT, DOG]),
    ):
        predictions = read("image_classification", json.dumps(document).encode())
        assert list_columns(predictions, "label", "score") == [("cat", 0.7), ("dog", 0.3)], document
        assert predictions.flags == (), document
    assert list_columns(read("image_classification", json.dumps(CAT).encode()), "label") == [
        ("cat",)
    ]
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        response = json.dumps([{"label": "Käse", "score": 1}], ensure_ascii=False).encode(encoding)
        assert list_columns(read("image_classification", response), "label") == [("Käse",)]


def test_outputs_keep_their_index_and_predictions_are_ranked_by_score() -> None:
    outputs = [{"name": "first", "data": [CAT]}, {"name": "second", "data": [DOG, CAT]}]
    predictions = read("image_classification", json.dumps({"outputs": outputs}).encode())
    assert list_columns(predictions, "ordinal", "output", "output_name", "rank") == [
        (0, 0, "first", 1),
        (1, 1, "second", 3),
        (2, 1, "second", 2),
    ]
    scores = [0.2, None, 0.9, 0.2, None]
    data = [{"label": "x", "score": score} for score in scores]
    ranks = list_columns(read("image_classification", make_v2(data)), "rank")
    assert [rank for (rank,) in ranks] == [2, 4, 1, 3, 5]
    assert list_columns(read("image_classification", make_v2(["a", "b"])), "rank") == [(1,), (2,)]


def test_a_score_or_label_that_cannot_be_kept_is_unknown_and_flagged() -> None:
    for score in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
        response = b'{"outputs": [{"name": "o", "data": [{"label": "cat", "score": %s}]}]}'
        predictions = read("image_classification", response % score.encode())
        assert list_columns(predictions, "label", "score", "rank") == [("cat", None, 1)], score
        assert predictions.flags == ("not_finite",), score
    for other in ("high", True, [0.5], {"v": 1}):
        predictions = read("image_classification", make_v2([{"label": "cat", "score": other}]))
        assert list_columns(predictions, "label", "score") == [("cat", None)], other
        assert predictions.flags == ("not_a_number",), other
    predictions = read("image_classification", make_v2([{"label": "cat", "score": "0.5"}]))
    assert list_columns(predictions, "score") == [(0.5,)]
    for label in ("a\0", "\ud800", "x" * 257):
        predictions = read(
            "image_classification", make_v2([{"label": label, "score": 0.5}], name=label)
        )
        assert list_columns(predictions, "label", "score", "output_name") == [(None, 0.5, None)]
        assert predictions.flags in {("text_unstorable",), ("label_too_long",)}, label


def test_unreadable_elements_are_left_out_and_predictions_capped() -> None:
    predictions = read("object_detection", make_v2([5, CAT, {"weather": "fine"}]))
    assert list_columns(predictions, "ordinal", "label") == [(0, "cat")]
    assert "elements_unreadable" in predictions.flags
    assert (predictions.problem or "").startswith("2 elements are not")
    predictions = read("image_classification", make_v2(["x"] * 10_001))
    assert len(find_items(predictions)) == 10_000
    assert predictions.flags == ("predictions_capped",)
    assert read("image_classification", make_v2(["x"] * 10_000)).flags == ()


# Whatever the bytes: no error, and nothing that Postgres could not hold.

_WORDS = (
    "label score labels scores xmin ymin xmax ymax box cx cy w h r contour x y prompt answer word "
    "entity start end generated_text sequence token_str detection_boxes detection_scores "
    "detection_classes num_detections b s c p"
)
_NAMES = st.sampled_from(_WORDS.split()) | st.text(max_size=3)
_SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=6)
    | st.sampled_from(["1e999", "NaN", "[{}]", '{"label": "x"}', "\0", 10**400, 1e308, -1e308])
)
_VALUE = draw_json(_SCALAR, _NAMES, leaves=25)
_OUTPUT = st.fixed_dictionaries(
    {"name": _NAMES, "data": _VALUE}, optional={"datatype": st.sampled_from(["INT64", "FP32", 5])}
)
_DOCUMENT = (
    _VALUE
    | st.lists(_OUTPUT, max_size=4).map(lambda outputs: {"outputs": outputs})
    | st.dictionaries(st.sampled_from(["outputs", "output", "predictions", "data"]), _VALUE)
)
_MAPPING = st.none() | st.builds(
    task_types.OutputMapping,
    boxes=st.none() | st.just("b"),
    scores=st.none() | st.just("s"),
    labels=st.none() | st.just("c"),
    class_probabilities=st.none() | st.just("p"),
    box_format=st.sampled_from(["xyxy", "yxyx", "xywh", "cxcywh"]),
    units=st.sampled_from(["pixels", "shares"]),
    activation=st.sampled_from(["none", "softmax", "sigmoid"]),
)
_TASK_TYPE = st.sampled_from(sorted(task_types.TASK_TYPES))
_LABELS = st.sampled_from([(), ("a",), ("a", "b", "c")])
_SIZE = st.sampled_from([None, (640, 480), (0, 0)])


def _is_fit_for_postgres(predictions: task_types.Predictions) -> None:
    assert predictions.problem is None or storable(predictions.problem)
    assert all(flag and storable(flag) for flag in predictions.flags)
    if predictions.items is None:
        assert predictions.flags
        return
    assert [item.ordinal for item in predictions.items] == list(range(len(predictions.items)))
    assert sorted(item.rank for item in predictions.items) == list(
        range(1, len(predictions.items) + 1)
    )
    for item in predictions.items:
        for value in item:
            if isinstance(value, str):
                assert type(value) is str
                assert storable(value)
            elif isinstance(value, float):
                assert math.isfinite(value)
            elif isinstance(value, Decimal):
                assert value.is_finite()
            else:
                assert (
                    value is None
                    or (type(value) is int and 0 <= value < 2**31)
                    or math.isfinite(value)
                )
        assert item.label is None or len(item.label) <= 256


@given(st.binary(max_size=300), _TASK_TYPE)
def test_any_bytes(response: bytes, task_type: str) -> None:
    _is_fit_for_postgres(read(task_type, response))


@given(_DOCUMENT, _TASK_TYPE, _MAPPING, _LABELS, _SIZE)
def test_any_document(document: Any, task_type: str, mapping: Any, labels: Any, size: Any) -> None:
    response = json.dumps(document).encode()
    _is_fit_for_postgres(read(task_type, response, mapping=mapping, labels=labels, size=size))


@given(_DOCUMENT, _TASK_TYPE, st.data())
def test_any_damage(document: Any, task_type: str, data: st.DataObject) -> None:
    response = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(response) - 1))
        response[position] = data.draw(st.integers(0, 255))
    _is_fit_for_postgres(read(task_type, bytes(response)))


# The table of task types.

_VISION = {
    *("image_classification", "object_detection", "oriented_object_detection"),
    *("image_segmentation", "keypoint_detection"),
}
NAMES = _VISION | {
    *("image_text_to_text", "text_classification", "token_classification", "text_generation"),
    *("question_answering", "tabular", "unknown"),
}


def test_the_table_is_whole_and_its_names_belong_to_one_type() -> None:
    assert set(task_types.TASK_TYPES) == NAMES
    assert all(name == entry.name for name, entry in task_types.TASK_TYPES.items())
    for entry in task_types.TASK_TYPES.values():
        assert set(entry.columns) <= set(task_types.Prediction._fields)
        assert (entry.read is None) == (entry.name == "unknown")
    accepted = [
        name for entry in task_types.TASK_TYPES.values() for name in (entry.name, *entry.accepted)
    ]
    assert len(accepted) == len(set(accepted))
    assert all(task_types.task_type_of(name).name in NAMES - {"unknown"} for name in accepted[:-1])
    vision = {entry.name for entry in task_types.TASK_TYPES.values() if entry.vision}
    assert vision == _VISION


def test_any_spelling_and_other_names_are_read() -> None:
    for name in sorted(NAMES):
        spaced = name.replace("_", " ").title()
        for spelling in (name, name.upper(), name.replace("_", "-"), spaced):
            assert task_types.task_type_of(spelling).name == name
    for other, name in (
        ("ImageText2Text", "image_text_to_text"),
        ("sentiment-analysis", "text_classification"),
        ("summarization", "text_generation"),
        ("ner", "token_classification"),
        (None, "unknown"),
        ("", "unknown"),
        ("astrology", "unknown"),
        ("\ud800", "unknown"),
    ):
        assert task_types.task_type_of(other).name == name

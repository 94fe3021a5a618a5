"""Whatever the bytes: no error, and nothing that Postgres could not hold."""

import json
import math
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.json_text import storable
from inference_store.inference.task_types import TASK_TYPES, OutputMapping, Predictions
from tests.properties import draw_json

from .answers import read

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
    OutputMapping,
    boxes=st.none() | st.just("b"),
    scores=st.none() | st.just("s"),
    labels=st.none() | st.just("c"),
    class_probabilities=st.none() | st.just("p"),
    box_format=st.sampled_from(["xyxy", "yxyx", "xywh", "cxcywh"]),
    units=st.sampled_from(["pixels", "shares"]),
    activation=st.sampled_from(["none", "softmax", "sigmoid"]),
)
_TASK_TYPE = st.sampled_from(sorted(TASK_TYPES))
_LABELS = st.sampled_from([(), ("a",), ("a", "b", "c")])
_SIZE = st.sampled_from([None, (640, 480), (0, 0)])


def _is_fit_for_postgres(predictions: Predictions) -> None:
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

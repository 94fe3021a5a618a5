"""Tabular: per output name its values, exactly, or its labels."""

import json
from decimal import Decimal

from inference_store.inference.task_types import OutputMapping

from .answers import list_columns, make_v2, read

ALL = ("output", "output_name", "value", "label")


def _make_response(*outputs: tuple[str, str, str]) -> bytes:
    written = ", ".join(
        f'{{"name": "{name}", "datatype": "{kind}", "shape": [1], "data": {data}}}'
        for name, kind, data in outputs
    )
    return f'{{"outputs": [{written}]}}'.encode()


def test_values_and_labels_per_output_name() -> None:
    predictions = read(
        "tabular",
        _make_response(
            ("price", "FP64", "[12.50, 7]"), ("grade", "BYTES", '["B"]'), ("ok", "BOOL", "[true]")
        ),
    )
    assert list_columns(predictions, *ALL) == [
        (0, "price", Decimal("12.50"), None),
        (0, "price", Decimal(7), None),
        (1, "grade", None, "B"),
        (2, "ok", None, "true"),
    ]


def test_numbers_are_exact() -> None:
    predictions = read("tabular", _make_response(("id", "UINT64", "[[18446744073709551616.10]]")))
    assert [str(value) for (value,) in list_columns(predictions, "value")] == [
        "18446744073709551616.10"
    ]


def test_numbers_that_cannot_be_kept_are_unknown_and_flagged() -> None:
    predictions = read("tabular", _make_response(("x", "FP64", "[NaN, 1e999, -Infinity, 1]")))
    assert list_columns(predictions, "value") == [(None,), (None,), (None,), (Decimal(1),)]
    assert predictions.flags == ("not_finite", "number_too_large")


def test_the_mapping_says_which_output_is_labels_or_class_scores() -> None:
    mapping = OutputMapping(labels="predict", class_probabilities="predict_proba")
    response = _make_response(
        ("predict", "INT64", "[1]"), ("predict_proba", "FP64", "[[0.2, 0.8]]")
    )
    predictions = read("tabular", response, labels=("no", "yes"), mapping=mapping)
    assert list_columns(predictions, "output_name", "value", "label", "score") == [
        ("predict", Decimal(1), "yes", None),
        ("predict_proba", None, "no", 0.2),
        ("predict_proba", None, "yes", 0.8),
    ]


def test_objects_name_their_outputs_or_have_scores() -> None:
    for data in ([{"price": 12.5, "grade": "B"}], [json.dumps({"price": 12.5, "grade": "B"})]):
        assert list_columns(read("tabular_regression", make_v2(data)), *ALL) == [
            (0, "price", Decimal("12.5"), None),
            (0, "grade", None, "B"),
        ]
    predictions = read("tabular", make_v2([{"label": "churn", "score": 0.5}]))
    assert list_columns(predictions, "label", "score") == [("churn", 0.5)]


def test_nulls_are_no_values() -> None:
    predictions = read("tabular", make_v2([None, 1]))
    assert list_columns(predictions, "value") == [(Decimal(1),)]
    assert predictions.flags == ("elements_unreadable",)

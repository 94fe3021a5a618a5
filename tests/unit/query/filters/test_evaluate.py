"""Typed filters evaluated for one inference: every kind of predicate, true, false and NULL."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

import pytest

from inference_store.inference.metadata import read_metadata
from inference_store.query.filters.evaluate import _MEANINGS, _VALUES, evaluate
from inference_store.query.filters.facts import Facts, exact, milliseconds
from inference_store.query.filters.typed import (
    Among,
    And,
    Area,
    Array,
    Between,
    Calculated,
    Column,
    Compared,
    Constant,
    Counted,
    Distance,
    Fixed,
    Folded,
    Holds,
    Kind,
    Like,
    Located,
    Metadata,
    Missing,
    Not,
    Or,
    Predicate,
    Predicted,
    Property,
    Sent,
    Unknown,
    Value,
)

_NOW = datetime(2026, 11, 1, tzinfo=UTC)
_ITEMS: list[tuple[str, str, Any]] = [
    ("frame", "int", "9000"),
    ("source", "string", "hallway"),
    ("day", "bool", "true"),
    ("seen", "timestamp", "2026-11-01T00:00:00Z"),
    ("tags", "json", '["a", "b", 3]'),
    ("nothing", "json", "null"),
    ("empty", "json", "[]"),
    ("odd", "int", "many"),
    ("longitude", "float", "2.5"),
    ("latitude", "float", "48.5"),
]


def _make_facts(**changes: Any) -> Facts:
    items = [{"key": k, "type": t, "value": v} for k, t, v in _ITEMS]
    arguments: dict[str, Any] = {
        "properties": {
            "ok": (True,),
            "width": (640,),
            "top_score": (0.1,),
            "received_at": (_NOW,),
            "inference_ids": ("1", "alias"),
            "top_label": (None,),
        },
        "metadata": read_metadata(json.dumps(items).encode()),
        "predictions": (
            {"label": "cat", "score": 0.9, "rank": 1},
            {"label": "dog", "score": 0.1, "rank": 2},
            {"label": None, "score": None, "rank": 3},
        ),
    }
    return Facts(**(arguments | changes))


def _make_number(value: str) -> Constant:
    return Constant("number", Decimal(value))


def _make_text(value: str) -> Constant:
    return Constant("string", value)


def _make_key(name: str, kind: Kind = "number") -> Metadata:
    return Metadata(name, 1, kind, "[]" in name)


_WIDTH = Property("width", "number")
_SCORE = Column("score", "number")
_TAGS = _make_key("tags[]", "string")
_UNKNOWN = _make_key("none")
_NULL = Compared("=", _UNKNOWN, _make_number("1"))
_BOX = Area(
    tuple((Decimal(x), Decimal(y)) for x, y in ((2, 48), (3, 48), (3, 49), (2, 49), (2, 48)))
)
_ZERO = _make_number("0")


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Fixed(None), None),
        (Compared(">", _make_key("frame"), _make_number("8999.5")), True),
        (Compared("<>", _make_key("source", "string"), _make_text("hallway")), False),
        (Compared("=", _make_key("frame", "string"), _make_text("9000")), None),
        (_NULL, None),
        (
            Compared("<", _make_key("seen", "timestamp"), Property("received_at", "timestamp")),
            False,
        ),
        (
            Compared("<=", _make_key("seen", "timestamp"), Property("received_at", "timestamp")),
            True,
        ),
        # Some combination of several values.
        (Compared("=", _TAGS, _make_text("b")), True),
        (Compared("<>", _TAGS, _make_text("b")), True),
        (Not(Compared("=", _TAGS, _make_text("b"))), False),
        (Compared("<", _TAGS, _TAGS), True),
        (Compared("=", _make_key("tags[]"), _make_number("3")), True),
        # A double is the decimal that it spells.
        (Compared("=", Property("top_score", "number"), _make_number("0.1")), True),
        (Between(_WIDTH, _make_number("640"), _make_number("640.0")), True),
        (Between(_WIDTH, _make_number("641"), _make_number("1")), False),
        (Between(_WIDTH, _UNKNOWN, _make_number("1")), None),
        (Among(_make_key("source", "string"), (_make_text("a"), _make_text("hallway"))), True),
        (Among(_make_key("source", "string"), (_make_text("a"),)), False),
        (Among(_UNKNOWN, (_make_number("1"),)), None),
        (Like(_make_key("source", "string"), "h_ll%"), True),
        (Like(_make_key("source", "string"), "H%"), False),
        (Like(_UNKNOWN, "%"), None),
        (Like(Folded("casei", _make_key("source", "string")), "h%"), True),
        # IS NULL.
        (Missing(_make_key("frame", "string")), False),
        (Missing(_make_key("nothing", "string")), True),
        (Missing(_make_key("empty", "string")), False),
        (Missing(_make_key("odd")), False),
        (Missing(_UNKNOWN), True),
        (Missing(Property("top_label", "string")), True),
        (Missing(_WIDTH), False),
        (Missing(Calculated("/", _WIDTH, _ZERO)), True),
        (Unknown(_NULL), True),
        (Unknown(Compared("=", _WIDTH, _WIDTH)), False),
        (Sent("nothing", 1), True),
        (Sent("none", None), False),
        (Holds(Property("ok", "bool")), True),
        (Holds(_make_key("day", "bool")), True),
        (Holds(_make_key("frame", "bool")), None),
        # Calculations.
        (Compared("=", Calculated("+", _make_key("frame"), _WIDTH), _make_number("9640")), True),
        (Compared("=", Calculated("/", _WIDTH, _ZERO), _make_number("1")), None),
        (Not(Compared("=", Calculated("%", _WIDTH, _ZERO), _make_number("1"))), None),
        (Compared("<", Distance(Decimal("2.5"), Decimal("48.5")), _make_number("0.001")), True),
        # Predictions.
        (Predicted(None), True),
        (Predicted(Compared("=", Column("label", "string"), _make_text("cat"))), True),
        (
            Predicted(
                And(
                    (
                        Compared("=", Column("label", "string"), _make_text("cat")),
                        Compared("<", _SCORE, _make_number("0.5")),
                    )
                )
            ),
            False,
        ),
        (Compared("=", Counted(None), _make_number("3")), True),
        (
            Compared(
                "=", Counted(Not(Compared("<", _SCORE, _make_number("0.5")))), _make_number("1")
            ),
            True,
        ),
        (Compared("=", Counted(Missing(_SCORE)), _make_number("1")), True),
        # Places.
        (Located("within", (_BOX,)), True),
        (Located("intersects", points=((Decimal(1), Decimal(1)),)), False),
        # Arrays.
        (Array("equals", _TAGS, (_make_text("b"), _make_text("a"), _make_text("b"))), True),
        (Array("contains", _TAGS, (_make_text("a"),)), True),
        (Array("contains", _TAGS, (_make_text("a"), _make_text("c"))), False),
        (Array("contains", _TAGS, ()), True),
        (Array("containedby", _TAGS, (_make_text("a"), _make_text("b"), _make_text("c"))), True),
        (Array("overlaps", _TAGS, (_make_text("c"), _make_text("b"))), True),
        (Array("overlaps", _TAGS, ()), False),
        (Array("overlaps", _make_key("empty[]", "string"), ()), None),
        (Array("contains", Property("inference_ids", "string"), (_make_text("alias"),)), True),
    ],
)
def test_filters_of_an_inference(predicate: Predicate, expected: bool | None) -> None:
    assert evaluate(predicate, _make_facts()) is expected


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Predicted(None), None),
        (Predicted(Compared("=", Column("label", "string"), _make_text("cat"))), None),
        (Compared(">=", Counted(None), _make_number("0")), None),
        (Missing(Counted(None)), True),
    ],
)
def test_predictions_that_are_unknown(predicate: Predicate, expected: bool | None) -> None:
    assert evaluate(predicate, _make_facts(predictions=None)) is expected


def test_no_predictions_are_none() -> None:
    assert evaluate(Predicted(None), _make_facts(predictions=())) is False
    assert evaluate(Compared("=", Counted(None), _ZERO), _make_facts(predictions=())) is True


@pytest.mark.parametrize("longitude", ["180.5", "east"])
def test_off_the_map_is_nowhere(longitude: str) -> None:
    items = [
        {"key": "longitude", "type": "float", "value": longitude},
        {"key": "latitude", "type": "float", "value": "1"},
    ]
    facts = _make_facts(metadata=read_metadata(json.dumps(items).encode()))
    assert evaluate(Located("intersects", (_BOX,)), facts) is None
    assert evaluate(Not(Located("intersects", (_BOX,))), facts) is None


_THREE = (True, False, None)


@pytest.mark.parametrize("left", _THREE)
@pytest.mark.parametrize("right", _THREE)
def test_three_valued_logic(left: bool | None, right: bool | None) -> None:
    parts = (Fixed(left), Fixed(right))
    both, either = {left, right}, {left, right}
    conjunction = False if False in both else None if None in both else True
    disjunction = True if True in either else None if None in either else False
    assert evaluate(And(parts), _make_facts()) is conjunction
    assert evaluate(Or(parts), _make_facts()) is disjunction
    opposite = None if conjunction is None else not conjunction
    assert evaluate(Not(And(parts)), _make_facts()) is opposite


def test_a_column_is_only_of_a_prediction() -> None:
    with pytest.raises(AssertionError, match="score"):
        evaluate(Compared("=", _SCORE, _ZERO), _make_facts())


@pytest.mark.parametrize(
    ("double", "spelt"), [(0.1, "0.1"), (5.0, "5"), (1e-05, "0.00001"), (1e16, "1e16")]
)
def test_doubles(double: float, spelt: str) -> None:
    assert exact(double) == Decimal(spelt)
    assert exact(double).as_tuple().exponent == Decimal(spelt).as_tuple().exponent


def test_milliseconds_are_exact() -> None:
    assert milliseconds(_NOW, _NOW + timedelta(microseconds=1)) == (Decimal("0.001"),)
    assert milliseconds(_NOW, _NOW - timedelta(seconds=1)) == (Decimal(-1000),)
    assert str(milliseconds(_NOW, _NOW)[0]) == "0.000000"
    assert milliseconds(_NOW, None) == ()


def test_every_kind_has_a_meaning() -> None:
    assert set(get_args(Predicate)) == set(_MEANINGS)
    assert set(get_args(Value)) == set(_VALUES)

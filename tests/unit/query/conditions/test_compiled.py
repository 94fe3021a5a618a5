"""Compiling typed filters, without a database."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from inference_store.inference.events.event import uid_floor, uid_of
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.conditions.compiled import merge_equalities
from inference_store.query.conditions.condition import EVERYTHING, NOTHING, Received
from inference_store.query.conditions.sides import split_longitude
from inference_store.query.filters.typed import (
    And,
    Applied,
    Column,
    Compared,
    Comparison,
    Constant,
    Fixed,
    Metadata,
    Missing,
    Not,
    Or,
    Predicate,
    Predicted,
    Property,
)

_AT = datetime(2026, 11, 1, tzinfo=UTC)
_N = Metadata("n", 1, "number", False)
_NEVER_SENT = Metadata("never", None, "number", False)
_ONE = Constant("number", Decimal(1))
_IS_ONE = Compared("=", (_N, _ONE))
_PERSON = Compared("=", (Column("label", "string"), Constant("string", "person")))


def test_decides_constant_conditions_without_a_database() -> None:
    cases: list[tuple[Predicate, object, object]] = [
        (Fixed(True), EVERYTHING, NOTHING),
        (Fixed(None), NOTHING, NOTHING),
        (Compared("=", (_NEVER_SENT, _ONE)), NOTHING, NOTHING),
        (Missing(_NEVER_SENT), EVERYTHING, NOTHING),
        (Missing(Applied("+", (_NEVER_SENT, _ONE))), EVERYTHING, NOTHING),
        (And((Fixed(True), Fixed(True))), EVERYTHING, NOTHING),
        (Or((Fixed(True), _IS_ONE)), EVERYTHING, NOTHING),
        (Not(And((Fixed(False), _IS_ONE))), EVERYTHING, NOTHING),
        (And(()), EVERYTHING, NOTHING),
    ]
    for predicate, true, false in cases:
        assert compile_condition(predicate, Names()) == true, predicate
        assert compile_condition(predicate, Names(), when=False) == false, predicate


def test_finds_the_leading_indexes() -> None:
    cases: list[tuple[Predicate, bool, int]] = [
        (_IS_ONE, True, 1),
        (_IS_ONE, False, 1),
        (Missing(_N), True, 0),
        (Missing(_N), False, 5),
        (Missing(Applied("+", (_N, _ONE))), True, 0),
        (Predicted(_PERSON), True, 1),
        (Predicted(_PERSON), False, 0),
        (Predicted(None), True, 0),
        (Compared(">", (Property("width", "number"), _ONE)), True, 0),
        (Compared("=", (Property("inference_id", "string"), Constant("string", "a"))), True, 1),
        (Compared("like", (Property("data_hash", "string"), Constant("string", "ab%"))), True, 1),
        (Or((_IS_ONE, Predicted(_PERSON))), True, 2),
        (Or((_IS_ONE, Missing(_N))), True, 0),
        (
            Or(tuple(Compared("<", (_N, Constant("number", Decimal(n)))) for n in range(99))),
            True,
            0,
        ),
    ]
    for predicate, when, scans in cases:
        assert compile_condition(predicate, Names(), when=when).scans == scans, predicate


_TAGS = Metadata("tags[]", 2, "string", True)
_MORE = Metadata("more[]", 3, "string", True)
_CAT = Constant("string", "cat")


def test_finds_lists_that_name_an_inference_once() -> None:
    cases: list[tuple[Predicate, bool]] = [
        (_IS_ONE, True),
        (Compared("<>", (_N, _ONE)), True),
        (Compared("=", (_TAGS, _CAT)), True),
        (Compared("=", (_CAT, _TAGS)), True),
        (Compared("<>", (_TAGS, _CAT)), False),
        (Compared("=", (Applied("casei", (_TAGS,)), Applied("casei", (_CAT,)))), False),
        (Compared("=", (Applied("casei", (_TAGS,)), _CAT)), False),
        (Compared("=", (_TAGS, _MORE)), False),
        (Compared("=", (_TAGS, _TAGS)), False),
        (Compared("=", (Property("inference_ids", "string"), _CAT)), False),
    ]
    for predicate, unique in cases:
        assert compile_condition(predicate, Names()).unique is unique, predicate


def test_received_at_is_a_span_of_uids() -> None:
    at, after = uid_floor(_AT), uid_floor(_AT.replace(microsecond=1))
    cases: list[tuple[Comparison, UUID | None, UUID | None]] = [
        ("=", at, after),
        ("<", None, at),
        ("<=", None, after),
        (">", after, None),
        (">=", at, None),
    ]
    for op, lo, hi in cases:
        predicate = Compared(op, (Property("received_at", "timestamp"), Constant("timestamp", _AT)))
        condition = compile_condition(predicate, Names())
        assert isinstance(condition, Received), op
        assert lo in {None, condition.lo}, op
        assert hi in {None, condition.hi}, op


def test_a_uid_that_is_spelt_otherwise_is_none() -> None:
    uid = uid_of(_AT, "one")
    whole = Received(uid, UUID(int=uid.int + 1))
    for text, condition in [(str(uid), whole), (str(uid).upper(), NOTHING), ("x", NOTHING)]:
        compared = Compared("=", (Property("uid", "string"), Constant("string", text)))
        assert compile_condition(compared, Names()) == condition, text


def test_equalities_become_a_list() -> None:
    two = Constant("number", Decimal(2))
    nested = Or((Compared("=", (two, _N)), Not(_IS_ONE)))
    assert merge_equalities((_IS_ONE, nested)) == [Compared("in", (_N, *(_ONE, two))), Not(_IS_ONE)]


def test_spans_of_longitude() -> None:
    cases: list[tuple[float, float, list[tuple[float, float]]]] = [
        (-1.0, 1.0, [(-1.0, 1.0)]),
        (-190.0, -170.0, [(-180.0, -170.0), (170.0, 180.0)]),
        (170.0, 190.0, [(170.0, 180.0), (-180.0, -170.0)]),
        (-190.0, 190.0, [(-180.0, 180.0)]),
    ]
    for west, east, spans in cases:
        assert split_longitude(west, east) == spans, west

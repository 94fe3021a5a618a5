"""The check of every operation, by what it then says of inferences."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from inference_store.inference.errors import Invalid, InvalidFilter, NotKept
from inference_store.query.cql2 import OPERATIONS, parse_json, parse_text
from inference_store.query.cql2.relative import FUNCTIONS
from inference_store.query.filters.check import _PREDICATES, check
from inference_store.query.filters.names import KnownKey, KnownKeys, names_in
from inference_store.query.filters.typed import Applied, Compared, Constant, Kind
from tests.unit.query.filters.evaluation import (
    KNOWN,
    check_filter,
    evaluate_filter,
    find_refusal,
    make_facts,
)
from tests.unit.query.filters.oracle import evaluate

_AT = datetime(2026, 11, 2, tzinfo=UTC)
_BERLIN = {"longitude": 13.4, "latitude": 52.5}
_FIJI = {"longitude": 180, "latitude": -17}


def test_every_operation_that_is_kept_has_a_meaning() -> None:
    kept = {name: entry for name, entry in OPERATIONS.items() if entry.is_supported}
    values = {name for name, entry in kept.items() if entry.gives in {"number", "text"}}
    short = {name for name, entry in kept.items() if entry.means is not None}
    assert kept.keys() == {*_PREDICATES, *values, *FUNCTIONS, *short}


def test_filters_of_metadata() -> None:
    cases: list[tuple[str, dict[str, Any], bool | None]] = [
        ("frame_number IN (1, 2)", {"frame_number": 2}, True),
        ("frame_number NOT IN (1, 2)", {"frame_number": 3}, True),
        ("speed IN (1, 'fast')", {"speed": "fast"}, True),
        ("speed IN (1, 'fast')", {"speed": "slow"}, False),
        ("NOT speed IN (1, 'fast')", {"speed": 2}, True),
        ("NOT speed IN (1, 'fast')", {}, None),
        ("A_EQUALS(tags, ('1'))", {"tags": ["1"]}, True),
        ("A_CONTAINEDBY(tags, ('a'))", {"tags": [1]}, False),
        ("((frame_number = 1) IS NULL) IS NULL", {}, False),
        ("((frame_number = 1) IS NULL OR frame_number = 2) IS NULL", {"frame_number": 1}, False),
        ("(1 / 0 = 1) IS NULL", {}, True),
        ("sent(speed) = TRUE", {"speed": 1}, True),
        ("FALSE = sent(speed)", {"speed": 1}, False),
        ("(speed = 1) <> TRUE", {"speed": 1}, False),
        ("frame_number IN (1, speed, speed + 1)", {"frame_number": 4, "speed": 3}, True),
        ("data_source LIKE 'h_l%'", {"data_source": "hallway"}, True),
        ("CASEI(data_source) LIKE CASEI('HALL%')", {"data_source": "Hallway"}, True),
        # a constant is folded as the value that it is compared with
        ("CASEI(data_source) LIKE 'HALL%'", {"data_source": "Hallway"}, True),
        ("CASEI(data_source) = 'ZOË'", {"data_source": "zoë"}, True),
        ("'É' = ACCENTI(CASEI(data_source))", {"data_source": "e"}, True),
        ("'ZOË' IN (CASEI(data_source))", {"data_source": "zoë"}, True),
        ("ACCENTI(data_source) IN ('x', 'é')", {"data_source": "é"}, True),
        ("CASEI(data_source) BETWEEN 'B' AND 'C'", {"data_source": "b"}, True),
        ("A_OVERLAPS(\"times[]\", ('2026-11-02'))", {}, None),
        ("speed = '2026-11-02'", {"speed": "2026-11-02"}, True),
        ("ACCENTI(CASEI(data_source)) = ACCENTI(CASEI('ÉTÉ'))", {"data_source": "Ete"}, True),
        ("frame_number + 1 = 2 * 5", {"frame_number": 9}, True),
        ("frame_number / 0 = 1", {"frame_number": 9}, None),
        ("frame_number < speed", {"frame_number": 9, "speed": 10}, True),
        ("frame_number BETWEEN speed AND 10", {"frame_number": 9, "speed": 9}, True),
        ("(frame_number = 1) IS NOT NULL", {"frame_number": 5}, True),
        ("location IS NULL", {}, True),
        ("location IS NULL", _BERLIN, False),
        ("'a' IS NULL", {}, False),
        ("camera_position.angle = 10.5", {"camera_position": {"angle": "10.5"}}, True),
        # A key that is not there is NULL.
        ("frame_number <> 3", {}, None),
        ("NOT frame_number = 3", {}, None),
        ("frame_number IS NULL", {"frame_number": None}, True),
        ("frame_number IS NOT NULL", {"frame_number": "x"}, True),
        ("sent(frame_number)", {"frame_number": None}, True),
        ("day", {"day": True}, True),
        ("day AND ok", {"day": True}, None),
        # A comparison of several values holds if some value satisfies it; NOT negates the whole.
        ("\"tags[]\" = 'a'", {"tags": ["a", "b"]}, True),
        ("\"tags[]\" <> 'a'", {"tags": ["a", "b"]}, True),
        ("NOT \"tags[]\" = 'a'", {"tags": ["a", "b"]}, False),
        ("NOT \"tags[]\" = 'c'", {"tags": ["a", "b"]}, True),
        ("NOT \"tags[]\" = 'c'", {"tags": []}, None),
        ('"tags[]" IS NULL', {"tags": ["a", "b"]}, False),
        ('"tags[]" IS NULL', {"tags": []}, True),
        # Both bounds are included.
        ("data_source BETWEEN 'b' AND 'b'", {"data_source": "b"}, True),
        ("data_source BETWEEN 'a' AND 'c'", {"data_source": "cc"}, False),
        ("frame_number BETWEEN 9 AND 9.0", {"frame_number": 9}, True),
        ("frame_number NOT BETWEEN 9 AND 9", {"frame_number": 9}, False),
        ("frame_number BETWEEN 9.1 AND 9.9", {"frame_number": 9}, False),
        # A text that spells a number is one too inside JSON, but not if it is sent as a text.
        ('"tags[]" > 6 AND "tags[]" = \'7.0\'', {"tags": ["7.0"]}, True),
        ('NOT "tags[]" > 6', {"tags": ["7.0"]}, False),
        ("speed > 6", {"speed": ("string", "7.0")}, None),
        # Places.
        ("S_INTERSECTS(location, BBOX(13, 52, 14, 53))", _BERLIN, True),
        ("S_INTERSECTS(BBOX(13, 52, 0, 14, 53, 1), location)", _BERLIN, True),
        ("S_WITHIN(location, BBOX(13.4, 52, 14, 53))", _BERLIN, False),
        ("S_INTERSECTS(location, BBOX(13.4, 52, 14, 53))", _BERLIN, True),
        ("S_DISJOINT(location, POINT(13.4 52.5))", {}, None),
        ("S_WITHIN(POINT(13.4 52.5), location)", _BERLIN, True),
        ("S_WITHIN(MULTIPOINT(13.4 52.5, 1 1), location)", _BERLIN, False),
        ("S_WITHIN(BBOX(13, 52, 14, 53), location)", _BERLIN, False),
        ("S_WITHIN(BBOX(13, 52, 14, 53), location)", {}, None),
        ("S_WITHIN(location, BBOX(170, -20, -170, -10))", _FIJI, True),
        ("S_INTERSECTS(location, BBOX(170, -20, -170, -10))", _BERLIN, False),
        ("S_INTERSECTS(location, POLYGON((13 52, 14 52, 14 53, 13 52)))", _BERLIN, False),
        (
            "S_INTERSECTS(location, MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)), "
            "((13 52, 14 52, 14 54, 13 53, 13 52))))",
            _BERLIN,
            True,
        ),
        ("S_INTERSECTS(location, MULTIPOINT(1 1, 13.4 52.5))", _BERLIN, True),
        ("distance(location, POINT(13.4 52.6)) < 11200", _BERLIN, True),
        ("distance(POINT(13.4 52.6), location) < 11000", _BERLIN, False),
        # Arrays.
        ("A_CONTAINS(tags, ('a'))", {"tags": ["a", "b"]}, True),
        ("A_CONTAINS(\"tags[]\", ('a', 'c'))", {"tags": ["a", "b"]}, False),
        ("A_CONTAINS(('a', 'b', 'c'), tags)", {"tags": ["a", "b"]}, True),
        ("A_CONTAINEDBY(tags, ('a', 'b', 1))", {"tags": ["a", 2]}, False),
        ("A_CONTAINEDBY(tags, ('a', 'b', 1))", {"tags": []}, None),
        ("A_EQUALS(tags, ('a', 1))", {"tags": [1, "a"]}, True),
        ("A_OVERLAPS(tags, ('c', 1))", {"tags": ["a"]}, False),
        ("A_OVERLAPS(tags, ('c', 1))", {"tags": ["c"]}, True),
        ("A_OVERLAPS(tags, ())", {"tags": ["a"]}, False),
    ]
    for text, metadata, expected in cases:
        assert evaluate_filter(text, metadata) is expected, text


def test_filters_of_predictions() -> None:
    rows = (
        {"label": "car", "score": 0.9, "xmin": 1.0, "xmax": 11.0},
        {"label": "car", "score": 0.1},
        {"label": "dog", "score": None},
    )
    for text, expected in [
        ("count_predictions() = 3", True),
        ("count_predictions(label = 'car') >= 2", True),
        ("count_predictions(label = 'car') = count_predictions(score > 0.5) + 1", True),
        ("prediction()", True),
        ("prediction(label LIKE 'c%' AND NOT score > 0.5)", True),
        ("prediction(label = 'cat')", False),
        ("prediction(xmax - xmin > 10)", False),
        ("prediction(score IS NULL)", True),
        ("prediction(label = 'cat') = FALSE", True),
        ("prediction(label = 'car' AND score < 0.05)", False),
    ]:
        assert evaluate_filter(text, predictions=rows) is expected, text


_SPAN = "INTERVAL('2026-11-01', '2026-11-03')"
_SEEN = "INTERVAL(seen, until)"


def test_filters_of_times() -> None:
    cases: list[tuple[str, bool | None]] = [
        ("T_AFTER(received_at, DATE('2026-11-01'))", True),
        ("T_BEFORE(received_at, DATE('2026-11-01'))", False),
        ("T_EQUALS(received_at, DATE('2026-11-02'))", True),
        ("T_DISJOINT(received_at, DATE('2026-11-02'))", False),
        (f"T_INTERSECTS(received_at, {_SPAN})", True),
        (f"T_INTERSECTS({_SPAN}, received_at)", True),
        (f"T_DURING(received_at, {_SPAN})", True),
        (f"T_CONTAINS({_SPAN}, received_at)", True),
        ("T_DURING(received_at, INTERVAL('2026-11-02', '2026-11-03'))", False),
        ("T_INTERSECTS(received_at, INTERVAL('2026-11-02', '..'))", True),
        ("T_INTERSECTS(received_at, INTERVAL('..', '2026-11-01'))", False),
        ("T_AFTER(received_at, INTERVAL('..', '2026-11-01'))", True),
        ("T_AFTER(received_at, INTERVAL('2026-11-01', '..'))", False),
        ("T_AFTER(seen, INTERVAL('2026-11-01', '..'))", None),
        (f"T_AFTER(received_at, {_SEEN})", None),
        (f"T_EQUALS({_SPAN}, {_SPAN})", True),
        (f"T_MEETS({_SPAN}, INTERVAL('2026-11-03', '..'))", True),
        (f"T_METBY({_SPAN}, INTERVAL('..', '2026-11-01'))", True),
        (f"T_OVERLAPS({_SPAN}, INTERVAL('2026-11-02', '2026-11-04'))", True),
        (f"T_OVERLAPPEDBY({_SPAN}, INTERVAL('2026-10-30', '2026-11-02'))", True),
        (f"T_STARTS({_SPAN}, INTERVAL('2026-11-01', '2026-11-04'))", True),
        (f"T_STARTEDBY({_SPAN}, INTERVAL('2026-11-01', '2026-11-02'))", True),
        (f"T_FINISHES({_SPAN}, INTERVAL('..', '2026-11-03'))", True),
        (f"T_FINISHEDBY({_SPAN}, INTERVAL('2026-11-02', '2026-11-03'))", True),
        (f"T_CONTAINS({_SPAN}, INTERVAL('2026-11-02', '2026-11-02T12:00:00Z'))", True),
        (f"T_DISJOINT({_SPAN}, INTERVAL('2026-11-04', '..'))", True),
        # Ends that are equal, or open; the ends of an interval are outside of it.
        ("T_INTERSECTS(received_at, INTERVAL('2026-11-02', '2026-11-02'))", True),
        ("T_EQUALS(received_at, INTERVAL('2026-11-02', '2026-11-02'))", True),
        ("T_DURING(received_at, INTERVAL('2026-11-02', '2026-11-02'))", False),
        ("T_AFTER(received_at, '2026-11-01')", True),
        ("received_at BETWEEN '2026-11-02' AND '2026-11-02T00:00:00.000000999Z'", True),
        ("received_at IN ('2026-11-01', '2026-11-02 00:00:00Z')", True),
        ("'2026-11-02T00:00:01Z' < received_at", False),
        ("T_INTERSECTS(received_at, INTERVAL('..', '2026-11-02'))", True),
        ("T_INTERSECTS(received_at, INTERVAL('..', '..'))", True),
        ("T_DURING(received_at, INTERVAL('..', '..'))", True),
        ("T_DURING(received_at, INTERVAL('..', '2026-11-02'))", False),
        ("T_DURING(received_at, INTERVAL('..', '2026-11-03'))", True),
        ("T_DURING(received_at, INTERVAL('2026-11-02', '..'))", False),
        ("T_DURING(received_at, INTERVAL('2026-11-01', '..'))", True),
        ("T_EQUALS(INTERVAL('..', '..'), INTERVAL('..', '..'))", True),
        ("T_AFTER(INTERVAL('2026-11-03', '..'), INTERVAL('..', '2026-11-03'))", False),
        (f"T_MEETS({_SPAN}, INTERVAL('2026-11-04', '..'))", False),
        (f"T_OVERLAPS({_SPAN}, INTERVAL('2026-11-03', '2026-11-04'))", False),
        (f"T_INTERSECTS({_SPAN}, INTERVAL('2026-11-03', '2026-11-04'))", True),
        (f"T_DISJOINT({_SPAN}, INTERVAL('2026-11-03', '2026-11-04'))", False),
        (f"T_STARTS({_SPAN}, INTERVAL('2026-11-01', '..'))", True),
        (f"T_STARTS({_SPAN}, {_SPAN})", False),
        (f"T_FINISHES({_SPAN}, {_SPAN})", False),
        (f"T_DURING({_SPAN}, INTERVAL('2026-11-01', '2026-11-04'))", False),
        (f"T_DURING({_SPAN}, INTERVAL('2026-10-01', '2026-11-03'))", False),
        ("received_at BETWEEN DATE('2026-11-02') AND DATE('2026-11-02')", True),
        ("received_at BETWEEN DATE('2026-11-01') AND DATE('2026-11-01')", False),
    ]
    for text, expected in cases:
        assert evaluate_filter(text, received_at=_AT) is expected, text


def test_filters_of_metadata_spans() -> None:
    metadata = {
        "seen": ("timestamp", "2026-11-02T00:00:00Z"),
        "until": ("timestamp", "2026-11-02T06:00:00Z"),
        "times": ["2026-11-01T00:00:00Z"],
    }
    assert evaluate_filter(f"T_DURING({_SEEN}, {_SPAN})", metadata) is True
    assert evaluate_filter(f"T_DURING({_SPAN}, {_SEEN})", metadata) is False


def test_a_half_open_interval_decides_by_its_other_end() -> None:
    metadata = {"seen": ("timestamp", "2026-11-02T00:00:00Z")}
    cases: list[tuple[str, bool | None]] = [
        # what is seen alone is asked
        ("T_AFTER({seen}, DATE('2026-11-01'))", True),
        ("T_BEFORE({seen}, DATE('2026-11-01'))", None),
        ("T_MEETS({seen}, INTERVAL('2026-11-03', '..'))", None),
        # of two conditions one that fails is enough, one that holds is not
        ("T_DURING({seen}, INTERVAL('2026-11-05', '2026-11-06'))", False),
        ("NOT T_DURING({seen}, INTERVAL('2026-11-05', '2026-11-06'))", True),
        ("T_DURING({seen}, INTERVAL('2026-11-01', '2026-11-06'))", None),
        ("T_INTERSECTS({seen}, INTERVAL('2026-10-01', '2026-10-02'))", False),
        ("T_DISJOINT({seen}, INTERVAL('2026-10-01', '2026-10-02'))", True),
        ("T_DISJOINT({seen}, INTERVAL('2026-11-05', '2026-11-06'))", None),
        # an instant is between two ends, or unknown
        ("T_INTERSECTS(received_at, {seen})", None),
        ("T_INTERSECTS(DATE('2026-10-01'), {seen})", None),
    ]
    for text, expected in cases:
        asked = text.format(seen=_SEEN)
        assert evaluate_filter(asked, metadata, received_at=_AT) is expected, text


def test_refusals() -> None:
    for text, message in [
        ("T_DURING(received_at, DATE('2026-11-02'))", "instants compare by"),
        (f"T_MEETS(received_at, {_SPAN})", "two intervals"),
        (f'T_DURING("times[]", {_SPAN})', "one value"),
        ("T_AFTER(seen, INTERVAL(\"times[]\", '..'))", "one value"),
        ("T_DURING(seen, INTERVAL('2026-11-03', '2026-11-01'))", "an interval ends before it"),
        ("T_AFTER(seen, 'yesterday')", "an instant and a text ('yesterday') cannot be compared"),
        ("T_AFTER(frame_number, DATE('2026-11-02'))", "'frame_number' (a number)"),
        ('"sizes[]" + "sizes[]" = "sizes[]"', "at most 2 of them"),
        ("(frame_number ^ 11) * (frame_number ^ 2) = 1", "more digits"),
        ("frame_number = 1e2000", "digits"),
        ('frame_number IN (1, "sizes[]" + "sizes[]" + "sizes[]")', "at most 2 of them"),
        ("prediction(prediction(score > 1))", "inside prediction"),
        ("prediction(S_INTERSECTS(location, POINT(1 2)))", "inside prediction"),
        ("S_INTERSECTS(location, BBOX(1, 5, 2, 4))", "south"),
        ("S_INTERSECTS(seen, POINT(1 2))", "the location and a geometry"),
        ("distance(location, location) < 1", "a point"),
        ("A_EQUALS(tags, 'a')", "an array"),
        ("S_INTERSECTS(location, POLYGON((0 0, 200 0, 0 1, 0 0)))", "off the map"),
        ("S_WITHIN(BBOX(170, 0, 181, 1), location)", "off the map"),
        ("(frame_number = 1) < (speed = 2)", "no order"),
        ("(frame_number = 1) + 2 = 3", "a condition"),
        ("(frame_number = 1) = 'x'", "a condition"),
        ("A_OVERLAPS(top_label, ('a'))", "'top_label' has one value: compare it by = or IN"),
        ("A_CONTAINS(data_source, ())", "'data_source' has one value"),
        ("(" * 60 + "frame_number = 1" + ") IS NULL" * 60, "split it"),
        ("(" * 8 + "frame_number = 1" + ") = ok" * 8, "more than 5,000 comparisons"),
        ("distance(location, POINT(0 1e400)) < 1", "off the map"),
        ("distance(location, POINT(180.1 0)) < 1", "off the map"),
        ("frame_number IN (" + "speed, " * 64 + "speed)", "at most 64 names or calculations"),
        (
            "frame_number + speed + inference.width + model_ms + pre_ms + post_ms + height"
            " + batch_size > http_status",
            "at most 8 different names",
        ),
        ("sent(speed) < TRUE", "no order"),
        ("A_CONTAINS(\"sizes[]\", ('a'))", "'sizes[]'"),
        ("frame_number = 1 AND 3", "condition"),
    ]:
        assert message in find_refusal(text, Invalid).detail, text


def test_suggests_the_elements_of_a_key_that_has_them_too() -> None:
    rows: dict[Kind, int] = {"string": 1}
    keys = {name: KnownKey(name, 1, rows, ("string",)) for name in ("a", "a[]", "b")}
    for name, known in [("a", ('"a[]"',)), ("b", ())]:
        refusal = find_refusal(f"A_OVERLAPS({name}, ('x'))", InvalidFilter, KnownKeys(keys))
        assert refusal.faults[0].known == known, name


def test_names_what_is_not_supported() -> None:
    cases: list[tuple[str, type[InvalidFilter | NotKept], str]] = [
        ("S_INTERSECTS(location, LINESTRING(0 0, 1 1))", NotKept, "conf/basic-spatial-functions-p"),
        ("S_WITHIN(POINT(0 0), BBOX(0, 0, 2, 2))", NotKept, "conf/basic-spatial-functions-plus"),
        ('A_EQUALS(tags, "sizes[]")', NotKept, "conf/array-functions"),
        ("A_EQUALS(('a'), ('b'))", NotKept, "conf/array-functions"),
        ("A_CONTAINS(tags, (frame_number, 'a'))", NotKept, "conf/array-functions"),
        ("INTERVAL(a, b) IS NULL", InvalidFilter, "IS NULL takes"),
        ("('a', 'b') IS NULL", InvalidFilter, "IS NULL takes"),
        ("frame_number IN ()", InvalidFilter, ""),
    ]
    for text, error, named in cases:
        assert named in find_refusal(text, error).detail, text


def test_gives_no_hint_about_generated_parts() -> None:
    assert "'0'" not in find_refusal("frame_number + data_source > 1", Invalid).detail


def test_literals_are_calculated_when_checked() -> None:
    """A box leads to what is nearer than a literal, and an index to a double that is compared."""
    for text, result in [
        ("0.1 + 0.2", "0.3"),
        ("5 - 7.50", "-2.50"),
        ("1e400 + 1e-400", "1" + "0" * 400 + "." + "0" * 399 + "1"),
        ("10 / 4", "2.5"),
        ("-7 div 2", "-3"),
        ("7.9 div -0.5", "-15"),
        ("-7 % 3", "-1"),
        ("7.25 % 0.5", "0.25"),
    ]:
        predicate = check_filter(f"frame_number < {text}").predicate
        assert isinstance(predicate, Compared), text
        assert predicate.values[1] == Constant("number", Decimal(result)), text
    for text in ("1 / 3", "1 / 0", "1 % 0", "1 div 0", "2 ^ 0.5"):
        predicate = check_filter(f"frame_number < {text}").predicate
        assert isinstance(predicate, Compared), text
        assert isinstance(predicate.values[1], Applied), text


def test_the_names_of_keys() -> None:
    text = (
        "a = 1 AND metadata.b.c = 2 AND inference.ok AND prediction(score > 1) AND width = 3 "
        "AND A_OVERLAPS(tags, ('x')) AND T_AFTER(t, INTERVAL(u, '..')) AND d IN (1, e)"
    )
    names = {"a", "b.c", "tags", "t", "u", "d", "e"}
    # an array is asked for by its name alone
    assert names_in(parse_text(text)) == {"width", *names, *(f"{name}[]" for name in names)}
    keys = check_filter("frame_number = 1 AND metadata.width = 2 AND ok").keys
    assert set(keys) == {"frame_number", "width"}


def test_gives_the_path_of_a_mistake_in_json() -> None:
    wrong = {"op": "=", "args": [{"property": "frame_number"}, "x"]}
    with pytest.raises(Invalid) as caught:
        check(parse_json({"op": "and", "args": [{"property": "ok"}, wrong]}), KNOWN)
    assert caught.value.faults[0].path == "filter.args[1].args[1]"


def test_any_key_can_be_named() -> None:
    for name in ("a b", "'", "\\", "é", "metadata.x"):
        result = check_filter(f'"metadata.{name}" = 1', unknown_keys="empty")
        assert evaluate(result.predicate, make_facts({name: 1})) is True, name


def test_equal_filters_are_equal_truths() -> None:
    first, second = map(check_filter, ("frame_number = 1", "metadata.frame_number = 1.0"))
    assert first.predicate == second.predicate


def test_a_pattern_does_not_end_in_a_backslash() -> None:
    node = parse_json({"op": "like", "args": [{"property": "data_source"}, "a\\"]})
    with pytest.raises(InvalidFilter, match="backslash"):
        check(node, KNOWN)


def test_counts_repeated_predicates() -> None:
    many = " OR ".join(f"frame_number = {n}" for n in range(400))
    conditions = ", ".join(f"(speed = {n})" for n in range(16))
    check_filter(f"({many}) IN (day, FALSE)")
    refusal = find_refusal(f"(({many}) IN ({conditions})) IN ({conditions})", InvalidFilter)
    assert "more than 5,000 comparisons" in refusal.detail


def test_conditions_are_compared() -> None:
    cases: list[tuple[str, dict[str, object], bool | None]] = [
        ("(frame_number = 1) = (speed = 2)", {"frame_number": 1, "speed": 2}, True),
        ("(frame_number = 1) = (speed = 2)", {"frame_number": 3, "speed": 4}, True),
        ("(frame_number = 1) <> (speed = 2)", {"frame_number": 1, "speed": 4}, True),
        ("(frame_number = 1) = (speed = 2)", {"frame_number": 1}, None),
        ("day = (frame_number > 1)", {"frame_number": 1, "day": False}, True),
        ("(frame_number > 1) IN (day, FALSE)", {"frame_number": 1, "day": True}, True),
        ("ok = prediction(score > 0.5)", {}, True),
        ("prediction((score > 0.5) = (label = 'car'))", {}, True),
        ("(1 = 1) = (2 = 2)", {}, True),
    ]
    rows = ({"label": "car", "score": 0.9},)
    for text, metadata, expected in cases:
        assert evaluate_filter(text, metadata, ok=True, predictions=rows) is expected, text


def test_a_condition_compared_with_true_is_the_condition() -> None:
    assert isinstance(check_filter("(frame_number = 1) = TRUE").predicate, Compared)
    assert check_filter("(frame_number = 1) = TRUE") == check_filter("frame_number = 1")

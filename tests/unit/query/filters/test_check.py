"""The check of every operation, by what it then says of inferences."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from inference_store.inference.errors import Invalid, InvalidFilter, NotKept
from inference_store.query.cql2 import OPERATIONS, parse_json, parse_text
from inference_store.query.cql2.relative import FUNCTIONS
from inference_store.query.filters.check import _PREDICATES, check
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.names import names_in
from inference_store.query.filters.typed import Fixed
from tests.unit.query.filters.evaluation import KNOWN, check_filter, evaluate_filter, make_facts

_AT = datetime(2026, 11, 2, tzinfo=UTC)
_BERLIN = {"longitude": 13.4, "latitude": 52.5}
_FIJI = {"longitude": 180, "latitude": -17}


def test_every_operation_that_is_kept_has_a_meaning() -> None:
    values = {n.lower() for n, entry in OPERATIONS.items() if entry.gives in {"number", "text"}}
    meant = {*_PREDICATES, *values, *FUNCTIONS}
    assert {n.lower() for n, entry in OPERATIONS.items() if entry.is_supported} <= meant


@pytest.mark.parametrize(
    ("text", "metadata", "expected"),
    [
        ("frame_number IN (1, 2)", {"frame_number": 2}, True),
        ("frame_number NOT IN (1, 2)", {"frame_number": 3}, True),
        ("frame_number NOT IN (1, 2)", {}, None),
        ("speed IN (1, 'fast')", {"speed": "fast"}, True),
        ("speed IN (1, 'fast')", {"speed": "slow"}, False),
        ("NOT speed IN (1, 'fast')", {"speed": 2}, True),
        ("NOT speed IN (1, 'fast')", {}, None),
        ("A_EQUALS(tags, ('a'))", {"tags": ["a", 1]}, False),
        ("A_EQUALS(tags, ('1'))", {"tags": ["1"]}, True),
        ("A_CONTAINEDBY(tags, ('a'))", {"tags": ["a", 1]}, False),
        ("A_CONTAINEDBY(tags, ('a', 'b'))", {"tags": ["a"]}, True),
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
        ("ACCENTI(CASEI(data_source)) = ACCENTI(CASEI('ÉTÉ'))", {"data_source": "Ete"}, True),
        ("frame_number + 1 = 2 * 5", {"frame_number": 9}, True),
        ("frame_number / 0 = 1", {"frame_number": 9}, None),
        ("frame_number ^ 2 = 81", {"frame_number": 9}, True),
        ("frame_number < speed", {"frame_number": 9, "speed": 10}, True),
        ("frame_number BETWEEN speed AND 10", {"frame_number": 9, "speed": 9}, True),
        ("(frame_number = 1) IS NULL", {}, True),
        ("(frame_number = 1) IS NOT NULL", {"frame_number": 5}, True),
        ("frame_number / 0 IS NULL", {"frame_number": 1}, True),
        ("location IS NULL", {}, True),
        ("location IS NULL", _BERLIN, False),
        ("'a' IS NULL", {}, False),
        ("camera_position.angle = 10.5", {"camera_position": {"angle": "10.5"}}, True),
        # A text that spells a number is one too inside JSON, but not if it is sent as a text.
        ('"tags[]" > 6 AND "tags[]" = \'7.0\'', {"tags": ["7.0"]}, True),
        ('NOT "tags[]" > 6', {"tags": ["7.0"]}, False),
        ("speed > 6", {"speed": ("string", "7.0")}, None),
        # Places.
        ("S_INTERSECTS(location, BBOX(13, 52, 14, 53))", _BERLIN, True),
        ("S_INTERSECTS(BBOX(13, 52, 0, 14, 53, 1), location)", _BERLIN, True),
        ("S_WITHIN(location, BBOX(13.4, 52, 14, 53))", _BERLIN, False),
        ("S_INTERSECTS(location, BBOX(13.4, 52, 14, 53))", _BERLIN, True),
        ("S_DISJOINT(location, POINT(13.4 52.5))", _BERLIN, False),
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
        ("A_CONTAINEDBY(tags, ('a', 'b', 1))", {"tags": ["a"]}, True),
        ("A_CONTAINEDBY(tags, ('a', 'b', 1))", {"tags": ["a", 2]}, False),
        ("A_CONTAINEDBY(tags, ('a', 'b', 1))", {"tags": []}, None),
        ("A_EQUALS(tags, ('a', 1))", {"tags": [1, "a"]}, True),
        ("A_EQUALS(tags, ('a', 1))", {"tags": ["a"]}, False),
        ("A_OVERLAPS(tags, ('c', 1))", {"tags": ["a"]}, False),
        ("A_OVERLAPS(tags, ('c', 1))", {"tags": ["c"]}, True),
        ("A_OVERLAPS(tags, tags)", {"tags": ["a"]}, True),
        ("A_EQUALS(('a', 'b'), ('b', 'a', 'a'))", {}, True),
        ("A_OVERLAPS(tags, ())", {"tags": ["a"]}, False),
    ],
)
def test_filters_of_metadata(text: str, metadata: dict[str, Any], expected: bool | None) -> None:
    assert evaluate_filter(text, metadata) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count_predictions() = 3", True),
        ("count_predictions(label = 'car') >= 2", True),
        ("count_predictions(label = 'car') = count_predictions(score > 0.5) + 1", True),
        ("prediction()", True),
        ("prediction(label LIKE 'c%' AND NOT score > 0.5)", True),
        ("prediction(label = 'cat')", False),
        ("prediction(xmax - xmin > 10)", False),
        ("prediction(score IS NULL)", True),
    ],
)
def test_filters_of_predictions(text: str, expected: bool) -> None:
    rows = (
        {"label": "car", "score": 0.9, "xmin": 1.0, "xmax": 11.0},
        {"label": "car", "score": 0.1},
        {"label": "dog", "score": None},
    )
    assert evaluate_filter(text, predictions=rows) is expected


_SPAN = "INTERVAL('2026-11-01', '2026-11-03')"
_SEEN = "INTERVAL(seen, until)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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
    ],
)
def test_filters_of_times(text: str, expected: bool | None) -> None:
    assert evaluate_filter(text, received_at=_AT) is expected


def test_filters_of_metadata_spans() -> None:
    metadata = {
        "seen": ("timestamp", "2026-11-02T00:00:00Z"),
        "until": ("timestamp", "2026-11-02T06:00:00Z"),
        "times": ["2026-11-01T00:00:00Z"],
    }
    assert evaluate_filter(f"T_DURING({_SEEN}, {_SPAN})", metadata) is True
    assert evaluate_filter(f"T_DURING({_SPAN}, {_SEEN})", metadata) is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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
    ],
)
def test_a_half_open_interval_decides_by_its_other_end(text: str, expected: bool | None) -> None:
    metadata = {"seen": ("timestamp", "2026-11-02T00:00:00Z")}
    assert evaluate_filter(text.format(seen=_SEEN), metadata, received_at=_AT) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("T_DURING(received_at, DATE('2026-11-02'))", "instants compare by"),
        (f"T_MEETS(received_at, {_SPAN})", "two intervals"),
        (f'T_DURING("times[]", {_SPAN})', "one value"),
        ("T_AFTER(seen, INTERVAL(\"times[]\", '..'))", "one value"),
        ("T_AFTER(frame_number, DATE('2026-11-02'))", "'frame_number' (a number)"),
        ('"sizes[]" + "sizes[]" = "sizes[]"', "at most 2 names"),
        ("(frame_number ^ 11) * (frame_number ^ 2) = 1", "more digits"),
        ("frame_number = 1e2000", "digits"),
        ("(1e399 ^ 16) * frame_number = 1", "written out"),
        (f"'{'a' * 2000}' LIKE '{'%a' * 400}b'", "too long"),
        ('frame_number IN (1, "sizes[]" + "sizes[]" + "sizes[]")', "at most 2 names"),
        ("prediction(prediction(score > 1))", "inside prediction"),
        ("prediction(S_INTERSECTS(location, POINT(1 2)))", "inside prediction"),
        ("S_INTERSECTS(location, BBOX(1, 5, 2, 4))", "south"),
        ("S_INTERSECTS(seen, POINT(1 2))", "the location and a geometry"),
        ("distance(location, location) < 1", "a point"),
        ('A_CONTAINS(tags, ("sizes[]"))', "an array itself"),
        ("A_CONTAINS(tags, (seen))", "cannot be compared"),
        ('A_EQUALS("sizes[]", "times[]")', "cannot be compared"),
        ("A_EQUALS(data_source, (top_label))", "'data_source' has one value"),
        ("A_EQUALS(tags, (" + "frame_number, " * 8 + "1))", "at most 8 names"),
        ("A_EQUALS(tags, 'a')", "an array"),
        ("S_INTERSECTS(location, POINT(52.5 113.4))", "the longitude comes first"),
        ("S_INTERSECTS(location, POLYGON((0 0, 200 0, 0 1, 0 0)))", "off the map"),
        ("S_WITHIN(BBOX(170, 0, 181, 1), location)", "off the map"),
        ("(frame_number = 1) < (speed = 2)", "no order"),
        ("(frame_number = 1) + 2 = 3", "a condition"),
        ("(frame_number = 1) = 'x'", "a condition"),
        ("(((ok = (frame_number = 1)) = ok) = ok) = ok", "split the filter"),
        ("A_OVERLAPS(top_label, ('a'))", "'top_label' has one value: compare it by = or IN"),
        ("A_CONTAINS(data_source, ())", "'data_source' has one value"),
        ("(" * 60 + "frame_number = 1" + ") IS NULL" * 60, "split the filter"),
        ("distance(location, POINT(0 1e400)) < 1", "off the map"),
        ("distance(location, POINT(180.1 0)) < 1", "off the map"),
        ("frame_number IN (" + "speed, " * 64 + "speed)", "at most 64 names or calculations"),
        ("frame_number + 1 IN (" + "speed, " * 16 + "speed)", "at most 16 names"),
        (
            "frame_number + speed + inference.width + model_ms + pre_ms + post_ms + height"
            " + batch_size > http_status",
            "at most 8 different names",
        ),
        ("sent(speed) < TRUE", "no order"),
        ("A_CONTAINS(\"sizes[]\", ('a'))", "'sizes[]'"),
        ("frame_number = 1 AND 3", "condition"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        check_filter(text)


@pytest.mark.parametrize(
    ("text", "conformance_class"),
    [
        ("S_WITHIN(BBOX(0, 0, 1, 1), BBOX(0, 0, 2, 2))", "conf/spatial-functions"),
        ("S_INTERSECTS(location, LINESTRING(0 0, 1 1))", "conf/basic-spatial-functions-plus"),
    ],
)
def test_names_the_class_that_is_not_supported(text: str, conformance_class: str) -> None:
    with pytest.raises(NotKept, match=re.escape(conformance_class)):
        check_filter(text)


@pytest.mark.parametrize("text", ["INTERVAL(a, b) IS NULL", "('a', 'b') IS NULL"])
def test_arrays_and_intervals_are_never_null(text: str) -> None:
    with pytest.raises(InvalidFilter, match="IS NULL takes"):
        parse_text(text)


def test_gives_no_hint_about_generated_parts() -> None:
    with pytest.raises(Invalid) as caught:
        check_filter("frame_number + data_source > 1")
    assert "'0'" not in caught.value.detail


def test_compares_conditions_on_predictions_with_false() -> None:
    rows = ({"label": "car", "score": 0.9},)
    assert evaluate_filter("prediction(label = 'dog') = FALSE", predictions=rows) is True


def test_a_line_belongs_to_a_class_that_is_not_kept() -> None:
    with pytest.raises(NotKept, match="basic-spatial-functions-plus"):
        check_filter("S_INTERSECTS(location, LINESTRING(0 0, 1 1))")


def test_constants_are_decided_when_checked() -> None:
    assert check_filter("1 + 1 = 2").predicate == Fixed(True)
    assert check_filter("1 / 0 = 2").predicate == Fixed(None)
    assert check_filter("TRUE OR ok").predicate == Fixed(True)
    assert check_filter("NOT ('a' LIKE 'b%' AND ok)").predicate == Fixed(True)
    assert check_filter("ok AND TRUE").predicate == check_filter("ok").predicate


def test_the_names_of_keys() -> None:
    text = (
        "a = 1 AND metadata.b.c = 2 AND inference.ok AND prediction(score > 1) AND width = 3 "
        "AND A_OVERLAPS(tags, ('x')) AND T_AFTER(t, INTERVAL(u, '..')) AND d IN (1, e)"
    )
    assert names_in(parse_text(text)) == {
        *("a", "b.c", "width", "tags", "tags[]", "t", "u", "d", "e"),
    }


def test_lists_the_keys_of_a_filter() -> None:
    assert set(check_filter("frame_number = 1 AND metadata.width = 2 AND ok").keys) == {
        "frame_number",
        "width",
    }


def test_gives_the_path_of_a_mistake_in_json() -> None:
    node = parse_json(
        {
            "op": "and",
            "args": [{"property": "ok"}, {"op": "=", "args": [{"property": "frame_number"}, "x"]}],
        }
    )
    with pytest.raises(Invalid) as caught:
        check(node, KNOWN)
    assert caught.value.faults[0].path == "filter.args[1].args[1]"


@pytest.mark.parametrize("name", ["a b", "'", "\\", "é", "metadata.x"])
def test_any_key_can_be_named(name: str) -> None:
    result = check_filter(f'"metadata.{name}" = 1', unknown_keys="empty")
    assert evaluate(result.predicate, make_facts({name: 1})) is True


def test_equal_filters_are_equal_truths() -> None:
    assert (
        check_filter("frame_number = 1").predicate
        == check_filter("metadata.frame_number = 1.0").predicate
    )


def test_a_pattern_does_not_end_in_a_backslash() -> None:
    node = parse_json({"op": "like", "args": [{"property": "data_source"}, "a\\"]})
    with pytest.raises(InvalidFilter, match="backslash"):
        check(node, KNOWN)


def test_a_list_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidFilter):
        check_filter("frame_number IN ()")

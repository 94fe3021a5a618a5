"""Relative times: text and JSON come to the same instant; what makes no time is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_store.inference.errors import InvalidFilter
from inference_store.query.cql2 import (
    Clock,
    Resolved,
    parse,
    parse_text,
    resolved_in,
    to_json,
    to_text,
)
from inference_store.query.cql2.tree import Instant, Named, Node, Operation
from tests.properties import examples

_NOW = datetime(2026, 3, 31, 12, 30, 15, 123456, tzinfo=UTC)
_CLOCK = Clock(_NOW)
_AGO = "now() - duration('PT1H')"


def _parse(text: str) -> Node:
    return parse(text, clock=_CLOCK)


def _resolve(text: str) -> Any:
    tree = _parse(f"seen > {text}")
    assert isinstance(tree, Operation)
    argument = tree.args[1]
    assert isinstance(argument, Instant)
    return argument.value


def test_a_relative_time_is_an_instant() -> None:
    cases: list[tuple[str, datetime]] = [
        ("now()", _NOW),
        ("NOW()", _NOW),
        (_AGO, _NOW - timedelta(hours=1)),
        ("now() + Duration('P1D')", _NOW + timedelta(days=1)),
        ("duration('P1D') + now()", _NOW + timedelta(days=1)),
        ("now() - duration('P1M')", _NOW.replace(month=2, day=28)),
        ("(now() - duration('P1Y')) + duration('PT0.5S')",
         _NOW.replace(year=2025) + timedelta(milliseconds=500)),
        ("now() - duration('P1D') - duration('PT1H')", _NOW - timedelta(hours=25)),
        ("DATE('2026-03-31') - duration('P1M')", datetime(2026, 2, 28, tzinfo=UTC)),
        ("TIMESTAMP('2026-03-31T02:00:00+02:00') + duration('P1D')",
         datetime(2026, 4, 1, tzinfo=UTC)),
    ]  # fmt: skip
    for text, instant in cases:
        assert _resolve(text) == instant, text


def test_accepts_relative_times_in_place_of_any_instant() -> None:
    for text in [
        f"seen BETWEEN {_AGO} AND now()",
        f"seen IN ({_AGO}, now())",
        f"NOT seen <> {_AGO}",
        f"T_AFTER(seen, {_AGO})",
        f"T_DURING(seen, INTERVAL({_AGO}, '..'))",
        f"T_INTERSECTS(INTERVAL(seen, now()), INTERVAL('2026-01-01', {_AGO}))",
        f"A_OVERLAPS(times, ({_AGO}))",
        f"prediction(score > 0.5) AND (a = 1 OR seen > {_AGO})",
    ]:
        tree = _parse(text)
        assert "2026-03-31T11:30:15.123456Z" in to_text(tree), text
        # What comes out is the standard's own: it is read again without a clock.
        assert parse(to_text(tree)) == parse(to_json(tree)) == tree, text


_DURATIONS = st.sampled_from(
    ["PT1H", "P1D", "P1M", "P13M", "P1Y2M3W4DT5H6M7.000008S", "PT0S", "P2W"]
)
_MOVES = st.lists(st.tuples(st.sampled_from("+-"), _DURATIONS), max_size=4)


@settings(deadline=None, max_examples=examples(100))
@given(moves=_MOVES, op=st.sampled_from(["=", "<>", "<", ">=", "t_before"]))
def test_text_and_json_come_to_the_same(moves: list[tuple[str, str]], op: str) -> None:
    text = "now()" + "".join(f" {sign} duration('{duration}')" for sign, duration in moves)
    spelt: Any = {"op": "now", "args": []}
    for sign, duration in moves:
        spelt = {"op": sign, "args": [spelt, {"op": "duration", "args": [duration]}]}
    tree = parse({"op": op, "args": [{"property": "seen"}, spelt]}, clock=_CLOCK)
    written = f"T_BEFORE(seen, {text})" if op == "t_before" else f"seen {op} {text}"
    assert _parse(written) == tree
    assert [relative.expression for relative in resolved_in(tree)] == [text]


def test_json_has_it_in_an_interval_too() -> None:
    ago = {"op": "-", "args": [{"op": "now", "args": []}, {"op": "duration", "args": ["PT1H"]}]}
    document = {"op": "t_during", "args": [{"property": "seen"}, {"interval": [ago, ".."]}]}
    assert parse(document, clock=_CLOCK) == _parse(f"T_DURING(seen, INTERVAL({_AGO}, '..'))")


def test_lists_resolved_times_once_and_in_order() -> None:
    tree = _parse(f"seen > {_AGO} AND seen < now() AND (a > {_AGO} OR b = DATE('2026-01-01'))")
    assert resolved_in(tree) == [Resolved(_AGO, _NOW - timedelta(hours=1)), Resolved("now()", _NOW)]
    assert resolved_in(parse("seen > DATE('2026-01-01')", clock=_CLOCK)) == []
    assert resolved_in(None) == []


def test_now_and_duration_are_names_without_brackets() -> None:
    assert parse_text("duration > 5 AND now = 1") == Operation(
        "and",
        (
            parse_text("duration > 5"),
            Operation("=", (Named("now"), parse_text("a = 1").args[1])),  # type: ignore[union-attr]
        ),
    )


def test_rejects_other_expressions_at_their_position(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int, str, tuple[str, ...]]] = [
        ("seen > now() - duration('abc')", 25, "'abc' is not an ISO 8601 duration", ()),
        ("seen > now() - duration('pt1h')", 25, "is not an ISO", ("duration('PT1H')",)),
        ("seen > now() - duration('-PT1H')", 25, "no sign: subtract it", ()),
        ("seen > now() - duration(3)", 16, "in single quotes: duration('PT1H')", ()),
        ("seen > now() - duration()", 16, "in single quotes: duration('PT1H')", ()),
        ("seen > now(3)", 12, "takes no arguments", ()),
        ("seen > now() + 3", 16, "no unit", ("duration('P3D')", "duration('PT3S')")),
        ("seen > now() + 3.5", 16, "no unit", ("duration('PT3.5S')",)),
        ("seen > now() - 'PT1H'", 16, "is written", ("duration('PT1H')",)),
        ("seen > now() - 'x'", 16, "moved by a duration, and this is a text", ()),
        ("seen > now - duration('PT1H')", 8, "is written now()", ("now()",)),
        ("seen - duration('PT1H') > now()", 1, "move it to the other side", ()),
        ("now() - seen > duration('PT1H')", 9, "moved by a duration, and this is a name", ()),
        ("seen > duration('PT1H')", 8, "a duration is no time", ()),
        ("seen > -duration('PT1H')", 9, "a duration is no time", ()),
        ("seen > 2 * now()", 12, "takes a number here, and this is a time", ()),
        ("seen > now() - now()", 8, "two times make no time", ()),
        ("seen > duration('P1D') - now()", 8, "not a time from it", ()),
        ("seen > now() + (duration('P1D') + duration('P1D'))", 17, "one after the other", ()),
        ("seen > now() - duration('P3000Y')", 8, "outside the years 1 to 9999", ()),
        ("seen > now() + duration('P999999999W')", 8, "outside the years 1 to 9999", ()),
        ("T_AFTER(a, INTERVAL('PT1H', '..'))", 21, "a timestamp is", (f"{_AGO}",)),
        ("T_AFTER(a, INTERVAL(b-c, '..'))", 21, "no number", ('"b-c"',)),
        ("CASEI(now()) = 'x'", 7, "takes a text here, and this is a time", ()),
    ]
    for text, column, message, suggestions in cases:
        with subtests.test(text):
            with pytest.raises(InvalidFilter) as refused:
                _parse(text)
            [fault] = refused.value.faults
            assert (fault.path, fault.line, fault.column) == ("filter", 1, column)
            assert message in fault.message
            assert fault.known[: len(suggestions)] == suggestions


def test_the_place_in_json_is_its_path() -> None:
    document = {"op": ">", "args": [{"property": "a"}, {"op": "duration", "args": ["x"]}]}
    with pytest.raises(InvalidFilter) as refused:
        parse(document, clock=_CLOCK)
    assert refused.value.faults[0].path == "filter.args[1].args[0]"


def test_suggests_a_timestamp_if_there_is_no_clock() -> None:
    with pytest.raises(InvalidFilter, match="cannot stand here: write the time itself"):
        parse("seen > now()")
    with pytest.raises(InvalidFilter, match="cannot stand here: give an age"):
        parse("seen > DATE('2026-01-01') + duration('P1D')", clock=Clock(None, "give an age"))

"""The standard: its classes and operations are whole, and each of its examples is read, printed,
means the same in text and JSON, and, if it is kept, becomes SQL.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from inference_store.index.tables import inference
from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.inference.json_text import read_exactly, read_json, write_json
from inference_store.query import cql2
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.cql2.relative import Resolved
from inference_store.query.cql2.tree import Instant, Named, Node, Operation
from inference_store.query.deadline import HIGHEST, ScanRange
from inference_store.query.filters.check import check
from inference_store.query.filters.names import KnownKeys
from tests.properties import examples
from tests.unit.query.cql2.trees import DRAWN

EXAMPLES = Path(__file__).parent / "examples"
TEXTS = sorted((EXAMPLES / "text").glob("*.txt"))
JSONS = sorted((EXAMPLES / "json").glob("*.json"))
# What this store has no function for, and the relations and geometries it does not keep.
FOREIGN = {"clause6_01", "clause6_02b", "clause7_18", "example68", "example69"}
UNSUPPORTED = {
    *("clause7_10", "clause7_16", "example46", "example48", "example50", "example51"),
    *("example52", "example83", "example84"),
}


def test_all_examples_are_here() -> None:
    assert len(TEXTS) == 120
    assert len(JSONS) == 109
    stems = {path.stem.removesuffix("-alt01") for path in TEXTS}
    assert stems == {path.stem for path in JSONS}


def test_a_text_means_what_its_json_means(subtests: pytest.Subtests) -> None:
    for path in TEXTS:
        if path.stem.removesuffix("-alt01") in FOREIGN | UNSUPPORTED:
            continue
        with subtests.test(path.stem):
            example = EXAMPLES / "json" / f"{path.stem.removesuffix('-alt01')}.json"
            tree = cql2.parse_text(path.read_text())
            assert tree == cql2.parse_json_text(example.read_text())


def test_an_example_survives_being_printed(subtests: pytest.Subtests) -> None:
    for path in JSONS:
        if path.stem in FOREIGN | UNSUPPORTED:
            continue
        with subtests.test(path.stem):
            tree = cql2.parse_json(read_json(path.read_bytes()))
            assert cql2.parse_text(cql2.to_text(tree)) == tree
            written = write_json(cql2.to_json(tree))
            assert cql2.parse_json(read_exactly(written)) == tree
            assert cql2.parse_json(read_json(written)) == tree


def test_an_example_is_kept_unless_named_here(subtests: pytest.Subtests) -> None:
    for path in TEXTS:
        with subtests.test(path.stem):
            stem, text = path.stem.removesuffix("-alt01"), path.read_text()
            if stem in FOREIGN:
                with pytest.raises(InvalidFilter, match="there is no function"):
                    cql2.parse_text(text)
            elif stem in UNSUPPORTED:
                with pytest.raises(NotKept, match=r"http://www\.opengis\.net/spec/cql2/1\.0/conf/"):
                    cql2.parse_text(text)
            else:
                check_sql(cql2.parse_text(text))


def check_sql(node: Node) -> None:
    """Check that what is read is a statement."""
    predicate = check(use_own_names(node), KnownKeys(), unknown_keys="empty").predicate
    scope = ScanRange(1, UUID(int=0), HIGHEST)
    statement = compile_condition(predicate, Names()).holds(scope, inference.c.uid)
    assert str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


def use_own_names(node: Node) -> Node:
    """Return the example with our name of the geometry."""
    if isinstance(node, Named) and node.name in {"geometry", "footprint"}:
        return replace(node, name="location")
    if isinstance(node, Operation):
        return replace(node, args=tuple(map(use_own_names, node.args)))
    return node


# One filter of each class that is kept, and one of each that is not.
OF_EACH_CLASS = {
    "cql2-text": "ok",
    "cql2-json": "ok",
    "basic-cql2": "NOT (a = 1 OR a <> 2 AND a < 3) AND a IS NOT NULL",
    "advanced-comparison-operators": "a LIKE 'x' AND a BETWEEN 1 AND 2 AND a IN (1, 2)",
    "case-insensitive-comparison": "CASEI(a) = CASEI('Straße')",
    "accent-insensitive-comparison": "ACCENTI(CASEI(a)) LIKE ACCENTI('é%')",
    "basic-spatial-functions": "S_INTERSECTS(BBOX(1,2,3,4), location) AND "
    "S_INTERSECTS(location, POINT(1 2)) AND S_INTERSECTS(location, location)",
    "basic-spatial-functions-plus": "S_INTERSECTS(a, LINESTRING(1 2, 3 4))",
    "spatial-functions": "S_TOUCHES(a, BBOX(1,2,3,4))",
    "temporal-functions": "T_DURING(a, INTERVAL('2026-01-01', '..'))",
    "array-functions": "A_CONTAINS(a, b)",
    "property-property": "a = b AND 1 < a",
    "functions": "count_predictions(score > 0.5) = 2",
    "arithmetic": "a ^ b > 2",
}


def test_every_class_of_the_standard_is_here_and_tested() -> None:
    assert set(OF_EACH_CLASS) == set(cql2.CONFORMANCE)
    assert {entry.uri for entry in cql2.CONFORMANCE.values()} == {
        f"http://www.opengis.net/spec/cql2/1.0/conf/{name}" for name in OF_EACH_CLASS
    }


@pytest.mark.parametrize("name", OF_EACH_CLASS)
def test_a_class_is_kept_or_refused_by_name(name: str) -> None:
    if cql2.CONFORMANCE[name].kept:
        check(cql2.parse_text(OF_EACH_CLASS[name]), KnownKeys(), unknown_keys="accept")
        return
    with pytest.raises(NotKept, match=name):
        check(cql2.parse_text(OF_EACH_CLASS[name]), KnownKeys(), unknown_keys="accept")


def test_an_operation_has_a_class_and_a_use_for_its_arguments(subtests: pytest.Subtests) -> None:
    for name, entry in cql2.OPERATIONS.items():
        with subtests.test(name):
            assert entry.conformance in cql2.CONFORMANCE
            assert len(entry.takes) >= min(1, entry.least)
            assert entry.most is None or entry.least <= entry.most


def test_all_operations_of_a_kept_class_are_kept() -> None:
    for entry in cql2.OPERATIONS.values():
        if cql2.CONFORMANCE[entry.conformance].kept:
            assert entry.is_supported, entry.name


def test_the_round_trips_draw_every_operation() -> None:
    """But relative times, which are read as the instants that they are."""
    supported = {name for name, entry in cql2.OPERATIONS.items() if entry.is_supported}
    assert supported - DRAWN == {"now", "duration"}, "draw it in tests/unit/query/cql2/trees.py"


# Relative times: text and JSON come to the same instant; what makes no time is refused.

_NOW = datetime(2026, 3, 31, 12, 30, 15, 123456, tzinfo=UTC)
_CLOCK = cql2.Clock(_NOW)
_AGO = "now() - duration('PT1H')"


def _parse(text: str) -> Node:
    return cql2.parse(text, clock=_CLOCK)


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
        assert "2026-03-31T11:30:15.123456Z" in cql2.to_text(tree), text
        # What comes out is the standard's own: it is read again without a clock.
        assert cql2.parse(cql2.to_text(tree)) == cql2.parse(cql2.to_json(tree)) == tree, text


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
    tree = cql2.parse({"op": op, "args": [{"property": "seen"}, spelt]}, clock=_CLOCK)
    written = f"T_BEFORE(seen, {text})" if op == "t_before" else f"seen {op} {text}"
    assert _parse(written) == tree
    assert [relative.expression for relative in cql2.resolved_in(tree)] == [text]


def test_json_has_it_in_an_interval_too() -> None:
    ago = {"op": "-", "args": [{"op": "now", "args": []}, {"op": "duration", "args": ["PT1H"]}]}
    document = {"op": "t_during", "args": [{"property": "seen"}, {"interval": [ago, ".."]}]}
    assert cql2.parse(document, clock=_CLOCK) == _parse(f"T_DURING(seen, INTERVAL({_AGO}, '..'))")


def test_lists_resolved_times_once_and_in_order() -> None:
    tree = _parse(f"seen > {_AGO} AND seen < now() AND (a > {_AGO} OR b = DATE('2026-01-01'))")
    assert cql2.resolved_in(tree) == [
        Resolved(_AGO, _NOW - timedelta(hours=1)),
        Resolved("now()", _NOW),
    ]
    assert cql2.resolved_in(cql2.parse("seen > DATE('2026-01-01')", clock=_CLOCK)) == []
    assert cql2.resolved_in(None) == []


def test_now_and_duration_are_names_without_brackets() -> None:
    assert cql2.parse_text("duration > 5 AND now = 1") == Operation(
        "and",
        (
            cql2.parse_text("duration > 5"),
            Operation("=", (Named("now"), cql2.parse_text("a = 1").args[1])),  # type: ignore[union-attr]
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
        ("seen > duration('PT1H')", 8, "a duration is not a time", ()),
        ("seen > -duration('PT1H')", 9, "a duration is not a time", ()),
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
        cql2.parse(document, clock=_CLOCK)
    assert refused.value.faults[0].path == "filter.args[1].args[0]"


def test_suggests_a_timestamp_if_there_is_no_clock() -> None:
    with pytest.raises(InvalidFilter, match="is not allowed here: write the time itself"):
        cql2.parse("seen > now()")
    with pytest.raises(InvalidFilter, match="is not allowed here: give an age"):
        cql2.parse(
            "seen > DATE('2026-01-01') + duration('P1D')", clock=cql2.Clock(None, "give an age")
        )

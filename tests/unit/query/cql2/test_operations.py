"""The table of operations and that of conformance classes: whole, and every class tested."""

import pytest

from inference_store.inference.errors import NotKept
from inference_store.query.cql2 import CONFORMANCE, OPERATIONS, parse_text
from inference_store.query.filters.check import check
from inference_store.query.filters.known_keys import KnownKeys
from tests.unit.query.cql2.trees import DRAWN

# One filter of each class that is kept, and one of each that is not.
OF_EACH_CLASS = {
    "cql2-text": "ok",
    "cql2-json": "ok",
    "basic-cql2": "NOT (a = 1 OR a <> 2 AND a < 3) AND a IS NOT NULL",
    "advanced-comparison-operators": "a LIKE 'x' AND a BETWEEN 1 AND 2 AND a IN (1, 2)",
    "case-insensitive-comparison": "CASEI(a) = CASEI('Straße')",
    "accent-insensitive-comparison": "ACCENTI(CASEI(a)) LIKE ACCENTI('é%')",
    "basic-spatial-functions": "S_INTERSECTS(POINT(1 2), BBOX(1,2,3,4)) AND "
    "S_INTERSECTS(location, POINT(1 2)) AND S_INTERSECTS(location, location)",
    "basic-spatial-functions-plus": "S_INTERSECTS(a, LINESTRING(1 2, 3 4))",
    "spatial-functions": "S_TOUCHES(a, BBOX(1,2,3,4))",
    "temporal-functions": "T_DURING(a, INTERVAL('2026-01-01', '..'))",
    "array-functions": "A_CONTAINS(a, b) OR A_EQUALS((a, 1), b) OR A_OVERLAPS(('x'), c)",
    "property-property": "a = b AND 1 < a",
    "functions": "count_predictions(score > 0.5) = 2",
    "arithmetic": "a ^ b > 2",
}


def test_every_class_of_the_standard_is_here_and_tested() -> None:
    assert set(OF_EACH_CLASS) == set(CONFORMANCE)
    assert {entry.uri for entry in CONFORMANCE.values()} == {
        f"http://www.opengis.net/spec/cql2/1.0/conf/{name}" for name in OF_EACH_CLASS
    }


@pytest.mark.parametrize("name", OF_EACH_CLASS)
def test_a_class_is_kept_or_refused_by_name(name: str) -> None:
    if CONFORMANCE[name].kept:
        check(parse_text(OF_EACH_CLASS[name]), KnownKeys(), unknown_keys="accept")
        return
    with pytest.raises(NotKept, match=name):
        check(parse_text(OF_EACH_CLASS[name]), KnownKeys(), unknown_keys="accept")


def test_an_operation_has_a_class_and_a_use_for_its_arguments(subtests: pytest.Subtests) -> None:
    for name, entry in OPERATIONS.items():
        with subtests.test(name):
            assert entry.conformance in CONFORMANCE
            assert len(entry.takes) >= min(1, entry.least)
            assert entry.most is None or entry.least <= entry.most


def test_all_operations_of_a_kept_class_are_kept() -> None:
    for entry in OPERATIONS.values():
        if CONFORMANCE[entry.conformance].kept:
            assert entry.is_supported, entry.name


def test_the_round_trips_draw_every_operation() -> None:
    """But relative times, which are read as the instants that they are."""
    supported = {name for name, entry in OPERATIONS.items() if entry.is_supported}
    assert supported - DRAWN == {"now", "duration"}, "draw it in tests/unit/query/cql2/trees.py"

"""The standard: its classes and operations are whole, and each of its examples is read, printed,
means the same in text and JSON, and, if it is kept, becomes SQL."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.dialects import postgresql

from inference_store.index.tables import inference
from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.inference.json_text import read_exactly, read_json, write_json
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.cql2 import (
    CONFORMANCE,
    OPERATIONS,
    parse_json,
    parse_json_text,
    parse_text,
    to_json,
    to_text,
)
from inference_store.query.cql2.tree import Named, Node, Operation
from inference_store.query.deadline import HIGHEST, ScanRange
from inference_store.query.filters.check import check
from inference_store.query.filters.names import KnownKeys
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
        with subtests.test(path.stem):
            example = EXAMPLES / "json" / f"{path.stem.removesuffix('-alt01')}.json"
            tree = parse_text(path.read_text(), whole_standard=True)
            assert tree == parse_json_text(example.read_text(), whole_standard=True)


def test_an_example_survives_being_printed(subtests: pytest.Subtests) -> None:
    for path in JSONS:
        with subtests.test(path.stem):
            tree = parse_json(read_json(path.read_bytes()), whole_standard=True)
            assert parse_text(to_text(tree), whole_standard=True) == tree
            written = write_json(to_json(tree))
            assert parse_json(read_exactly(written), whole_standard=True) == tree
            assert parse_json(read_json(written), whole_standard=True) == tree


def test_an_example_is_kept_unless_named_here(subtests: pytest.Subtests) -> None:
    for path in TEXTS:
        with subtests.test(path.stem):
            stem, text = path.stem.removesuffix("-alt01"), path.read_text()
            if stem in FOREIGN:
                with pytest.raises(InvalidFilter, match="there is no function"):
                    parse_text(text)
            elif stem in UNSUPPORTED:
                with pytest.raises(NotKept, match=r"http://www\.opengis\.net/spec/cql2/1\.0/conf/"):
                    parse_text(text)
            else:
                check_sql(parse_text(text))


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

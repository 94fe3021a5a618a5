"""The standard's own examples: what is read of them is checked, and made into SQL."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.dialects import postgresql

from inference_store.index.tables import inference
from inference_store.inference.errors import StoreError
from inference_store.query.conditions import Names, compile_condition
from inference_store.query.cql2 import parse_text
from inference_store.query.cql2.tree import Named, Node, Operation
from inference_store.query.filters.check import check
from inference_store.query.filters.known_keys import KnownKeys
from inference_store.query.scan_range import HIGHEST, ScanRange

_EXAMPLES = Path(__file__).parents[1] / "cql2" / "examples" / "text"
_TEXTS = sorted(_EXAMPLES.glob("*.txt"))
_SCOPE = ScanRange(1, UUID(int=0), HIGHEST)


def _use_own_names(node: Node) -> Node:
    """The example with our name of the geometry."""
    if isinstance(node, Named) and node.name in {"geometry", "footprint"}:
        return replace(node, name="location")
    if isinstance(node, Operation):
        return replace(node, args=tuple(map(_use_own_names, node.args)))
    return node


def _read(path: Path) -> Node | None:
    try:
        return _use_own_names(parse_text(path.read_text()))
    except StoreError:  # what is not kept: the reader's own tests say which
        return None


def test_an_example_that_is_read_becomes_sql(subtests: pytest.Subtests) -> None:
    for path in _TEXTS:
        with subtests.test(path.stem):
            node = _read(path)
            assert node is None or _compile_sql(node)


def _compile_sql(node: Node) -> str:
    predicate = check(node, KnownKeys(), unknown_keys="empty").predicate
    statement = compile_condition(predicate, Names()).holds(_SCOPE, inference.c.uid)
    return str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


def test_most_are_read() -> None:
    assert sum(_read(path) is not None for path in _TEXTS) >= 100

"""Whatever tree there is, text and JSON bring it back; whatever bytes come, one named error."""

import json
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_store.inference.errors import InvalidFilter, NotKept
from inference_store.inference.json_text import read_exactly, write_json
from inference_store.query import cql2
from tests.properties import examples
from tests.unit.query.cql2.trees import filters

# Other work on the machine must not fail a test.
_UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(200)
)
_WORDS = """
( ) , + - * / % div ^ = == <> < > <= >= ! && AND or NOT LIKE ilike BETWEEN IN IS NULL TRUE a
camera-id tags[] ' '' 'x' 'x\\' 1 2.5e3 1e999 .5 2026-11-01 DATE( DATE('2026-11-01') BBOX(1,2,3,4)
POLYGON(( S_INTERSECTS( S_CROSSES( A_CONTAINS( T_AFTER( INTERVAL('..','..') prediction( sent( foo(
CASEI( TIMESTAMP('2026-11-01T00:00:00Z') { [ ; é "
"""
_PIECES = st.sampled_from([*_WORDS.split(), "POINT(1 2)", '"a b"', "\0", "\ud800", "\n"])


@_UNHURRIED
@given(filters)
def test_text_and_json_bring_a_tree_back(tree: cql2.Node) -> None:
    text = cql2.to_text(tree)
    through_text = cql2.parse_text(text)
    assert through_text == tree
    assert cql2.to_text(through_text) == text
    written = write_json(cql2.to_json(through_text))
    assert cql2.parse_json(read_exactly(written)) == tree
    assert cql2.parse_json_text(written) == tree


@settings(_UNHURRIED, max_examples=examples(500))
@given(st.lists(_PIECES, max_size=12).map(" ".join) | st.lists(_PIECES, max_size=12).map("".join))
def test_no_text_raises_anything_else(text: str) -> None:
    _check_round_trip_or_refusal(lambda: cql2.parse_text(text))


@_UNHURRIED
@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")))
def test_no_characters_raise_anything_else(text: str) -> None:
    _check_round_trip_or_refusal(lambda: cql2.parse_text(text))
    _check_round_trip_or_refusal(lambda: cql2.parse(text, lang="cql2-json"))


_OPS = st.sampled_from(["=", "and", "not", "in", "like", "s_within", "casei", "foo", "", "between"])
_MEMBERS = st.sampled_from(["op", "args", "property", "date", "interval", "type", "bbox", "x"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _OPS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_MEMBERS, inner, max_size=3),
        st.fixed_dictionaries({"op": _OPS, "args": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["Point", "Polygon"]), "coordinates": inner}
        ),
        st.fixed_dictionaries({"interval": st.lists(inner, max_size=3)}),
    ),
    max_leaves=12,
)


@settings(_UNHURRIED, max_examples=examples(500))
@given(_JSON)
def test_no_json_raises_anything_else(value: object) -> None:
    _check_round_trip_or_refusal(lambda: cql2.parse_json(value))
    _check_round_trip_or_refusal(lambda: cql2.parse(json.dumps(value), lang="cql2-json"))


def _check_round_trip_or_refusal(read: Callable[[], cql2.Node]) -> None:
    """Check that it is read and can be printed, or is refused with a printable fault."""
    try:
        tree = read()
    except (InvalidFilter, NotKept) as refused:
        assert refused.faults[0].path.startswith("filter")
        assert refused.faults[0].message
        json.dumps([refused.detail, list(refused.faults[0].known)]).encode()
    else:
        assert cql2.parse_text(cql2.to_text(tree)) == tree

"""Each predicate and value has a meaning in Python and in SQL, and property tests draw it."""

from contextlib import suppress
from typing import Any, get_args

from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from inference_store.query.conditions import compile_condition
from inference_store.query.conditions.combination import Names
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.typed import Fixed, Predicate, Value, iterate_nodes
from tests.integration.query.typed_predicates import PredicateMaker
from tests.integration.query.typed_rows import KEYS

_NUMBERS = {name: number for number, name in enumerate(KEYS, start=1)}
# A predicate that is decided while it is checked is in no larger one.
_KINDS: set[type[Any]] = {*get_args(Predicate), *get_args(Value)} - {Fixed}
_UNHURRIED = settings(
    max_examples=10_000, deadline=None, phases=[Phase.generate], database=None, derandomize=True
)


@st.composite
def predicates(draw: Any) -> Predicate:
    return PredicateMaker(_NUMBERS, draw).predicate(2)


def test_each_is_drawn_and_has_both_meanings() -> None:
    seen: dict[type[Any], Predicate] = {}

    def has_seen_all(predicate: Predicate) -> bool:
        for node in iterate_nodes(predicate):
            seen.setdefault(type(node), predicate)
        return seen.keys() >= _KINDS

    with suppress(NoSuchExample):
        find(predicates(), has_seen_all, settings=_UNHURRIED)
    assert _KINDS - seen.keys() == set(), "property tests draw none of these"
    for kind, predicate in seen.items():
        evaluate(predicate, Facts())
        assert compile_condition(predicate, Names()), kind

"""Each predicate and value has a meaning in Python and in SQL, and property tests draw it."""

from operator import attrgetter
from typing import Any, get_args

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st

from inference_store.query.conditions import compile_condition
from inference_store.query.conditions.names import Names
from inference_store.query.filters.certain import iterate_nodes
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.typed import Fixed, Predicate, Value
from tests.integration.query.typed_predicates import PredicateMaker
from tests.integration.query.typed_rows import KEYS

_NUMBERS = {name: number for number, name in enumerate(KEYS, start=1)}
# A predicate that is decided while it is checked is in no larger one.
_KINDS: set[type[Any]] = {*get_args(Predicate), *get_args(Value)} - {Fixed}
_UNHURRIED = settings(max_examples=10_000, deadline=None, phases=[Phase.generate], database=None)


@st.composite
def predicates(draw: Any) -> Predicate:
    return PredicateMaker(_NUMBERS, draw).predicate(2)


@pytest.mark.parametrize("kind", sorted(_KINDS, key=attrgetter("__name__")))
def test_it_is_drawn_and_has_both_meanings(kind: type[Any]) -> None:
    def has_kind(predicate: Predicate) -> bool:
        return any(type(node) is kind for node in iterate_nodes(predicate))

    drawn = find(predicates(), has_kind, settings=_UNHURRIED)
    evaluate(drawn, Facts())
    compile_condition(drawn, Names())

"""How much a statement asks at once."""

from decimal import Decimal
from uuid import UUID

import pytest

from inference_store.store.filters.typed import (
    And,
    Column,
    Compared,
    Constant,
    Counted,
    Metadata,
    Not,
    Or,
    Predicted,
    Property,
    Truth,
)
from inference_store.store.queries.across import MODELS, batches
from inference_store.store.queries.conditions import Names, condition_of, size_of
from inference_store.store.queries.matching import MOST_COMPARISONS, Query
from inference_store.store.queries.scope import GROUP, Scope

_PERSON = Compared("=", Column("label", "string"), Constant("string", "person"))
_SCOPE = Scope(1, UUID(int=1), UUID(int=2))


def _less(number: int) -> Truth:
    width = Property("width", "number")
    return Compared("<", width, Constant("number", Decimal(number)))


@pytest.mark.parametrize(
    ("truth", "size"),
    [
        (_less(1), 1),
        (Not(_less(1)), 1),
        (And(tuple(map(_less, range(5)))), 5),
        (Or((_less(1), And((_less(2), _less(3))))), 3),
        (Predicted(None), 2),
        (Predicted(_PERSON), 2),
        (Compared(">=", Counted(_PERSON), Constant("number", Decimal(2))), 2),
        (Compared("=", Counted(None), Constant("number", Decimal(0))), 2),
        (Compared("=", Metadata("n", 1, "number", True), Metadata("m", 2, "number", True)), 2),
    ],
)
def test_a_condition_is_as_large_as_its_comparisons(truth: Truth, size: int) -> None:
    assert size_of(condition_of(truth, Names())) == size


@pytest.mark.parametrize(
    ("comparisons", "group", "models"),
    [(0, GROUP, MODELS), (1, GROUP, MODELS), (10, GROUP, 2), (40, 5, 1), (400, 1, 1)],
)
def test_what_is_large_is_asked_of_few_at_once(comparisons: int, group: int, models: int) -> None:
    conditions = tuple(condition_of(_less(n), Names()) for n in range(comparisons))
    query = Query(_SCOPE, conditions)
    assert query.group == group
    assert len(next(batches([query] * 50))) == models
    size = sum(map(size_of, conditions))
    assert size * group * models <= max(MOST_COMPARISONS, size)

"""What is known of the lists of a piece, and what follows for its statement."""

from uuid import UUID

import pytest

from inference_store.store.queries.leading import MOST_JOINED, Leading, settings_for, together
from inference_store.store.queries.page import passed_over
from inference_store.store.queries.scope import Scope

_SCOPE = Scope(1, UUID(int=1), UUID(int=2))
_ALONE = Leading(_SCOPE)
_SHORT = Leading(_SCOPE, (3, 100), 100)


def _long(lists: int) -> Leading:
    return Leading(_SCOPE, (100,) * lists, 100)


@pytest.mark.parametrize(
    ("looked", "work_mem"),
    [
        ([_ALONE, _SHORT], None),
        ([_long(2)], "256MB"),
        ([_long(2), _SHORT, _long(3)], "85MB"),
        ([_long(8)] * 8, "4MB"),
        ([_long(8)] * 20, "4MB"),
    ],
)
def test_the_hashes_of_a_statement_share_its_memory(
    looked: list[Leading], work_mem: str | None
) -> None:
    settings = settings_for(looked)
    assert settings.get("work_mem") == work_mem
    assert settings.get("hash_mem_multiplier") == (None if work_mem is None else "1")


def test_few_pieces_are_joined_by_a_statement() -> None:
    looked = [_long(2), _ALONE, _long(3), _SHORT, _long(4)]
    found = [list(some) for some in together(looked)]
    assert found == [[_ALONE, _SHORT], [_long(2), _long(3)], [_long(4)]]
    assert all(sum(each.joins > 0 for each in some) <= MOST_JOINED for some in found)
    assert list(together([])) == []


@pytest.mark.parametrize(
    ("parts", "silent"),
    [([], []), ([0, 0], []), ([0, 1, 1], []), ([2], [0, 1]), ([0, 0, 3], [1, 2]), ([1, 2], [0])],
)
def test_parts_that_may_never_have_been_asked(parts: list[int], silent: list[int]) -> None:
    assert passed_over(parts) == silent

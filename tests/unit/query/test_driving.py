"""The known lengths of the lists of a piece, and what follows for its statement."""

from uuid import UUID

import pytest

from inference_store.query.driving import MOST_JOINED, DrivingIndex, group_by_joins, settings_for
from inference_store.query.list_sizes import choose_next_driver
from inference_store.query.page import find_silent
from inference_store.query.scan_range import ScanRange

_SCOPE = ScanRange(1, UUID(int=1), UUID(int=2))
_ALONE = DrivingIndex(_SCOPE)
_SHORT = DrivingIndex(_SCOPE, (3, 100), 100)


def _make_long_index(lists: int) -> DrivingIndex:
    return DrivingIndex(_SCOPE, (100,) * lists, 100)


@pytest.mark.parametrize(
    ("looked", "work_mem"),
    [
        ([_ALONE, _SHORT], None),
        ([_make_long_index(2)], "256MB"),
        ([_make_long_index(2), _SHORT, _make_long_index(3)], "85MB"),
        ([_make_long_index(8)] * 8, "4MB"),
        ([_make_long_index(8)] * 20, "4MB"),
    ],
)
def test_the_hashes_of_a_statement_share_its_memory(
    looked: list[DrivingIndex], work_mem: str | None
) -> None:
    settings = settings_for(looked)
    assert settings.get("work_mem") == work_mem
    assert settings.get("hash_mem_multiplier") == (None if work_mem is None else "1")


def test_few_pieces_are_joined_by_a_statement() -> None:
    looked = [_make_long_index(2), _ALONE, _make_long_index(3), _SHORT, _make_long_index(4)]
    groups = [list(some) for some in group_by_joins(looked)]
    assert groups == [
        [_ALONE, _SHORT],
        [_make_long_index(2), _make_long_index(3)],
        [_make_long_index(4)],
    ]
    assert all(sum(piece.joins > 0 for piece in some) <= MOST_JOINED for some in groups)
    assert list(group_by_joins([])) == []


@pytest.mark.parametrize(
    ("parts", "silent"),
    [([], []), ([0, 0], []), ([0, 1, 1], []), ([2], [0, 1]), ([0, 0, 3], [1, 2]), ([1, 2], [0])],
)
def test_skips_parts_that_may_never_have_been_counted(parts: list[int], silent: list[int]) -> None:
    assert find_silent(parts) == silent


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], None),
        ([(3, 8_000)], 0),
        # the shortest of two; one that is long in a single piece is none
        ([(200, 8_000, 3), (0, 8_000, 250)], 0),
        ([(200, 3, 9), (0, 8_000, 1)], 2),
        ([(255, 8_000), (256, 8_000)], None),
        # nothing is known of one of the pieces
        ([(3, 8_000), ()], None),
    ],
)
def test_counts_very_short_lists_first(sizes: list[tuple[int, ...]], expected: int | None) -> None:
    assert (
        choose_next_driver(
            [DrivingIndex(_SCOPE, sizes_of_piece, 8_000) for sizes_of_piece in sizes]
        )
        == expected
    )


def test_a_list_counted_up_to_the_bound_is_not_very_short() -> None:
    assert choose_next_driver([DrivingIndex(_SCOPE, (10, 9), 10)]) == 1
    assert choose_next_driver([DrivingIndex(_SCOPE, (10, 10), 10)]) is None

"""The pieces of a scope: which are read as one, and what the lengths of their lists decide."""

from uuid import UUID

from inference_store.query.deadline import ScanRange, span_around, split_unbroken
from inference_store.query.driving import (
    MOST_JOINED,
    DrivingIndex,
    choose_next_driver,
    group_by_joins,
    settings_for,
)

_SCOPE = ScanRange(1, UUID(int=1), UUID(int=2))
_ALONE = DrivingIndex(_SCOPE)
_SHORT = DrivingIndex(_SCOPE, (3, 100), 100)


def _make_long_index(lists: int) -> DrivingIndex:
    return DrivingIndex(_SCOPE, (100,) * lists, 100)


def test_the_hashes_of_a_statement_share_its_memory() -> None:
    cases: list[tuple[list[DrivingIndex], str | None]] = [
        ([_ALONE, _SHORT], None),
        ([_make_long_index(2)], "256MB"),
        ([_make_long_index(2), _SHORT, _make_long_index(3)], "85MB"),
        ([_make_long_index(8)] * 8, "4MB"),
        ([_make_long_index(8)] * 20, "4MB"),
    ]
    for looked, work_mem in cases:
        settings = settings_for(looked)
        assert settings.get("work_mem") == work_mem, looked
        assert settings.get("hash_mem_multiplier") == (None if work_mem is None else "1"), looked


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


def test_counts_very_short_lists_first() -> None:
    cases: list[tuple[list[tuple[int, ...]], int | None]] = [
        ([], None),
        ([(3, 8_000)], 0),
        # the shortest of two; one that is long in a single piece is none
        ([(200, 8_000, 3), (0, 8_000, 250)], 0),
        ([(200, 3, 9), (0, 8_000, 1)], 2),
        ([(255, 8_000), (256, 8_000)], None),
        # nothing is known of one of the pieces
        ([(3, 8_000), ()], None),
    ]
    for sizes, expected in cases:
        indexes = [DrivingIndex(_SCOPE, of_piece, 8_000) for of_piece in sizes]
        assert choose_next_driver(indexes) == expected, sizes


_HOLED = [ScanRange(1, UUID(int=lo), UUID(int=lo + 1)) for lo in (1, 2, 4, 5, 6, 9)]


def test_a_group_never_crosses_a_hole() -> None:
    for order in [1, -1]:
        pieces = _HOLED[::order]
        sizes = [len(group) for group in split_unbroken(pieces)]
        assert sizes == [2, 3, 1][::order], order
        for group in split_unbroken(pieces):
            whole = span_around(group)
            assert whole.hi.int - whole.lo.int == len(group), order

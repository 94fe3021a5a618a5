"""Pieces of a scope: which of them are read as one."""

from collections.abc import Sequence
from uuid import UUID

from inference_store.query.scan_range import ScanRange, span_around, split_unbroken, take_unbroken


def _make_pieces(*bounds: tuple[int, int]) -> list[ScanRange]:
    return [ScanRange(1, UUID(int=lo), UUID(int=hi)) for lo, hi in bounds]


_HOLED = _make_pieces((1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (9, 10))


def test_a_group_never_crosses_a_hole() -> None:
    for order in [1, -1]:
        pieces = _HOLED[::order]
        sizes = [len(group) for group in split_unbroken(pieces)]
        assert sizes == [2, 3, 1][::order], order
        for group in split_unbroken(pieces):
            whole = span_around(group)
            assert whole.hi.int - whole.lo.int == len(group), order


def test_it_is_as_long_as_it_may_be() -> None:
    cases: list[tuple[Sequence[ScanRange], int, int]] = [
        ([], 8, 0),
        (_HOLED[:1], 8, 1),
        (_HOLED, 8, 2),
        (_HOLED, 1, 1),
        (_HOLED[2:], 2, 2),
    ]
    for pieces, size, length in cases:
        assert take_unbroken(pieces, size) == pieces[:length], pieces

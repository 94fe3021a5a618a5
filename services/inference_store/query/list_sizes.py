"""Counts the lists of a partition before the driving index is chosen.

Lists of one index scan are counted first. If such a list is very short, the others need not be
counted: counting locations, or inferences with a key, takes longer than testing a few inferences.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Integer, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from .anti_join import WORKERS, find_anti_joins, keep_pieces_with_matches
from .conditions import Comparing, Condition, split_driving
from .deadline import Deadline, fetch
from .driving import FEW, SOME, VERY_FEW, DrivingIndex, select_list
from .matching import Query
from .scan_range import ScanRange

_Counting = Callable[[Sequence[int], Sequence[ScanRange], int], Awaitable[list[tuple[int, ...]]]]


async def find_candidates(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    deadline: Deadline,
    *,
    most: int = FEW,
    some: int = SOME,
    alone: bool = False,
) -> list[DrivingIndex]:
    """Return the result of `count_lists` without the pieces in which nothing can match."""
    pieces = await count_lists(
        connection, query, group, deadline, most=most, some=some, alone=alone
    )
    return [piece for piece in pieces if not piece.empty]


async def count_lists(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    deadline: Deadline,
    *,
    share: float = 1.0,
    most: int = FEW,
    some: int = SOME,
    alone: bool = False,
    driven_by: int | None = None,
) -> list[DrivingIndex]:
    """Count the lists of each piece of a group, up to `most`.

    A single list is counted only if `alone`; three or more long ones are counted again, up to
    `some`. If a key must be missing, return the pieces with inferences without it. `driven_by`: the
    index of the list that was very short in the pieces before. Raises OutOfTime.
    """
    driving, _ = split_driving(query.conditions)
    if not driving and alone and find_anti_joins(query):
        with_matches = await keep_pieces_with_matches(connection, query, group, deadline, share)
        return [DrivingIndex(scan_range, anti_join=True) for scan_range in with_matches]
    if len(driving) < 2 and not (alone and driving and _is_by_value(driving[0])):
        return [DrivingIndex(scan_range) for scan_range in group]
    counting = partial(_count_sizes, connection, query, deadline, share)
    pieces = await _count_cheap_first(
        counting, _find_cheap_lists(driving, driven_by), len(driving), group, most
    )
    long = [piece.scan_range for piece in pieces if piece.joins > 1]
    if long and most < some:
        sizes = await counting(range(len(driving)), long, some)
        recounted = [DrivingIndex(*pair, some, most) for pair in zip(long, sizes, strict=True)]
        by_scope = {piece.scan_range: piece for piece in recounted}
        pieces = [by_scope.get(piece.scan_range, piece) for piece in pieces]
    return pieces


def _find_cheap_lists(driving: Sequence[Condition], driven_by: int | None) -> Sequence[int]:
    """Return the indexes of the lists to count first: the last driver, or those with one scan."""
    if driven_by is not None:
        return [driven_by]
    return [index for index, condition in enumerate(driving) if condition.scans == 1]


async def _count_cheap_first(
    counting: _Counting, first: Sequence[int], lists: int, group: Sequence[ScanRange], most: int
) -> list[DrivingIndex]:
    """Count some lists; the others only in pieces in which none of these is very short."""
    counted: dict[ScanRange, DrivingIndex] = {}
    if 0 < len(first) < lists:
        sizes = await counting(first, group, most)
        pieces = [DrivingIndex(*pair, most) for pair in zip(group, sizes, strict=True)]
        counted = {piece.scan_range: piece for piece in pieces if piece.is_very_short}
    rest = [scan_range for scan_range in group if scan_range not in counted]
    if rest:
        sizes = await counting(range(lists), rest, most)
        counted |= {
            scan_range: DrivingIndex(scan_range, sizes_of_piece, most)
            for scan_range, sizes_of_piece in zip(rest, sizes, strict=True)
        }
    return [counted[scan_range] for scan_range in group]


async def _count_sizes(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    share: float,
    indexes: Sequence[int],
    group: Sequence[ScanRange],
    most: int,
) -> list[tuple[int, ...]]:
    """Count the lists with these indexes, piece by piece; the others have the size `most`."""
    driving, _ = split_driving(query.conditions)
    rows = await fetch(
        connection,
        lambda: _select_sizes([driving[index] for index in indexes], group, most),
        deadline,
        large=query.large,
        share=share,
        what="see which index leads",
        workers=WORKERS,
    )
    counted = [row.size for row in sorted(rows)]
    sizes_of_pieces = []
    for start in range(0, len(counted), len(indexes)):
        sizes = dict(zip(indexes, counted[start : start + len(indexes)], strict=True))
        sizes_of_pieces.append(tuple(sizes.get(index, most) for index in range(len(driving))))
    return sizes_of_pieces


def _select_sizes(
    driving: Sequence[Condition], group: Sequence[ScanRange], most: int
) -> CompoundSelect[Any]:
    """Select the length of each list of each piece, with its index."""
    lists = [
        select_list(condition, scan_range).limit(most)
        for scan_range in group
        for condition in driving
    ]
    return union_all(
        *(
            select(literal(number, Integer).label("place"), func.count().label("size")).select_from(
                uids.subquery()
            )
            for number, uids in enumerate(lists)
        )
    )


def _is_by_value(condition: Condition) -> bool:
    """Check whether its list is cheap to read, but not in the order of a page."""
    return isinstance(condition, Comparing) and condition.by_value


def choose_next_most(pieces: Sequence[DrivingIndex]) -> int:
    """Return the limit for counting the next pieces' lists: about the length of a short list."""
    if any(piece.pairs for piece in pieces):
        return SOME
    shortest = [piece.shortest for piece in pieces if piece.shortest is not None]
    return min(FEW, 1_000 + 2 * min(shortest)) if shortest else FEW


def choose_next_driver(pieces: Sequence[DrivingIndex]) -> int | None:
    """Return the index of the shortest list that is very short in all of these pieces, or None."""
    sizes = [piece.sizes for piece in pieces]
    if not sizes or not all(sizes):
        return None
    longest = [max(of_one) for of_one in zip(*sizes, strict=True)]
    limit = min(VERY_FEW, *(piece.most for piece in pieces))
    short = [index for index, size in enumerate(longest) if size < limit]
    return min(
        short, key=lambda index: sum(piece_sizes[index] for piece_sizes in sizes), default=None
    )

"""How long the lists of a partition are: counted before it is chosen what leads.

What one scan counts is counted first. Where such a list is very short the others need not be known:
a list of places, or of those that have a key, takes longer to count than few inferences to test.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Integer, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from .anti_join import WORKERS, find_anti_joins, keep_pieces_with_matches
from .bounded import Deadline, fetch
from .conditions import Comparing, Condition, split_driving
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
    """As `count_lists`, of the pieces in which something may match."""
    pieces = await count_lists(
        connection, query, group, deadline, most=most, some=some, alone=alone
    )
    return [each for each in pieces if not each.empty]


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
    """The pieces of a group, and how long their lists are, up to `most`; one that has no other
    beside it only if `alone`, three that are long once more, up to `some`. Where a key is asked
    for as missing: the pieces in which anything lacks it.

    `driven_by`: the place of the list that was very short in the pieces before. Raises OutOfTime.
    """
    driving, _ = split_driving(query.conditions)
    if not driving and alone and find_anti_joins(query):
        left = await keep_pieces_with_matches(connection, query, group, deadline, share)
        return [DrivingIndex(scan_range, anti_join=True) for scan_range in left]
    if len(driving) < 2 and not (alone and driving and _is_by_value(driving[0])):
        return [DrivingIndex(scan_range) for scan_range in group]
    counting = partial(_count_sizes, connection, query, deadline, share)
    pieces = await _count_cheap_first(
        counting, _find_cheap_lists(driving, driven_by), len(driving), group, most
    )
    long = [each.scan_range for each in pieces if each.joins > 1]
    if long and most < some:
        sizes = await counting(range(len(driving)), long, some)
        recounted = [DrivingIndex(*each, some, most) for each in zip(long, sizes, strict=True)]
        by_scope = {each.scan_range: each for each in recounted}
        pieces = [by_scope.get(each.scan_range, each) for each in pieces]
    return pieces


def _find_cheap_lists(driving: Sequence[Condition], driven_by: int | None) -> Sequence[int]:
    """The places of the lists that are counted first: what led before, or takes one scan."""
    if driven_by is not None:
        return [driven_by]
    return [index for index, each in enumerate(driving) if each.scans == 1]


async def _count_cheap_first(
    counting: _Counting, first: Sequence[int], lists: int, group: Sequence[ScanRange], most: int
) -> list[DrivingIndex]:
    """Some lists are counted; the others only in pieces where none of these is very short."""
    found: dict[ScanRange, DrivingIndex] = {}
    if 0 < len(first) < lists:
        sizes = await counting(first, group, most)
        pieces = [DrivingIndex(*each, most) for each in zip(group, sizes, strict=True)]
        found = {each.scan_range: each for each in pieces if each.is_very_short}
    rest = [scan_range for scan_range in group if scan_range not in found]
    if rest:
        sizes = await counting(range(lists), rest, most)
        found |= {
            scan_range: DrivingIndex(scan_range, each, most)
            for scan_range, each in zip(rest, sizes, strict=True)
        }
    return [found[scan_range] for scan_range in group]


async def _count_sizes(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    share: float,
    indexes: Sequence[int],
    group: Sequence[ScanRange],
    most: int,
) -> list[tuple[int, ...]]:
    """How long the lists at these places are, piece by piece; of the others `most` is said."""
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
    """How long each list of each piece is, by its place."""
    lists = [
        select_list(condition, scan_range).limit(most)
        for scan_range in group
        for condition in driving
    ]
    return union_all(
        *(
            select(literal(place, Integer).label("place"), func.count().label("size")).select_from(
                uids.subquery()
            )
            for place, uids in enumerate(lists)
        )
    )


def _is_by_value(condition: Condition) -> bool:
    """Whether its list costs little, but is not in the order of a page."""
    return isinstance(condition, Comparing) and condition.by_value


def choose_next_most(pieces: Sequence[DrivingIndex]) -> int:
    """Up to how many lists are counted in the next pieces: no further than a short one goes."""
    if any(each.pairs for each in pieces):
        return SOME
    shortest = [each.shortest for each in pieces if each.shortest is not None]
    return min(FEW, 1_000 + 2 * min(shortest)) if shortest else FEW


def choose_next_driver(pieces: Sequence[DrivingIndex]) -> int | None:
    """The place of the list that is very short in all of these pieces, the shortest of several."""
    sizes = [each.sizes for each in pieces]
    if not sizes or not all(sizes):
        return None
    longest = [max(of_one) for of_one in zip(*sizes, strict=True)]
    limit = min(VERY_FEW, *(each.most for each in pieces))
    short = [index for index, size in enumerate(longest) if size < limit]
    return min(short, key=lambda index: sum(each[index] for each in sizes), default=None)

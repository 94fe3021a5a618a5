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

from .bounded import Deadline, fetch
from .conditions import Comparing, Condition, leading
from .lacking import WORKERS, lacking, with_some
from .leading import FEW, SOME, VERY_FEW, Leading, list_of
from .matching import Query
from .scope import Scope

_Counting = Callable[[Sequence[int], Sequence[Scope], int], Awaitable[list[tuple[int, ...]]]]


async def looked_at(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[Scope],
    deadline: Deadline,
    *,
    most: int = FEW,
    some: int = SOME,
    alone: bool = False,
) -> list[Leading]:
    """As `lists_in`, of the pieces in which something may match."""
    looked = await lists_in(connection, query, group, deadline, most=most, some=some, alone=alone)
    return [each for each in looked if not each.empty]


async def lists_in(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[Scope],
    deadline: Deadline,
    *,
    share: float = 1.0,
    most: int = FEW,
    some: int = SOME,
    alone: bool = False,
    led_by: int | None = None,
) -> list[Leading]:
    """The pieces of a group, and how long their lists are, up to `most`; one that has no other
    beside it only if `alone`, three that are long once more, up to `some`. Where a key is asked
    for as missing: the pieces in which anything lacks it.

    `led_by`: the place of the list that was very short in the pieces before. Raises OutOfTime.
    """
    leads, _ = leading(query.conditions)
    if not leads and alone and lacking(query):
        left = await with_some(connection, query, group, deadline, share)
        return [Leading(scope, lacking=True) for scope in left]
    if len(leads) < 2 and not (alone and leads and _by_value(leads[0])):
        return [Leading(scope) for scope in group]
    counting = partial(_sizes, connection, query, deadline, share)
    found = await _cheap_first(counting, _cheap(leads, led_by), len(leads), group, most)
    long = [each.scope for each in found if each.joins > 1]
    if long and most < some:
        sizes = await counting(range(len(leads)), long, some)
        again = [Leading(*each, some, most) for each in zip(long, sizes, strict=True)]
        by_scope = {each.scope: each for each in again}
        found = [by_scope.get(each.scope, each) for each in found]
    return found


def _cheap(leads: Sequence[Condition], led_by: int | None) -> Sequence[int]:
    """The places of the lists that are counted first: what led before, or takes one scan."""
    if led_by is not None:
        return [led_by]
    return [place for place, each in enumerate(leads) if each.scans == 1]


async def _cheap_first(
    counting: _Counting, first: Sequence[int], lists: int, group: Sequence[Scope], most: int
) -> list[Leading]:
    """Some lists are counted; the others only in pieces where none of these is very short."""
    found: dict[Scope, Leading] = {}
    if 0 < len(first) < lists:
        sizes = await counting(first, group, most)
        looked = [Leading(*each, most) for each in zip(group, sizes, strict=True)]
        found = {each.scope: each for each in looked if each.is_very_short}
    rest = [scope for scope in group if scope not in found]
    if rest:
        sizes = await counting(range(lists), rest, most)
        found |= {
            scope: Leading(scope, each, most) for scope, each in zip(rest, sizes, strict=True)
        }
    return [found[scope] for scope in group]


async def _sizes(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    share: float,
    places: Sequence[int],
    group: Sequence[Scope],
    most: int,
) -> list[tuple[int, ...]]:
    """How long the lists at these places are, piece by piece; of the others `most` is said."""
    leads, _ = leading(query.conditions)
    rows = await fetch(
        connection,
        lambda: _counted([leads[place] for place in places], group, most),
        deadline,
        large=query.large,
        share=share,
        what="see which index leads",
        workers=WORKERS,
    )
    counted = [row.size for row in sorted(rows)]
    found = []
    for start in range(0, len(counted), len(places)):
        sizes = dict(zip(places, counted[start : start + len(places)], strict=True))
        found.append(tuple(sizes.get(place, most) for place in range(len(leads))))
    return found


def _counted(leads: Sequence[Condition], group: Sequence[Scope], most: int) -> CompoundSelect[Any]:
    """How long each list of each piece is, by its place."""
    lists = [list_of(condition, scope).limit(most) for scope in group for condition in leads]
    return union_all(
        *(
            select(literal(place, Integer).label("place"), func.count().label("size")).select_from(
                uids.subquery()
            )
            for place, uids in enumerate(lists)
        )
    )


def _by_value(condition: Condition) -> bool:
    """Whether its list costs little, but is not in the order of a page."""
    return isinstance(condition, Comparing) and condition.by_value


def counted_next(looked: Sequence[Leading]) -> int:
    """Up to how many lists are counted in the next pieces: no further than a short one goes."""
    if any(each.pairs for each in looked):
        return SOME
    shortest = [each.shortest for each in looked if each.shortest is not None]
    return min(FEW, 1_000 + 2 * min(shortest)) if shortest else FEW


def led_next(looked: Sequence[Leading]) -> int | None:
    """The place of the list that is very short in all of these pieces, the shortest of several."""
    sizes = [each.sizes for each in looked]
    if not sizes or not all(sizes):
        return None
    longest = [max(of_one) for of_one in zip(*sizes, strict=True)]
    limit = min(VERY_FEW, *(each.most for each in looked))
    short = [place for place, size in enumerate(longest) if size < limit]
    return min(short, key=lambda place: sum(each[place] for each in sizes), default=None)

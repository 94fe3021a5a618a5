"""How the matches of a partition are led to, where several indexes could.

Planners know little of these tables: values of all keys lie in one column. So it is looked what
there is, up to `FEW` of each list: a partition in which one list is empty is passed over; a short
list leads, newest uid first, and its inferences are tested one by one; long lists are joined by
their hashes, which reads each of them once, whatever was estimated. A long list alone is left to
the planner, which may walk until the page is full.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Integer, Select, column, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import ARRAY, UUID
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from .bounded import Deadline, fetch
from .conditions import Comparing, Condition, leading
from .lacking import JOINING, WORKERS, lacking, with_some, without
from .matching import Query, led, one_by_one
from .scope import Scope

FEW = 8_000
SOME = 3 * FEW
"""A list of no more is joined with one other, and what both have is tested: mostly it is little."""
# What a short list cannot have become in the moment since it was counted.
_GROWN = 4 * FEW
MOST_JOINED = 2
"""Pieces whose long lists are joined by one statement that reads them all: each has hashes."""
# No nested loop over two long lists.
_JOINING: Final[Mapping[str, str]] = MappingProxyType(
    {"enable_nestloop": "off", "enable_mergejoin": "off", "hash_mem_multiplier": "1"}
)
# What the hashes of a statement share; a hash that gets too little goes through files.
_HASHES_MB, _LEAST_MB = 256, 4


@dataclass(frozen=True, slots=True)
class Leading:
    """A piece of the scope, and how long the list of each leading condition is there, `most` at
    most; no sizes: it was not looked."""

    scope: Scope
    sizes: tuple[int, ...] = ()
    most: int = FEW
    few: int = FEW
    """A list that is no shorter does not lead alone."""
    lacking: bool = False
    """Nothing leads, but what has a key can be taken from all."""

    @property
    def shortest(self) -> int | None:
        """The length of the shortest list, where it is short."""
        return min((size for size in self.sizes if size < self.most), default=None)

    @property
    def pairs(self) -> bool:
        """Whether its shortest list of three or more is joined with one other."""
        return len(self.sizes) > 2 and self.few <= (self.shortest or 0)

    @property
    def joins(self) -> int:
        """How many hash joins there are of its lists, where all are long."""
        if self.pairs:
            return 1
        return len(self.sizes) - 1 if self.sizes and self.shortest is None else 0

    @property
    def empty(self) -> bool:
        """Whether no inference can match: one list is empty."""
        return 0 in self.sizes


async def looked_at(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[Scope],
    deadline: Deadline,
    *,
    share: float = 1.0,
    most: int = FEW,
    some: int = SOME,
    alone: bool = False,
) -> list[Leading]:
    """The pieces of a group in which something may match; lists are counted up to `most`; one
    that has no other beside it only if `alone`, three that are long once more, up to `some`.

    Raises OutOfTime.
    """
    leads, _ = leading(query.conditions)
    if not leads and alone and lacking(query):
        left = await with_some(connection, query, group, deadline, share)
        return [Leading(scope, lacking=True) for scope in left]
    if len(leads) < 2 and not (alone and leads and _by_value(leads[0])):
        return [Leading(scope) for scope in group]
    sizes = await _sizes(connection, query, group, deadline, share, most)
    found = [Leading(scope, each, most) for scope, each in zip(group, sizes, strict=True)]
    long = [each.scope for each in found if each.joins > 1]
    if long and most < some:
        sizes = await _sizes(connection, query, long, deadline, share, some)
        again = [Leading(*each, some, most) for each in zip(long, sizes, strict=True)]
        by_scope = {each.scope: each for each in again}
        found = [by_scope.get(each.scope, each) for each in found]
    return [each for each in found if not each.empty]


async def _sizes(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    group: Sequence[Scope],
    deadline: Deadline,
    share: float,
    most: int,
) -> list[tuple[int, ...]]:
    """How long the lists are, piece by piece."""
    leads, _ = leading(query.conditions)
    rows = await fetch(
        connection,
        lambda: _counted(leads, group, most),
        deadline,
        large=query.large,
        share=share,
        what="see which index leads",
        workers=WORKERS,
    )
    sizes = [row.size for row in sorted(rows)]
    return [tuple(sizes[n : n + len(leads)]) for n in range(0, len(sizes), len(leads))]


def _counted(leads: Sequence[Condition], group: Sequence[Scope], most: int) -> CompoundSelect[Any]:
    """How long each list of each piece is, by its place."""
    lists = [_list(condition, scope).limit(most) for scope in group for condition in leads]
    return union_all(
        *(
            select(literal(place, Integer).label("place"), func.count().label("size")).select_from(
                uids.subquery()
            )
            for place, uids in enumerate(lists)
        )
    )


def chosen(query: Query, here: Leading) -> tuple[Select[Any], bool]:
    """The matches of a piece, and whether each is there once."""
    if here.lacking:
        return without(query, here.scope), True
    if not here.sizes or (here.shortest is None and not here.joins):
        return led(query, here.scope)
    if here.pairs:
        return _paired(query, here)
    if here.shortest is not None:
        return _driven(query, here.scope, here.sizes.index(here.shortest))
    return _joined(query, here.scope)


def _by_value(condition: Condition) -> bool:
    """Whether its list costs little, but is not in the order of a page."""
    return isinstance(condition, Comparing) and condition.by_value


def settings_for(looked: Sequence[Leading]) -> Mapping[str, str]:
    """What Postgres is told for a statement over these pieces."""
    if any(each.lacking for each in looked):
        return JOINING
    joins = sum(each.joins for each in looked)
    if not joins:
        return {}
    return {**_JOINING, "work_mem": f"{max(_LEAST_MB, _HASHES_MB // joins)}MB"}


def together(looked: Sequence[Leading]) -> Iterator[Sequence[Leading]]:
    """The pieces that one statement reads whole: few of those whose lists are joined."""
    light = [each for each in looked if not each.joins]
    if light:
        yield light
    joined = [each for each in looked if each.joins]
    for start in range(0, len(joined), MOST_JOINED):
        yield joined[start : start + MOST_JOINED]


def counted_next(looked: Sequence[Leading]) -> int:
    """Up to how many lists are counted in the next pieces: no further than a short one goes."""
    if any(each.pairs for each in looked):
        return SOME
    shortest = [each.shortest for each in looked if each.shortest is not None]
    return min(FEW, 1_000 + 2 * min(shortest)) if shortest else FEW


def _driven(query: Query, scope: Scope, place: int) -> tuple[Select[Any], bool]:
    """From one short list, each of its inferences tested.

    It may have grown since it was counted: beyond `_GROWN` it would be cut.
    """
    first = leading(query.conditions)[0][place]
    # OFFSET: the planner takes it as it stands; LIMIT tells it how short it is
    rows = _list(first, scope).limit(_GROWN).offset(0).subquery()
    others = [each for each in query.conditions if each is not first]
    return select(rows.c.uid).where(*one_by_one(query, others, scope, rows.c.uid)), first.unique


def _paired(query: Query, here: Leading) -> tuple[Select[Any], bool]:
    """By the hash of the shortest list, which another is looked up in; then the tests."""
    leads, _ = leading(query.conditions)
    shortest = sorted(range(len(leads)), key=here.sizes.__getitem__)[:2]
    first, second = (leads[place] for place in shortest)
    short = _short(_list(first, here.scope), "short")
    other = _list(second, here.scope).offset(0).subquery()
    both = _short(select(other.c.uid).join(short, short.c.uid == other.c.uid), "both")
    others = [each for each in query.conditions if each is not first and each is not second]
    tests = one_by_one(query, others, here.scope, both.c.uid)
    return select(both.c.uid).where(*tests), first.unique and second.unique


def _short(uids: Select[Any], name: str) -> Any:
    """The same list by way of an array: the planner takes it to be short. So it hashes this one,
    not the other, and makes tests one by one."""
    array = func.array(uids.scalar_subquery(), type_=ARRAY(UUID(as_uuid=True)))
    uid = column("uid", UUID(as_uuid=True))
    return func.unnest(array).table_valued(uid, name=name).render_derived()


def _joined(query: Query, scope: Scope) -> tuple[Select[Any], bool]:
    """By the hashes of all lists."""
    leads, others = leading(query.conditions)
    first, *more = [_list(each, scope).offset(0).subquery() for each in leads]
    joined: Any = first
    for each in more:
        joined = joined.join(each, each.c.uid == first.c.uid)
    rows = select(first.c.uid).select_from(joined)
    unique = all(condition.unique for condition in leads)
    return rows.where(*one_by_one(query, others, scope, first.c.uid)), unique


def _list(condition: Condition, scope: Scope) -> Select[Any]:
    uids = condition.uids(scope)
    assert uids is not None, "it leads"
    return select(uids.subquery().c.uid)

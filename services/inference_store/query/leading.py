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

from sqlalchemy import Select, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, UUID

from .conditions import Condition, leading
from .lacking import JOINING, without
from .matching import Query, led, one_by_one
from .scope import Scope

FEW = 8_000
SOME = 3 * FEW
"""A list of no more is joined with one other, and what both have is tested: mostly it is little."""
VERY_FEW = 256
"""Of a list that is shorter each is tested, however long the others are: those are not counted."""
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
    def is_very_short(self) -> bool:
        """Whether its shortest list leads, however long the others are."""
        return self.shortest is not None and self.shortest < VERY_FEW

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


def _driven(query: Query, scope: Scope, place: int) -> tuple[Select[Any], bool]:
    """From one short list, each of its inferences tested.

    It may have grown since it was counted: beyond `_GROWN` it would be cut.
    """
    first = leading(query.conditions)[0][place]
    # OFFSET: the planner takes it as it stands; LIMIT tells it how short it is
    rows = list_of(first, scope).limit(_GROWN).offset(0).subquery()
    others = [each for each in query.conditions if each is not first]
    return select(rows.c.uid).where(*one_by_one(query, others, scope, rows.c.uid)), first.unique


def _paired(query: Query, here: Leading) -> tuple[Select[Any], bool]:
    """By the hash of the shortest list, which another is looked up in; then the tests."""
    leads, _ = leading(query.conditions)
    shortest = sorted(range(len(leads)), key=here.sizes.__getitem__)[:2]
    first, second = (leads[place] for place in shortest)
    short = _short(list_of(first, here.scope), "short")
    other = list_of(second, here.scope).offset(0).subquery()
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
    first, *more = [list_of(each, scope).offset(0).subquery() for each in leads]
    joined: Any = first
    for each in more:
        joined = joined.join(each, each.c.uid == first.c.uid)
    rows = select(first.c.uid).select_from(joined)
    unique = all(condition.unique for condition in leads)
    return rows.where(*one_by_one(query, others, scope, first.c.uid)), unique


def list_of(condition: Condition, scope: Scope) -> Select[Any]:
    uids = condition.uids(scope)
    assert uids is not None, "it leads"
    return select(uids.subquery().c.uid)

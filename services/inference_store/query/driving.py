"""Chooses the driving index of each partition, if several indexes could drive.

Planners know little about these tables: the values of all keys are in one column. So lists are
counted, up to `FEW` of each. A partition in which one list is empty is skipped. A short list
drives, newest uid first, and its inferences are tested one by one. Long lists are joined by hashes,
so that each is read once, whatever the planner estimates. A single long list is left to the
planner, which may scan until the page is full.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Select, column, func, select
from sqlalchemy.dialects.postgresql import ARRAY, UUID

from .anti_join import JOINING, build_anti_join
from .conditions import Condition, split_driving
from .matching import Query, match_by_index, test_each
from .scan_range import ScanRange

FEW = 8_000
SOME = 3 * FEW
"""A list of at most this length is joined with one other; the few inferences of both are tested."""
VERY_FEW = 256
"""The inferences of a shorter list are tested one by one; the other lists are not counted."""
# A short list cannot have become longer than this since it was counted.
_GROWN = 4 * FEW
MOST_JOINED = 2
"""Pieces whose long lists are joined by one statement that reads them all: each has hashes."""
# No nested loop over two long lists.
_JOINING: Final[Mapping[str, str]] = MappingProxyType(
    {"enable_nestloop": "off", "enable_mergejoin": "off", "hash_mem_multiplier": "1"}
)
# The memory that the hashes of a statement share; a hash that gets too little spills to files.
_HASHES_MB, _LEAST_MB = 256, 4


@dataclass(frozen=True, slots=True)
class DrivingIndex:
    """A piece of the range, and the length of each driving condition's list in it, up to `most`.

    Without sizes it was not counted.
    """

    scan_range: ScanRange
    sizes: tuple[int, ...] = ()
    most: int = FEW
    few: int = FEW
    """A list of this length or more does not drive alone."""
    anti_join: bool = False
    """Whether no index drives, but the inferences with a key can be subtracted from all."""

    @property
    def shortest(self) -> int | None:
        """The length of the shortest list, if it is short."""
        return min((size for size in self.sizes if size < self.most), default=None)

    @property
    def is_very_short(self) -> bool:
        """Check whether its shortest list drives, however long the others are."""
        return self.shortest is not None and self.shortest < VERY_FEW

    @property
    def pairs(self) -> bool:
        """Check whether its shortest list of three or more is joined with one other."""
        return len(self.sizes) > 2 and self.few <= (self.shortest or 0)

    @property
    def joins(self) -> int:
        """The number of hash joins that its lists need, if all are long."""
        if self.pairs:
            return 1
        return len(self.sizes) - 1 if self.sizes and self.shortest is None else 0

    @property
    def empty(self) -> bool:
        """Check whether no inference can match: one list is empty."""
        return 0 in self.sizes


def build_matches(query: Query, piece: DrivingIndex) -> tuple[Select[Any], bool]:
    """Select the matches of a piece; return also whether each is selected once."""
    if piece.anti_join:
        return build_anti_join(query, piece.scan_range), True
    if not piece.sizes or (piece.shortest is None and not piece.joins):
        return match_by_index(query, piece.scan_range)
    if piece.pairs:
        return _join_two(query, piece)
    if piece.shortest is not None:
        return _drive_by_one(query, piece.scan_range, piece.sizes.index(piece.shortest))
    return _join_all(query, piece.scan_range)


def settings_for(pieces: Sequence[DrivingIndex]) -> Mapping[str, str]:
    """Return the settings of Postgres for a statement over these pieces."""
    if any(piece.anti_join for piece in pieces):
        return JOINING
    joins = sum(piece.joins for piece in pieces)
    if not joins:
        return {}
    return {**_JOINING, "work_mem": f"{max(_LEAST_MB, _HASHES_MB // joins)}MB"}


def group_by_joins(pieces: Sequence[DrivingIndex]) -> Iterator[Sequence[DrivingIndex]]:
    """Yield the pieces that one statement reads as a whole: few of those whose lists are joined."""
    light = [piece for piece in pieces if not piece.joins]
    if light:
        yield light
    joined = [piece for piece in pieces if piece.joins]
    for start in range(0, len(joined), MOST_JOINED):
        yield joined[start : start + MOST_JOINED]


def _drive_by_one(query: Query, scan_range: ScanRange, index: int) -> tuple[Select[Any], bool]:
    """Select from one short list, and test each of its inferences.

    It may have grown since it was counted; it is cut at `_GROWN`.
    """
    first = split_driving(query.conditions)[0][index]
    # OFFSET: the planner does not rewrite it; LIMIT tells the planner how short it is
    rows = select_list(first, scan_range).limit(_GROWN).offset(0).subquery()
    others = [condition for condition in query.conditions if condition is not first]
    return select(rows.c.uid).where(*test_each(query, others, scan_range, rows.c.uid)), first.unique


def _join_two(query: Query, piece: DrivingIndex) -> tuple[Select[Any], bool]:
    """Join the shortest list, as a hash, with the next one; then test."""
    driving, _ = split_driving(query.conditions)
    shortest = sorted(range(len(driving)), key=piece.sizes.__getitem__)[:2]
    first, second = (driving[index] for index in shortest)
    short = _mark_short(select_list(first, piece.scan_range), "short")
    other = select_list(second, piece.scan_range).offset(0).subquery()
    both = _mark_short(select(other.c.uid).join(short, short.c.uid == other.c.uid), "both")
    others = [
        condition
        for condition in query.conditions
        if condition is not first and condition is not second
    ]
    tests = test_each(query, others, piece.scan_range, both.c.uid)
    return select(both.c.uid).where(*tests), first.unique and second.unique


def _mark_short(uids: Select[Any], name: str) -> Any:
    """Return the same list as an array, so that the planner expects it to be short.

    The planner then hashes this list, not the other one, and tests one by one.
    """
    array = func.array(uids.scalar_subquery(), type_=ARRAY(UUID(as_uuid=True)))
    uid = column("uid", UUID(as_uuid=True))
    return func.unnest(array).table_valued(uid, name=name).render_derived()


def _join_all(query: Query, scan_range: ScanRange) -> tuple[Select[Any], bool]:
    """Join all lists by hashes; then test."""
    driving, others = split_driving(query.conditions)
    first, *more = [
        select_list(condition, scan_range).offset(0).subquery() for condition in driving
    ]
    joined: Any = first
    for rows_of_list in more:
        joined = joined.join(rows_of_list, rows_of_list.c.uid == first.c.uid)
    rows = select(first.c.uid).select_from(joined)
    unique = all(condition.unique for condition in driving)
    return rows.where(*test_each(query, others, scan_range, first.c.uid)), unique


def select_list(condition: Condition, scan_range: ScanRange) -> Select[Any]:
    uids = condition.uids(scan_range)
    assert uids is not None, "it drives"
    return select(uids.subquery().c.uid)

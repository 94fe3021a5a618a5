"""Chooses the driving index of each partition, if several indexes could drive.

Planners know little about these tables: the values of all keys are in one column. So lists are
counted, up to `FEW` of each. A partition in which one list is empty is skipped. A short list
drives, newest uid first, and its inferences are tested one by one. Long lists are joined by hashes,
so that each is read once, whatever the planner estimates. A single long list is left to the
planner, which may scan until the page is full.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Integer, Select, column, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import ARRAY, UUID
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.tables import inference

from .conditions.combination import Found, OfKey
from .conditions.condition import Condition, exists, split_driving
from .deadline import (
    GROUP,
    Deadline,
    ScanRange,
    fetch,
    leave_out,
    read_each,
    reads_apart,
    split_groups,
    test_unmarked,
)
from .matching import Query, match_by_index, test_each
from .stored_counts import read_numbers

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


def build_matches(query: Query, piece: DrivingIndex) -> Select[Any]:
    """Select the matches of a piece, each once."""
    if piece.anti_join:
        return build_anti_join(query, piece.scan_range)
    if not piece.sizes or (piece.shortest is None and not piece.joins):
        return match_by_index(query, piece.scan_range)
    return _read_lists(query, piece)


def settings_for(pieces: Sequence[DrivingIndex]) -> Mapping[str, str]:
    """Return the settings of Postgres for a statement over these pieces."""
    if any(piece.anti_join for piece in pieces):
        return JOINING
    joins = sum(piece.joins for piece in pieces)
    if not joins:
        return {}
    return {**_JOINING, "work_mem": f"{max(_LEAST_MB, _HASHES_MB // joins)}MB"}


async def iterate_pieces(
    connection: AsyncConnection,
    query: Query,
    parts: Sequence[ScanRange],
    deadline: Deadline,
    *,
    known: Collection[ScanRange] = (),
) -> AsyncIterator[Sequence[DrivingIndex]]:
    """Yield the pieces that one statement reads as a whole, in which anything can match, without
    the `known` ones. Raises OutOfTime."""
    for group in split_groups(leave_out(parts, known), query.group):
        for pieces in group_by_joins(await count_lists(connection, query, group, deadline)):
            for some in await split_apart(connection, pieces):
                yield [piece for _, piece in some]


async def split_apart(
    connection: AsyncConnection, pieces: Sequence[DrivingIndex]
) -> list[list[tuple[int, DrivingIndex]]]:
    """Return the pieces of each statement, with their numbers: all; on Citus, of several models, a
    few pieces of one model each."""
    if not (pieces and await reads_apart(connection, pieces[0].scan_range)):
        return [list(enumerate(pieces))]
    apart = [
        (n, replace(piece, scan_range=one))
        for n, piece in enumerate(pieces)
        for one in piece.scan_range.split()
    ]
    return [apart[start : start + GROUP] for start in range(0, len(apart), GROUP)]


def group_by_joins(pieces: Sequence[DrivingIndex]) -> Iterator[Sequence[DrivingIndex]]:
    """Yield the pieces that one statement reads as a whole: few of those whose lists are joined.

    Those in which nothing can match are left out.
    """
    light = [piece for piece in pieces if not (piece.joins or piece.empty)]
    if light:
        yield light
    joined = [piece for piece in pieces if piece.joins]
    for start in range(0, len(joined), MOST_JOINED):
        yield joined[start : start + MOST_JOINED]


def _read_lists(query: Query, piece: DrivingIndex) -> Select[Any]:
    """Select from the shortest list, or from some or all that are joined, and test the rest."""
    driving, _ = split_driving(query.conditions)
    by_length = sorted(range(len(driving)), key=piece.sizes.__getitem__)[: piece.joins + 1]
    first, *others = (select_list(driving[index], piece.scan_range) for index in by_length)
    # OFFSET: the planner does not rewrite it; LIMIT tells the planner how short it is
    if piece.shortest is None:
        rows: Any = first.offset(0).subquery()
    else:
        short = first.limit(_GROWN).offset(0).subquery()
        rows = _mark_short(first, "short") if others else short
    joined = rows
    for uids in others:
        other = uids.offset(0).subquery()
        joined = joined.join(other, other.c.uid == rows.c.uid)
    found = select(rows.c.uid).select_from(joined)
    if others and piece.shortest is not None:
        found = select(_mark_short(found, "both").c.uid)
    return _test_others(query, [driving[index] for index in by_length], piece.scan_range, found)


def _test_others(
    query: Query, read: Sequence[Condition], scan_range: ScanRange, rows: Select[Any]
) -> Select[Any]:
    """Select those of the rows that satisfy the conditions whose lists were not read, each once."""
    [uid] = rows.selected_columns
    others = [one for one in query.conditions if not any(one is other for other in read)]
    matches = rows.where(*test_each(query, others, scan_range, uid))
    return matches if all(condition.unique for condition in read) else matches.distinct()


def _mark_short(uids: Select[Any], name: str) -> Any:
    """Return the same list as an array, so that the planner expects it to be short.

    The planner then hashes this list, not another one, and tests one by one.
    """
    array = func.array(uids.scalar_subquery(), type_=ARRAY(UUID(as_uuid=True)))
    uid = column("uid", UUID(as_uuid=True))
    return func.unnest(array).table_valued(uid, name=name).render_derived()


def select_list(condition: Condition, scan_range: ScanRange) -> Select[Any]:
    return select(condition.uids(scan_range).subquery().c.uid)


# Counts the lists of a partition before the driving index is chosen.
#
# Lists of one index scan are counted first. If such a list is very short, the others need not be
# counted: counting locations, or inferences with a key, takes longer than testing a few inferences.


async def count_lists(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    deadline: Deadline,
    *,
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
    if await reads_apart(connection, query.scan_range):  # it would double the statements
        return [DrivingIndex(scan_range) for scan_range in group]
    driving, _ = split_driving(query.conditions)
    is_single = not query.scan_range.is_of_several
    if not driving and alone and is_single and find_anti_joins(query):
        with_matches = await _keep_pieces_with_matches(connection, query, group, deadline)
        return [DrivingIndex(scan_range, anti_join=True) for scan_range in with_matches]
    # its list is cheap to read, but not in the order of a page
    by_value = any(isinstance(one, Found) and one.by_value for one in driving)
    if len(driving) < 2 and not (alone and by_value):
        return [DrivingIndex(scan_range) for scan_range in group]
    every, counted = range(len(driving)), dict[ScanRange, DrivingIndex]()

    async def count_some(
        indexes: Sequence[int], ranges: Sequence[ScanRange], most: int, few: int = FEW
    ) -> None:
        if not (indexes and ranges):
            return
        rows = await fetch(
            connection,
            lambda: _select_sizes([driving[index] for index in indexes], ranges, most),
            deadline,
            large=query.large,
            what="see which index leads",
            workers=WORKERS,
        )
        found = iter([row.size for row in sorted(rows)])
        for scan_range in ranges:
            sizes = dict(zip(indexes, found, strict=False))
            of_all = tuple(sizes.get(index, most) for index in every)
            counted[scan_range] = DrivingIndex(scan_range, of_all, most, few)

    cheap = [index for index in every if driving[index].scans == 1]
    if driven_by is not None:
        cheap = [driven_by]
    if len(cheap) < len(driving):
        await count_some(cheap, group, most)
    # the other lists only in pieces in which none of these is very short
    rest = [place for place in group if place not in counted or not counted[place].is_very_short]
    await count_some(every, rest, most)
    if most < some:
        long = [scan_range for scan_range in group if counted[scan_range].joins > 1]
        await count_some(every, long, some, few=most)
    return [counted[scan_range] for scan_range in group]


def _select_sizes(
    driving: Sequence[Condition], group: Sequence[ScanRange], most: int
) -> CompoundSelect[Any]:
    lists = [
        read_each(scan_range, select_list(condition, scan_range).limit(most)).limit(most)
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


# Anti-joins: inferences without a key, which no index has, are all inferences minus those with it.
#
# For a count, two long lists are each read once; testing every inference would take many times as
# long. For a page it is used if such inferences are too rare for a scan.

WORKERS: Final = 2
"""Parallel processes of Postgres for a statement whose rows have no order."""
MOST: Final = 4
"""Keys whose lists are subtracted from all inferences; further missing keys are tested."""
# For each partition, one hash of the inferences that have a key.
JOINING: Final[Mapping[str, str]] = MappingProxyType(
    {**_JOINING, "enable_parallel_hash": "off", "work_mem": "32MB"}
)


def find_anti_joins(query: Query) -> list[OfKey]:
    """Return the conditions that a key is missing, if no index drives the query."""
    if query.is_driven:
        return []
    return [
        condition
        for condition in query.conditions
        if isinstance(condition, OfKey) and not condition.when
    ][:MOST]


def count_without(query: Query, key: OfKey, scan_range: ScanRange) -> list[Select[Any]]:
    """Select numbers whose sum is how many inferences are without the key: all, minus those with
    it."""
    everyone = select(inference.c.uid).where(scan_range.of(inference))
    with_key = [
        _count_rows(query, scan_range, uids, -sign) for sign, uids in key.counted(scan_range)
    ]
    return [_count_rows(query, scan_range, everyone, 1), *with_key]


def _count_rows(query: Query, scan_range: ScanRange, uids: Any, sign: int) -> Select[Any]:
    rows = uids.subquery()
    marks = [test_unmarked(scan_range, rows.c.uid)] if query.marks else []
    number = (func.count() * sign).label("matches")
    return select(number).select_from(rows).where(*marks)


async def _keep_pieces_with_matches(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    deadline: Deadline,
) -> Sequence[ScanRange]:
    for key in find_anti_joins(query):
        alone = replace(query, conditions=(key,))
        stored = await read_numbers(connection, alone, group, deadline)
        numbers = {scan_range: stored[scan_range] for scan_range in group if scan_range in stored}
        building = partial(_select_lacking, query, key, group, numbers)
        some = {scan_range for scan_range, number in numbers.items() if number > 0}
        if len(numbers) < len(group):
            rows = await fetch(
                connection,
                building,
                deadline,
                what="see where a key is lacking",
                workers=WORKERS,
                settings=JOINING,
            )
            some |= {group[row.part] for row in rows}
        group = [scan_range for scan_range in group if scan_range in some]
    return group


def _select_lacking(
    query: Query, key: OfKey, group: Sequence[ScanRange], known: Collection[ScanRange]
) -> Select[Any]:
    """Select the other pieces that have an inference without the key."""
    parts = [
        counts.add_columns(literal(index, Integer).label("part"))
        for index, scan_range in enumerate(group)
        if scan_range not in known
        for counts in count_without(query, key, scan_range)
    ]
    numbers = union_all(*parts).subquery()
    return select(numbers.c.part).group_by(numbers.c.part).having(func.sum(numbers.c.matches) > 0)


def build_anti_join(query: Query, scan_range: ScanRange) -> Select[Any]:
    """Select the matches of a piece: all inferences without those that have such a key, then
    tested."""
    keys = find_anti_joins(query)
    have = union_all(*(rows for key in keys for rows in key.rows(scan_range))).subquery()
    lacked = select(inference.c.uid).where(
        scan_range.of(inference), ~exists([have], have.c.uid == inference.c.uid)
    )
    # OFFSET: only the remaining inferences are tested, not all
    rows = lacked.offset(0).subquery()
    return _test_others(query, keys, scan_range, select(rows.c.uid))

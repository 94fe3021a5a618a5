"""What a question asks, and the plan of each part of its range: which lists are read, and how.

Planners know little about these tables: the values of all keys are in one column. So the lists of
conditions are counted, up to `FEW` each, and their lengths choose the way. A part in which one list
is empty is skipped. A short list drives, and its inferences are tested one by one. Long lists are
joined by hashes, so that each is read once, whatever the planner estimates. A single long list is
left to the planner, which may scan until the page is full.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    case,
    column,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference

from .conditions.combination import OfKey
from .conditions.condition import Condition, Either, exists, match_all, split_driving
from .deadline import (
    GROUP,
    HIGHEST,
    LOWEST,
    Deadline,
    Range,
    ScanRange,
    cut_range,
    fetch,
    find_pieces_of,
    leave_out,
    read_each,
    reads_apart,
    split_groups,
    test_unmarked,
)

# Inside of `read_each` one process reads; of so few models each may be a large one.
_FEW_MODELS = 8
# Comparisons of one statement, if it can be split: each costs a millisecond before it runs.
MOST_COMPARISONS = 100
_LARGE = 50
# Partitions of a statement that reads them as one: each takes locks for each table that it names.
_WIDE = 32


class Hit(NamedTuple):
    """One inference. `value`: None in order of time, and if it has no value to be sorted by."""

    model: int
    uid: UUID
    value: Any = None


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that must all hold, in a range, of the inferences of one model or of several."""

    scan_range: ScanRange
    conditions: tuple[Condition, ...] = ()
    newest_first: bool = True
    marks: bool = False
    """Whether any inference of the models is being erased."""
    closed: bool = False
    """Whether it searches spans that are being dropped, too."""
    nothing: bool = False
    """Whether nothing can match: a key is unknown, and the caller wants an empty answer."""
    size: int = 0
    """The number of comparisons in the conditions."""
    spans: Sequence[Range] | None = field(default=None, compare=False)
    """The open spans, the newest first, if they are known already."""
    wanted: Condition | None = field(default=None, compare=False)
    """What a prediction of a match satisfies that the filter asks for; None: it asks for none."""

    @property
    def is_driven(self) -> bool:
        """Check whether an index can drive it."""
        return any(condition.scans for condition in self.conditions)

    @property
    def large(self) -> bool:
        """Check whether its statements are built beside the event loop, and not cached."""
        return self.size > _LARGE

    @property
    def group(self) -> int:
        """The number of partitions that one statement reads, each by a part of its own."""
        return min(GROUP, max(1, MOST_COMPARISONS // max(1, self.size)))

    @property
    def wide(self) -> int:
        """The number of adjoining partitions that one statement reads as one."""
        return max(self.group, _WIDE // max(1, self.size))

    @property
    def form(self) -> str:
        """The kinds of its conditions, `everything` without any: one of a short list."""
        return "+".join(sorted({condition.kind for condition in self.conditions})) or "everything"

    def in_order(self) -> "Query":
        """Return the same query, the oldest first."""
        return replace(self, newest_first=False)

    def after(self, uid: UUID) -> "Query":
        """Return the same query, after `uid`."""
        lo = UUID(int=min(uid.int + 1, HIGHEST.int))
        rest = (LOWEST, uid) if self.newest_first else (lo, HIGHEST)
        return replace(self, scan_range=self.scan_range.clip(*rest))


async def find_pieces(connection: AsyncConnection, query: Query) -> list[ScanRange]:
    """Cut the range into the partitions' spans, in the query's order; none if nothing can match."""
    if query.nothing or query.scan_range.empty:
        return []
    if query.spans is None or query.closed:
        how = {"newest_first": query.newest_first, "closed": query.closed}
        return await find_pieces_of(connection, query.scan_range, **how)
    return cut_range(query.scan_range, query.spans, newest_first=query.newest_first)


async def split_models(connection: AsyncConnection, query: Query) -> list[Query]:
    """Return the query as statements without an order read it: as it is; that of each model if they
    are few, which Postgres may read by several processes, or on Citus."""
    scan_range = query.scan_range
    is_few = len(scan_range.models) <= _FEW_MODELS
    if scan_range.is_of_several and (is_few or await reads_apart(connection, scan_range)):
        return [replace(query, scan_range=one) for one in scan_range.split()]
    return [query]


# The ways in which a part of the range is read.

FEW = 8_000
SOME = 3 * FEW
"""A list of at most this length is joined with one other; the few inferences of both are tested."""
VERY_FEW = 256
"""The inferences of a shorter list are tested one by one; the other lists are not counted."""
# A short list cannot have become longer than this since it was counted.
_GROWN = 4 * FEW
MOST_JOINED = 2
"""Parts whose long lists are joined by one statement that reads them all: each has hashes."""
MOST: Final = 4
"""Keys whose lists are subtracted from all inferences; further missing keys are tested."""
WORKERS: Final = 2
"""Parallel processes of Postgres for a statement whose rows have no order."""
# No nested loop over two long lists.
_JOINING: Final[Mapping[str, str]] = MappingProxyType(
    {"enable_nestloop": "off", "enable_mergejoin": "off", "hash_mem_multiplier": "1"}
)
# For each partition, one hash of the inferences that have a key.
SUBTRACTING: Final[Mapping[str, str]] = MappingProxyType(
    {**_JOINING, "enable_parallel_hash": "off", "work_mem": "32MB"}
)
# The memory that the hashes of a statement share; a hash that gets too little spills to files.
_HASHES_MB, _LEAST_MB = 256, 4


@dataclass(frozen=True, slots=True)
class Plan:
    """How a part of the range is read: by the length of each driving condition's list, up to
    `most`. Without sizes it was not counted, and is left to Postgres."""

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

    @property
    def way(self) -> str:
        """The way in which it is read, for people."""
        if self.anti_join:
            return "anti-join"
        if self.joins:
            return f"hash join of {self.joins + 1} lists"
        return "scan" if self.shortest is None else f"list of {self.shortest:,} drives"


def build_matches(query: Query, plan: Plan, *, first: bool = False) -> Select[Any]:
    """Select the matches of a part, each once; `first`: for a page of the first ones in time."""
    if plan.anti_join:
        return _subtract(query, plan.scan_range)
    if plan.joins or plan.shortest is not None:
        return _read_lists(query, plan, first=first)
    return match_by_index(query, plan.scan_range)


def match_by_index(query: Query, scan_range: ScanRange) -> Select[Any]:
    """Select the matches, each once, by the indexes that Postgres prefers."""
    matches, unique = match_all(query.conditions, scan_range, unmarked=query.marks)
    return matches if unique else matches.distinct()


def test_each(
    query: Query,
    conditions: Sequence[Condition],
    scan_range: ScanRange,
    uid: ColumnElement[Any],
    *,
    may_hash: bool,
) -> list[ColumnElement[bool]]:
    """Return tests for a few inferences, one by one; `may_hash`: for many, if Postgres prefers.

    The planner cannot turn them into joins, whose other side would be read as a whole.
    """
    scan_range = replace(scan_range, one_by_one=not may_hash)
    tests: list[ColumnElement[bool]] = [
        case((condition.holds(scan_range, uid), True), else_=False).is_(True)
        for condition in conditions
    ]
    return [*tests, test_unmarked(scan_range, uid)] if query.marks else tests


def count_matches(matches: Select[Any]) -> Select[Any]:
    """Select the number of matches."""
    return select(func.count().label("matches")).select_from(matches.subquery())


def _read_lists(query: Query, plan: Plan, *, first: bool) -> Select[Any]:
    """Select from the shortest list, or from some or all that are joined, and test the rest."""
    driving, _ = split_driving(query.conditions)
    by_length = sorted(range(len(driving)), key=plan.sizes.__getitem__)[: plan.joins + 1]
    read = [driving[index] for index in by_length]
    leading, *others = (_select_list(condition, plan.scan_range) for condition in read)
    # OFFSET: the planner does not rewrite it; LIMIT tells the planner how short it is
    if plan.shortest is None:
        rows: Any = leading.offset(0).subquery()
    elif others:
        rows = mark_short(leading, "short")
    else:
        rows = leading.limit(_GROWN).offset(0).subquery()
        if first:  # sorted before the tests, which end with the page
            uid = rows.c.uid.desc() if query.newest_first else rows.c.uid
            rows = select(rows.c.uid).order_by(uid).offset(0).subquery()
    joined = rows
    for uids in others:
        other = uids.offset(0).subquery()
        joined = joined.join(other, other.c.uid == rows.c.uid)
    found = select(rows.c.uid).select_from(joined)
    if others and plan.shortest is not None:
        found = select(mark_short(found, "both").c.uid)
    return _test_others(query, read, plan.scan_range, found, may_hash=not first)


def _test_others(
    query: Query,
    read: Sequence[Condition],
    scan_range: ScanRange,
    rows: Select[Any],
    *,
    may_hash: bool,
) -> Select[Any]:
    """Select those of the rows that satisfy the conditions whose lists were not read, each once."""
    [uid] = rows.selected_columns
    others = [one for one in query.conditions if not any(one is other for other in read)]
    matches = rows.where(*test_each(query, others, scan_range, uid, may_hash=may_hash))
    return matches if all(condition.unique for condition in read) else matches.distinct()


def mark_short(uids: Select[Any], name: str) -> Any:
    """Return the same list as an array, so that the planner expects it to be short.

    The planner then hashes this list, not another one, and tests one by one.
    """
    kind = UUID_TYPE(as_uuid=True)
    array = func.array(uids.scalar_subquery(), type_=ARRAY(kind))
    return func.unnest(array).table_valued(column("uid", kind), name=name).render_derived()


def _select_list(condition: Condition, scan_range: ScanRange) -> Select[Any]:
    return select(condition.uids(scan_range).subquery().c.uid)


def settings_for(plans: Sequence[Plan]) -> Mapping[str, str]:
    """Return the settings of Postgres for a statement over these parts."""
    if any(plan.anti_join for plan in plans):
        return SUBTRACTING
    joins = sum(plan.joins for plan in plans)
    return {**_JOINING, "work_mem": f"{max(_LEAST_MB, _HASHES_MB // joins)}MB"} if joins else {}


async def iterate_plans(
    connection: AsyncConnection,
    query: Query,
    parts: Sequence[ScanRange],
    deadline: Deadline,
    *,
    known: Collection[ScanRange] = (),
) -> AsyncIterator[Sequence[Plan]]:
    """Yield the parts that one statement reads as a whole, in which anything can match, without the
    `known` ones. Raises OutOfTime."""
    for group in split_groups(leave_out(parts, known), query.group):
        for plans in group_by_joins(await choose_plans(connection, query, group, deadline)):
            for some in await split_apart(connection, plans):
                yield some


async def split_apart(connection: AsyncConnection, plans: Sequence[Plan]) -> list[Sequence[Plan]]:
    """Return the parts of each statement: all; on Citus, of several models, a few parts of one
    model each."""
    if not (plans and await reads_apart(connection, plans[0].scan_range)):
        return [plans] if plans else []
    apart = [replace(plan, scan_range=one) for plan in plans for one in plan.scan_range.split()]
    return [apart[start : start + GROUP] for start in range(0, len(apart), GROUP)]


def group_by_joins(plans: Sequence[Plan]) -> Iterator[Sequence[Plan]]:
    """Yield the parts that one statement reads as a whole: few of those whose lists are joined.

    Those in which nothing can match are left out.
    """
    light = [plan for plan in plans if not (plan.joins or plan.empty)]
    if light:
        yield light
    joined = [plan for plan in plans if plan.joins]
    for start in range(0, len(joined), MOST_JOINED):
        yield joined[start : start + MOST_JOINED]


async def choose_plans(
    connection: AsyncConnection,
    query: Query,
    ranges: Sequence[ScanRange],
    deadline: Deadline,
    *,
    most: int = FEW,
    some: int = SOME,
    alone: bool = False,
    cheap_only: bool = False,
) -> list[Plan]:
    """Count the lists of each range, up to `most`, and return how each is read.

    A single list is counted only if `alone`; three or more long ones are counted again, up to
    `some`. Lists of one index scan are counted first: where one is very short, or with
    `cheap_only`, the others are not, for counting locations or inferences with a key takes longer
    than testing a few. Raises OutOfTime.
    """
    driving, _ = split_driving(query.conditions)
    is_apart = await reads_apart(connection, query.scan_range)  # it would double the statements
    if is_apart or len(driving) < 2 - alone:
        return [Plan(scan_range) for scan_range in ranges]
    every, counted = range(len(driving)), dict[ScanRange, Plan]()

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
            what="choose the list that drives",
            workers=WORKERS,
        )
        found = iter([row.size for row in sorted(rows)])
        for scan_range in ranges:
            sizes = dict(zip(indexes, found, strict=False))
            of_all = tuple(sizes.get(index, most) for index in every)
            counted[scan_range] = Plan(scan_range, of_all, most, few)

    cheap = [index for index in every if driving[index].scans == 1]
    if len(cheap) < len(driving):
        await count_some(cheap, ranges, most)
    if cheap_only and cheap and counted:
        return [counted[scan_range] for scan_range in ranges]
    # the other lists only in ranges in which none of these is very short
    rest = [place for place in ranges if place not in counted or not counted[place].is_very_short]
    await count_some(every, rest, most)
    if most < some:
        long = [scan_range for scan_range in ranges if counted[scan_range].joins > 1]
        await count_some(every, long, some, few=most)
    return [counted[scan_range] for scan_range in ranges]


def _select_sizes(driving: Sequence[Condition], ranges: Sequence[ScanRange], most: int) -> Any:
    lists = [
        read_each(scan_range, _select_some(condition, scan_range).limit(most)).limit(most)
        for scan_range in ranges
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


def _select_some(condition: Condition, scan_range: ScanRange) -> Select[Any]:
    """Select the list, some of it perhaps twice, so that counting can end before all is read."""
    match condition:
        case Either(parts):
            lists: Any = union_all(*(_select_some(part, scan_range) for part in parts))
        case OfKey():
            lists = union_all(*condition.rows(scan_range))
        case _:
            return _select_list(condition, scan_range)
    return select(lists.subquery().c.uid)


def choose_next_most(plans: Sequence[Plan]) -> int:
    """Return the limit for counting the next parts' lists: about the length of a short list."""
    if any(plan.pairs for plan in plans):
        return SOME
    shortest = [plan.shortest for plan in plans if plan.shortest is not None]
    return min(FEW, 1_000 + 2 * min(shortest)) if shortest else FEW


# Anti-joins: inferences without a key, which no index has, are all inferences minus those with it.
#
# For a count, two long lists are each read once; testing every inference would take many times as
# long. For a page it is used if such inferences are too rare for a scan.


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
    numbers = []
    for sign, uids in [(1, everyone), *((-sign, uids) for sign, uids in key.counted(scan_range))]:
        rows = uids.subquery()
        marks = [test_unmarked(scan_range, rows.c.uid)] if query.marks else []
        number = (func.count() * sign).label("matches")
        numbers.append(select(number).select_from(rows).where(*marks))
    return numbers


def _subtract(query: Query, scan_range: ScanRange) -> Select[Any]:
    """Select all inferences without those that have such a key, then tested."""
    keys = find_anti_joins(query)
    have = union_all(*(rows for key in keys for rows in key.rows(scan_range))).subquery()
    lacked = select(inference.c.uid).where(
        scan_range.of(inference), ~exists([have], have.c.uid == inference.c.uid)
    )
    # OFFSET: only the remaining inferences are tested, not all
    rows = lacked.offset(0).subquery()
    return _test_others(query, keys, scan_range, select(rows.c.uid), may_hash=True)

"""A page of matches in order of time.

First the newest few thousand inferences are scanned and tested, which finds common matches at once
and bounds the cost of rare ones. Then driving indexes are used, one statement for each group of
partitions, until the page is full. When time runs out, the page has the matches found so far, and
says how far it searched. A deadline's soft end applies as soon as there is anything to answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from uuid import UUID

from sqlalchemy import Integer, Select, bindparam, literal, literal_column, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import inference

from .anti_join import find_anti_joins
from .deadline import Deadline, OutOfTime, fetch
from .driving import FEW, DrivingIndex, build_matches, settings_for
from .list_sizes import choose_next_driver, choose_next_most, count_lists
from .matching import Query, find_pieces, match_by_scan, order_matches
from .progress import Progress
from .read import Ahead
from .scan_range import HIGHEST, LOWEST, ScanRange, span_around, split_growing, take_unbroken
from .statement_building import Building

SCAN = 4_000
_LONGEST_SCAN = 64
# A scan this many times as long as the first costs no more than the two lists of a partition.
_LONGEST_DETOUR = 4


@dataclass(slots=True, kw_only=True)
class PageSearch(Progress):
    """The matches that a search has found so far."""

    limit: int
    scan: int = SCAN
    uids: list[UUID] = field(default_factory=list)
    counted: int = FEW
    """The limit for counting the lists of the next partitions."""
    driven_by: int | None = None
    """The index of the list that was very short in the last partitions: it is counted first."""
    ahead: Ahead | None = None
    """The columns to read with the first statement's matches, if it has no condition."""

    @property
    def missing(self) -> int:
        """The number of uids that the page still takes."""
        return self.limit - len(self.uids)


async def find_page(
    connection: AsyncConnection,
    query: Query,
    *,
    limit: int,
    deadline: Deadline,
    scan: int = SCAN,
    goes_on: bool = False,
    ahead: Ahead | None = None,
) -> PageSearch:
    """Find up to `limit` uids in the query's order. `scan`: the number of inferences scanned first.

    `goes_on`: it continues an earlier page. `ahead`: receives the inferences that are read with the
    uids. Raises OutOfTime only if not even the scan came to an end.
    """
    search = PageSearch(limit=limit, scan=scan, deadline=deadline, goes_on=goes_on, ahead=ahead)
    if query.nothing or query.scan_range.empty:
        return search
    parts = await find_pieces(connection, query, newest_first=query.newest_first)
    try:
        rest = await _scan(connection, query, parts, search)
        await _follow(connection, query, rest, search)
    except OutOfTime:
        if search.searched is None:
            raise
        search.out_of_time = True
    return search


async def _scan(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], search: PageSearch
) -> Sequence[ScanRange]:
    """Test inference after inference, and return the pieces not yet searched.

    Without conditions nothing is scanned. If no index can drive the query, there is only the scan,
    in strides that grow: after any of them time may run out, and the page has the matches so far.
    """
    if not query.conditions:
        return parts
    length = search.scan
    while parts and search.missing > 0:
        run = take_unbroken(parts)
        end = await _find_end_of_scan(connection, query, span_around(run), length, search.until)
        stride, parts = _split(query, parts, run, end)
        statement = partial(_select_stride, query, stride, search.missing)
        rows = await fetch(connection, statement, search.until, large=query.large)
        _take(search, query, stride, rows)
        # with other conditions it is unknown which one is rare: the scan goes on
        alone = 0 < len(find_anti_joins(query)) == len(query.conditions)
        if query.is_driven or (alone and _too_few(search, length)):
            break
        search.came_on = length > search.scan
        length = min(2 * length, _LONGEST_SCAN * search.scan)
    return parts


def _select_stride(query: Query, stride: ScanRange, limit: int) -> Select[Any]:
    return order_matches(query, match_by_scan(query, stride), limit)


def _too_few(search: PageSearch, scanned: int) -> bool:
    """Check whether matches are so rare that a full page would take too long a scan."""
    return search.missing * scanned > _LONGEST_DETOUR * search.scan * len(search.uids)


async def _find_end_of_scan(
    connection: AsyncConnection,
    query: Query,
    scan_range: ScanRange,
    length: int,
    deadline: Deadline,
) -> UUID | None:
    """Return the last uid of a scan of that length; None: the range holds fewer."""
    last = (
        select(inference.c.uid)
        .where(scan_range.of(inference))
        .order_by(query.order(inference.c.uid))
        .offset(length - 1)
        .limit(1)
    )
    rows = await fetch(connection, last, deadline)
    return rows[0][0] if rows else None


def _split(
    query: Query, parts: Sequence[ScanRange], run: Sequence[ScanRange], end: UUID | None
) -> tuple[ScanRange, Sequence[ScanRange]]:
    """Return the stride through the run up to and including `end`, and the pieces after it."""
    here = span_around(run)
    if end is None:
        return here, parts[len(run) :]
    if query.newest_first:
        stride, after = here.clip(end, here.hi), (LOWEST, end)
    else:
        stride, after = here.clip(here.lo, _next_uid(end)), (_next_uid(end), HIGHEST)
    rest = [part.clip(*after) for part in parts]
    return stride, [part for part in rest if not part.empty]


def _next_uid(uid: UUID) -> UUID:
    return UUID(int=uid.int + 1)


async def _follow(
    connection: AsyncConnection,
    query: Query,
    parts: Sequence[ScanRange],
    search: PageSearch,
) -> None:
    for group in split_growing(parts, query.group):
        if search.missing <= 0:
            return
        share = 1.0 if len(group) == 1 else 0.5
        try:
            await _follow_group(connection, query, group, search, share=share)
        except OutOfTime:
            # One partition at a time: there may be time for the nearest ones.
            for part in group:
                if search.missing > 0:
                    await _follow_group(connection, query, [part], search)


async def _follow_group(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    search: PageSearch,
    *,
    share: float = 1.0,
) -> None:
    deadline = search.until
    counted = await count_lists(
        connection,
        query,
        group,
        deadline,
        share=share,
        most=search.counted,
        alone=True,
        driven_by=search.driven_by,
    )
    pieces_left = [piece for piece in counted if not piece.empty]
    search.counted, search.driven_by = choose_next_most(pieces_left), choose_next_driver(counted)
    rows: Sequence[Any] = ()
    wrong = False
    if pieces_left:
        # only with the first statement, which may take all of the time
        read = None if search.uids else search.ahead
        rows = await _read(connection, query, pieces_left, search.missing, deadline, share, read)
        uids = [row[0] for row in rows]
        wrong = uids != sorted(uids, reverse=query.newest_first)
        if not wrong and len(rows) == search.missing:
            silent = [pieces_left[index] for index in find_silent([row[1] for row in rows])]
            wrong = bool(silent and await _read(connection, query, silent, 1, deadline, share))
    if len(group) > 1 and wrong:
        # UNION ALL returned its parts in another order, so LIMIT took the wrong rows.
        for part in group:
            if search.missing > 0:
                await _follow_group(connection, query, [part], search)
        return
    _take(search, query, span_around(group), rows)
    search.came_on = True


async def _read(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    group: Sequence[DrivingIndex],
    limit: int,
    deadline: Deadline,
    share: float,
    ahead: Ahead | None = None,
) -> Sequence[Any]:
    """Return rows of a uid, and of the index of its piece."""
    building: Building = partial(_union, query, group, limit)
    parameters: dict[str, Any] | None = None
    everything = len(group) == 1 and not query.conditions and not query.marks
    if everything:
        scan_range = group[0].scan_range
        newest_first = query.newest_first
        building = (
            ahead.statement(newest_first=newest_first)
            if ahead
            else _select_everything(newest_first)
        )
        parameters = {
            "model": scan_range.model,
            "lo": scan_range.lo,
            "hi": scan_range.hi,
            "most": limit,
        }
    rows = await fetch(
        connection,
        building,
        deadline,
        large=query.large,
        share=share,
        what="let an index lead",
        plain=everything,
        settings=settings_for(group),
        parameters=parameters,
    )
    return [(uid, 0) for uid in ahead.take(rows)] if everything and ahead else rows


@cache
def _select_everything(newest_first: bool) -> PreparedStatement:
    """Build the statement of `_union` for one piece without conditions: the most frequent page."""
    here = inference.c
    lo, hi = (bindparam(name, type_=here.uid.type) for name in ("lo", "hi"))
    where = (here.model == bindparam("model", type_=here.model.type), here.uid >= lo, here.uid < hi)
    uids = select(here.uid, literal_column("0").label("part")).where(*where)
    order = here.uid.desc() if newest_first else here.uid
    return PreparedStatement(uids.order_by(order).limit(bindparam("most", type_=Integer())))


def find_silent(parts: Sequence[int]) -> list[int]:
    """Return the parts without rows before the last row's part, if the rows fill a page.

    They are empty, or were never read: a later part filled the page.
    """
    return [part for part in range(parts[-1]) if part not in parts] if parts else []


def _union(query: Query, group: Sequence[DrivingIndex], limit: int) -> Select[Any]:
    """Select one ordered, limited part for each partition: each is planned by its own statistics.

    A part runs only if those before it did not fill the page. Each row names its part.
    """
    parts = []
    for index, piece in enumerate(group):
        matches, unique = build_matches(query, piece)
        uids = order_matches(query, matches, limit, unique=unique).subquery()
        parts.append(select(uids.c.uid, literal(index, Integer).label("part")))
    together = union_all(*parts).subquery() if len(parts) > 1 else parts[0].subquery()
    return select(together.c.uid, together.c.part).limit(limit)


def _take(search: PageSearch, query: Query, scan_range: ScanRange, rows: Sequence[Any]) -> None:
    """Store the matches of the range, and how far the search came."""
    search.uids.extend(row[0] for row in rows)
    search.searched = scan_range.lo if query.newest_first else UUID(int=scan_range.hi.int - 1)

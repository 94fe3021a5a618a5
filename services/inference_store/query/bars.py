"""A model's inferences in bars of time: how many, how many failed, how many have predictions.

Partitions that are no longer written have these counts stored, in grains that the bars of any
window about as long are made of; everything else is counted, by an index alone.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Select, func, select, true
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference, partition_count
from inference_store.inference.events import received_at_of, uid_floor

from .deadline import (
    HIGHEST,
    LOWEST,
    Deadline,
    ScanRange,
    bind_many,
    fetch,
    find_ranges,
    span_around,
    split_unbroken,
    test_unmarked,
)
from .matching import Query
from .stored_counts import read_stored

# Seconds. A grain divides the wider ones, so that the bars of most widths are made of it.
_GRAINS: Final = (60, 300, 900, 3_600, 21_600, 86_400)
_LEAST_GRAINS: Final = 60


@dataclass(slots=True)
class Tally:
    """The inferences of a bar. `errors`: of those, `ok` is false."""

    inferences: int = 0
    errors: int = 0
    predicted: int = 0

    def add(self, inferences: int, errors: int, predicted: int) -> None:
        """Add the counts of a part of the bar."""
        self.inferences += inferences
        self.errors += errors
        self.predicted += predicted


async def count_in_bars(
    connection: AsyncConnection, query: Query, starts: Sequence[datetime], deadline: Deadline
) -> list[Tally]:
    """Count the inferences of the query's range, which has no conditions, in each bar, exactly.

    `starts`: where each bar begins, and where the last one ends. Raises OutOfTime.
    """
    uids = [uid_floor(start) for start in starts]
    whole = query.scan_range.clip(uids[0], uids[-1])
    ranges = await find_ranges(connection) if query.spans is None else query.spans
    spans = [ScanRange(whole.model, *bounds) for bounds in ranges]
    spans = [span for span in spans if not span.clip(whole.lo, whole.hi).empty]
    stored = await read_stored(connection, query, spans, partition_count.c.bars, deadline)
    tallies = [Tally() for _ in starts[1:]]
    uncounted: list[ScanRange] = []
    for span in spans:
        part = span.clip(whole.lo, whole.hi)
        if span in stored:
            uncounted += _add_stored(stored[span], span, part, starts, tallies)
        else:
            uncounted.append(part)
    for run in split_unbroken(uncounted):
        statement = _select_bars(span_around(run), uids, marks=query.marks)
        for bar, *counts in await fetch(connection, statement, deadline, what="count by time"):
            tallies[bar].add(*counts)
    return tallies


def _select_bars(scan_range: ScanRange, starts: Sequence[UUID], *, marks: bool) -> Select[Any]:
    """Count each bar by itself: to find the bar of each row takes more than to count it."""
    bars = [(n, scan_range.clip(*bounds)) for n, bounds in enumerate(pairwise(starts))]
    bar = list_ranges([(n, part.lo, part.hi) for n, part in bars if not part.empty])
    row = inference.alias()
    counts = select(
        func.count().label("inferences"),
        func.count().filter(row.c.ok.is_(False)).label("errors"),
        func.count().filter(row.c.prediction_count > 0).label("predicted"),
    ).where(scan_range.of(row), row.c.uid >= bar.c.lo, row.c.uid < bar.c.hi)
    tests = [test_unmarked(scan_range, row.c.uid)] if marks else []
    counted = counts.where(*tests).lateral()
    some = counted.c.inferences > 0
    return select(bar.c.n, counted).join_from(bar, counted, true()).where(some)


def list_ranges(ranges: Sequence[tuple[int, UUID, UUID]]) -> Any:
    """Return rows of numbers and ranges of uids, `n`, `lo` and `hi`, to be joined laterally."""
    uid = UUID_TYPE(as_uuid=True)
    numbers, los, his = zip(*ranges, strict=True)
    lists = bind_many(numbers, INTEGER()), bind_many(los, uid), bind_many(his, uid)
    return func.unnest(*lists).table_valued("n", "lo", "hi").render_derived().alias("part")


async def count_span(connection: AsyncConnection, span: ScanRange) -> dict[str, Any]:
    """Count a whole partition for storing; each bar has the number of its grain since 1970."""
    lo, hi = (_seconds(uid) for uid in (span.lo, span.hi))
    grain = max((one for one in _GRAINS if one * _LEAST_GRAINS <= hi - lo), default=_GRAINS[0])
    first, end = int(lo // grain), int(-(-hi // grain))
    starts = [uid_floor(datetime.fromtimestamp(n * grain, UTC)) for n in range(first, end + 1)]
    rows = await connection.execute(_select_bars(span, starts, marks=False))
    return {"grain": grain, "bars": {str(first + bar): counts for bar, *counts in rows}}


def _add_stored(
    stored: Mapping[str, Any],
    span: ScanRange,
    part: ScanRange,
    starts: Sequence[datetime],
    tallies: Sequence[Tally],
) -> Iterator[ScanRange]:
    """Add what is stored of a part of a span; yield what is left to be counted."""
    grain, begins = stored["grain"], [start.timestamp() for start in starts]
    lo, hi, least = _seconds(part.lo), _seconds(part.hi), _seconds(span.lo)
    # at its ends a span may have a part of a grain
    first = int(lo // grain if part.lo == span.lo else -(-lo // grain))
    end = int(-(-hi // grain) if part.hi == span.hi else hi // grain)
    if end <= first or any(begin % grain for begin in begins if lo < begin < hi):
        yield part
        return
    for number, counts in stored["bars"].items():
        if first <= int(number) < end:
            tallies[bisect_right(begins, max(int(number) * grain, least)) - 1].add(*counts)
    inner = [uid_floor(datetime.fromtimestamp(n * grain, UTC)) for n in (first, end)]
    rest = (part.clip(LOWEST, inner[0]), part.clip(inner[1], HIGHEST))
    yield from (piece for piece in rest if not piece.empty)


def _seconds(uid: Any) -> float:
    return received_at_of(uid).timestamp()

"""A model's inferences in bars of time: how many, how many failed, how many have predictions.

Partitions that are no longer written have these counts stored, in grains that the bars of any
window about as long are made of; everything else is counted, by an index alone. The parts of bars
are also the strata from which a count of other conditions is estimated.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from math import ceil, sqrt
from operator import add
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Integer, Select, and_, cast, func, select, true
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference, partition_count
from inference_store.inference.events import received_at_of, uid_floor

from .aggregates.bins import automatic_times
from .aggregates.run import find_end
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
from .plan import Query, find_pieces, test_each
from .stored_counts import read_stored

# Seconds. A grain divides the wider ones, so that the bars of most widths are made of it.
_GRAINS: Final = (60, 300, 900, 3_600, 21_600, 86_400)
_LEAST_GRAINS: Final = 60


_PARTS: Final = 20
"""Of each bar, where no grains are stored: they say where in it its inferences are."""


class Tally(NamedTuple):
    """The inferences of a part of a bar, which has a number. `errors`: of those, `ok` is false."""

    bar: int
    lo: UUID
    hi: UUID
    inferences: int
    errors: int
    predicted: int


async def count_in_bars(
    connection: AsyncConnection, query: Query, starts: Sequence[datetime], deadline: Deadline
) -> list[Tally]:
    """Count the inferences of the query's range, which has no conditions, in each bar, exactly.

    `starts`: where each bar begins, and where the last one ends. Returns parts that have any, in
    order. Raises OutOfTime.
    """
    uids = [uid_floor(start) for start in starts]
    whole = query.scan_range.clip(uids[0], uids[-1])
    ranges = await find_ranges(connection) if query.spans is None else query.spans
    spans = [ScanRange(whole.model, *bounds) for bounds in ranges]
    spans = [span for span in spans if not span.clip(whole.lo, whole.hi).empty]
    stored = await read_stored(connection, query, spans, partition_count.c.bars, deadline)
    tallies: list[Tally] = []
    uncounted: list[ScanRange] = []
    for span in spans:
        part = span.clip(whole.lo, whole.hi)
        if span in stored:
            uncounted += _add_stored(stored[span], span, part, starts, tallies)
        else:
            uncounted.append(part)
    steps = [(bar, *step) for bar, ends in enumerate(pairwise(starts)) for step in _divide(*ends)]
    for run in split_unbroken(uncounted):
        here = span_around(run)
        parts = [(bar, here.clip(lo, hi)) for bar, lo, hi in steps if lo < here.hi and hi > here.lo]
        statement = _select_counts(here, [part for _, part in parts], marks=query.marks)
        for n, *counts in await fetch(connection, statement, deadline, what="count by time"):
            bar, part = parts[n]
            tallies.append(Tally(bar, part.lo, part.hi, *counts))
    return sorted(tallies)


def _divide(since: datetime, until: datetime) -> Iterator[tuple[UUID, UUID]]:
    step = (until - since) / _PARTS
    ends = (min(since + n * step, until) for n in range(_PARTS))  # a step is rounded
    return pairwise(map(uid_floor, [*ends, until]))


def _select_counts(
    scan_range: ScanRange, parts: Sequence[ScanRange], *, marks: bool
) -> Select[Any]:
    """Count each part by itself: to find the part of each row takes more than to count it."""
    part = list_ranges([(n, part.lo, part.hi) for n, part in enumerate(parts) if not part.empty])
    row = inference.alias()
    counts = select(
        func.count().label("inferences"),
        func.count().filter(row.c.ok.is_(False)).label("errors"),
        func.count().filter(row.c.prediction_count > 0).label("predicted"),
    ).where(scan_range.of(row), row.c.uid >= part.c.lo, row.c.uid < part.c.hi)
    tests = [test_unmarked(scan_range, row.c.uid)] if marks else []
    counted = counts.where(*tests).lateral()
    some = counted.c.inferences > 0
    return select(part.c.n, counted).join_from(part, counted, true()).where(some)


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
    starts = [_floor(n * grain) for n in range(first, end + 1)]
    grains = [span.clip(*ends) for ends in pairwise(starts)]
    rows = await connection.execute(_select_counts(span, grains, marks=False))
    return {"grain": grain, "bars": {str(first + bar): counts for bar, *counts in rows}}


def _add_stored(
    stored: Mapping[str, Any],
    span: ScanRange,
    part: ScanRange,
    starts: Sequence[datetime],
    tallies: list[Tally],
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
    # as many parts as are counted elsewhere, however many grains there are
    parts: dict[tuple[int, int], list[int]] = {}
    for number, counts in stored["bars"].items():
        if first <= (n := int(number)) < end:
            at = max(n * grain, least)
            bar = bisect_right(begins, at) - 1
            step = int((at - begins[bar]) * _PARTS // (begins[bar + 1] - begins[bar]))
            low, high, *sums = parts.get((bar, step), (n, n, 0, 0, 0))
            parts[bar, step] = [min(low, n), max(high, n), *map(add, sums, counts)]
    for (bar, _), (low, high, *sums) in parts.items():
        here = span.clip(_floor(low * grain), _floor((high + 1) * grain))
        tallies.append(Tally(bar, here.lo, here.hi, *sums))
    inner = [_floor(n * grain) for n in (first, end)]
    rest = (part.clip(LOWEST, inner[0]), part.clip(inner[1], HIGHEST))
    yield from (piece for piece in rest if not piece.empty)


def _floor(seconds: int) -> UUID:
    return uid_floor(datetime.fromtimestamp(seconds, UTC))


def _seconds(uid: Any) -> float:
    return received_at_of(uid).timestamp()


# An estimate of a count, with the error that chance leaves.
#
# The strata are counted exactly, whatever the conditions. Of each the first few inferences are
# tested, and stand for all of it.

_BARS: Final = 48
"""Of all models together; each has up to twenty strata."""
_OF_A_STRATUM: Final = 8
_NORMAL: Final = 1.96
"""Standard errors on either side of 95 % of a normal distribution."""
_NONE: Final = 3.0
"""What nothing in a sample of n may be of n, 95 times of 100: the rule of three."""


class Estimate(NamedTuple):
    """A number, and how far the exact one may be from it, 95 times of 100."""

    number: int
    margin: int


async def estimate_count(
    connection: AsyncConnection, query: Query, *, deadline: Deadline
) -> Estimate:
    """Estimate the number of matches. Raises OutOfTime."""
    matches = variance = inferences = 0.0
    sampled = 0
    for scan_range in query.scan_range.split():
        one = replace(query, scan_range=scan_range, newest_first=False)
        strata = await _list_strata(connection, one, deadline)
        for run in split_unbroken(await find_pieces(connection, one) if strata else ()):
            here = span_around(run)
            within = [one for one in strata if one.lo < here.hi and one.hi > here.lo]
            rows = await fetch(
                connection,
                partial(_select_hits, one, here, within),
                deadline,
                large=query.large,
                what="test a sample",
            )
            for number, tested, hits in rows:
                stands_for = within[number].inferences
                matches += stands_for * hits / tested
                spread = hits * (tested - hits) / (tested * max(1, tested - 1))
                variance += stands_for * max(0, stands_for - tested) * spread / tested
                inferences, sampled = inferences + stands_for, sampled + tested
    if sampled >= inferences:
        return Estimate(round(matches), 0)
    least = _NONE * inferences / sampled
    return Estimate(round(matches), ceil(max(least, _NORMAL * sqrt(variance))))


async def _list_strata(
    connection: AsyncConnection, query: Query, deadline: Deadline
) -> Sequence[Tally]:
    first = await find_end(connection, query, deadline, newest=False)
    last = await find_end(connection, query, deadline, newest=True)
    if first is None or last is None or query.nothing:
        return []
    bars = max(1, _BARS // len(query.scan_range.models))
    bounds = automatic_times(first, last, bars, least=timedelta(seconds=1))
    return await count_in_bars(connection, replace(query, conditions=()), bounds, deadline)


def _select_hits(query: Query, here: ScanRange, strata: Sequence[Tally]) -> Select[Any]:
    """Select of each stratum how many inferences were tested, and how many match."""
    stratum = list_ranges([(n, one.lo, one.hi) for n, one in enumerate(strata)])
    row = inference.alias()
    unmarked = replace(query, marks=False)
    tests = test_each(unmarked, query.conditions, here, row.c.uid, may_hash=False)
    marks = [test_unmarked(here, row.c.uid)] if query.marks else []
    some = (
        select(cast(and_(true(), *tests), Integer).label("hit"))
        .where(here.of(row), row.c.uid >= stratum.c.lo, row.c.uid < stratum.c.hi, *marks)
        .order_by(row.c.uid)
        .limit(_OF_A_STRATUM)
        .lateral()
    )
    hits = select(stratum.c.n, func.count(), func.sum(some.c.hit))
    return hits.join_from(stratum, some, true()).group_by(stratum.c.n)

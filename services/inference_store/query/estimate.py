"""An estimate of a count, from a sample, with the error that chance leaves.

The range is cut into strata of time, whose inferences are counted exactly, whatever the conditions.
Of each stratum the first few inferences are tested, and stand for all of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import ceil, sqrt
from typing import Any, Final, NamedTuple

from sqlalchemy import Integer, Select, and_, cast, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference

from .aggregates.bins import automatic_times
from .aggregates.run import find_end
from .bars import Tally, count_in_bars, list_ranges
from .deadline import Deadline, ScanRange, fetch, span_around, split_unbroken, test_unmarked
from .plan import Query, find_pieces, test_each

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
    tests = test_each(replace(query, marks=False), query.conditions, here, row.c.uid)
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

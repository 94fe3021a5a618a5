"""The overview of a model: exact counts in bars of time, and latencies, labels, scores and problems
of a sample of each bar. However many inferences there are, the sample is read by an index, in so
many short ranges of each bar.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from math import isfinite
from typing import Any, Final, TypeAlias
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, Double, Select, Text, cast, select, true
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference, label, prediction
from inference_store.inference.events import SIDES, uid_floor
from inference_store.inference.field_docs import Stored

from .aggregates.bins import automatic, automatic_times, exact, percentile
from .aggregates.run import find_end
from .bars import Tally, count_in_bars, list_ranges
from .deadline import (
    Deadline,
    ScanRange,
    bind_many,
    fetch,
    span_around,
    split_unbroken,
    test_unmarked,
)
from .matching import Query, find_pieces
from .properties import PROPERTIES

MOST_BARS: Final = 58
"""Two more, if the window begins and ends within one."""
MOST_OF_A_BAR: Final = 200
"""A bar of no more inferences is read whole."""
MOST_READ_WHOLE: Final = 5_000
"""A window of no more inferences is read whole."""
_SLOTS: Final = 20
_LABELS: Final = 6
_SCORE_BINS: Final = 20
_NEWEST: Final = 12
_PROBLEMS: Final = (*(f"{side}_problem" for side in SIDES), "problem")
_MOST_PROBLEMS: Final = 10
_AT: Final = (50, 95, 99)
_Slot: TypeAlias = tuple[int, UUID, UUID]
"""A part of a bar, which has a number: uids, half-open."""
# In the order of the index, whatever the planner thinks of ranges that it does not know yet.
_BY_INDEX: Final = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}


class Latency(Stored):
    """Percentiles of `model_ms`: the smallest value that so many per cent do not exceed."""

    p50: float
    p95: float
    p99: float


class OverviewBar(Stored):
    """A span of time, and what was received in it."""

    received_from: datetime
    received_to: datetime
    inferences: int
    errors: int
    """Of which `ok` is false."""
    predicted: int
    """Of which have a prediction."""
    sampled: int
    """How many of them latency and labels are made of; if not all, these are estimates."""
    latency: Latency | None
    """Null where no latency is known."""
    labels: list[int]
    """Inferences that have each of the overview's `labels` as their `top_label`."""
    other_labels: int
    """Inferences that have another one."""


class LabelCount(Stored):
    """Inferences with a `top_label`."""

    label: str
    inferences: int


class ScoreBin(Stored):
    """Inferences whose `top_score` is at least `low` and below `high`; the last bin has both."""

    low: float
    high: float
    inferences: int


class CaptureProblem(Stored):
    """Inferences with a value of `request_problem`, `response_problem` or `problem`."""

    property: str = Field(examples=["request_problem"])
    value: str = Field(examples=["broken_off"])
    inferences: int


class Overview(Stored):
    """What a model did in a window of time."""

    received_from: datetime | None
    received_to: datetime | None
    """The window; null if nothing was received in it, and not both ends were given."""
    inferences: int
    errors: int
    predicted: int
    sampled: int
    """How many of them latency, labels, scores and problems are made of. Other counts are exact."""
    estimated: bool
    """Whether these are not all."""
    latency: Latency | None
    bars: list[OverviewBar]
    """The window in spans of one round width."""
    labels: list[LabelCount]
    """The most frequent ones, the most frequent first."""
    other_labels: int
    scores: list[ScoreBin]
    problems: list[CaptureProblem]
    newest: list[UUID]
    """The uids of the newest inferences that have a prediction."""


async def read_overview(
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Overview:
    """Return the overview of a query without conditions; its range is [since, until).

    Without `since` it begins with the first inference; without `until` it ends with the last one,
    but with `since` at present. Raises OutOfTime.
    """
    bounds = await _choose_bounds(connection, query, deadline, since, until)
    if not bounds:
        return _describe([], [], [], {}, [])
    tallies = await count_in_bars(connection, query, bounds, deadline)
    reader = _Reader(connection, query, deadline)
    rows = await reader.read_sample(list(pairwise(bounds)), tallies)
    newest, names = await reader.find_newest(), await reader.name_labels(rows)
    return _describe(bounds, tallies, rows, names, newest)


async def _choose_bounds(
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    since: datetime | None,
    until: datetime | None,
) -> list[datetime]:
    """Return where each bar begins within the window, and where the last one ends."""
    begin = since or await find_end(connection, query, deadline, newest=False)
    if begin is None:
        return []
    if until is not None:
        last = until - timedelta(microseconds=1)
    else:
        end = await find_end(connection, query, deadline, newest=True)
        last = max(end or begin, datetime.now(UTC) if since else begin, begin)
    first, *inner, end = automatic_times(begin, last, MOST_BARS, least=timedelta(seconds=1))
    return [since or first, *inner, until or (last + timedelta(microseconds=1) if since else end)]


class _Reader:
    """Reads what the counts do not say: a sample of each bar, and the newest predictions."""

    def __init__(self, connection: AsyncConnection, query: Query, deadline: Deadline) -> None:
        self._connection, self._query, self._deadline = connection, query, deadline

    async def read_sample(
        self, bars: Sequence[tuple[datetime, datetime]], tallies: Sequence[Tally]
    ) -> list[Any]:
        """Read all of a bar with few inferences, and of another the first few of each slot."""
        few, slots = list[_Slot](), list[_Slot]()
        total = sum(tally.inferences for tally in tallies)
        most = max(total, MOST_OF_A_BAR) if total <= MOST_READ_WHOLE else MOST_OF_A_BAR
        for bar, ((since, until), tally) in enumerate(zip(bars, tallies, strict=True)):
            if tally.inferences > most:
                step = (until - since) / _SLOTS
                ends = [*(since + n * step for n in range(_SLOTS)), until]
                slots += [(bar, *slot) for slot in pairwise(map(uid_floor, ends))]
            elif tally.inferences:
                few.append((bar, uid_floor(since), uid_floor(until)))
        rows = await self._read(few, most)
        found = await self._read(slots, MOST_OF_A_BAR // _SLOTS)
        # most of such a bar came in few of its slots: more is read of these
        read = Counter(row.bar for row in found)
        again = [slot for slot in slots if 2 * read[slot[0]] < MOST_OF_A_BAR]
        thin = {bar for bar, _, _ in again}
        rows += [row for row in found if row.bar not in thin]
        return rows + await self._read(again, MOST_OF_A_BAR // 4)

    async def _read(self, slots: Sequence[_Slot], most: int) -> list[Any]:
        rows: list[Any] = []
        parts = await find_pieces(self._connection, self._query) if slots else ()
        for here in map(span_around, split_unbroken(parts)):
            if within := [slot for slot in slots if slot[1] < here.hi and slot[2] > here.lo]:
                rows += await self._fetch(self._select(here, within, most), "read a sample")
        return rows

    def _select(self, here: ScanRange, slots: Sequence[_Slot], most: int) -> Select[Any]:
        slot = list_ranges(slots)
        row = inference.alias("row")
        own: list[ColumnElement[Any]] = [
            cast(sql(row), kind).label(name)
            for name, kind in {"model_ms": Double, **dict.fromkeys(_PROBLEMS, Text)}.items()
            if (sql := PROPERTIES[name].sql) is not None
        ]
        some = (
            select(row.c.top_label, row.c.top_score, *own)
            .where(here.of(row), row.c.uid >= slot.c.lo, row.c.uid < slot.c.hi)
            .where(*self._list_tests(here, row.c.uid))
            .order_by(row.c.uid)
            .limit(most)
            .lateral("some")
        )
        return select(slot.c.n.label("bar"), some).join_from(slot, some, true())

    async def find_newest(self) -> list[UUID]:
        """Return the newest inferences with a prediction: the first of each has the ordinal 0."""
        uid, newest = prediction.c.uid, list[UUID]()
        parts = await find_pieces(self._connection, self._query)
        for here in map(span_around, split_unbroken(parts)):
            of_first = select(uid).where(here.of(prediction), prediction.c.ordinal == 0)
            page = of_first.where(*self._list_tests(here, uid)).order_by(uid.desc())
            some = await self._fetch(page.limit(_NEWEST - len(newest)), "find the newest")
            newest += [row.uid for row in some]
            if len(newest) == _NEWEST:
                break
        return newest

    async def name_labels(self, rows: Sequence[Any]) -> dict[int, str]:
        """Return the names of the labels of the rows."""
        numbers = bind_many({row.top_label for row in rows} - {None}, INTEGER())
        named = select(label.c.label, label.c.name).where(label.c.label == numbers.any_())
        return {row.label: row.name for row in await self._fetch(named, "name the labels")}

    def _list_tests(self, here: ScanRange, uid: Any) -> list[ColumnElement[bool]]:
        return [test_unmarked(here, uid)] if self._query.marks else []

    async def _fetch(self, statement: Select[Any], what: str) -> list[Any]:
        how: dict[str, Any] = {"what": what, "settings": _BY_INDEX}
        return await fetch(self._connection, statement, self._deadline, **how)


# What the sample says: each row stands for as many inferences of its bar as there are to one read.


class _Sample:
    def __init__(self, rows: Sequence[Any], tallies: Sequence[Tally]) -> None:
        self.rows = rows
        self.read = Counter(row.bar for row in rows)
        self._weights = {bar: tallies[bar].inferences / n for bar, n in self.read.items()}

    def estimate(self, marked: Iterable[tuple[int, Hashable]]) -> dict[tuple[int, Any], float]:
        """Return how many inferences of each bar have each mark, of the rows that have it."""
        return {key: n * self._weights[key[0]] for key, n in Counter(marked).items()}

    def sum_up(self, marked: Iterable[tuple[int, Hashable]]) -> dict[Any, int]:
        """Return how many inferences of all bars have each mark, the most first."""
        sums: dict[Any, float] = {}
        for (_, mark), number in self.estimate(marked).items():
            sums[mark] = sums.get(mark, 0.0) + number
        return {mark: round(sums[mark]) for mark in sorted(sums, key=lambda m: (-sums[m], m))}

    def find_latencies(self) -> dict[int | None, Latency]:
        """Return the percentiles of each bar, and of all."""
        counts = defaultdict[int | None, Counter[float]](Counter)
        for row in self.rows:
            if row.model_ms is not None:
                # a percentile has a rank: whole thousandths of an inference
                weight = round(1_000 * self._weights[row.bar])
                for of in (row.bar, None):
                    counts[of][row.model_ms] += weight
        return {
            of: Latency(**{f"p{at}": round(percentile(some, Decimal(at)), 3) for at in _AT})
            for of, some in counts.items()
        }


def _describe(
    bounds: Sequence[datetime],
    tallies: Sequence[Tally],
    rows: Sequence[Any],
    names: Mapping[int, str],
    newest: list[UUID],
) -> Overview:
    sample = _Sample(rows, tallies)
    inferences, errors, predicted = (
        sum(getattr(tally, name) for tally in tallies)
        for name in ("inferences", "errors", "predicted")
    )
    by_label = [(row.bar, names[row.top_label]) for row in rows if row.top_label in names]
    totals, latencies = sample.sum_up(by_label), sample.find_latencies()
    top, others = list(totals)[:_LABELS], list(totals)[_LABELS:]
    mix = sample.estimate((bar, name if name in top else None) for bar, name in by_label)
    return Overview(
        received_from=bounds[0] if bounds else None,
        received_to=bounds[-1] if bounds else None,
        inferences=inferences,
        errors=errors,
        predicted=predicted,
        sampled=len(rows),
        estimated=len(rows) < inferences,
        latency=latencies.get(None),
        bars=[
            OverviewBar(
                received_from=since,
                received_to=until,
                inferences=tally.inferences,
                errors=tally.errors,
                predicted=tally.predicted,
                sampled=sample.read[bar],
                latency=latencies.get(bar),
                labels=[round(mix.get((bar, name), 0)) for name in top],
                other_labels=round(mix.get((bar, None), 0)),
            )
            for bar, ((since, until), tally) in enumerate(
                zip(pairwise(bounds), tallies, strict=True)
            )
        ],
        labels=[LabelCount(label=name, inferences=totals[name]) for name in top],
        other_labels=sum(totals[name] for name in others),
        scores=_list_scores(sample),
        problems=_list_problems(sample),
        newest=newest,
    )


def _list_scores(sample: _Sample) -> list[ScoreBin]:
    known = ((row.bar, row.top_score) for row in sample.rows if row.top_score is not None)
    scores = [(bar, score) for bar, score in known if isfinite(score)]
    if not scores:
        return []
    low, high = (end(score for _, score in scores) for end in (min, max))
    bounds = [number / _SCORE_BINS for number in range(_SCORE_BINS + 1)]
    if low < 0 or high > 1:
        bounds = [float(bound) for bound in automatic(exact(low), exact(high), _SCORE_BINS)]
    last = len(bounds) - 2
    bins = sample.sum_up((bar, min(bisect_right(bounds, score) - 1, last)) for bar, score in scores)
    return [
        ScoreBin(low=low, high=high, inferences=bins.get(number, 0))
        for number, (low, high) in enumerate(pairwise(bounds))
    ]


def _list_problems(sample: _Sample) -> list[CaptureProblem]:
    found = sample.sum_up(
        (row.bar, (name, value))
        for row in sample.rows
        for name in _PROBLEMS
        if (value := getattr(row, name)) is not None
    )
    return [
        CaptureProblem(property=name, value=value, inferences=max(1, found[name, value]))
        for name, value in list(found)[:_MOST_PROBLEMS]
    ]

"""The overview of a model: exact counts in bars of time, and latencies, labels, scores and problems
of a sample of each bar. However many inferences there are, the sample is read by an index, in so
many short ranges of each bar. A bar with many inferences is divided into strata that are counted
exactly, and the rows of a stratum stand for all of it.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby, pairwise
from math import isfinite
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, Double, Select, Text, cast, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference, prediction
from inference_store.inference.events import SIDES
from inference_store.inference.field_docs import Stored

from .aggregates.bins import automatic, automatic_times, exact, percentile
from .aggregates.collector import read_label_names
from .aggregates.run import find_end
from .bars import Tally, count_in_bars, list_ranges
from .deadline import (
    Deadline,
    ScanRange,
    fetch,
    span_around,
    split_unbroken,
    test_unmarked,
)
from .plan import Query, find_pieces
from .properties import PROPERTIES

MOST_BARS: Final = 58
"""Two more, if the window begins and ends within one."""
MOST_OF_A_BAR: Final = 200
"""A bar of no more inferences is read whole."""
MOST_READ_WHOLE: Final = 5_000
"""A window of no more inferences is read whole."""
_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(microseconds=1)
"""The last instant that another one follows."""
_SLOTS: Final = 20
_OF_A_SLOT: Final = MOST_OF_A_BAR // _SLOTS
_DIVISIONS: Final = 3
"""How often the slots of a bar are divided at most, if few of them are full."""
_LABELS: Final = 6
_SCORE_BINS: Final = 20
_NEWEST: Final = 12
_PROBLEMS: Final = (*(f"{side}_problem" for side in SIDES), "problem")
_MOST_PROBLEMS: Final = 10
_AT: Final = (50, 95, 99)
_COUNTS: Final = ("inferences", "errors", "predicted")
_Slot: TypeAlias = tuple[int, UUID, UUID]
"""A part of what has this number: uids, half-open."""
_Read: TypeAlias = tuple[_Slot, list[Any]]
"""A slot, and its first rows."""


class _Sampled(NamedTuple):
    """A row of a bar, which stands for so many inferences."""

    bar: int
    weight: float
    row: Any


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
    scores: list[int]
    """Inferences in each bin of the overview's `scores`."""


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
    sample = await reader.read_sample(tallies)
    newest = await reader.find_newest()
    names = await read_label_names(connection, {one.row.top_label for one in sample} - {None})
    return _describe(bounds, tallies, sample, names, newest)


async def _choose_bounds(
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    since: datetime | None,
    until: datetime | None,
) -> list[datetime]:
    """Return where each bar begins within the window, and where the last one ends."""
    since = since and min(since, _LAST)
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

    async def read_sample(self, tallies: Sequence[Tally]) -> list[_Sampled]:
        """Read all of a bar with few inferences, and of another the first few of each slot."""
        few, strata = list[Tally](), list[Tally]()
        total = sum(tally.inferences for tally in tallies)
        most = max(total, MOST_OF_A_BAR) if total <= MOST_READ_WHOLE else MOST_OF_A_BAR
        for _, group in groupby(tallies, attrgetter("bar")):
            parts = list(group)
            of_bar = sum(part.inferences for part in parts)
            if of_bar > most:
                strata += _merge(parts, of_bar / _SLOTS)
            else:
                few += _merge(parts, of_bar)
        read = await self._read([(n, part.lo, part.hi) for n, part in enumerate(few)], most)
        whole = [_Sampled(few[n].bar, 1, row) for (n, _, _), rows in read for row in rows]
        return [*whole, *await self._read_strata(strata)]

    async def _read_strata(self, strata: Sequence[Tally]) -> Iterator[_Sampled]:
        """Read of each so many slots as it has shares of its bar; if few of these are full, they
        are divided."""
        of_bars = Counter[int]()
        for stratum in strata:
            of_bars[stratum.bar] += stratum.inferences
        shares = [max(1, round(_SLOTS * each.inferences / of_bars[each.bar])) for each in strata]
        slots = [
            slot
            for n, stratum in enumerate(strata)
            for slot in _divide((n, stratum.lo, stratum.hi), shares[n])
        ]
        done, full = list[_Read](), list[_Read]()
        for turn in range(1 + _DIVISIONS):
            read = await self._read(slots, _OF_A_SLOT)
            done += [one for one in read if len(one[1]) < _OF_A_SLOT]
            full += [one for one in read if len(one[1]) >= _OF_A_SLOT]
            number = Counter(n for (n, _, _), _ in full)
            thin = {n for n in number if 2 * number[n] <= shares[n]}
            if not thin or turn == _DIVISIONS:
                break
            slots = [
                piece
                for slot, _ in full
                if slot[0] in thin
                for piece in _divide(slot, shares[slot[0]] // number[slot[0]])
            ]
            full = [one for one in full if one[0][0] not in thin]
        return _weigh([*done, *full], strata)

    async def _read(self, slots: Sequence[_Slot], most: int) -> list[_Read]:
        read: list[_Read] = [(slot, []) for slot in slots]
        parts = await find_pieces(self._connection, self._query) if slots else ()
        for here in map(span_around, split_unbroken(parts)):
            numbered = [(n, lo, hi) for n, (_, lo, hi) in enumerate(slots)]
            if within := [one for one in numbered if one[1] < here.hi and one[2] > here.lo]:
                select_some = self._select(here, within, most)
                for row in await self._fetch(select_some, "read a sample"):
                    read[row.slot][1].append(row)
        return read

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
        return select(slot.c.n.label("slot"), some).join_from(slot, some, true())

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

    def _list_tests(self, here: ScanRange, uid: Any) -> list[ColumnElement[bool]]:
        return [test_unmarked(here, uid)] if self._query.marks else []

    async def _fetch(self, statement: Select[Any], what: str) -> list[Any]:
        how: dict[str, Any] = {"what": what, "settings": _BY_INDEX}
        return await fetch(self._connection, statement, self._deadline, **how)


def _merge(parts: Sequence[Tally], most: float) -> list[Tally]:
    """Lay neighbours together as long as they have no more inferences than this."""
    merged: list[Tally] = []
    for part in parts:
        if merged and merged[-1].inferences + part.inferences <= most:
            together = merged[-1].inferences + part.inferences
            merged[-1] = merged[-1]._replace(hi=part.hi, inferences=together)
        else:
            merged.append(part)
    return merged


def _divide(slot: _Slot, number: int) -> Iterator[_Slot]:
    n, lo, hi = slot
    step = (hi.int - lo.int) // number
    ends = [lo, *(UUID(int=lo.int + place * step) for place in range(1, number)), hi]
    return ((n, *piece) for piece in pairwise(ends))


def _weigh(read: Iterable[_Read], strata: Sequence[Tally]) -> Iterator[_Sampled]:
    """Yield the rows. A slot that is not full was read whole: what is left of its stratum is shared
    by the rows of the full ones."""
    whole, full = Counter[int](), Counter[int]()
    for (n, _, _), rows in read:
        (full if len(rows) >= _OF_A_SLOT else whole)[n] += len(rows)
    for (n, _, _), rows in read:
        is_full = len(rows) >= _OF_A_SLOT
        weight = max(1.0, (strata[n].inferences - whole[n]) / full[n]) if is_full else 1.0
        yield from (_Sampled(strata[n].bar, weight, row) for row in rows)


# What the sample says.


def _add_up(weights: Iterable[tuple[Any, float]]) -> dict[Any, int]:
    """Return how many inferences have each mark, the most first."""
    sums = defaultdict[Any, float](float)
    for mark, weight in weights:
        sums[mark] += weight
    return {mark: round(sums[mark]) for mark in sorted(sums, key=lambda m: (-sums[m], m))}


def _find_latencies(sample: Iterable[_Sampled]) -> dict[int | None, Latency]:
    """Return the percentiles of each bar, and of all."""
    counts = defaultdict[int | None, Counter[float]](Counter)
    for one in sample:
        if one.row.model_ms is not None:
            for of in (one.bar, None):
                # a percentile has a rank: whole thousandths of an inference
                counts[of][one.row.model_ms] += round(1_000 * one.weight)
    return {
        of: Latency(**{f"p{at}": round(percentile(some, Decimal(at)), 3) for at in _AT})
        for of, some in counts.items()
    }


def _describe(
    bounds: Sequence[datetime],
    tallies: Sequence[Tally],
    sample: Sequence[_Sampled],
    names: Mapping[int, str],
    newest: list[UUID],
) -> Overview:
    bars = [dict.fromkeys(_COUNTS, 0) for _ in bounds[1:]]
    for tally in tallies:
        for name in _COUNTS:
            bars[tally.bar][name] += getattr(tally, name)
    sampled, latencies = Counter(one.bar for one in sample), _find_latencies(sample)
    by_label = [(one, names[label]) for one in sample if (label := one.row.top_label) in names]
    totals = _add_up((name, one.weight) for one, name in by_label)
    top, others = list(totals)[:_LABELS], list(totals)[_LABELS:]
    places = {name: place for place, name in enumerate(top)}
    mix = _add_up(((one.bar, places.get(name, len(top))), one.weight) for one, name in by_label)
    scores, score_mix = _bin_scores(sample)
    inferences = sum(bar["inferences"] for bar in bars)
    return Overview(
        received_from=bounds[0] if bounds else None,
        received_to=bounds[-1] if bounds else None,
        inferences=inferences,
        errors=sum(bar["errors"] for bar in bars),
        predicted=sum(bar["predicted"] for bar in bars),
        sampled=len(sample),
        estimated=len(sample) < inferences,
        latency=latencies.get(None),
        bars=[
            OverviewBar(
                received_from=since,
                received_to=until,
                **bars[bar],
                sampled=sampled[bar],
                latency=latencies.get(bar),
                labels=[mix.get((bar, place), 0) for place in range(len(top))],
                other_labels=mix.get((bar, len(top)), 0),
                scores=[score_mix.get((bar, number), 0) for number in range(len(scores))],
            )
            for bar, (since, until) in enumerate(pairwise(bounds))
        ],
        labels=[LabelCount(label=name, inferences=totals[name]) for name in top],
        other_labels=sum(totals[name] for name in others),
        scores=scores,
        problems=_list_problems(sample),
        newest=newest,
    )


def _bin_scores(sample: Iterable[_Sampled]) -> tuple[list[ScoreBin], dict[Any, int]]:
    """Return the bins, and how many of each bar are in which: by bar and place of the bin."""
    known = [one for one in sample if one.row.top_score is not None and isfinite(one.row.top_score)]
    if not known:
        return [], {}
    low, high = (end(one.row.top_score for one in known) for end in (min, max))
    bounds = [number / _SCORE_BINS for number in range(_SCORE_BINS + 1)]
    if low < 0 or high > 1:
        bounds = [float(bound) for bound in automatic(exact(low), exact(high), _SCORE_BINS)]
    last = len(bounds) - 2
    placed = [(min(bisect_right(bounds, one.row.top_score) - 1, last), one) for one in known]
    bins = _add_up((number, one.weight) for number, one in placed)
    ends = enumerate(pairwise(bounds))
    return (
        [ScoreBin(low=low, high=high, inferences=bins.get(n, 0)) for n, (low, high) in ends],
        _add_up(((one.bar, number), one.weight) for number, one in placed),
    )


def _list_problems(sample: Iterable[_Sampled]) -> list[CaptureProblem]:
    found = _add_up(
        ((name, value), one.weight)
        for one in sample
        for name in _PROBLEMS
        if (value := getattr(one.row, name)) is not None
    )
    return [
        CaptureProblem(property=name, value=value, inferences=max(1, found[name, value]))
        for name, value in list(found)[:_MOST_PROBLEMS]
    ]

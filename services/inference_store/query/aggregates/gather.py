"""Statements run part by part, and what they say put together: exact, named, bounded."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.query.bounded import Deadline
from inference_store.query.matching import Query

from .budget import Budget
from .by_index import by_label, by_one_key, without_label
from .by_value import bins_of, ends_of, sketch_of, values_lead
from .functions import Sum
from .naming import Naming
from .operand import LABEL, Operand
from .partial import (
    CountedBy,
    Counts,
    Key,
    PartialAggregate,
    PartialSums,
    Wanted,
    select_counts,
    select_sums,
    select_sums_of_bins,
)
from .reading import NOTHING, Build, Reading, StoredRows
from .rows import Dimension, InBins, InTime, Value
from .stored import labels, matching, unlabelled

# What one of the processes may sort in memory: the inferences of one label in one partition.
_SORTING: Final = {"work_mem": "32MB"}
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of one model."""

    registration: Registration
    query: Query


@dataclass(slots=True)
class _Summed:
    """What is held of a group."""

    inferences: int = 0
    sums: dict[Operand, PartialSums] = field(default_factory=dict)

    def add(self, row: Any, wanted: Wanted) -> "_Summed":
        self.inferences += row.n
        for operand, found in _sums_in(row, wanted):
            self.sums.setdefault(operand, PartialSums()).add(*found)
        return self


class PartCollector:
    """The answers of several models and many partitions, as one."""

    def __init__(
        self,
        connection: AsyncConnection,
        targets: Sequence[Target],
        dimensions: Sequence[Dimension],
        deadline: Deadline,
        budget: Budget,
    ) -> None:
        self._targets = targets
        self._dimensions = dimensions
        # A model's id is the same in all its rows: it is put in here.
        self._asked = [each for each in dimensions if not _is_of_model(each)]
        self._reading = Reading(connection, self._asked, deadline, budget)
        self._budget = budget
        self._naming = Naming(connection, [each.query for each in targets], deadline)

    async def collect_sums(self, wanted: Wanted) -> PartialAggregate:
        """The inferences of each group, and sums of properties. Raises TooManyGroups."""
        partial = PartialAggregate(sums={operand: {} for operand in wanted})
        known = None if wanted or self._asked else matching
        for key, found in await self._summed(wanted, "count the groups", known):
            partial.inferences[key] += found.inferences
            for operand, sums in found.sums.items():
                partial.sums[operand][key] = sums
        return partial

    @property
    def is_by_index(self) -> bool:
        """Whether an index alone has all groups."""
        if len(self._asked) != 1 or isinstance(self._asked[0], InTime):
            return False
        by = self._asked[0]
        plain = not any(target.query.conditions for target in self._targets)
        one_key = by.operand.place == "metadata" and not by.operand.many
        return plain and (one_key or by == Value(LABEL))

    async def tally_by_index(self) -> PartialAggregate:
        """The inferences of each group, where `is_by_index`."""
        partial, by = PartialAggregate(), self._asked[0]
        if by == Value(LABEL):
            found = [
                row
                for build, known in ((by_label, labels), (without_label, unlabelled))
                for row in await self._merged(
                    build,
                    _counted,
                    "count by label",
                    as_one=False,
                    settings=_SORTING,
                    stored=known,
                )
            ]
        else:
            found = await self._merged(
                lambda q, here: by_one_key(q, here, by), _counted, "count by one key"
            )
        for key, number in found:
            if number > 0:
                partial.inferences[key] += number
        return partial

    async def sketch(
        self, operand: Operand, sums: frozenset[Sum]
    ) -> tuple[PartialSums, Counter[int]]:
        """How many values there are in each logarithmic bin, and the sums of all: read once.

        Without dimensions."""
        wanted: Wanted = {operand: sums}
        whole, bins = PartialSums(), Counter[int]()
        lead = all(values_lead(each.query, operand) for each in self._targets)
        for key, found in await self._merged(
            _sketching(operand, sums) if lead else _summing_bins(operand, sums),
            lambda held, row: (held or _Summed()).add(row, wanted),
            f"sketch values of {operand.place}",
            also=[None],
            as_one=not lead,
        ):
            bins[key[-1]] = found.inferences
            part = found.sums[operand]
            whole.merge(part)
        return whole, bins

    async def ends(self, operand: Operand) -> PartialSums:
        """The smallest and the largest value, by the ends of an index, or from the sums of all;
        `number` says no more than whether there is any. Without dimensions."""
        wanted: Wanted = {operand: frozenset({"low", "high"})}
        if operand.place == "inference":
            return (await self.collect_sums(wanted)).sums[operand].get((), PartialSums())
        if not all(values_lead(each.query, operand) for each in self._targets) or any(
            each.query.marks for each in self._targets
        ):
            return (await self.sums(wanted)).get((), PartialSums())
        found = await self._merged(
            lambda _, here: ends_of(here.scan_range, operand),
            _widened,
            "find the ends",
            as_one=False,
        )
        return found[0][1] if found else PartialSums()

    async def sums(self, wanted: Wanted) -> dict[Key, PartialSums]:
        """The sums of one name that is no property. Raises TooManyGroups."""
        [operand] = wanted
        found = await self._summed(wanted, f"add up {operand.place}")
        return {key: each.sums[operand] for key, each in found}

    async def counts(self, operand: Operand, value: CountedBy) -> Counts:
        """How often each value, or bin, is in each group. Raises TooManyGroups."""
        found: Counts = {}
        also = [Value(operand) if value == "value" else None]
        lead = value != "value" and not self._asked
        lead = lead and all(values_lead(each.query, operand) for each in self._targets)
        build = _binning(operand, value) if lead else _counting(self._asked, operand, value)
        what = f"count values of {operand.place}"
        for key, number in await self._merged(build, _counted, what, also=also, as_one=not lead):
            found.setdefault(key[:-1], Counter())[key[-1]] += number
        return found

    async def _summed(
        self, wanted: Wanted, what: str, stored: StoredRows | None = None
    ) -> list[tuple[Key, _Summed]]:
        return await self._merged(
            lambda query, here: select_sums(query, here, self._asked, wanted),
            lambda held, row: (held or _Summed()).add(row, wanted),
            what,
            stored=stored,
        )

    async def _merged(
        self,
        build: Build,
        merge: Callable[[Held | None, Any], Held],
        what: str,
        *,
        also: Sequence[Dimension | None] = (),
        as_one: bool = True,
        settings: Mapping[str, str] = NOTHING,
        stored: StoredRows | None = None,
    ) -> list[tuple[Key, Held]]:
        """What is held of each key, of all parts; `also`: what stands behind the groups in a key.
        `as_one`: without conditions the partitions of a group are read as one.

        A key that many partitions and models have is held once.
        """
        held: dict[Key, Held] = {}
        behind = [*self._asked, *also]
        for target in self._targets:
            own = tuple(_own(target, each) for each in self._dimensions if _is_of_model(each))
            async for row in self._reading.rows(
                target.query, build, what, as_one=as_one, settings=settings, stored=stored
            ):
                raw = (own, *row[: len(behind)])
                there = held.get(raw)
                if there is None:
                    self._budget.take()
                held[raw] = merge(there, row)
        for place, dimension in enumerate(behind, 1):
            if isinstance(dimension, Value):
                await self._naming.learn(dimension.operand, {raw[place] for raw in held})
        return [(self._key(raw, also), found) for raw, found in held.items()]

    def _key(self, raw: Key, behind: Sequence[Any]) -> Key:
        own, found = iter(raw[0]), iter(raw[1:])
        key = [
            next(own) if _is_of_model(each) else self._named(each, next(found))
            for each in self._dimensions
        ]
        return (*key, *(self._named(each, next(found)) for each in behind))

    def _named(self, dimension: Any, value: Any) -> Any:
        is_value = isinstance(dimension, Value)
        return self._naming.named(dimension.operand, value) if is_value else value


def _counted(held: int | None, row: Any) -> int:
    return (held or 0) + int(row.n)


def _widened(held: PartialSums | None, row: Any) -> PartialSums:
    found = held or PartialSums()
    found.add(int(row.low is not None), {"low": row.low, "high": row.high})
    return found


def _own(target: Target, dimension: Any) -> Any:
    return getattr(target.registration, dimension.operand.name)


def _counting(asked: Sequence[Dimension], operand: Operand, value: CountedBy) -> Build:
    return lambda query, here: select_counts(query, here, asked, operand, value)


def _binning(operand: Operand, bins: CountedBy) -> Build:
    return lambda query, here: bins_of(query, here, operand, bins)


def _sketching(operand: Operand, sums: frozenset[Sum]) -> Build:
    return lambda query, here: sketch_of(query, here, operand, sums)


def _summing_bins(operand: Operand, sums: frozenset[Sum]) -> Build:
    return lambda query, here: select_sums_of_bins(query, here, operand, sums)


def _is_of_model(dimension: Dimension) -> bool:
    return (
        not isinstance(dimension, InTime | InBins)
        and dimension.operand.place == "inference"
        and dimension.operand.name in {"model_id", "project_id"}
    )


def _sums_in(row: Any, wanted: Wanted) -> Iterator[tuple[Operand, tuple[int, dict[Any, Any]]]]:
    """What a row says of each operand, in the order that `select_sums` writes it."""
    place = row._fields.index("n") + 1
    for operand, sums in wanted.items():
        names = sorted(sums)
        found = dict(zip(names, row[place + 1 :], strict=False))
        yield operand, (row[place], found)
        place += 1 + len(names)

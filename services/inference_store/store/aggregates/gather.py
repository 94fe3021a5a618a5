"""Statements run part by part, and what they say put together: exact, named, bounded."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Select, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.store.queries.bounded import Deadline, fetch
from inference_store.store.queries.matching import Query
from inference_store.store.queries.scope import Scope, around, groups, pieces, unbroken_groups
from inference_store.store.registrations import Registration

from .budget import Budget
from .naming import Naming
from .operand import Operand
from .parts import CountedBy, Counts, Key, Sums, Tally, Wanted, by_one_key, counts_of, sums_of
from .rows import Dimension, InBins, InTime, Value

# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, Scope], Part]
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
    sums: dict[Operand, Sums] = field(default_factory=dict)

    def add(self, row: Any, wanted: Wanted) -> "_Summed":
        self.inferences += row.n
        for operand, found in _sums_in(row, wanted):
            self.sums.setdefault(operand, Sums()).add(*found)
        return self


class Gathering:
    """The answers of several models and many partitions, as one."""

    def __init__(
        self,
        connection: AsyncConnection,
        targets: Sequence[Target],
        dimensions: Sequence[Dimension],
        deadline: Deadline,
        budget: Budget,
    ) -> None:
        self._connection = connection
        self._targets = targets
        self._dimensions = dimensions
        # A model's id is the same in all its rows: it is put in here.
        self._asked = [each for each in dimensions if not _is_of_model(each)]
        self._deadline = deadline
        self._budget = budget
        self._naming = Naming(connection, [each.query for each in targets], deadline)

    async def tally(self, wanted: Wanted) -> Tally:
        """The inferences of each group, and sums of properties. Raises TooManyGroups."""
        tally = Tally(sums={operand: {} for operand in wanted})
        for key, found in await self._summed(wanted, "count the groups"):
            tally.inferences[key] += found.inferences
            for operand, sums in found.sums.items():
                tally.sums[operand][key] = sums
        return tally

    @property
    def is_by_one_key(self) -> bool:
        """Whether one side table has all groups."""
        if len(self._asked) != 1 or isinstance(self._asked[0], InTime):
            return False
        operand = self._asked[0].operand
        plain = not any(target.query.conditions for target in self._targets)
        return plain and operand.place == "metadata" and not operand.many

    async def tally_by_one_key(self) -> Tally:
        """The inferences of each group, where `is_by_one_key`."""
        tally = Tally()
        for key, number in await self._merged(
            lambda q, s: by_one_key(q, s, self._asked[0]), _counted, "count by one key"
        ):
            if number > 0:
                tally.inferences[key] += number
        return tally

    async def sums(self, wanted: Wanted) -> dict[Key, Sums]:
        """The sums of one name that is no property. Raises TooManyGroups."""
        [operand] = wanted
        found = await self._summed(wanted, f"add up {operand.place}")
        return {key: each.sums[operand] for key, each in found}

    async def counts(self, operand: Operand, value: CountedBy) -> Counts:
        """How often each value, or bin, is in each group. Raises TooManyGroups."""
        found: Counts = {}
        also = [Value(operand) if value == "value" else None]
        build = _counting(self._asked, operand, value)
        what = f"count values of {operand.place}"
        for key, number in await self._merged(build, _counted, what, also=also):
            found.setdefault(key[:-1], Counter())[key[-1]] += number
        return found

    async def _summed(self, wanted: Wanted, what: str) -> list[tuple[Key, _Summed]]:
        return await self._merged(
            lambda q, s: sums_of(q, s, self._asked, wanted),
            lambda held, row: (held or _Summed()).add(row, wanted),
            what,
        )

    async def _merged(
        self,
        build: Build,
        merge: Callable[[Held | None, Any], Held],
        what: str,
        *,
        also: Sequence[Dimension | None] = (),
    ) -> list[tuple[Key, Held]]:
        """What is held of each key, of all parts; `also`: what stands behind the groups in a key.

        A key that many partitions and models have is held once.
        """
        held: dict[Key, Held] = {}
        behind = [*self._asked, *also]
        for target in self._targets:
            own = tuple(_own(target, each) for each in self._dimensions if _is_of_model(each))
            async for row in self._of_model(target.query, build, what):
                raw = (own, *row[: len(behind)])
                there = held.get(raw)
                if there is None:
                    self._budget.take()
                held[raw] = merge(there, row)
        for place, dimension in enumerate(behind, 1):
            if isinstance(dimension, Value):
                await self._naming.learn(dimension.operand, {raw[place] for raw in held})
        return [(self._key(raw, also), found) for raw, found in held.items()]

    async def _of_model(self, query: Query, build: Build, what: str) -> AsyncIterator[Any]:
        if query.nothing or query.scope.empty:
            return
        parts = await pieces(self._connection, query.scope, newest_first=True)
        # Without conditions a table's partitions are read as one, by several processes.
        as_one = not query.conditions
        for group in unbroken_groups(parts) if as_one else groups(parts):
            scopes = [around(group)] if as_one else group
            built = [build(query, scope) for scope in scopes]
            async for row in self._fetched(built, what):
                yield row

    async def _fetched(self, built: Sequence[Part], what: str) -> AsyncIterator[Any]:
        """The rows of several parts; where they are many, of one after the other: what is few
        groups may be a row in each part. Raises TooManyGroups where one part has too many."""
        together = (union_all(*built) if len(built) > 1 else built[0]).subquery()
        most = self._budget.most_of_a_part
        statement = select(together).limit(most + 1)
        rows = await fetch(self._connection, statement, self._deadline, workers=WORKERS, what=what)
        if len(rows) <= most:
            for row in rows:
                yield row
            return
        if len(built) == 1:
            raise self._budget.part_too_large()
        del rows  # not held beside those that come now
        for part in built:
            async for row in self._fetched([part], what):
                yield row

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


def _own(target: Target, dimension: Any) -> Any:
    return getattr(target.registration, dimension.operand.name)


def _counting(asked: Sequence[Dimension], operand: Operand, value: CountedBy) -> Build:
    return lambda query, scope: counts_of(query, scope, asked, operand, value)


def _is_of_model(dimension: Dimension) -> bool:
    return (
        not isinstance(dimension, InTime | InBins)
        and dimension.operand.place == "inference"
        and dimension.operand.name in {"model_id", "project_id"}
    )


def _sums_in(row: Any, wanted: Wanted) -> Iterator[tuple[Operand, tuple[int, dict[Any, Any]]]]:
    """What a row says of each operand, in the order that `sums_of` writes it."""
    place = row._fields.index("n") + 1
    for operand, sums in wanted.items():
        names = sorted(sums)
        found = dict(zip(names, row[place + 1 :], strict=False))
        yield operand, (row[place], found)
        place += 1 + len(names)

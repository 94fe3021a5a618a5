"""Statements run part by part, and what they say put together: exact, named, bounded."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Select, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.store.errors import TooManyGroups
from inference_store.store.queries.bounded import Deadline, fetch
from inference_store.store.queries.matching import Query
from inference_store.store.queries.scope import Scope, around, groups, pieces, unbroken_groups
from inference_store.store.registrations import Registration

from .naming import Naming
from .operand import Operand
from .parts import CountedBy, Counts, Key, Sums, Tally, Wanted, by_one_key, counts_of, sums_of
from .rows import Dimension, InBins, InTime, Value

# What is held in memory of one measure: groups, or groups and values.
MOST_ROWS: Final = 100_000
# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, Scope], Part]


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of one model."""

    registration: Registration
    query: Query


class Gathering:
    """The answers of several models and many partitions, as one."""

    def __init__(
        self,
        connection: AsyncConnection,
        targets: Sequence[Target],
        dimensions: Sequence[Dimension],
        deadline: Deadline,
    ) -> None:
        self._connection = connection
        self._targets = targets
        self._dimensions = dimensions
        # A model's id is the same in all its rows: it is put in here.
        self._asked = [each for each in dimensions if not _is_of_model(each)]
        self._deadline = deadline
        self._naming = Naming(connection, [each.query.scope.model for each in targets])

    async def tally(self, wanted: Wanted) -> Tally:
        """The inferences of each group, and sums of properties."""
        tally = Tally(sums={operand: {} for operand in wanted})
        for key, row in await self._rows(lambda q, s: sums_of(q, s, self._asked, wanted)):
            tally.inferences[key] += row.n
            for operand, found in _sums_in(row, wanted):
                tally.sums[operand].setdefault(key, Sums()).add(*found)
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
        for key, row in await self._rows(lambda q, s: by_one_key(q, s, self._asked[0])):
            if row.n > 0:
                tally.inferences[key] += row.n
        return tally

    async def sums(self, wanted: Wanted) -> dict[Key, Sums]:
        """The sums of one name that is no property."""
        found: dict[Key, Sums] = {}
        for key, row in await self._rows(lambda q, s: sums_of(q, s, self._asked, wanted)):
            for _, each in _sums_in(row, wanted):
                found.setdefault(key, Sums()).add(*each)
        return found

    async def counts(self, operand: Operand, value: CountedBy) -> Counts:
        """How often each value, or bin, is in each group. Raises TooManyGroups."""
        found: Counts = {}
        also = [Value(operand) if value == "value" else None]
        build = _counting(self._asked, operand, value)
        for key, row in await self._rows(build, also=also):
            found.setdefault(key[:-1], Counter())[key[-1]] += row.n
        return found

    async def _rows(
        self, build: Build, *, also: Sequence[Dimension | None] = ()
    ) -> list[tuple[Key, Any]]:
        """Every part's rows with their keys; `also`: what stands behind the groups in a key."""
        raw: list[tuple[Target, Any]] = []
        for target in self._targets:
            async for row in self._of_model(target.query, build):
                raw.append((target, row))
                if len(raw) > 2 * MOST_ROWS:
                    raise too_many()
        await self._learn([row for _, row in raw], [*self._asked, *also])
        return [(self._key(target, row, also), row) for target, row in raw]

    async def _of_model(self, query: Query, build: Build) -> Any:
        if query.nothing or query.scope.empty:
            return
        parts = await pieces(self._connection, query.scope, newest_first=True)
        # Without conditions a table's partitions are read as one, by several processes.
        as_one = not query.conditions
        for group in unbroken_groups(parts) if as_one else groups(parts, query.group):
            scopes = [around(group)] if as_one else group
            built = [build(query, scope) for scope in scopes]
            together = (union_all(*built) if len(built) > 1 else built[0]).subquery()
            statement = select(together).limit(MOST_ROWS + 1)
            rows = await fetch(self._connection, statement, self._deadline, workers=WORKERS)
            if len(rows) > MOST_ROWS:
                raise too_many()
            for row in rows:
                yield row

    def _key(self, target: Target, row: Any, behind: Sequence[Any]) -> Key:
        found = iter(range(len(self._asked) + len(behind)))
        key = [
            getattr(target.registration, each.operand.name)  # type: ignore[union-attr]
            if _is_of_model(each)
            else self._named(each, row[next(found)])
            for each in self._dimensions
        ]
        return (*key, *(self._named(each, row[next(found)]) for each in behind))

    def _named(self, dimension: Any, value: Any) -> Any:
        return self._naming.named(dimension.operand, value) if _is_value(dimension) else value

    async def _learn(self, rows: Sequence[Any], dimensions: Sequence[Any]) -> None:
        for place, dimension in enumerate(dimensions):
            if _is_value(dimension):
                await self._naming.learn(dimension.operand, {row[place] for row in rows})


def too_many() -> TooManyGroups:
    """More rows than are held in memory."""
    return TooManyGroups(
        f"There are more than {MOST_ROWS:,} groups, or different values in groups: narrow the"
        " conditions, group by fewer names, or by a histogram."
    )


def _counting(asked: Sequence[Dimension], operand: Operand, value: CountedBy) -> Build:
    return lambda query, scope: counts_of(query, scope, asked, operand, value)


def _is_value(dimension: Any) -> bool:
    return isinstance(dimension, Value)


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

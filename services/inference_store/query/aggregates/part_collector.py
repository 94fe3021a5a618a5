"""Runs statements part by part, and merges their results into exact, named, bounded values."""

from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, TypeVar

from sqlalchemy import ColumnElement, CompoundSelect, Select, any_, func, select, true, union_all
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.long_text import WHOLE_BYTES
from inference_store.index.registrations import Registration
from inference_store.index.tables import label, metadata_string, partition_count
from inference_store.inference.errors import TooManyGroups
from inference_store.query.deadline import (
    GROUP,
    Deadline,
    ScanRange,
    bind_many,
    fetch,
    span_around,
    split_groups,
    split_unbroken,
)
from inference_store.query.driving import (
    DrivingIndex,
    find_candidates,
    group_by_joins,
    settings_for,
)
from inference_store.query.matching import Query, find_pieces
from inference_store.query.stored_counts import read_numbers, read_stored

from .aggregation import LABEL, Operand, Sum
from .bins import exact
from .rows import (
    Counted,
    CountedBy,
    Counts,
    Dimension,
    InBins,
    InTime,
    Key,
    PartialAggregate,
    PartialSums,
    RequestedSums,
    Value,
    by_label,
    by_one_key,
    ends_of,
    select_bins,
    select_groups,
    without_label,
)


class Naming:
    """Converts raw values; labels and long texts are looked up once."""

    def __init__(
        self, connection: AsyncConnection, queries: Sequence[Query], deadline: Deadline
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._deadline = deadline
        self._labels: dict[int, str] = {}
        self._whole: dict[tuple[int, str], str] = {}

    async def learn(self, operand: Operand, values: Collection[Any]) -> None:
        """Look up what `name_value` needs for these values. Raises OutOfTime."""
        there = {value for value in values if value is not None}
        if operand.is_label:
            await self._learn_labels(there - set(self._labels))
        elif operand.source == "metadata" and operand.kind == "string":
            cut = {text for text in there if len(text.encode()) > WHOLE_BYTES}
            if cut:
                await self._learn_whole(operand, cut)

    def name_value(self, operand: Operand, value: Any) -> Any:
        """Return the value to show for a raw one. Labels and long texts must have been learned."""
        if value is None:
            return None
        if operand.is_label:
            return self._labels.get(value)  # None: it was erased since its number was read
        if isinstance(value, str):
            return self._whole.get((operand.key, value), value)
        return exact(value)

    async def _learn_labels(self, numbers: set[int]) -> None:
        if numbers:
            bound_numbers = bind_many(sorted(numbers), INTEGER())
            query = select(label.c.label, label.c.name).where(label.c.label == any_(bound_numbers))
            rows = await self._connection.execute(query)
            self._labels.update({row.label: row.name for row in rows})

    async def _learn_whole(self, operand: Operand, cut: set[str]) -> None:
        missing = {value for value in cut if (operand.key, value) not in self._whole}
        for query in self._queries:
            if not missing:
                return
            parts = await find_pieces(self._connection, query, newest_first=True)
            for group in split_unbroken(parts):
                if missing:
                    statement = _select_whole(span_around(group), operand, missing)
                    rows = await fetch(
                        self._connection, statement, self._deadline, what="read long texts whole"
                    )
                    self._whole.update({(operand.key, row.value): row.whole for row in rows})
                    missing -= {row.value for row in rows}


def _select_whole(scan_range: ScanRange, operand: Operand, cut: set[str]) -> Select[Any]:
    """Select one row for each value, however many inferences have it."""
    table = metadata_string.alias()
    value = func.unnest(bind_many(sorted(cut), TEXT())).column_valued("cut")
    row = select(table.c.whole).where(
        scan_range.of(table),
        table.c.key == operand.key,
        table.c.value == value,
        table.c.whole.is_not(None),
    )
    whole = row.limit(1).lateral()
    return select(value.label("value"), whole.c.whole).join(whole, true())


# The rows of one part's result, at most: groups, or groups and values. All parts: twice as many.
MOST_ROWS: Final = 100_000


@dataclass(slots=True)
class Budget:
    """The rows that may still be held, counted after equal ones were merged."""

    most_of_a_part: int = field(default_factory=lambda: MOST_ROWS)
    remaining: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = 2 * self.most_of_a_part

    def take(self) -> None:
        """Count one more row as held. Raises TooManyGroups."""
        if self.remaining == 0:
            raise TooManyGroups(
                f"The measures have more than {2 * self.most_of_a_part:,} groups, or different"
                " values in groups, together: ask for fewer at once, narrow the conditions, group"
                " by fewer names, or by a histogram."
            )
        self.remaining -= 1

    def part_too_large(self) -> TooManyGroups:
        """Return the error for a part that alone has too many rows."""
        return TooManyGroups(
            f"There are more than {self.most_of_a_part:,} groups, or different values in groups:"
            " narrow the conditions, group by fewer names, or by a histogram."
        )


# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
# Up to this many spans of time are read one by one; with more, each row is tested for its span.
MOST_SPANS_READ: Final = 4 * GROUP
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, DrivingIndex], Part]
StoredRows: TypeAlias = Callable[
    [AsyncConnection, Query, Sequence[ScanRange], Deadline],
    Awaitable[Mapping[ScanRange, Sequence[Any]]],
]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
# Memory for one process's sort: the inferences of one label in one partition.
_SORTING: Final = {"work_mem": "32MB"}
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Target:
    """The aggregation of one model."""

    registration: Registration
    query: Query


@dataclass(slots=True)
class _Summed:
    inferences: int = 0
    sums: dict[Operand, PartialSums] = field(default_factory=dict)

    def add(self, row: Any, requested_sums: RequestedSums) -> "_Summed":
        self.inferences += row.n
        column = row._fields.index("n") + 1
        for operand, sums in requested_sums.items():
            values = dict(zip(sorted(sums), row[column + 1 :], strict=False))
            self.sums.setdefault(operand, PartialSums()).add(row[column], values)
            column += 1 + len(sums)
        return self


class PartCollector:
    """The merged results of several models and many partitions."""

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
        # A model's id is the same in all its rows: it is added here, not read from them.
        self._row_dimensions = [
            dimension for dimension in dimensions if not _is_of_model(dimension)
        ]
        self._connection = connection
        self._deadline = deadline
        self._budget = budget
        self._naming = Naming(connection, [target.query for target in targets], deadline)

    async def collect_sums(self, requested_sums: RequestedSums) -> PartialAggregate:
        """Return the inferences of each group, and sums of properties. Raises TooManyGroups."""
        partial = PartialAggregate(sums={operand: {} for operand in requested_sums})
        stored = None if requested_sums or self._row_dimensions else matching
        for key, group in await self._summed(requested_sums, "count the groups", stored=stored):
            partial.inferences[key] += group.inferences
            for operand, sums in group.sums.items():
                partial.sums[operand][key] = sums
        return partial

    @property
    def is_by_index(self) -> bool:
        """Check whether an index alone answers for all groups."""
        if len(self._row_dimensions) != 1 or isinstance(self._row_dimensions[0], InTime):
            return False
        by = self._row_dimensions[0]
        plain = not any(target.query.conditions for target in self._targets)
        one_key = by.operand.source == "metadata" and not by.operand.many
        return plain and (one_key or by == Value(LABEL))

    async def tally_by_index(self) -> PartialAggregate:
        """Return the inferences of each group, if `is_by_index`."""
        partial, by = PartialAggregate(), self._row_dimensions[0]
        if by == Value(LABEL):
            groups = [
                row
                for build, stored in ((by_label, labels), (without_label, unlabelled))
                for row in await self._merged(
                    build,
                    _counted,
                    "count by label",
                    as_one=False,
                    settings=_SORTING,
                    stored=stored,
                )
            ]
        else:
            groups = await self._merged(
                lambda q, here: by_one_key(q, here, by), _counted, "count by one key"
            )
        for key, number in groups:
            if number > 0:
                partial.inferences[key] += number
        return partial

    async def sketch(
        self, operand: Operand, sums: frozenset[Sum]
    ) -> tuple[PartialSums, Counter[int]]:
        """Return the sums of all values, and the count in each logarithmic bin, read together.

        It is for a collector without dimensions.
        """
        whole, bins = PartialSums(), Counter[int]()
        what = f"sketch values of {operand.source}"
        for key, group in await self._summed({operand: sums}, what, counted=(operand, "sketch")):
            bins[key[-1]] = group.inferences
            whole.merge(group.sums[operand])
        return whole, bins

    async def ends(self, operand: Operand) -> PartialSums:
        """Return the smallest and the largest value, from the ends of an index or from all values.

        `number` says only whether there is any value. It is for a collector without dimensions.
        """
        requested_sums: RequestedSums = {operand: frozenset({"low", "high"})}
        if operand.source == "inference":
            return (await self.collect_sums(requested_sums)).sums[operand].get((), PartialSums())
        if not self._values_lead(operand) or any(target.query.marks for target in self._targets):
            return (await self.sums(requested_sums)).get((), PartialSums())
        groups = await self._merged(
            lambda _, here: ends_of(here.scan_range, operand),
            _widened,
            "find the ends",
            as_one=False,
        )
        return groups[0][1] if groups else PartialSums()

    async def sums(self, requested_sums: RequestedSums) -> dict[Key, PartialSums]:
        """Return the sums of one operand that is not a property. Raises TooManyGroups."""
        [operand] = requested_sums
        groups = await self._summed(requested_sums, f"add up {operand.source}")
        return {key: group.sums[operand] for key, group in groups}

    async def counts(self, operand: Operand, value: CountedBy) -> Counts:
        """Count each value, or bin, in each group. Raises TooManyGroups."""
        counts: Counts = {}
        what = f"count values of {operand.source}"
        for key, number in await self._grouped({}, _counted, what, counted=(operand, value)):
            counts.setdefault(key[:-1], Counter())[key[-1]] += number
        return counts

    async def _summed(
        self,
        requested_sums: RequestedSums,
        what: str,
        *,
        counted: Counted | None = None,
        stored: StoredRows | None = None,
    ) -> list[tuple[Key, _Summed]]:
        def add(held: _Summed | None, row: Any) -> _Summed:
            return (held or _Summed()).add(row, requested_sums)

        return await self._grouped(requested_sums, add, what, counted=counted, stored=stored)

    async def _grouped(
        self,
        requested_sums: RequestedSums,
        merge: Callable[[Held | None, Any], Held],
        what: str,
        *,
        counted: Counted | None,
        stored: StoredRows | None = None,
    ) -> list[tuple[Key, Held]]:
        """Read what `select_groups` selects; bins of an index's values from equal ones."""
        by = self._row_dimensions
        lead = counted is not None and counted[1] != "value" and not by
        lead = lead and counted is not None and self._values_lead(counted[0])

        def build(query: Query, here: DrivingIndex) -> Select[Any]:
            if counted is not None and lead:
                return select_bins(query, here, requested_sums, counted)
            return select_groups(query, here, by, requested_sums, counted)

        also: list[Dimension | None] = []
        if counted is not None:
            also.append(Value(counted[0]) if counted[1] == "value" else None)
        return await self._merged(build, merge, what, also=also, as_one=not lead, stored=stored)

    def _values_lead(self, operand: Operand) -> bool:
        """Check whether an index has all values of the operand, in order."""
        is_number = operand.source == "metadata" and operand.kind == "number"
        return is_number and not any(target.query.conditions for target in self._targets)

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
        """Return the values of each key, merged over all parts.

        `also`: the dimensions after those of the groups in a key. `as_one`: without conditions the
        partitions of a group are read as one. `stored`: returns the rows of parts that need not be
        read. A key of many partitions and models is held once.
        """
        held: dict[Key, Held] = {}
        behind = [*self._row_dimensions, *also]
        for target in self._targets:
            own = tuple(
                getattr(target.registration, by.operand.name)
                for by in self._dimensions
                if _is_of_model(by)
            )
            async for row in self._rows(
                target.query, build, what, as_one=as_one, settings=settings, stored=stored
            ):
                raw = (own, *row[: len(behind)])
                there = held.get(raw)
                if there is None:
                    self._budget.take()
                held[raw] = merge(there, row)
        for column, dimension in enumerate(behind, 1):
            if isinstance(dimension, Value):
                await self._naming.learn(dimension.operand, {raw[column] for raw in held})
        return [(self._key(raw, also), value) for raw, value in held.items()]

    async def _rows(
        self,
        query: Query,
        build: Build,
        what: str,
        *,
        as_one: bool = True,
        settings: Mapping[str, str] = NOTHING,
        stored: StoredRows | None = None,
    ) -> AsyncIterator[Any]:
        """Yield the rows of all parts. Raises TooManyGroups.

        `settings` of Postgres apply if there are no conditions.
        """
        parts = await find_pieces(self._connection, query, newest_first=True)
        if stored is not None:
            stored_rows = await stored(self._connection, query, parts, self._deadline)
            parts = [part for part in parts if part not in stored_rows]
            for rows in stored_rows.values():
                for row in rows:
                    yield row
        if not query.conditions:
            for group in split_unbroken(parts):
                here = self._spans(span_around(group)) if as_one else group
                statements = [
                    partial(build, query, DrivingIndex(scan_range)) for scan_range in here
                ]
                async for row in self._fetched(statements, what, settings, large=False):
                    yield row
            return
        for group in split_groups(parts, query.group):
            for there in group_by_joins(
                await find_candidates(self._connection, query, group, self._deadline)
            ):
                statements = [partial(build, query, leading) for leading in there]
                async for row in self._fetched(
                    statements, what, settings_for(there), large=query.large
                ):
                    yield row

    def _spans(self, scan_range: ScanRange) -> Sequence[ScanRange]:
        """Return the ranges to read at once, by several processes: the spans of time, if they are
        few, so that no row has to be tested for its span."""
        in_time = next(
            (dimension for dimension in self._row_dimensions if isinstance(dimension, InTime)), None
        )
        spans = [scan_range] if in_time is None else in_time.cut(scan_range)
        return spans if len(spans) <= MOST_SPANS_READ else [scan_range]

    async def _fetched(
        self,
        statements: Sequence[Callable[[], Part]],
        what: str,
        settings: Mapping[str, str],
        *,
        large: bool,
    ) -> AsyncIterator[Any]:
        """Yield the rows of several parts, read together, or one by one if they have many rows.

        A few groups may have a row in every part. Raises TooManyGroups if one part has too many.
        """
        if not statements:
            return
        most = self._budget.most_of_a_part
        rows = await fetch(
            self._connection,
            lambda: _together([part() for part in statements], most + 1),
            self._deadline,
            large=large,
            # each process would have hashes of its own, and their memory is meant for one
            workers=0 if "hash_mem_multiplier" in settings else WORKERS,
            what=what,
            settings=settings,
        )
        if len(rows) <= most:
            for row in rows:
                yield row
            return
        if len(statements) == 1:
            raise self._budget.part_too_large()
        del rows  # free them before the parts are read again
        for part in statements:
            async for row in self._fetched([part], what, settings, large=large):
                yield row

    def _key(self, raw: Key, behind: Sequence[Any]) -> Key:
        own, values = iter(raw[0]), iter(raw[1:])
        key = [
            next(own) if _is_of_model(dimension) else self._name_value(dimension, next(values))
            for dimension in self._dimensions
        ]
        return (*key, *(self._name_value(dimension, next(values)) for dimension in behind))

    def _name_value(self, dimension: Any, value: Any) -> Any:
        is_value = isinstance(dimension, Value)
        return self._naming.name_value(dimension.operand, value) if is_value else value


def _together(parts: Sequence[Part], most: int) -> Select[Any]:
    rows = (union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    return select(rows).limit(most)


def _counted(held: int | None, row: Any) -> int:
    return (held or 0) + int(row.n)


def _widened(held: PartialSums | None, row: Any) -> PartialSums:
    ends = held or PartialSums()
    ends.add(int(row.low is not None), {"low": row.low, "high": row.high})
    return ends


def _is_of_model(dimension: Dimension) -> TypeGuard[Value]:
    return (
        not isinstance(dimension, InTime | InBins)
        and dimension.operand.source == "inference"
        and dimension.operand.name in {"model_id", "project_id"}
    )


class Row(NamedTuple):
    """A group and its inferences."""

    g0: int | None
    n: int


def _read_column(column: ColumnElement[Any], rows_of: Callable[[Any], Sequence[Row]]) -> StoredRows:
    """Return what reads a stored column as the rows of a part. Raises OutOfTime."""

    async def read(
        connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
    ) -> Mapping[ScanRange, Sequence[Row]]:
        number = column.label("number")
        stored_rows = await read_stored(connection, [query], parts, [number], deadline)
        return {
            part: rows_of(row.number) for part, row in stored_rows.items() if row.number is not None
        }

    return read


labels = _read_column(
    partition_count.c.labels, lambda of: [Row(int(label), number) for label, number in of.items()]
)
unlabelled = _read_column(partition_count.c.unlabelled, lambda number: [Row(None, number)])


async def matching(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the number of matches in the parts for which it is stored. Raises OutOfTime."""
    numbers = await read_numbers(connection, [query], parts, deadline)
    return {part: [Row(None, number)] for part, number in numbers.items()}

"""Runs statements part by part, and merges their results into exact, named, bounded values."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

from sqlalchemy import BigInteger, ColumnElement, FromClause, Select, any_, cast, func, select, true
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.long_text import WHOLE_BYTES
from inference_store.index.registrations import Registration
from inference_store.index.tables import SIDE_TABLES, label, metadata_string, partition_count
from inference_store.query.aggregates.rows import NOTHING, Budget, Build, PartReader, StoredRows
from inference_store.query.deadline import (
    Deadline,
    ScanRange,
    bind_many,
    fetch,
    find_pieces_of,
    span_around,
    split_unbroken,
)
from inference_store.query.driving import DrivingIndex
from inference_store.query.matching import Query
from inference_store.query.stored_counts import read_numbers, read_stored

from .aggregation import LABEL, Operand, Sum
from .bins import exact
from .rows import (
    CountedBy,
    Counts,
    Dimension,
    InBins,
    InTime,
    Key,
    PartialAggregate,
    PartialSums,
    RequestedSums,
    Rows,
    Value,
    bin_value,
    by_label,
    by_one_key,
    select_counts,
    select_sums,
    select_sums_of_bins,
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
            if query.nothing or query.scan_range.empty or not missing:
                continue
            parts = await find_pieces_of(self._connection, query.scan_range, newest_first=True)
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
        for operand, sums in _sums_in(row, requested_sums):
            self.sums.setdefault(operand, PartialSums()).add(*sums)
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
        self._reader = PartReader(connection, self._row_dimensions, deadline, budget)
        self._budget = budget
        self._naming = Naming(connection, [target.query for target in targets], deadline)

    async def collect_sums(self, requested_sums: RequestedSums) -> PartialAggregate:
        """Return the inferences of each group, and sums of properties. Raises TooManyGroups."""
        partial = PartialAggregate(sums={operand: {} for operand in requested_sums})
        stored = None if requested_sums or self._row_dimensions else matching
        for key, group in await self._summed(requested_sums, "count the groups", stored):
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
        requested_sums: RequestedSums = {operand: sums}
        whole, bins = PartialSums(), Counter[int]()
        lead = all(values_lead(target.query, operand) for target in self._targets)
        select_bins = sketch_of if lead else select_sums_of_bins
        for key, group in await self._merged(
            lambda q, here: select_bins(q, here, operand, sums),
            lambda held, row: (held or _Summed()).add(row, requested_sums),
            f"sketch values of {operand.source}",
            also=[None],
            as_one=not lead,
        ):
            bins[key[-1]] = group.inferences
            part = group.sums[operand]
            whole.merge(part)
        return whole, bins

    async def ends(self, operand: Operand) -> PartialSums:
        """Return the smallest and the largest value, from the ends of an index or from all values.

        `number` says only whether there is any value. It is for a collector without dimensions.
        """
        requested_sums: RequestedSums = {operand: frozenset({"low", "high"})}
        if operand.source == "inference":
            return (await self.collect_sums(requested_sums)).sums[operand].get((), PartialSums())
        if not all(values_lead(target.query, operand) for target in self._targets) or any(
            target.query.marks for target in self._targets
        ):
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
        also = [Value(operand) if value == "value" else None]
        lead = value != "value" and not self._row_dimensions
        lead = lead and all(values_lead(target.query, operand) for target in self._targets)

        def build(query: Query, here: DrivingIndex) -> Select[Any]:
            if lead:
                return bins_of(query, here, operand, value)
            return select_counts(query, here, self._row_dimensions, operand, value)

        what = f"count values of {operand.source}"
        for key, number in await self._merged(build, _counted, what, also=also, as_one=not lead):
            counts.setdefault(key[:-1], Counter())[key[-1]] += number
        return counts

    async def _summed(
        self, requested_sums: RequestedSums, what: str, stored: StoredRows | None = None
    ) -> list[tuple[Key, _Summed]]:
        return await self._merged(
            lambda query, here: select_sums(query, here, self._row_dimensions, requested_sums),
            lambda held, row: (held or _Summed()).add(row, requested_sums),
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
        """Return the values of each key, merged over all parts.

        `also`: the dimensions after those of the groups in a key. `as_one`: without conditions the
        partitions of a group are read as one. A key of many partitions and models is held once.
        """
        held: dict[Key, Held] = {}
        behind = [*self._row_dimensions, *also]
        for target in self._targets:
            own = tuple(
                getattr(target.registration, by.operand.name)
                for by in self._dimensions
                if _is_of_model(by)
            )
            async for row in self._reader.rows(
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


def _sums_in(
    row: Any, requested_sums: RequestedSums
) -> Iterator[tuple[Operand, tuple[int, dict[Any, Any]]]]:
    column = row._fields.index("n") + 1
    for operand, sums in requested_sums.items():
        names = sorted(sums)
        values = dict(zip(names, row[column + 1 :], strict=False))
        yield operand, (row[column], values)
        column += 1 + len(names)


class Row(NamedTuple):
    """A group and its inferences."""

    g0: int | None
    n: int


async def labels(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the inferences of each label, as by_index.by_label counts them. Raises OutOfTime."""
    stored_rows = await read_stored(
        connection, [query], parts, [partition_count.c.labels], deadline
    )
    return {
        part: [Row(int(label), number) for label, number in row.labels.items()]
        for part, row in stored_rows.items()
        if row.labels is not None
    }


async def unlabelled(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the inferences without a labelled prediction. Raises OutOfTime."""
    stored_rows = await read_stored(
        connection, [query], parts, [partition_count.c.unlabelled], deadline
    )
    return {part: [Row(None, row.unlabelled)] for part, row in stored_rows.items()}


async def matching(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Mapping[ScanRange, Sequence[Row]]:
    """Return the number of matches in the parts for which it is stored. Raises OutOfTime."""
    numbers = await read_numbers(connection, [query], parts, deadline)
    return {part: [Row(None, number)] for part, number in numbers.items()}


# Bins of a metadata number over all inferences: the index has equal numbers together.
#
# So equal numbers are counted first, and each different number is then processed once.


def values_lead(query: Query, operand: Operand) -> bool:
    """Check whether an index has all values of the operand for the query, in order."""
    return not query.conditions and operand.source == "metadata" and operand.kind == "number"


def bins_of(query: Query, here: DrivingIndex, operand: Operand, bins: CountedBy) -> Select[Any]:
    """Count the values in each bin."""
    values = _values(query, here, operand)
    group = bin_value(operand, values.c.g0, bins).label("g0")
    return select(group, _as_whole(values.c.n).label("n")).group_by(group)


def sketch_of(
    query: Query, here: DrivingIndex, operand: Operand, sums: AbstractSet[Sum]
) -> Select[Any]:
    """Select the sums of the values in each logarithmic bin, in the order of `select_sums`."""
    values = _values(query, here, operand)
    value, n = values.c.g0, values.c.n
    group = bin_value(operand, value, "sketch").label("g0")
    sums_by_name = {
        "low": func.min(value),
        "high": func.max(value),
        "total": func.sum(value * n),
        "squares": func.sum(value * value * n),
    }
    columns = [
        _as_whole(n).label("n"),
        _as_whole(n),
        *(sums_by_name[name] for name in sorted(sums)),
    ]
    return select(group, *columns).group_by(group)


def ends_of(scan_range: ScanRange, operand: Operand) -> Select[Any]:
    """Select the smallest and the largest value, at the ends of an index; NULL if there is none."""
    row = SIDE_TABLES[operand.kind]
    value = row.c.value
    ends = select(func.min(value).label("low"), func.max(value).label("high"))
    return ends.where(scan_range.of(row), row.c.key == operand.key)


def _values(query: Query, here: DrivingIndex, operand: Operand) -> FromClause:
    rows = Rows(query, here, operand)
    value = rows.measured(operand).c.value
    return rows.grouped([value], [func.count().label("n")]).subquery()


def _as_whole(number: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.sum(number), BigInteger())

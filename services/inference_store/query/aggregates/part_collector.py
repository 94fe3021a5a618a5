"""Runs statements part by part, and merges their results into exact, named, bounded values."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from sqlalchemy import CompoundSelect, Select, any_, func, select, true, union_all
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.long_text import WHOLE_BYTES
from inference_store.index.registrations import Registration
from inference_store.index.tables import label, metadata_string, partition_count
from inference_store.inference.errors import TooManyGroups
from inference_store.query.deadline import (
    Deadline,
    ScanRange,
    bind_many,
    fetch,
    leave_out,
    read_each,
    span_around,
    split_unbroken,
)
from inference_store.query.plan import (
    Plan,
    Query,
    find_pieces,
    iterate_plans,
    settings_for,
    split_models,
)
from inference_store.query.stored_counts import Number, choose_column, read_stored

from .aggregation import LABEL, Operand
from .bins import exact
from .rows import (
    Counted,
    Dimension,
    Groups,
    InBins,
    InTime,
    Key,
    PartialSums,
    RequestedSums,
    Summed,
    Value,
    by_label,
    by_one_key,
    ends_of,
    merge_sums,
    select_bins,
    select_first,
    select_groups,
    without_label,
)


class Naming:
    """Converts raw values; labels and long texts are looked up once."""

    def __init__(self, connection: AsyncConnection, query: Query, deadline: Deadline) -> None:
        self._connection = connection
        self._query = query
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
        for query in await split_models(self._connection, self._query):
            parts = await find_pieces(self._connection, query) if missing else ()
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
    rows = select(value.label("value"), whole.c.whole).join(whole, true())
    selected: Select[Any] = read_each(scan_range, rows)
    return selected


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


# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, Plan], Part]
# Memory for one process's sort: the inferences of one label in one partition.
_SORTING: Final[Mapping[str, str]] = MappingProxyType({"work_mem": "32MB"})


@dataclass(frozen=True, slots=True)
class Reading:
    """The statement of a part, and how the parts are read if there are no conditions."""

    build: Build
    what: str
    as_one: bool = True
    """Whether the partitions of a group are read as one."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Postgres."""
    stored: Callable[[Query], Number | None] = lambda _: None
    """Returns the stored column that has its rows; parts with a valid one are not read."""
    limit: int | None = None
    """The first rows by their value that are enough, of several models too."""


class PartCollector:
    """The merged results of one model or several and of many partitions."""

    def __init__(  # noqa: PLR0917
        self,
        connection: AsyncConnection,
        models: Mapping[int, Registration],
        query: Query,
        dimensions: Sequence[Dimension],
        deadline: Deadline,
        budget: Budget,
    ) -> None:
        self._models = models
        self._query = query
        self._dimensions = dimensions
        # A model's id is the same in all its rows: it is added here, not read from them.
        self._of_model = [by.operand.name for by in dimensions if _is_of_model(by)]
        self._row_dimensions = [
            dimension for dimension in dimensions if not _is_of_model(dimension)
        ]
        self._connection = connection
        self._deadline = deadline
        self._budget = budget
        self._naming = Naming(connection, query, deadline)

    async def collect(
        self, requested_sums: RequestedSums, *, counted: Counted | None = None
    ) -> Groups:
        """Return what `select_groups` selects; a counted value or bin is the last of a key.

        Raises TooManyGroups.
        """
        if counted is None and not requested_sums:
            return await self._read(self._choose_counts())
        by, sums = self._row_dimensions, requested_sums
        if counted is None:
            build = partial(select_groups, groups=by, requested_sums=sums)
            sources = {operand.source for operand in sums} - {"inference"}
            what = f"add up {sources.pop()}" if sources else "count the groups"
            return await self._read([Reading(build, what)], sums)
        operand, value = counted
        what = f"count values of {operand.source}"
        also = Value(operand) if value == "value" else None
        if also is None and not by and self._values_lead(operand):
            # bins of an index's values from equal ones
            build = partial(select_bins, requested_sums=sums, counted=counted)
            return await self._read([Reading(build, what, as_one=False)], sums, [also])
        build = partial(select_groups, groups=by, requested_sums=sums, counted=counted)
        return await self._read([Reading(build, what)], sums, [also])

    def _choose_counts(self) -> Sequence[Reading]:
        """Return what counts the inferences of each group; of a label or key, from an index."""
        by, what = self._row_dimensions, "count the groups"
        first = by[0] if len(by) == 1 and not self._query.conditions else None
        if first == Value(LABEL):
            own = partition_count.c
            how: dict[str, Any] = {"what": "count by label", "as_one": False, "settings": _SORTING}
            return [
                Reading(by_label, stored=lambda _: own.labels, **how),
                Reading(without_label, stored=lambda _: own.unlabelled, **how),
            ]
        if isinstance(first, Value | InBins):
            operand = first.operand
            if operand.source == "metadata" and not operand.many:
                return [Reading(partial(by_one_key, dimension=first), "count by one key")]
        build = partial(select_groups, groups=by, requested_sums={})
        return [Reading(build, what) if by else Reading(build, what, stored=choose_column)]

    async def ends(self, operand: Operand) -> PartialSums:
        """Return the smallest and the largest value, from the ends of an index or from all values.

        `number` says only whether there is any value. It is for a collector without dimensions.
        """
        sums: RequestedSums = {operand: frozenset({"low", "high"})}
        if self._values_lead(operand) and not self._query.marks:
            build = partial(ends_of, operand=operand)
            groups = await self._read([Reading(build, "find the ends", as_one=False)], sums)
        else:
            groups = await self.collect(sums)
        return groups[()].sums[operand] if groups else PartialSums()

    async def first(self, operand: Operand, prefix: str, limit: int) -> Groups:
        """Return the first values of a key that begin with the prefix: up to `limit` of each part.

        It is for a collector without dimensions.
        """
        build = partial(select_first, operand=operand, prefix=prefix, limit=limit)
        reading = Reading(build, "read the first values", limit=limit)
        return await self._read([reading], also=[Value(operand)])

    def _values_lead(self, operand: Operand) -> bool:
        """Check whether an index has all values of the operand, in order."""
        is_number = operand.source == "metadata" and operand.kind == "number"
        return is_number and not self._query.conditions

    async def _read(
        self,
        readings: Sequence[Reading],
        requested_sums: RequestedSums = MappingProxyType({}),
        also: Sequence[Dimension | None] = (),
    ) -> Groups:
        """Return the groups with any inference, merged over all parts.

        `also`: the dimensions after those of the groups in a key. A key of many partitions and
        models is held once.
        """
        held: Groups = {}
        behind = [*self._row_dimensions, *also]
        for query in await split_models(self._connection, self._query):
            for reading in readings:
                merge = partial(self._merge_models, len(behind), requested_sums)
                async for model, row in self._rows(query, reading, merge):
                    of = self._models[query.scan_range.model if model is None else model]
                    own = tuple(getattr(of, name) for name in self._of_model)
                    begin = row._fields.index("n") - len(behind)
                    raw = (own, *row[begin : begin + len(behind)])
                    if raw not in held:
                        self._budget.take()
                        held[raw] = Summed()
                    held[raw].add(row, requested_sums)
        for column, dimension in enumerate(behind, 1):
            if isinstance(dimension, Value):
                await self._naming.learn(dimension.operand, {raw[column] for raw in held})
        groups: Groups = {}
        for raw, group in held.items():
            key = self._key(raw, also)
            if group.inferences <= 0:
                continue
            if key in groups:
                groups[key].merge(group)
            else:
                groups[key] = group
        return groups

    def _merge_models(
        self, groups: int, requested_sums: RequestedSums, scan_range: ScanRange, part: Part
    ) -> Any:
        """Select the rows of a part; of several models those of all together, unless they are
        groups: then behind the model."""
        if not scan_range.is_of_several:
            return part
        model, *columns = read_each(scan_range, part).subquery().c
        names = ["n"]
        for sums in requested_sums.values():
            names += ["n", *sorted(sums)]
        by = [*([model] if self._of_model else ()), *columns[:groups]]
        merged = zip(names, columns[groups:], strict=True)
        return select(*by, *(merge_sums(*one) for one in merged)).group_by(*by)

    async def _rows(
        self, query: Query, reading: Reading, merge: Callable[[ScanRange, Part], Part]
    ) -> AsyncIterator[tuple[int | None, Any]]:
        """Yield the rows of all parts, each with its model if it matters which of several it is.
        Raises TooManyGroups."""
        parts = await find_pieces(self._connection, query)
        column = reading.stored(query)
        if column is not None:
            stored = await read_stored(self._connection, query, parts, column, self._deadline)
            parts = leave_out(parts, stored)
            for part, number in stored.items():
                numbers = number if isinstance(number, Mapping) else {None: number}
                for group, n in numbers.items():
                    yield part.model, Row(None if group is None else int(group), n)
        what = reading.what
        is_named = query.scan_range.is_of_several and bool(self._of_model)

        def build(piece: Plan) -> Part:
            rows = merge(piece.scan_range, reading.build(query, piece))
            is_several = piece.scan_range.is_of_several and isinstance(rows, Select)
            if reading.limit is not None and is_several:
                return rows.order_by(rows.selected_columns[0]).limit(reading.limit)
            return rows

        if not query.conditions:
            for run in split_unbroken(parts):
                here = [span_around(run)] if reading.as_one else run
                statements = [partial(build, Plan(scan_range)) for scan_range in here]
                async for row in self._fetched(statements, what, reading.settings, large=False):
                    yield (row[0] if is_named else None), row
            return
        async for pieces in iterate_plans(self._connection, query, parts, self._deadline):
            statements = [partial(build, leading) for leading in pieces]
            async for row in self._fetched(
                statements, what, settings_for(pieces), large=query.large
            ):
                yield (row[0] if is_named else None), row

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
            raise TooManyGroups(
                f"There are more than {most:,} groups, or different values in groups: narrow the"
                " conditions, group by fewer names, or by a histogram."
            )
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


def _is_of_model(dimension: Dimension) -> TypeGuard[Value]:
    return (
        not isinstance(dimension, InTime | InBins)
        and dimension.operand.source == "inference"
        and dimension.operand.name in {"model_id", "project_id"}
    )


class Row(NamedTuple):
    """A group and its inferences, of a stored count."""

    g0: int | None
    n: int

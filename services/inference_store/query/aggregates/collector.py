"""Runs statements part by part, and merges their results into exact, named, bounded values."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

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

from .bins import exact
from .operands import LABEL, Operand
from .statement import (
    NUMBER,
    By,
    Column,
    Dimension,
    Key,
    Statement,
    count_unlabelled,
    merge,
    merge_in_sql,
)

Sums: TypeAlias = dict[Column, Any]
Groups: TypeAlias = dict[Key, Sums]
Counts: TypeAlias = dict[Key, Counter[Any]]
"""How many there are of each value or bin, by group."""
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
_Row: TypeAlias = tuple[int, Key, Sequence[Any]]
"""A model, a key, and the columns."""

# The rows of one part's result, at most: groups, or groups and values. All parts: twice as many.
MOST_ROWS: Final = 100_000
# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
# Memory for one process's sort: the inferences of one label in one partition.
_SORTING: Final = {"work_mem": "32MB"}
# Tables that are all read, partition by partition, in the order of uids that their indexes have:
# it takes half as long as hashes of millions of uids.
_IN_ORDER: Final = {"enable_partitionwise_join": "on", "enable_hashjoin": "off", **_SORTING}


class _Reading(NamedTuple):
    """How a part is read, and the stored column that has its rows, if any."""

    build: Callable[[Query, Plan], Part]
    what: str
    stored: Number | None = None
    settings: Mapping[str, str] = {}
    is_apart: bool = False
    """Whether each partition is read by itself, in the order of its index."""


class Collector:
    """Reads what is asked of one model or several, and of many partitions."""

    def __init__(
        self,
        connection: AsyncConnection,
        models: Mapping[int, Registration],
        query: Query,
        deadline: Deadline,
    ) -> None:
        self.connection, self.query, self.deadline = connection, query, deadline
        self._models = models
        self._most = MOST_ROWS
        self._held = 0
        self._counts: dict[tuple[Operand | None, By | None], Counts] = {}
        # of labels and of long texts, which are looked up once
        self._names: dict[tuple[Operand, Any], Any] = {}

    async def collect(self, statement: Statement) -> Groups:
        """Return the columns of each group that has any rows, merged over all parts.

        A key of many partitions and models is held once. Raises TooManyGroups, OutOfTime.
        """
        columns, held = statement.columns, dict[Key, list[Any]]()
        of_rows = statement.of_rows
        async for model, raw, values in self._read(of_rows, by_model=of_rows != statement):
            key, of = raw, iter(raw)
            if of_rows != statement:
                groups_of = [
                    getattr(self._models[model], by.operand.name) if by.is_of_model else next(of)
                    for by in statement.groups
                ]
                key = (*groups_of, *of)
            if key not in held:
                self._held += 1
                held[key] = [None] * len(columns)
            held[key] = list(map(merge, columns, held[key], values))
            if self._held > 2 * self._most:
                raise TooManyGroups(
                    f"The measures have more than {2 * self._most:,} groups, or different values in"
                    " groups, together: ask for fewer at once, narrow the conditions, group by"
                    " fewer names, or by a histogram."
                )
        for place, dimension in enumerate(statement.dimensions):
            await self._learn(dimension, {key[place] for key in held})
        groups: Groups = {}
        for raw, sums in held.items():
            if columns[0].sum == "number" and (sums[0] or 0) <= 0:
                continue
            named = zip(statement.dimensions, raw, strict=True)
            key = tuple(self._show(dimension, value) for dimension, value in named)
            add_sums(groups, key, dict(zip(columns, sums, strict=True)))
        return groups

    async def add_up(self, statement: Statement) -> Groups:
        """Return the columns of the groups, within which values or bins are counted for `count`."""
        sums: Groups = {}
        counts: Counts = {}
        number = len(statement.groups)
        for key, of in (await self.collect(statement)).items():
            if key[number:]:
                counts.setdefault(key[:number], Counter())[key[-1]] = of.pop(NUMBER)
            add_sums(sums, key[:number], of)
        self._counts[statement.leads, statement.counts] = counts
        return sums

    async def count(self, statement: Statement) -> Counts:
        """Return how many there are of each value or bin, which several measures may need: they are
        read once."""
        what = statement.leads, statement.counts
        if what not in self._counts:
            await self.add_up(statement)
        return self._counts[what]

    def _choose_readings(self, statement: Statement) -> list[_Reading]:
        """Return how to read it: inferences by one label or key, or all, from an index alone."""
        asked, operand, what = Statement(statement.groups), statement.leads, "count the groups"
        if not self.query.conditions:
            labels, own = Statement(leads=LABEL, counts="value"), partition_count.c
            how = "count by label", own.labels, _SORTING
            by_label = _Reading(labels.build, *how, is_apart=True)
            match statement.groups:
                case () if statement == labels:
                    return [by_label]
                case (Dimension(of, "value"),) if statement == asked and of == LABEL:
                    return [by_label, _Reading(count_unlabelled, how[0], own.unlabelled)]
                case (Dimension(of, by),) if statement == asked and of.is_single_key:
                    build_all = Statement(leads=of, counts=by).build_with_rest
                    return [_Reading(build_all, "count by one key")]
        if statement == asked:
            stored = None if statement.groups else choose_column(self.query)
            return [_Reading(statement.build, what, stored)]
        if statement.limit is not None:
            return [_Reading(statement.build, "read the first values")]
        if operand is not None and operand.source != "inference":
            verb = "add up" if statement.counts is None else "count values of"
            what = f"{verb} {operand.source}"
        is_apart = statement.has_equal(self.query)
        joined = operand is not None and operand.rows is not None and not self.query.conditions
        settings = _IN_ORDER if joined else {}
        return [_Reading(statement.build, what, settings=settings, is_apart=is_apart)]

    async def _read(self, statement: Statement, *, by_model: bool) -> AsyncIterator[_Row]:
        """Yield the rows of all parts, each with its model if it matters which of several it is."""
        number = len(statement.dimensions)
        for query in await split_models(self.connection, self.query):
            is_named = by_model and query.scan_range.is_of_several
            for reading in self._choose_readings(statement):
                parts = await find_pieces(self.connection, query)
                if reading.stored is not None:
                    how = query, parts, reading.stored, self.deadline
                    stored = await read_stored(self.connection, *how)
                    parts = leave_out(parts, stored)
                    for row in _list_stored(stored, number):
                        yield row
                merge_rows = partial(_merge_models, statement, by_model)
                async for pieces in self._choose_pieces(query, reading, parts):
                    async for row in self._read_pieces(query, reading, pieces, merge_rows):
                        model, own = row[0] if is_named else query.scan_range.model, row[is_named:]
                        yield model, tuple(own[:number]), own[number:]

    async def _choose_pieces(
        self, query: Query, reading: _Reading, parts: Sequence[ScanRange]
    ) -> AsyncIterator[Sequence[Plan]]:
        """Yield what one statement reads."""
        if query.conditions:
            async for pieces in iterate_plans(self.connection, query, parts, self.deadline):
                yield pieces
            return
        for run in split_unbroken(parts):
            yield list(map(Plan, run if reading.is_apart else [span_around(run)]))

    async def _read_pieces(
        self,
        query: Query,
        reading: _Reading,
        pieces: Sequence[Plan],
        merge_rows: Callable[[ScanRange, Part], Part],
    ) -> AsyncIterator[Any]:
        """Yield the rows of several pieces, read together, or one by one if they have many rows.

        A few groups may have a row in every part. Raises TooManyGroups if one part has too many.
        """
        settings = {**settings_for(pieces), **reading.settings}

        def build() -> Select[Any]:
            parts = [merge_rows(one.scan_range, reading.build(query, one)) for one in pieces]
            return _together(parts, self._most + 1)

        rows = await fetch(
            self.connection,
            build,
            self.deadline,
            large=query.large,
            # each process would have hashes of its own, and their memory is meant for one
            workers=0 if "hash_mem_multiplier" in settings else WORKERS,
            what=reading.what,
            settings=settings,
        )
        if len(rows) <= self._most:
            for row in rows:
                yield row
            return
        if len(pieces) == 1:
            raise TooManyGroups(
                f"There are more than {self._most:,} groups, or different values in groups: narrow"
                " the conditions, group by fewer names, or by a histogram."
            )
        del rows  # free them before the parts are read again
        for piece in pieces:
            async for row in self._read_pieces(query, reading, [piece], merge_rows):
                yield row

    async def _learn(self, dimension: Dimension, values: Collection[Any]) -> None:
        """Look up the names of labels, and long texts whole."""
        operand = dimension.operand
        new = {one for one in values if one is not None and (operand, one) not in self._names}
        if operand.is_label and dimension.by == "value":
            names = await read_label_names(self.connection, new)
            # None: it was erased since its number was read
            self._names |= {(operand, number): names.get(number) for number in new}
        elif operand.source == "metadata" and operand.kind == "string":
            cut = {text for text in new if len(text.encode()) > WHOLE_BYTES}
            for query in await split_models(self.connection, self.query) if cut else ():
                for run in split_unbroken(await find_pieces(self.connection, query)):
                    if cut:
                        select_whole = _select_whole(span_around(run), operand, cut)
                        how = self.connection, select_whole, self.deadline
                        for row in await fetch(*how, what="read long texts whole"):
                            self._names[operand, row.value] = row.whole
                            cut.discard(row.value)

    def _show(self, dimension: Dimension, value: Any) -> Any:
        if value is None or dimension.by != "value":
            return value
        key = (dimension.operand, value)
        return self._names[key] if key in self._names else exact(value)


def add_sums(groups: Groups, key: Key, sums: Mapping[Column, Any]) -> None:
    """Add the sums of another part to a group."""
    into = groups.setdefault(key, {})
    for column, value in sums.items():
        into[column] = merge(column, into.get(column), value)


async def read_label_names(connection: AsyncConnection, numbers: Collection[int]) -> dict[int, str]:
    """Return the names of labels."""
    if not numbers:
        return {}
    query = select(label.c.label, label.c.name).where(
        label.c.label == any_(bind_many(sorted(numbers), INTEGER()))
    )
    return {row.label: row.name for row in await connection.execute(query)}


def _list_stored(stored: Mapping[ScanRange, Any], number: int) -> Iterator[_Row]:
    """Yield stored counts, of no value or of each."""
    for part, counts in stored.items():
        if isinstance(counts, Mapping):
            yield from ((part.model, (int(group),), [n]) for group, n in counts.items())
        else:
            yield part.model, (None,) * number, [counts]


def _together(parts: Sequence[Part], most: int) -> Select[Any]:
    rows = (union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    return select(rows).limit(most)


def _merge_models(statement: Statement, by_model: bool, scan_range: ScanRange, rows: Part) -> Any:
    """Select the rows of a part; of several models those of all together, unless they are groups:
    then behind the model."""
    if not scan_range.is_of_several:
        return rows
    model, *columns = read_each(scan_range, rows).subquery().c
    number = len(statement.dimensions)
    by = [*([model] if by_model else ()), *columns[:number]]
    sums = map(merge_in_sql, statement.columns, columns[number:])
    merged = select(*by, *sums).group_by(*by)
    if statement.limit is None:
        return merged
    return select(merged.order_by(by[0]).limit(statement.limit).subquery())


def _select_whole(scan_range: ScanRange, operand: Operand, cut: Collection[str]) -> Select[Any]:
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

"""The integers that stand for metadata keys and labels.

They are resolved before the batch, in transactions of their own: read first, insert only missing
ones (ON CONFLICT uses up identity values). A crash leaves a name that nothing uses yet.

Names that no row of a model has any more are removed: they repeat what was erased. `filter_unused`
reads without a lock. `remove_unused` takes two locks, in this order, and reads again: the lock on
the registration, which every writer of rows shares, so that no row appears between the check and
the removal; then the lock for adding names. After a crash the next call finds the names. An integer
is never used twice: once a writer shares the first lock, it calls `has_names`, and resolves again
the names that were removed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    TEXT,
    Column,
    ColumnElement,
    Integer,
    Table,
    any_,
    func,
    insert,
    literal,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from . import key_registry
from .tables import (
    SIDE_TABLES,
    label,
    metadata_key,
    metadata_presence,
    model_key,
    model_label,
    prediction,
    registration,
    truth,
)

_LOCK = 7_302_013
_MOST_CACHED = 500_000


@dataclass(frozen=True, slots=True)
class NameKind:
    """Keys, or labels: their table, their use by models, and what their column is called.

    `next_in_index`: of each table whose rows have one, what follows it in an index.
    """

    table: Table
    used: Table
    column: str
    next_in_index: tuple[Column[Any], ...]


KEYS: Final = NameKind(
    metadata_key,
    model_key,
    "key",
    (*(table.c.value for table in SIDE_TABLES.values()), metadata_presence.c.uid),
)
LABELS: Final = NameKind(label, model_label, "label", (prediction.c.score, truth.c.uid))


@dataclass(slots=True)
class Names:
    """One kind of name, as far as it is cached."""

    kind: NameKind
    most_per_model: int
    numbers: dict[str, int] = field(default_factory=dict)
    by_model: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def number(self, model: int, name: str) -> int | None:
        """Return the name's integer, or None if the model may not use it (its cap is reached)."""
        number = self.numbers.get(name)
        return number if number in self.by_model[model] else None

    def forget(self) -> None:
        """Clear the cache; this only costs another read."""
        self.numbers.clear()
        self.by_model.clear()


class Dictionary:
    """Keys and labels by name, cached; `resolve` creates missing ones."""

    def __init__(
        self, engine: AsyncEngine, *, most_keys: int = 10_000, most_labels: int = 100_000
    ) -> None:
        self._engine = engine
        self.keys = Names(KEYS, most_keys)
        self.labels = Names(LABELS, most_labels)
        self._several: set[str] = set()
        # Tasks share the cache: one that reads an older state must not put it over a newer one.
        self._making = asyncio.Lock()

    async def has_names(
        self,
        connection: AsyncConnection,
        keys: Mapping[int, Iterable[str]],
        labels: Mapping[int, Iterable[str]],
    ) -> bool:
        """Check whether every name that a model may use is resolved and exists; if not, resolve
        them again.

        They exist until the transaction ends, if it keeps the models' registrations; another task
        may empty the cache as soon as this one waits for something.
        """
        whole = True
        for names, by_model in ((self.keys, keys), (self.labels, labels)):
            used = _collect_numbers(names, by_model)
            present = await _find_present(connection, names.kind, used) if used else set()
            for model, number in used - present:
                names.by_model[model].discard(number)
            whole &= _is_whole(names, by_model) and used == _collect_numbers(names, by_model)
        return whole

    def forget(self, model: int) -> None:
        """Clear the cache of a model; this only costs another read."""
        self.keys.by_model.pop(model, None)
        self.labels.by_model.pop(model, None)

    async def resolve(
        self,
        keys: Mapping[int, Iterable[str]],
        labels: Mapping[int, Iterable[str]],
        several: Collection[str] = (),
    ) -> None:
        """Look up or create every name that a model uses, as far as the model's cap allows.

        `several`: keys of which an inference has several values. It is recorded before they are
        stored, because queries of other keys look for one value alone.
        """
        for names, names_by_model in ((self.keys, keys), (self.labels, labels)):
            if len(names.numbers) > _MOST_CACHED:
                names.forget()
            missing = {
                model: unknown
                for model, used in names_by_model.items()
                if (unknown := {name for name in used if names.number(model, name) is None})
            }
            if missing:
                await self._make(names, missing)
                self._several.difference_update(*missing.values())
        new = set(several) - self._several
        if new:
            here = metadata_key.c
            listed = here.name == any_(literal(sorted(new), ARRAY(TEXT)))
            async with self._engine.begin() as connection:
                changed = metadata_key.update().where(listed, ~here.several)
                await connection.execute(changed.values(several=True))
            self._several |= new

    async def _make(self, names: Names, missing: Mapping[int, set[str]]) -> None:
        try:
            async with self._making, self._engine.begin() as connection:
                for model, new_names in missing.items():
                    await _make_of_model(connection, names, model, new_names)
        except BaseException:
            names.forget()  # what was cached inside may have been rolled back
            raise


def _collect_numbers(names: Names, by_model: Mapping[int, Iterable[str]]) -> set[tuple[int, int]]:
    used = ((model, name) for model, wanted in by_model.items() for name in wanted)
    numbers = ((model, names.number(model, name)) for model, name in used)
    return {(model, number) for model, number in numbers if number is not None}


def _is_whole(names: Names, by_model: Mapping[int, Iterable[str]]) -> bool:
    """Check whether only a cap explains that a model's name has no number."""
    return all(
        len(names.by_model[model]) >= names.most_per_model
        or all(names.number(model, name) is not None for name in wanted)
        for model, wanted in by_model.items()
    )


async def _find_present(
    connection: AsyncConnection, kind: NameKind, used: Collection[tuple[int, int]]
) -> set[tuple[int, int]]:
    pairs = (_array(numbers) for numbers in zip(*used, strict=True))
    wanted = func.unnest(*pairs).table_valued("model", "number", name="wanted").render_derived().c
    number = kind.used.c[kind.column]
    same = (kind.used.c.model == wanted.model, number == wanted.number)
    rows = await connection.execute(select(kind.used.c.model, number).where(*same))
    return {(row[0], row[1]) for row in rows}


async def _make_of_model(
    connection: AsyncConnection, names: Names, model: int, new_names: set[str]
) -> None:
    await _load(connection, names, model, new_names)
    unused = {name for name in new_names if names.number(model, name) is None}
    room = names.most_per_model - len(names.by_model[model])
    if unused and room > 0:
        await _add(connection, names, model, unused)


async def _load(
    connection: AsyncConnection, names: Names, model: int, requested_names: set[str]
) -> None:
    here = names.kind.used.c
    rows = await connection.execute(select(here[names.kind.column]).where(here.model == model))
    names.by_model[model] = set(rows.scalars())
    await _numbers(connection, names, requested_names)


async def _numbers(
    connection: AsyncConnection, names: Names, requested_names: Iterable[str]
) -> None:
    table = names.kind.table
    sorted_names = sorted(requested_names)
    query = select(table.c.name, table.c[names.kind.column]).where(
        table.c.name == any_(literal(sorted_names, ARRAY(TEXT)))
    )
    found = {row[0]: row[1] for row in await connection.execute(query)}
    for name in sorted_names:
        names.numbers.pop(name, None)  # it may have been removed since
    names.numbers.update(found)


async def _add(connection: AsyncConnection, names: Names, model: int, new_names: set[str]) -> None:
    """Insert missing names, one writer at a time, so that no identity value is wasted."""
    await lock_names(connection)
    await _load(connection, names, model, new_names)
    room = names.most_per_model - len(names.by_model[model])
    fitting = sorted(new_names)[: max(room, 0)]
    new = [{"name": name} for name in fitting if name not in names.numbers]
    if new:
        await connection.execute(insert(names.kind.table), new)
        await _numbers(connection, names, fitting)
    rows = [{"model": model, names.kind.column: names.numbers[name]} for name in fitting]
    if rows:
        await connection.execute(upsert(names.kind.used).on_conflict_do_nothing(), rows)
        names.by_model[model].update(names.numbers[name] for name in fitting)


async def lock_names(connection: AsyncConnection) -> None:
    """Let nobody else add or remove names until the transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


async def list_numbers(connection: AsyncConnection, kind: NameKind, model: int) -> Sequence[int]:
    """Return the integers of all names of a model."""
    numbers = select(kind.used.c[kind.column]).where(kind.used.c.model == model)
    return (await connection.execute(numbers)).scalars().all()


async def remove_unused(
    connection: AsyncConnection, kind: NameKind, model: int, numbers: Collection[int]
) -> int:
    """Remove those of these names that are still unused, and return how many. Repeatable."""
    locked = select(registration.c.model).where(registration.c.model == model).with_for_update()
    await connection.execute(locked)
    await lock_names(connection)
    unused = await filter_unused(connection, kind, model, numbers)
    number, name = kind.used.c[kind.column], kind.table.c[kind.column]
    of_model = kind.used.delete().where(kind.used.c.model == model, number == any_(_array(unused)))
    removed = await connection.execute(of_model)
    others = select(number).where(number == name)
    unnamed = kind.table.delete().where(name == any_(_array(unused)), ~others.exists())
    await connection.execute(unnamed)
    if kind is KEYS and unused:
        await key_registry.forget(connection, model, unused)
    return removed.rowcount


async def filter_unused(
    connection: AsyncConnection, kind: NameKind, model: int, numbers: Collection[int]
) -> Sequence[int]:
    """Return those of these names that no row of the model has, as far as one can see now."""
    unused = set(numbers)
    for following in kind.next_in_index:
        if not unused:
            break
        here = following.table.c
        listed = func.unnest(_array(unused)).column_valued("wanted")
        # in the index's order: each lookup reads its first entry, however many rows there are
        first = select(here.model).where(here.model == model, here[kind.column] == listed)
        first_used = first.order_by(following).limit(1).lateral()
        used = await connection.execute(select(listed).join(first_used, true()))
        unused.difference_update(used.scalars())
    return sorted(unused)


def _array(numbers: Iterable[int]) -> ColumnElement[Sequence[int]]:
    return literal(list(numbers), ARRAY(Integer))

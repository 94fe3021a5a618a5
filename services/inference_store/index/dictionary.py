"""The integers that stand for metadata keys and labels.

Resolved before the batch, in transactions of their own: read first, insert only what is
missing (ON CONFLICT burns identity values). A crash leaves a name that nothing uses yet.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    TEXT,
    ColumnElement,
    Integer,
    Table,
    and_,
    any_,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from .tables import label, metadata_key, model_key, model_label

_LOCK = 7_302_013
_MOST_CACHED = 500_000


@dataclass(slots=True)
class Names:
    """One kind of name (keys or labels): its table, its use by models, what is known."""

    table: Table
    used: Table
    column: str
    most_per_model: int
    numbers: dict[str, int] = field(default_factory=dict)
    by_model: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def number(self, model: int, name: str) -> int | None:
        """The name's integer, or None where the model may not use it (its cap is reached)."""
        number = self.numbers.get(name)
        return number if number in self.by_model[model] else None

    def forget(self) -> None:
        """Drop what is cached; nothing but a read is lost."""
        self.numbers.clear()
        self.by_model.clear()


class Dictionary:
    """Keys and labels by name, cached; `resolve` makes what is missing."""

    def __init__(
        self, engine: AsyncEngine, *, most_keys: int = 10_000, most_labels: int = 100_000
    ) -> None:
        self._engine = engine
        self.keys = Names(metadata_key, model_key, "key", most_keys)
        self.labels = Names(label, model_label, "label", most_labels)

    async def has_labels(
        self, connection: AsyncConnection, used: Collection[tuple[int, int]]
    ) -> bool:
        """Whether each (model, label) is there still; if not, what is cached of labels is dropped.

        It stays so until the transaction ends, where that keeps the models' registrations.
        """
        pairs = (_integers(numbers) for numbers in zip(*used, strict=True))
        wanted = func.unnest(*pairs).table_valued("model", "label", name="wanted").render_derived()
        here, number = model_label.c, func.count()
        same = and_(here.model == wanted.c.model, here.label == wanted.c.label)
        there = await connection.scalar(select(number).select_from(model_label).join(wanted, same))
        if there != len(used):
            self.labels.forget()
        return there == len(used)

    def forget(self, model: int) -> None:
        """Drop what is cached of a model; nothing but a read is lost."""
        self.keys.by_model.pop(model, None)
        self.labels.by_model.pop(model, None)

    async def resolve(
        self, keys: Mapping[int, Iterable[str]], labels: Mapping[int, Iterable[str]]
    ) -> None:
        """Make every name that a model uses known, as far as the model's cap allows."""
        for names, wanted in ((self.keys, keys), (self.labels, labels)):
            if len(names.numbers) > _MOST_CACHED:
                names.forget()
            missing = {
                model: unknown
                for model, used in wanted.items()
                if (unknown := {name for name in used if names.number(model, name) is None})
            }
            if missing:
                await self._make(names, missing)

    async def _make(self, names: Names, missing: Mapping[int, set[str]]) -> None:
        try:
            async with self._engine.begin() as connection:
                for model, wanted in missing.items():
                    await _make_of_model(connection, names, model, wanted)
        except BaseException:
            names.forget()  # what was cached inside may have been rolled back
            raise


async def _make_of_model(
    connection: AsyncConnection, names: Names, model: int, wanted: set[str]
) -> None:
    await _load(connection, names, model, wanted)
    unused = {name for name in wanted if names.number(model, name) is None}
    room = names.most_per_model - len(names.by_model[model])
    if unused and room > 0:
        await _add(connection, names, model, unused)


async def _load(connection: AsyncConnection, names: Names, model: int, wanted: set[str]) -> None:
    """Read the model's use of names, and the integers of those wanted."""
    used = names.used.c[names.column]
    rows = await connection.execute(select(used).where(names.used.c.model == model))
    names.by_model[model] = set(rows.scalars())
    await _numbers(connection, names, wanted)


async def _numbers(connection: AsyncConnection, names: Names, wanted: Iterable[str]) -> None:
    table = names.table
    looked = sorted(wanted)
    query = select(table.c.name, table.c[names.column]).where(
        table.c.name == any_(literal(looked, ARRAY(TEXT)))
    )
    for name in looked:
        names.numbers.pop(name, None)  # it may have been removed since
    names.numbers.update({row[0]: row[1] for row in await connection.execute(query)})


async def _add(connection: AsyncConnection, names: Names, model: int, wanted: set[str]) -> None:
    """Insert what is missing, one writer at a time, so that no identity value is burnt."""
    await lock_names(connection)
    await _load(connection, names, model, wanted)
    room = names.most_per_model - len(names.by_model[model])
    fitting = sorted(wanted)[: max(room, 0)]
    new = [{"name": name} for name in fitting if name not in names.numbers]
    if new:
        await connection.execute(insert(names.table), new)
        await _numbers(connection, names, fitting)
    rows = [{"model": model, names.column: names.numbers[name]} for name in fitting]
    if rows:
        await connection.execute(upsert(names.used).on_conflict_do_nothing(), rows)
        names.by_model[model].update(row[names.column] for row in rows)


async def lock_names(connection: AsyncConnection) -> None:
    """Let nobody else add or remove names until the transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def _integers(numbers: Iterable[int]) -> ColumnElement[Any]:
    return literal(list(numbers), ARRAY(Integer))

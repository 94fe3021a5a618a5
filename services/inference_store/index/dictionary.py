"""The integers that stand for metadata keys and labels.

They are resolved before the batch, in transactions of their own: read first, insert only missing
ones (ON CONFLICT uses up identity values). A crash leaves a name that nothing uses yet.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import (
    TEXT,
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
    """One kind of name (keys or labels): its table, its use by models, and the cached part."""

    table: Table
    used: Table
    column: str
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
        self.keys = Names(metadata_key, model_key, "key", most_keys)
        self.labels = Names(label, model_label, "label", most_labels)
        self._several: set[str] = set()

    async def has_labels(
        self, connection: AsyncConnection, used: Collection[tuple[int, int]]
    ) -> bool:
        """Check whether each (model, label) still exists; if not, clear the cache of labels.

        They exist until the transaction ends, if it keeps the models' registrations.
        """
        pairs = (literal(list(numbers), ARRAY(Integer)) for numbers in zip(*used, strict=True))
        labels_used = (
            func.unnest(*pairs).table_valued("model", "label", name="wanted").render_derived()
        )
        here, number = model_label.c, func.count()
        same = and_(here.model == labels_used.c.model, here.label == labels_used.c.label)
        present = await connection.scalar(
            select(number).select_from(model_label).join(labels_used, same)
        )
        if present != len(used):
            self.labels.forget()
        return present == len(used)

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
            async with self._engine.begin() as connection:
                for model, new_names in missing.items():
                    await _make_of_model(connection, names, model, new_names)
        except BaseException:
            names.forget()  # what was cached inside may have been rolled back
            raise


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
    used = names.used.c[names.column]
    rows = await connection.execute(select(used).where(names.used.c.model == model))
    names.by_model[model] = set(rows.scalars())
    await _numbers(connection, names, requested_names)


async def _numbers(
    connection: AsyncConnection, names: Names, requested_names: Iterable[str]
) -> None:
    table = names.table
    sorted_names = sorted(requested_names)
    query = select(table.c.name, table.c[names.column]).where(
        table.c.name == any_(literal(sorted_names, ARRAY(TEXT)))
    )
    for name in sorted_names:
        names.numbers.pop(name, None)  # it may have been removed since
    names.numbers.update({row[0]: row[1] for row in await connection.execute(query)})


async def _add(connection: AsyncConnection, names: Names, model: int, new_names: set[str]) -> None:
    """Insert missing names, one writer at a time, so that no identity value is wasted."""
    await lock_names(connection)
    await _load(connection, names, model, new_names)
    room = names.most_per_model - len(names.by_model[model])
    fitting = sorted(new_names)[: max(room, 0)]
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

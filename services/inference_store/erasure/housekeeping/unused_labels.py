"""Removes labels that no prediction of a model has: they repeat what was erased.

`find_unused` reads without a lock. `remove_unused` reads again under two locks, in this order: that
of the registration, of which each batch of an ingester holds a share, so that no prediction comes
between the check and the removal; then the lock of whoever adds labels. After a crash the next call
finds the labels. An integer is never used twice: an ingester that knows one of a removed label
calls `Dictionary.has_labels` after it has its share of the first lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, ColumnElement, Integer, any_, func, literal, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.dictionary import lock_names
from inference_store.index.tables import label, model_label, prediction, registration


@dataclass(frozen=True, slots=True)
class Page:
    """The unused labels of a page; `last`: the last label that was read, None: the end."""

    unused: Sequence[int]
    last: int | None


async def find_unused(connection: AsyncConnection, model: int, *, after: int, limit: int) -> Page:
    """Return the next unused labels of a model, in order of their integers."""
    here = model_label.c
    query = select(here.label).where(here.model == model, here.label > after)
    labels = (await connection.execute(query.order_by(here.label).limit(limit))).scalars().all()
    unused = await _filter_unused(connection, model, labels)
    return Page(unused, labels[-1] if len(labels) == limit else None)


async def remove_unused(connection: AsyncConnection, model: int, labels: Sequence[int]) -> int:
    """Remove those of these labels that are still unused, and return how many. Repeatable."""
    locked = select(registration.c.model).where(registration.c.model == model).with_for_update()
    await connection.execute(locked)
    await lock_names(connection)
    unused = _array(await _filter_unused(connection, model, labels))
    here = model_label.c
    unused_labels = model_label.delete().where(here.model == model, here.label == any_(unused))
    removed = await connection.execute(unused_labels)
    others = select(here.label).where(here.label == label.c.label)
    await connection.execute(label.delete().where(label.c.label == any_(unused), ~others.exists()))
    return removed.rowcount


async def _filter_unused(
    connection: AsyncConnection, model: int, labels: Sequence[int]
) -> Sequence[int]:
    listed = func.unnest(_array(labels)).column_valued("wanted")
    here = prediction.c
    # in the index's order: each lookup reads its first entry, however many predictions there are
    first = select(here.label).where(here.model == model, here.label == listed)
    first_used = first.order_by(here.score).limit(1).lateral()
    used = await connection.execute(select(listed).join(first_used, true()))
    return sorted(set(labels) - set(used.scalars()))


def _array(labels: Sequence[int]) -> ColumnElement[Sequence[int]]:
    return literal(list(labels), ARRAY(Integer))

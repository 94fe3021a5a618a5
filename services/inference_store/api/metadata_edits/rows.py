"""Removes and adds rows of the side tables for an edit."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import long_text
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import (
    SIDE_TABLES,
    metadata_key,
    metadata_key_delta,
    metadata_presence,
)
from inference_store.inference.metadata import Entry

from .change import Change

_INDEXED = (*SIDE_TABLES.values(), metadata_presence)


async def remove_rows(
    connection: AsyncConnection, model: int, uid: UUID, change: Change, old: Sequence[Entry]
) -> None:
    """Remove the rows of the keys that change."""
    for table in _INDEXED:
        names = select(metadata_key.c.key, metadata_key.c.name).join(
            table, table.c.key == metadata_key.c.key
        )
        rows = await connection.execute(names.where(table.c.model == model, table.c.uid == uid))
        removed = sorted({row.key for row in rows if change.removes(row.name, old)})
        if removed:
            here = (table.c.model == model, table.c.uid == uid, table.c.key.in_(removed))
            await connection.execute(delete(table).where(*here))


async def add_rows(  # noqa: PLR0917
    connection: AsyncConnection,
    dictionary: Dictionary,
    model: int,
    uid: UUID,
    change: Change,
    old: Sequence[Entry],
) -> None:
    """Add the rows of the change, and update the key registry.

    A name that belongs to a longer key, which does not change, keeps that key's row.
    """
    counted: set[tuple[Any, ...]] = set()
    for table, values, delta in _build_rows(dictionary, model, uid, change, old):
        await connection.execute(upsert(table).values(values).on_conflict_do_nothing())
        identity = (delta["key"], delta["type"], delta["flag"])
        if (
            identity in counted
        ):  # a text that does not fit its type has a row of presence beside its own
            continue
        counted.add(identity)
        await connection.execute(
            insert(metadata_key_delta).values(
                model=model, count=1, first_seen=func.now(), last_seen=func.now(), **delta
            )
        )


def _build_rows(
    dictionary: Dictionary, model: int, uid: UUID, change: Change, old: Sequence[Entry]
) -> list[Any]:
    """Return (table, row, delta) for everything that the items are indexed as."""
    rows: list[Any] = []
    for leaf in change.metadata.leaves:
        key = dictionary.keys.number(model, leaf.name)
        if key is None or not change.removes(leaf.name, old):
            continue
        row = {"model": model, "key": key, "uid": uid, "value": leaf.value}
        if leaf.family == "string":
            row["value"], row["whole"] = long_text.encode(str(leaf.value))
        flag = leaf.flags[0] if leaf.flags else ""
        delta: dict[str, Any] = {"key": key, "type": leaf.type.value, "flag": flag}
        delta["examples"] = [str(leaf.value)[:120]]
        rows.append((SIDE_TABLES[leaf.family], row, delta))
    for presence in change.metadata.presences:
        key = dictionary.keys.number(model, presence.name)
        if key is None or not change.removes(presence.name, old):
            continue
        row = {"model": model, "key": key, "uid": uid, "is_null": presence.is_null}
        flag = presence.flags[0] if presence.flags else "null" if presence.is_null else "present"
        rows.append((metadata_presence, row, {"key": key, "type": presence.type, "flag": flag}))
    return rows

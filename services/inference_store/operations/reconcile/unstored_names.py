"""Finds objects that unstored events name: dead letters, whatever was decided about them, and
parked events. No such object is an orphan."""

import re
from collections.abc import Iterator, Sequence
from uuid import UUID

import orjson
from sqlalchemy import Table, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import dead_letter, parked_event, reconciliation_named
from inference_store.inference.events import Buckets

_PAGE = 500
# In a message that is no JSON, any quoted text may be a key.
_QUOTED = re.compile(rb'"([^"\\\x00-\x1f]{1,1024})"')


async def store_names(
    connection: AsyncConnection,
    id: UUID,
    buckets: Buckets,
    read_until: dict[str, int] | None = None,
) -> int:
    """Store what dead letters and parked events name; return how many objects. Repeatable.

    It runs in one transaction, with a page of events in memory. `seen`: the last event that was
    read of each table, after which the next call continues.
    """
    names = 0
    for table in (dead_letter, parked_event):
        after = 0 if read_until is None else read_until.get(table.name, 0)
        while rows := await _read_page(connection, table, after):
            after = rows[-1][0]
            keys = sorted({key for _, payload in rows for key in list_names(payload, buckets)})
            names += len(keys)
            for start in range(0, len(keys), _PAGE):
                values = [{"reconciliation": id, "storage_key": k} for k in keys[start:][:_PAGE]]
                inserted = insert(reconciliation_named).values(values).on_conflict_do_nothing()
                await connection.execute(inserted)
        if read_until is not None:
            read_until[table.name] = after
    return names


async def find_newest(connection: AsyncConnection) -> dict[str, int]:
    """Return the last id of each table, to `gather` after it.

    In the fence: no lower one can come.
    """
    return {
        table.name: await connection.scalar(select(func.coalesce(func.max(table.c.id), 0))) or 0
        for table in (dead_letter, parked_event)
    }


async def remove_names(connection: AsyncConnection, id: UUID) -> None:
    """Remove what was stored: the next reconciliation collects the names again."""
    await connection.execute(
        delete(reconciliation_named).where(reconciliation_named.c.reconciliation == id)
    )


async def find_named(connection: AsyncConnection, id: UUID, keys: Sequence[str]) -> set[str]:
    """Return the keys that are named."""
    here = reconciliation_named.c
    query = select(here.storage_key).where(here.reconciliation == id, here.storage_key.in_(keys))
    return set((await connection.execute(query)).scalars())


def list_names(payload: bytes | None, buckets: Buckets) -> Iterator[str]:
    """Yield every storage key that a message may name, whatever its fields are called."""
    for text in _list_texts(payload or b""):
        try:
            yield str(buckets.resolve(text))
        except ValueError:
            continue


def _list_texts(payload: bytes) -> Iterator[str]:
    try:
        waiting = [orjson.loads(payload)]
    except orjson.JSONDecodeError:
        # a slash may be escaped in JSON
        quoted = _QUOTED.findall(payload.replace(rb"\/", b"/"))
        yield from (text.decode("utf-8", "replace") for text in quoted)
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict | list):
            waiting.extend(node.values() if isinstance(node, dict) else node)


async def _read_page(
    connection: AsyncConnection, table: Table, after: int
) -> Sequence[tuple[int, bytes | None]]:
    query = select(table.c.id, table.c.payload).where(table.c.id > after)
    rows = await connection.execute(query.order_by(table.c.id).limit(_PAGE))
    return [(row.id, row.payload) for row in rows]

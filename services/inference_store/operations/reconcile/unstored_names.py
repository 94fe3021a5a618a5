"""Finds objects that unstored events name: dead letters, whatever was decided about them, and
parked events. No such object is an orphan."""

import re
from collections.abc import Iterator, Sequence
from uuid import UUID

import orjson
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import reconciliation_named, unsettled_event
from inference_store.inference.events import Buckets

_PAGE = 500
# In a message that is no JSON, any quoted text may be a key.
_QUOTED = re.compile(rb'"([^"\\\x00-\x1f]{1,1024})"')


async def store_names(
    connection: AsyncConnection, id: UUID, buckets: Buckets, *, after: int = 0
) -> int:
    """Store what unsettled events name, of those after `after`; return the last one. Repeatable.

    It runs in one transaction, with a page of events in memory.
    """
    while rows := await _read_page(connection, after):
        after = rows[-1][0]
        keys = sorted({key for _, payload in rows for key in list_names(payload, buckets)})
        for start in range(0, len(keys), _PAGE):
            values = [{"reconciliation": id, "storage_key": k} for k in keys[start:][:_PAGE]]
            inserted = insert(reconciliation_named).values(values).on_conflict_do_nothing()
            await connection.execute(inserted)
    return after


async def find_newest(connection: AsyncConnection) -> int:
    """Return the last event, to store names after it. In the fence: no lower one can come."""
    newest = func.coalesce(func.max(unsettled_event.c.id), 0)
    return int(await connection.scalar(select(newest)) or 0)


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


async def _read_page(connection: AsyncConnection, after: int) -> Sequence[tuple[int, bytes | None]]:
    here = unsettled_event.c
    query = select(here.id, here.payload).where(here.id > after).order_by(here.id).limit(_PAGE)
    return [(row.id, row.payload) for row in await connection.execute(query)]

"""Objects that events name which are not stored: dead letters, whatever was decided of them, and
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
# Of a message that is no JSON: whatever stands in quotes may be a key.
_QUOTED = re.compile(rb'"([^"\\\x00-\x1f]{1,1024})"')


async def gather(
    connection: AsyncConnection, id: UUID, buckets: Buckets, seen: dict[str, int] | None = None
) -> int:
    """Note what dead letters and parked events name; how many objects. Repeatable.

    In one transaction, with a page of events in memory. `seen`: the last that was looked at of each
    table, to go on behind it the next time.
    """
    names = 0
    for table in (dead_letter, parked_event):
        after = 0 if seen is None else seen.get(table.name, 0)
        while rows := await _page(connection, table, after):
            after = rows[-1][0]
            keys = sorted({key for _, payload in rows for key in named_in(payload, buckets)})
            names += len(keys)
            for start in range(0, len(keys), _PAGE):
                values = [{"reconciliation": id, "storage_key": k} for k in keys[start:][:_PAGE]]
                made = insert(reconciliation_named).values(values).on_conflict_do_nothing()
                await connection.execute(made)
        if seen is not None:
            seen[table.name] = after
    return names


async def newest(connection: AsyncConnection) -> dict[str, int]:
    """The last of each table, to `gather` behind it. In the gate: no lower one is still to come."""
    return {
        table.name: await connection.scalar(select(func.coalesce(func.max(table.c.id), 0))) or 0
        for table in (dead_letter, parked_event)
    }


async def forget(connection: AsyncConnection, id: UUID) -> None:
    """It is over: what was named is looked for anew the next time."""
    await connection.execute(
        delete(reconciliation_named).where(reconciliation_named.c.reconciliation == id)
    )


async def among(connection: AsyncConnection, id: UUID, keys: Sequence[str]) -> set[str]:
    """Those of the keys that are named."""
    here = reconciliation_named.c
    query = select(here.storage_key).where(here.reconciliation == id, here.storage_key.in_(keys))
    return set((await connection.execute(query)).scalars())


def named_in(payload: bytes | None, buckets: Buckets) -> Iterator[str]:
    """Every storage key that a message may name, whatever its fields are called."""
    for text in _texts(payload or b""):
        try:
            yield str(buckets.resolve(text))
        except ValueError:
            continue


def _texts(payload: bytes) -> Iterator[str]:
    try:
        waiting = [orjson.loads(payload)]
    except orjson.JSONDecodeError:
        # a slash may be escaped in JSON
        found = _QUOTED.findall(payload.replace(rb"\/", b"/"))
        yield from (each.decode("utf-8", "replace") for each in found)
        return
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict | list):
            waiting.extend(one.values() if isinstance(one, dict) else one)


async def _page(
    connection: AsyncConnection, table: Table, after: int
) -> Sequence[tuple[int, bytes | None]]:
    query = select(table.c.id, table.c.payload).where(table.c.id > after)
    rows = await connection.execute(query.order_by(table.c.id).limit(_PAGE))
    return [(row.id, row.payload) for row in rows]

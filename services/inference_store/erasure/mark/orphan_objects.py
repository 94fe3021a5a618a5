"""Erasures of objects that no inference names: the orphans of a reconciliation's report.

They are written to the ledger by batches of keys before anything is done with them, as marks are.
`claimed_at`: from then on one may be gone, and an event that names it is not stored.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, Text, any_, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress import (
    COLUMNS,
    Erasure,
    add_marked,
    read_erasure,
)
from inference_store.index.tables import erasing_object, erasure

Body: TypeAlias = dict[str, Any]
_HERE = erasing_object.c


def describe_orphans_request(id: UUID, report: UUID, before: datetime) -> Body:
    """Return the body of an entry `orphans_requested`: the report, and the time before which an
    object was written."""
    return {"erasure": str(id), "report": str(report), "before": before.isoformat()}


def describe_orphans_batch(id: UUID, keys: Sequence[str]) -> Body:
    """Return the body of an entry `orphans_batch`."""
    return {"erasure": str(id), "storage_keys": list(keys)}


async def apply_orphans_requested(
    connection: AsyncConnection, body: Body, at: datetime, actor: str
) -> Erasure:
    """Make the erasure. Repeatable."""
    number = UUID(body["erasure"])
    values = {"id": number, "cause": "orphans", "scope": "object", "state": "pending"}
    report = {"report": body["report"], "before": body["before"]}
    inserted = insert(erasure).values(**values, asked=report, requested_by=actor, requested_at=at)
    await connection.execute(inserted.on_conflict_do_nothing())
    rows = await connection.execute(select(*COLUMNS).where(erasure.c.id == number))
    return read_erasure(rows.one())


async def apply_orphans_batch(connection: AsyncConnection, body: Body, _: datetime, __: str) -> int:
    """Name the objects, and return how many were not named before. Repeatable.

    Nothing is claimed yet.
    """
    number, keys = UUID(body["erasure"]), body["storage_keys"]
    storage_key = func.unnest(literal(keys, ARRAY(Text(collation="C"))))
    rows = select(storage_key, literal(number))
    inserted = insert(erasing_object).from_select(["storage_key", "erasure"], rows)
    added = (await connection.execute(inserted.on_conflict_do_nothing())).rowcount
    await add_marked(connection, number, added)
    return added


async def unmark_orphans(connection: AsyncConnection, id: UUID) -> None:
    """Remove the names of the objects of an erasure that is cancelled."""
    await connection.execute(erasing_object.delete().where(_HERE.erasure == id))


async def list_pending_orphans(
    connection: AsyncConnection, id: UUID, *, after: str, limit: int
) -> list[str]:
    """Return the next objects of an erasure, after a key."""
    query = select(_HERE.storage_key).where(_HERE.erasure == id, _HERE.storage_key > after)
    query = query.order_by(_HERE.storage_key).limit(limit)
    return list((await connection.execute(query)).scalars())


async def claim_orphans(connection: AsyncConnection, keys: Collection[str]) -> None:
    """Claim objects: from the commit on they may be deleted. Call it in the fence."""
    unclaimed = erasing_object.update().where(_match_keys(keys), _HERE.claimed_at.is_(None))
    await connection.execute(unclaimed.values(claimed_at=func.now()))


async def list_claimed_orphans(connection: AsyncConnection, keys: Collection[str]) -> set[str]:
    """Return the objects that are claimed, and so may be deleted."""
    query = select(_HERE.storage_key).where(_match_keys(keys), _HERE.claimed_at.is_not(None))
    return set((await connection.execute(query)).scalars())


async def remove_orphans(connection: AsyncConnection, keys: Collection[str]) -> None:
    """Remove the names of objects: they are deleted, or they stay."""
    await connection.execute(erasing_object.delete().where(_match_keys(keys)))


async def record_held_orphans(connection: AsyncConnection, id: UUID, keys: Collection[str]) -> None:
    """Count objects that stay because of a legal hold, and remove their names."""
    await remove_orphans(connection, keys)
    counted = erasure.update().where(erasure.c.id == id)
    await connection.execute(counted.values(held=erasure.c.held + len(keys)))


def _match_keys(keys: Collection[str]) -> Any:
    return _HERE.storage_key == any_(literal(sorted(keys), ARRAY(Text(collation="C"))))

"""Records the objects that S3 refuses to delete."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasure, erasure_obstacle

MOST_BLOCKED = 1_000
"""How many blocked objects are recorded; there may be more."""
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class BlockedObject:
    """An object that is still there."""

    erasure: UUID
    storage_key: str
    code: str
    message: str
    retry_at: datetime | None
    """When its lock ends; null: nobody says, and every run tries again."""
    seen_at: datetime


async def list_blocked(
    connection: AsyncConnection, id: UUID, *, limit: int = _SHOWN
) -> Sequence[BlockedObject]:
    """Return the first blocked objects of an erasure, by key."""
    here = erasure_obstacle.c
    query = select(erasure_obstacle).where(here.erasure == id).order_by(here.storage_key)
    return [BlockedObject(**row._mapping) for row in await connection.execute(query.limit(limit))]


async def record_blocked(
    connection: AsyncConnection,
    id: UUID,
    blocked: Iterable[tuple[str, str, str, datetime | None]],
    gone: Sequence[str],
) -> None:
    """Record blocked objects, as (key, code, message, retry_at), and remove those that no longer
    are.

    The erasure is tried again when the first lock ends.
    """
    here = erasure_obstacle.c
    if gone:
        cleared = erasure_obstacle.delete().where(here.erasure == id, here.storage_key.in_(gone))
        await connection.execute(cleared)
    count = await connection.scalar(select(func.count()).where(here.erasure == id)) or 0
    names = ("storage_key", "code", "message", "retry_at")
    rows = [{"erasure": id, **dict(zip(names, values, strict=True))} for values in blocked]
    rows = rows[: max(0, MOST_BLOCKED - count)]
    if rows:
        new = insert(erasure_obstacle)
        changed = {name: new.excluded[name] for name in names[1:]} | {"seen_at": func.now()}
        upserted = new.on_conflict_do_update(
            index_elements=["erasure", "storage_key"], set_=changed
        )
        await connection.execute(upserted, rows)
    first = select(func.min(here.retry_at)).where(here.erasure == id, here.retry_at > func.now())
    changing = erasure.update().where(erasure.c.id == id)
    await connection.execute(changing.values(retry_at=first.scalar_subquery()))


async def clear_blocked(connection: AsyncConnection, id: UUID) -> None:
    """Remove all blocked objects of an erasure."""
    await connection.execute(erasure_obstacle.delete().where(erasure_obstacle.c.erasure == id))

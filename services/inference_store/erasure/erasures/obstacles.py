"""What S3 would not let go, object by object."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasure, erasure_obstacle

MOST = 1_000
"""Obstacles that are named; there may be more."""
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An object that is still there. `retry_at`: when its lock ends, None: nobody says."""

    erasure: UUID
    storage_key: str
    code: str
    message: str
    retry_at: datetime | None
    seen_at: datetime


async def listed(
    connection: AsyncConnection, id: UUID, *, limit: int = _SHOWN
) -> Sequence[Obstacle]:
    """The first ones of an erasure, by key."""
    here = erasure_obstacle.c
    query = select(erasure_obstacle).where(here.erasure == id).order_by(here.storage_key)
    return [Obstacle(**row._mapping) for row in await connection.execute(query.limit(limit))]


async def note(
    connection: AsyncConnection,
    id: UUID,
    found: Iterable[tuple[str, str, str, datetime | None]],
    gone: Sequence[str],
) -> None:
    """Name (key, code, message, retry_at) what stands in the way, and forget what no longer does.

    The erasure is tried again when the first lock ends.
    """
    here = erasure_obstacle.c
    if gone:
        went = erasure_obstacle.delete().where(here.erasure == id, here.storage_key.in_(gone))
        await connection.execute(went)
    there = await connection.scalar(select(func.count()).where(here.erasure == id)) or 0
    names = ("storage_key", "code", "message", "retry_at")
    rows = [{"erasure": id, **dict(zip(names, each, strict=True))} for each in found]
    rows = rows[: max(0, MOST - there)]
    if rows:
        new = insert(erasure_obstacle)
        changed = {name: new.excluded[name] for name in names[1:]} | {"seen_at": func.now()}
        put = new.on_conflict_do_update(index_elements=["erasure", "storage_key"], set_=changed)
        await connection.execute(put, rows)
    first = select(func.min(here.retry_at)).where(here.erasure == id, here.retry_at > func.now())
    changing = erasure.update().where(erasure.c.id == id)
    await connection.execute(changing.values(retry_at=first.scalar_subquery()))


async def clear(connection: AsyncConnection, id: UUID) -> None:
    """Nothing stands in the way any more."""
    await connection.execute(erasure_obstacle.delete().where(erasure_obstacle.c.erasure == id))

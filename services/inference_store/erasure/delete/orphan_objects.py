"""Deletes orphans: claims them, and removes their names when they are deleted or stay."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Text, any_, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.orphan_objects import _HERE
from inference_store.erasure.progress.erasure import Erasure, State
from inference_store.erasure.progress.state_changes import STOPPED, keep_future_retry
from inference_store.erasure.verify.blocked_objects import clear_blocked
from inference_store.index.tables import erasing_object, erasure

_ERROR_CHARACTERS = 2000


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


async def finish_orphans(
    connection: AsyncConnection, stored_erasure: Erasure, *, error: str | None, certifying: bool
) -> State:
    """Set the state of an erasure of orphans, and return it.

    `failed` with the reason, to be tried again, if something is left; else `certifying` if a
    certificate follows, or `deleted`.
    """
    query = select(_HERE.storage_key).where(_HERE.erasure == stored_erasure.id)
    has_rest = bool(await connection.scalar(select(query.exists())))
    ended: State = "certifying" if certifying else "deleted"
    state: State = "failed" if has_rest else ended
    values = {
        "state": state,
        "error": (error or "something is left")[:_ERROR_CHARACTERS] if has_rest else None,
        "finished_at": None if has_rest else func.now(),
        "retry_at": keep_future_retry() if has_rest else None,
    }
    if not has_rest:
        await clear_blocked(connection, stored_erasure.id)
    where = (erasure.c.id == stored_erasure.id, erasure.c.state.not_in(STOPPED))
    changed = await connection.execute(erasure.update().where(*where).values(values))
    return state if changed.rowcount else "cancelling"


def _match_keys(keys: Collection[str]) -> Any:
    return _HERE.storage_key == any_(literal(sorted(keys), ARRAY(Text(collation="C"))))

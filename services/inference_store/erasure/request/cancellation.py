"""Cancels an erasure, which is possible until the first object is being deleted.

The row of the erasure decides: it is cancelled, or its deletion has begun, never both. The service
removes the marks, a batch at a time, and then sets the state `cancelled`.
"""

from uuid import UUID

from sqlalchemy import case, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import COLUMNS, Erasure, read_erasure
from inference_store.erasure.progress.state_changes import redact_criteria
from inference_store.index.tables import erasing, erasure
from inference_store.inference.errors import Conflict

_NOT_YET = ("pending", "marking", "failed", "partly_held", "cancelling", "cancelled")


async def request_cancellation(connection: AsyncConnection, id: UUID) -> Erasure:
    """Ask the service to remove the marks; repeatable. Raises Conflict if it is too late."""
    here = erasure.c
    state = case((here.state == "cancelled", here.state), else_="cancelling")
    where = (here.id == id, here.deleting_since.is_(None), here.state.in_(_NOT_YET))
    changed = erasure.update().where(*where).values(state=state).returning(*COLUMNS)
    row = (await connection.execute(changed)).first()
    if row is None:
        detail = "cannot be cancelled: it has begun to delete objects, or is over"
        raise Conflict(f"The erasure {id} {detail}.")
    return read_erasure(row)


async def stop_erasure(connection: AsyncConnection, id: UUID) -> None:
    """Set an erasure to be cancelled in any state: a replay follows what was decided."""
    here = erasure.c
    where = (here.id == id, here.state != "cancelled")
    await connection.execute(erasure.update().where(*where).values(state="cancelling"))


async def remove_pending_of(connection: AsyncConnection, id: UUID, *, limit: int) -> int:
    """Remove marks of an erasure, and return how many. Queries show what no other erasure has
    marked."""
    here = erasing.c
    some = select(here.model, here.uid, here.scope).where(here.erasure == id).limit(limit)
    marks = tuple_(here.model, here.uid, here.scope)
    gone = erasing.delete().where(here.erasure == id, marks.in_(some))
    return (await connection.execute(gone)).rowcount


async def complete_cancellation(connection: AsyncConnection, id: UUID) -> None:
    """Set the state: no mark is left."""
    values = {"state": "cancelled", "finished_at": func.now(), "asked": redact_criteria()}
    where = (erasure.c.id == id, erasure.c.state == "cancelling")
    await connection.execute(erasure.update().where(*where).values(values))

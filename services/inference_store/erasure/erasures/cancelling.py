"""Cancelling: possible until the first object is being deleted.

The row of the erasure decides: it is cancelled, or its deleting has begun, never both. The
service takes the marks away, a batch at a time, and then says that it is cancelled.
"""

from uuid import UUID

from sqlalchemy import case, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasing, erasure
from inference_store.inference.errors import Conflict

from .erasure import COLUMNS, Erasure, erasure_of
from .progress import without_values

_NOT_YET = ("pending", "marking", "failed", "partly_held", "cancelling", "cancelled")


async def cancel(connection: AsyncConnection, id: UUID) -> Erasure:
    """Ask the service to take the marks away; repeatable. Raises Conflict where it is too late."""
    here = erasure.c
    state = case((here.state == "cancelled", here.state), else_="cancelling")
    where = (here.id == id, here.deleting_since.is_(None), here.state.in_(_NOT_YET))
    changed = erasure.update().where(*where).values(state=state).returning(*COLUMNS)
    row = (await connection.execute(changed)).first()
    if row is None:
        detail = "cannot be cancelled: it has begun to delete objects, or is over"
        raise Conflict(f"The erasure {id} {detail}.")
    return erasure_of(row)


async def stop(connection: AsyncConnection, id: UUID) -> None:
    """It is to be cancelled, whatever was done with it: a replay goes by what was decided."""
    here = erasure.c
    where = (here.id == id, here.state != "cancelled")
    await connection.execute(erasure.update().where(*where).values(state="cancelling"))


async def unmark(connection: AsyncConnection, id: UUID, *, limit: int) -> int:
    """Take marks of an erasure away; how many. Queries show what no other has marked again."""
    here = erasing.c
    some = select(here.model, here.uid, here.scope).where(here.erasure == id).limit(limit)
    marks = tuple_(here.model, here.uid, here.scope)
    gone = erasing.delete().where(here.erasure == id, marks.in_(some))
    return (await connection.execute(gone)).rowcount


async def cancelled(connection: AsyncConnection, id: UUID) -> None:
    """It is over: no mark is left."""
    values = {"state": "cancelled", "finished_at": func.now(), "asked": without_values()}
    where = (erasure.c.id == id, erasure.c.state == "cancelling")
    await connection.execute(erasure.update().where(*where).values(values))

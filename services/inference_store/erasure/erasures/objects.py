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

from inference_store.index.tables import erasing_object, erasure

from . import obstacles
from .erasure import COLUMNS, Erasure, State, erasure_of
from .progress import STOPPED, marked, still_to_come

Body: TypeAlias = dict[str, Any]
_ERROR_CHARACTERS = 2000
_HERE = erasing_object.c


def requested(id: UUID, report: UUID, before: datetime) -> Body:
    """The body of an entry `orphans_requested`: of which report, written before when."""
    return {"erasure": str(id), "report": str(report), "before": before.isoformat()}


def batch(id: UUID, keys: Sequence[str]) -> Body:
    """The body of an entry `orphans_batch`."""
    return {"erasure": str(id), "storage_keys": list(keys)}


async def apply_requested(
    connection: AsyncConnection, body: Body, at: datetime, actor: str
) -> Erasure:
    """Make the erasure. Repeatable."""
    number = UUID(body["erasure"])
    values = {"id": number, "cause": "orphans", "scope": "object", "state": "pending"}
    asked = {"report": body["report"], "before": body["before"]}
    made = insert(erasure).values(**values, asked=asked, requested_by=actor, requested_at=at)
    await connection.execute(made.on_conflict_do_nothing())
    found = await connection.execute(select(*COLUMNS).where(erasure.c.id == number))
    return erasure_of(found.one())


async def apply_batch(connection: AsyncConnection, body: Body, _: datetime, __: str) -> int:
    """Name the objects; how many that were not named. Nothing is claimed yet. Repeatable."""
    number, keys = UUID(body["erasure"]), body["storage_keys"]
    each = func.unnest(literal(keys, ARRAY(Text(collation="C"))))
    some = select(each, literal(number))
    made = insert(erasing_object).from_select(["storage_key", "erasure"], some)
    added = (await connection.execute(made.on_conflict_do_nothing())).rowcount
    await marked(connection, number, added)
    return added


async def page(connection: AsyncConnection, id: UUID, *, after: str, limit: int) -> list[str]:
    """The first objects of an erasure behind a key."""
    query = select(_HERE.storage_key).where(_HERE.erasure == id, _HERE.storage_key > after)
    query = query.order_by(_HERE.storage_key).limit(limit)
    return list((await connection.execute(query)).scalars())


async def claim(connection: AsyncConnection, keys: Collection[str]) -> None:
    """From the commit on they may be gone. In the gate."""
    fresh = erasing_object.update().where(_among(keys), _HERE.claimed_at.is_(None))
    await connection.execute(fresh.values(claimed_at=func.now()))


async def claimed(connection: AsyncConnection, keys: Collection[str]) -> set[str]:
    """Those that may be gone."""
    query = select(_HERE.storage_key).where(_among(keys), _HERE.claimed_at.is_not(None))
    return set((await connection.execute(query)).scalars())


async def remove(connection: AsyncConnection, keys: Collection[str]) -> None:
    """They are gone, or they stay."""
    await connection.execute(erasing_object.delete().where(_among(keys)))


async def keep(connection: AsyncConnection, id: UUID, keys: Collection[str]) -> None:
    """They stay, for a legal hold: counted."""
    await remove(connection, keys)
    more = erasure.update().where(erasure.c.id == id)
    await connection.execute(more.values(held=erasure.c.held + len(keys)))


async def unmark(connection: AsyncConnection, id: UUID) -> None:
    """It is cancelled: no object of it is named any more."""
    await connection.execute(erasing_object.delete().where(_HERE.erasure == id))


async def finish(
    connection: AsyncConnection, one: Erasure, *, error: str | None, certifying: bool
) -> State:
    """`failed` with the reason where something is left, which is tried again; else `deleted`, or
    `certifying`: its certificate is next."""
    query = select(_HERE.storage_key).where(_HERE.erasure == one.id)
    left = bool(await connection.scalar(select(query.exists())))
    ended: State = "certifying" if certifying else "deleted"
    state: State = "failed" if left else ended
    values = {
        "state": state,
        "error": (error or "something was left over")[:_ERROR_CHARACTERS] if left else None,
        "finished_at": None if left else func.now(),
        "retry_at": still_to_come() if left else None,
    }
    if not left:
        await obstacles.clear(connection, one.id)
    where = (erasure.c.id == one.id, erasure.c.state.not_in(STOPPED))
    changed = await connection.execute(erasure.update().where(*where).values(values))
    return state if changed.rowcount else "cancelling"


def _among(keys: Collection[str]) -> Any:
    return _HERE.storage_key == any_(literal(sorted(keys), ARRAY(Text(collation="C"))))

"""Erasures of objects that no inference names: the orphans of a reconciliation's report.

They are written to the ledger by batches of keys before anything is done with them, as marks are.
`claimed_at`: from then on one may be gone, and an event that names it is not stored.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, Text, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import COLUMNS, Erasure, read_erasure
from inference_store.erasure.progress.state_changes import add_marked
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

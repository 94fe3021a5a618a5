"""Waives what legal holds protect of an erasure: what was deleted stays deleted, the rest stays.

The row of the erasure decides: its rest is waived, or marked again as a hold is released, never
both. The service names the rest in the ledger, a batch at a time, and then ends the erasure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import COLUMNS, Erasure, read_erasure
from inference_store.index import registrations
from inference_store.index.inferences import among
from inference_store.index.tables import erasing, erasure, erasure_held
from inference_store.inference.errors import Conflict


async def request_waiver(connection: AsyncConnection, id: UUID, *, by: str) -> Erasure:
    """Ask the service to waive what holds protect; repeatable.

    Raises Conflict if they protect nothing of it, or if it goes on already.
    """
    here = erasure.c
    given_up = func.coalesce(here.given_up, func.jsonb_build_object("by", by))
    where = (here.id == id, here.state.in_(("partly_held", "giving_up")))
    changed = erasure.update().where(*where).values(state="giving_up", given_up=given_up)
    row = (await connection.execute(changed.returning(*COLUMNS))).first()
    if row is None:
        raise Conflict(f"The erasure {id} is not `partly_held`: there is no rest to give up.")
    return read_erasure(row)


async def find_held_rest(
    connection: AsyncConnection, stored_erasure: Erasure, *, limit: int
) -> dict[str, Any] | None:
    """Return the next inferences that holds protect, of one model, as the ledger has them; None: no
    more."""
    here = erasure_held.c
    query = select(here.model, here.uid, here.hold).where(here.erasure == stored_erasure.id)
    rows = list(await connection.execute(query.order_by(here.model, here.uid).limit(limit)))
    if not rows:
        return None
    model = rows[0].model
    name = (await registrations.names(connection, {model})).get(model)
    if name is None:
        raise Conflict("A model of the erasure is not registered any more.")
    return {
        "erasure": str(stored_erasure.id),
        "by": (stored_erasure.given_up or {}).get("by"),
        "model_id": name,
        "rest": [[str(row.uid), str(row.hold)] for row in rows if row.model == model],
    }


async def apply_waiver(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,  # noqa: ARG001  (the ledger's signature)
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> None:
    """Remove these inferences from the erasure. Repeatable.

    A replay may find them marked: a hold that came after the mark had removed it. If it finds the
    rest of the erasure held, that is waived too.
    """
    number = UUID(body["erasure"])
    model = await registrations.ensure(connection, body["model_id"])
    holds = {UUID(uid): hold for uid, hold in body["rest"]}
    released = await _release_rest(connection, number, model, list(holds))
    query = select(erasure.c.state, erasure.c.given_up).where(erasure.c.id == number)
    row = (await connection.execute(query.with_for_update())).first()
    if row is None:
        return
    before = (row.given_up or {}).get("holds", {})
    counted = Counter(before) + Counter(holds[uid] for uid in released)
    given_up = {"by": body["by"], "holds": dict(sorted(counted.items()))}
    values: dict[str, Any] = {"given_up": given_up}
    if row.state == "partly_held":
        values["state"] = "giving_up"
    await connection.execute(erasure.update().where(erasure.c.id == number).values(values))


async def _release_rest(
    connection: AsyncConnection, number: UUID, model: int, uids: Sequence[UUID]
) -> set[UUID]:
    released: set[UUID] = set()
    for table in (erasing, erasure_held):
        ours = (among(table, model, uids), table.c.erasure == number)
        deleted = await connection.execute(table.delete().where(*ours).returning(table.c.uid))
        released |= set(deleted.scalars())
    return released

"""Placing, changing and releasing a hold: what the ledger's entries do to the tables.

Each takes the gate exclusively, so that it is ordered against every claim of an eraser: what was
claimed before is listed in the answer, and nothing that is claimed afterwards is held. Before the
gate it waits for edits of metadata that are under way (see `edits_wait`). All are repeatable.

`body`: id, name, reason, model_id (None: every model), filter (as it is saved), inference_ids,
until, revision; a release has id, reason and revision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.marks import gate_exclusive
from inference_store.erasure.policies import frontiers
from inference_store.index import model_numbers
from inference_store.index.tables import hold, hold_change

from .claimed import Claim, claimed
from .forgetting import repeats_noted
from .hold import Hold, hold_of

_EDITS: Final = 7_302_021
_Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """The hold as it is now, and what had been claimed before it was so. `more`: there were more
    claims than were looked at."""

    hold: Hold
    claimed: list[Claim]
    more: bool


async def edits_wait(connection: AsyncConnection) -> None:
    """Let no hold be placed until this transaction ends: an edit asks what is held, then writes.

    Not the gate, which is never held while S3 is asked, and an edit writes a blob.
    """
    await connection.execute(select(func.pg_advisory_xact_lock_shared(_EDITS)))


async def apply_placed(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Placed:
    """Place a hold; it wins over everything that is not claimed yet."""
    await _gate(connection)
    values = await _values(connection, body)
    values |= {"placed_by": actor, "placed_at": at, "revision": body["revision"]}
    values |= {"in_force_at": func.clock_timestamp()}
    await connection.execute(insert(hold).values(values).on_conflict_do_nothing())
    await _remember(connection, body, "placed", at, actor)
    return await _placed(connection, body)


async def apply_changed(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Placed:
    """Put another hold in its place, under the same id."""
    await _gate(connection)
    values = await _values(connection, body) | {"in_force_at": func.clock_timestamp()}
    await _set(connection, body, values)
    await frontiers.forget(connection)
    await _remember(connection, body, "changed", at, actor)
    return await _placed(connection, body)


async def apply_released(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Hold:
    """Let go what a hold kept: pending erasures go on, and sweeps look again at everything."""
    await _gate(connection)
    values = {"released_by": actor, "released_at": at, "release_reason": body["reason"]}
    await _set(connection, body, values)
    await frontiers.forget(connection)
    await _remember(connection, body, "released", at, actor)
    return await _read(connection, body)


async def _gate(connection: AsyncConnection) -> None:
    await connection.execute(select(func.pg_advisory_xact_lock(_EDITS)))
    await gate_exclusive(connection)


async def _values(connection: AsyncConnection, body: _Document) -> dict[str, Any]:
    model_id, until = body["model_id"], body["until"]
    model = None if model_id is None else await model_numbers.reserve(connection, model_id)
    return {
        "id": UUID(body["id"]),
        "name": body["name"],
        "reason": body["reason"],
        "model": model,
        "filter": body["filter"],
        "inference_ids": body["inference_ids"],
        "until": None if until is None else datetime.fromisoformat(until),
    }


async def _set(connection: AsyncConnection, body: _Document, values: dict[str, Any]) -> None:
    """Only forward: an entry that is applied again undoes nothing that came after it."""
    here = hold.c
    changed = hold.update().where(here.id == UUID(body["id"]), here.revision < body["revision"])
    changed = changed.values(values | {"revision": body["revision"], "taken_up": 0})
    await connection.execute(changed)


async def _remember(
    connection: AsyncConnection,
    body: _Document,
    change: Literal["placed", "changed", "released"],
    at: datetime,
    actor: str,
) -> None:
    row = {"hold": UUID(body["id"]), "revision": body["revision"], "change": change}
    row |= {"at": at, "actor": actor, "document": dict(body)}
    row["forget_when_over"] = change == "changed" and await repeats_noted(connection, body)
    await connection.execute(insert(hold_change).values(row).on_conflict_do_nothing())


async def _placed(connection: AsyncConnection, body: _Document) -> Placed:
    found = await _read(connection, body)
    return Placed(found, *await claimed(connection, found))


async def _read(connection: AsyncConnection, body: _Document) -> Hold:
    query = select(hold).where(hold.c.id == UUID(body["id"]))
    return hold_of((await connection.execute(query)).one())

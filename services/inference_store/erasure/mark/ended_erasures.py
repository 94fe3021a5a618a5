"""Writes to the ledger that an erasure has ended, and tells a replay so.

A restored backup has what an erasure had deleted, and a hold may have been placed on it since.
Without this a replay would find the marks, then the hold, and show again what the bucket has lost.

What a replay still finds marked at the end of an erasure was deleted: what holds kept is set apart,
by entries of its own. That a hold was released and its marks set again is in no entry; but the last
one names the holds that still keep something, and what is set apart for others was deleted too.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, literal, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.progress.erasure import Cause
from inference_store.erasure.progress.state_changes import resume_erasure
from inference_store.index.tables import erasing, erasure, erasure_held

from .held_deletions import QUARANTINE_SCOPE
from .pending_deletions import COLUMNS

Body: TypeAlias = dict[str, Any]
IN_LEDGER: Final[Sequence[Cause]] = ("policy", "request")
"""Causes of erasures whose marks are in the ledger."""


async def has_marks(connection: AsyncConnection, number: UUID) -> bool:
    """Check whether something is left that an erasure has marked."""
    marks = select(erasing.c.uid).where(erasing.c.erasure == number)
    return bool(await connection.scalar(select(marks.exists())))


async def describe_ended(connection: AsyncConnection, number: UUID) -> Body:
    """Return the body of an entry `erasure_ended`: the holds, with their revisions, that still keep
    something of the erasure."""
    here = erasure_held.c
    query = select(here.hold, here.hold_revision).where(*_match_held(number)).distinct()
    rows = await connection.execute(query.order_by(here.hold, here.hold_revision))
    return {"erasure": str(number), "held": [[str(row[0]), row[1]] for row in rows]}


async def apply_ended(
    connection: AsyncConnection, body: Mapping[str, Any], at: datetime, _: str
) -> None:
    """Note that what is left marked was erased, and so was what a hold let go. Repeatable.

    Live there is nothing of it.
    """
    number, here = UUID(body["erasure"]), erasure_held.c
    kept = [(UUID(id), revision) for id, revision in body["held"]]
    let_go = (*_match_held(number), tuple_(here.hold, here.hold_revision).not_in(kept))
    # a policy's next run, not the same erasure, takes what a hold lets go
    requested = select(erasure.c.id).where(erasure.c.id == number, erasure.c.cause != "policy")
    columns = [*COLUMNS, "erased_at"]
    rows = select(*(here[name] for name in COLUMNS), literal(at)).where(*let_go, requested.exists())
    inserted = insert(erasing).from_select(columns, rows)
    again = await connection.execute(inserted.on_conflict_do_nothing())
    await connection.execute(erasure_held.delete().where(*let_go))
    marked = (erasing.c.erasure == number, erasing.c.erased_at.is_(None))
    noted = await connection.execute(erasing.update().where(*marked).values(erased_at=at))
    if again.rowcount or noted.rowcount:
        await resume_erasure(connection, number)


def _match_held(number: UUID) -> Sequence[ColumnElement[bool]]:
    here = erasure_held.c
    return here.erasure == number, here.scope != QUARANTINE_SCOPE

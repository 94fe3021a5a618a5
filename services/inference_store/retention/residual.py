"""Removes the residual data of an erasure: what is left outside of its rows when those are gone."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, chosen
from inference_store.erasure.housekeeping import mentioned

from .dropping import delete_orphans
from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck
from .quarantine import QuarantineEraser

# Policy versions, and erasures, that are checked in one transaction.
_LOOKED_AT = 1000
# By the table whose rows may mention a subject.
_MENTIONS = {
    "policy_version": (mentioned.take_from_policies, mentioned.FIRST_VERSION),
    "erasure": (mentioned.take_from_erasures, mentioned.FIRST_ERASURE),
}


async def remove_residual(
    engine: AsyncEngine, quarantine: QuarantineEraser, erasure: Erasure, check: LeadershipCheck
) -> None:
    """Remove quarantined events, values of a subject, rows without an inference, and unused labels.

    Labels come last: those rows may be predictions. Repeatable.
    """
    takes_all = erasure.scope == "inference" and erasure.cause in {"policy", "request"}
    if takes_all:
        await quarantine.remove_erased(erasure)
        await quarantine.remove_mentions(erasure)
        for table in _MENTIONS:
            await _remove_mentions(engine, erasure, table, check)
    if erasure.cause == "request":
        await delete_orphans(engine, erasure, check)
    if takes_all:
        async with engine.connect() as connection:
            models = await erasures.models_of(connection, erasure)
        await remove_unused_labels(engine, models, check)


async def _remove_mentions(
    engine: AsyncEngine, erasure: Erasure, table: str, check: LeadershipCheck
) -> None:
    """Remove mentions page by page, each in its own transaction; none if the erasure is
    cancelled."""
    subject = chosen.subject_in(erasure.asked)
    if subject is None:
        return
    take, first = _MENTIONS[table]
    after: tuple[Any, ...] | None = first
    while after is not None:
        await check.confirm_step()
        async with engine.connect() as connection:
            taken, after = await take(connection, erasure.id, subject, after, _LOOKED_AT)
            if taken:
                if not await erasures.begin_deleting(connection, erasure.id):
                    return
                await erasures.count(connection, erasure.id, table_rows={table: taken})
                await connection.commit()

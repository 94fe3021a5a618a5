"""What an erasure's inferences have left outside of their rows, once all their rows are gone."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, chosen
from inference_store.erasure.housekeeping import mentioned

from .dropping import delete_orphans_of
from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck
from .quarantine import QuarantineEraser

# Versions of policies, and erasures, that are looked at in one transaction.
_LOOKED_AT = 1000
# By the table whose rows mention a subject.
_MENTIONS = {
    "policy_version": (mentioned.take_from_policies, mentioned.FIRST_VERSION),
    "erasure": (mentioned.take_from_erasures, mentioned.FIRST_ERASURE),
}


async def remove_residual(
    engine: AsyncEngine, quarantine: QuarantineEraser, one: Erasure, check: LeadershipCheck
) -> None:
    """Events that are set aside, what is said of a subject, rows without an inference, labels. The
    labels last: those rows may be predictions. Repeatable."""
    takes_all = one.scope == "inference" and one.cause in {"policy", "request"}
    if takes_all:
        await quarantine.take_erased(one)
        await quarantine.take_mentions(one)
        for table in _MENTIONS:
            await _remove_mentions(engine, one, table, check)
    if one.cause == "request":
        await delete_orphans_of(engine, one, check)
    if takes_all:
        async with engine.connect() as connection:
            models = await erasures.models_of(connection, one)
        await remove_unused_labels(engine, models, check)


async def _remove_mentions(
    engine: AsyncEngine, one: Erasure, table: str, check: LeadershipCheck
) -> None:
    """Page by page, each in a transaction of its own; none of an erasure that is cancelled."""
    subject = chosen.subject_in(one.asked)
    if subject is None:
        return
    take, first = _MENTIONS[table]
    after: tuple[Any, ...] | None = first
    while after is not None:
        await check.confirm_step()
        async with engine.connect() as connection:
            taken, after = await take(connection, one.id, subject, after, _LOOKED_AT)
            if taken:
                if not await erasures.begin_deleting(connection, one.id):
                    return
                await erasures.count(connection, one.id, table_rows={table: taken})
                await connection.commit()

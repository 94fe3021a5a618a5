"""Removes the residual data of an erasure: the data outside of its rows, after those are gone."""

from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.housekeeping import mention_redaction
from inference_store.erasure.housekeeping.reach import find_reach
from inference_store.erasure.progress.erasure import Erasure, find_erasure, list_models
from inference_store.erasure.progress.state_changes import add_erased, begin_deleting
from inference_store.erasure.request.criteria import find_subject
from inference_store.index.partitions import TimePartition, list_partitions, vacuum
from inference_store.index.tables import METADATA, PARTITIONED

from .dropping import delete_orphans
from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck
from .quarantine import QuarantineEraser
from .residual_in_holds import ResidualInHolds

# Rows that are checked in one transaction.
_PAGE = 1000
# By the table whose rows may mention a subject: the function that redacts a page, and its start.
_REDACTIONS = {
    "audit": (mention_redaction.redact_audit, mention_redaction.FIRST_ENTRY),
    "policy_version": (mention_redaction.redact_policies, mention_redaction.FIRST_VERSION),
    "erasure": (mention_redaction.redact_erasures, mention_redaction.FIRST_ERASURE),
    "saved_view": (mention_redaction.redact_views, mention_redaction.FIRST_VIEW),
    "export_job": (mention_redaction.redact_exports, mention_redaction.FIRST_EXPORT),
}


async def remove_residual(
    engine: AsyncEngine,
    quarantine: QuarantineEraser,
    residual_in_holds: ResidualInHolds,
    erasure: Erasure,
    check: LeadershipCheck,
) -> None:
    """Remove quarantined events, values of a subject, rows without an inference, and unused labels.

    Labels come late: those rows may be predictions. After all of a subject's rows, the tables are
    vacuumed. Repeatable.
    """
    takes_all = erasure.scope == "inference" and erasure.cause in {"policy", "request"}
    if takes_all:
        await quarantine.remove_erased(erasure)
        await remove_mentions(engine, residual_in_holds, erasure, check)
    if erasure.cause == "request":
        await delete_orphans(engine, erasure, check)
    if takes_all:
        async with engine.connect() as connection:
            models = await list_models(connection, erasure)
        await remove_unused_labels(engine, models, check)
    if find_subject(erasure.asked) is not None:
        await _vacuum(engine, erasure, check)


async def _vacuum(engine: AsyncEngine, erasure: Erasure, check: LeadershipCheck) -> None:
    """Vacuum every table, and of the partitions those of the time of what was erased."""
    async with engine.connect() as connection:
        now = await find_erasure(connection, erasure.id)
        spans: list[TimePartition] = []
        if now is not None and now.oldest is not None and now.newest is not None:
            end = now.newest + timedelta(microseconds=1)
            spans = await list_partitions(connection, lo=now.oldest, hi=end)
    whole = [table.name for table in METADATA.sorted_tables if table not in PARTITIONED]
    for name in (*whole, *(leaf for span in spans for leaf in span.tables)):
        await check.confirm_step()
        await vacuum(engine, name)


async def remove_mentions(
    engine: AsyncEngine,
    residual_in_holds: ResidualInHolds,
    erasure: Erasure,
    check: LeadershipCheck,
) -> None:
    """Remove mentions of the subject from the audit, policies, ended erasures, views, exports and
    holds."""
    subject = find_subject(erasure.asked)
    if subject is None:
        return
    async with engine.connect() as connection:
        reach = await find_reach(connection, erasure)
    redaction = mention_redaction.Redaction(erasure.id, subject, reach)
    for table in _REDACTIONS:
        await _redact_table(engine, redaction, table, check)
    await residual_in_holds.remove_subject(erasure, subject, reach)


async def _redact_table(
    engine: AsyncEngine, redaction: mention_redaction.Redaction, table: str, check: LeadershipCheck
) -> None:
    """Redact page by page, each in its own transaction; nothing if the erasure is cancelled."""
    redact, first = _REDACTIONS[table]
    after: tuple[Any, ...] | None = first
    while after is not None:
        await check.confirm_step()
        async with engine.connect() as connection:
            redacted, after = await redact(connection, redaction, after, _PAGE)
            if redacted:
                if not await begin_deleting(connection, redaction.erasure):
                    return
                await add_erased(connection, redaction.erasure, table_rows={table: redacted})
                await connection.commit()

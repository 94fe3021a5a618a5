"""Extends the audit's chain and writes the ledger's outbox while this service leads, beside its
other work.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain import Sign
from inference_store.erasure.certify.chain import find_signer
from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS, RecordKind
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.bucket import ChainHead
from inference_store.erasure.log.hash_chain import canonical
from inference_store.erasure.log.keys import signing_keys
from inference_store.inference.errors import ObjectStoreUnavailable, Unavailable
from inference_store.platform.metrics import PRUNED
from inference_store.platform.settings import RetentionSettings

from .leadership_check import LeadershipCheck

_EVERY_SECONDS = 1.0
_LINKED = 2_000
_log = structlog.get_logger()


@asynccontextmanager
async def link(engine: AsyncEngine, ledger: Ledger) -> AsyncIterator[None]:
    """Link committed entries and write what waits every second; at a handover two leaders wait for
    each other."""
    steps = (("audit", partial(link_all, engine)), ("ledger", ledger.write_outbox))
    tasks = [asyncio.create_task(_repeat(*step)) for step in steps]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _repeat(what: str, step: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await step()
        except (DBAPIError, PoolTimeout, OSError, ObjectStoreUnavailable, Unavailable) as error:
            _log.warning("entries wait", action=what, error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


async def link_all(engine: AsyncEngine) -> None:
    """Link all committed entries, batch by batch."""
    linked = _LINKED
    while linked == _LINKED:
        async with engine.begin() as connection:
            linked = await audit_chain.link_entries(connection, limit=_LINKED)


_BATCH = 10_000
_CHECKPOINT_SECONDS = 3600.0


class _NotDue(Exception):
    """Another process has recorded a checkpoint meanwhile."""


async def delete_old_records(
    engine: AsyncEngine,
    settings: RetentionSettings,
    check: LeadershipCheck,
    ledger: Ledger,
    audit_head: ChainHead | None = None,
) -> None:
    """Delete the records of each kind that are older than its setting; of the audit, only chained
    entries.

    `audit_head`: the locked object for the newest signed checkpoint of the audit.
    """
    await link_all(engine)
    async with engine.connect() as connection:
        sign = await find_signer(connection, signing_keys(settings))
    await _checkpoint(engine, ledger, sign)
    for records in RECORD_KINDS:
        seconds, pruned = getattr(settings, records.setting), 1
        while pruned:
            await check.confirm_step()
            async with _open_transaction(engine, ledger, records) as connection:
                pruned = await records.prune(connection, seconds, _BATCH, sign)
            PRUNED.labels(records.name).inc(pruned)
    if audit_head is not None:
        async with engine.connect() as connection:
            newest = await audit_chain.find_newest_signed(connection)
        if newest is not None:
            await asyncio.to_thread(audit_head.put_once, canonical(newest))


@asynccontextmanager
async def _open_transaction(
    engine: AsyncEngine, ledger: Ledger, records: RecordKind
) -> AsyncIterator[AsyncConnection]:
    """Open a transaction: in the ledger's turn if others sign too, else one of our own."""
    if records.in_turn:
        async with ledger.turn() as connection, connection.begin():
            yield connection
    else:
        async with engine.begin() as connection:
            yield connection


async def _checkpoint(engine: AsyncEngine, ledger: Ledger, sign: Sign) -> None:
    """Write the end of the audit's chain to the bucket too, where it reveals a truncated chain."""

    async def make_body(connection: AsyncConnection) -> dict[str, Any]:
        # read in the turn, or two services would sign two checkpoints with the same predecessor
        body = await audit_chain.make_checkpoint(
            connection, every_seconds=_CHECKPOINT_SECONDS, sign=sign
        )
        if body is None:
            raise _NotDue
        return body

    async with engine.connect() as connection:
        is_due = (
            await audit_chain.make_checkpoint(connection, every_seconds=_CHECKPOINT_SECONDS)
            is not None
        )
    if is_due:
        with suppress(Unavailable, _NotDue):  # others write: the next run records it
            await ledger.write("audit_checkpoint", make_body, actor="retention")


async def redact_ledger(
    ledger: Ledger, settings: RetentionSettings, check: LeadershipCheck
) -> None:
    """Redact the entries of the ledger that are old enough; they stay, and count as `ledger`.
    Raises ObjectStoreUnavailable."""
    forgotten = 1
    while forgotten:
        await check.confirm_step()
        seconds = settings.ledger_values_keep_seconds
        forgotten = await ledger.redact(older_than_seconds=seconds)
        PRUNED.labels("ledger").inc(forgotten)

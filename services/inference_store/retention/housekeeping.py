"""The upkeep of the store's own records: what is old goes, deltas are folded, chains are linked.

Batch by batch, each in a transaction of its own; the next schedule repeats failed work.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog
from asyncpg.exceptions import QueryCanceledError
from sqlalchemy import func, not_, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import (
    audit_chain,
    holds,
    housekeeping,
    pending_deletions,
    policies,
    runs,
    selection,
)
from inference_store.erasure.housekeeping import RECORD_KINDS
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import AUDIT_CHECKPOINT
from inference_store.erasure.policies import (
    EffectivePolicy,
    PolicyOwner,
    PolicyVersion,
    find_in_force,
    watermarks,
)
from inference_store.erasure.progress import ENDED
from inference_store.erasure.selection import Work, list_work
from inference_store.export.erased import forget_uids
from inference_store.export.jobs import delete_old_jobs
from inference_store.index import partitions
from inference_store.index.database import cause_of
from inference_store.index.tables import erasure
from inference_store.inference.errors import ObjectStoreUnavailable, StoreError, Unavailable
from inference_store.inference.events import received_at_of, uid_floor
from inference_store.platform.metrics import PRUNED
from inference_store.platform.serving import in_background
from inference_store.query.deadline import ScanRange
from inference_store.retention.leader import Leader

_RECORDS: Final = 10_000
_LINKED: Final = 2_000
# Late events are rare by then.
_MERGED_AFTER: Final = timedelta(days=3)
_CHECKPOINT_SECONDS: Final = 3600.0
_LINK_EVERY_SECONDS: Final = 1.0
_log = structlog.get_logger()


async def delete_idle_records(leader: Leader) -> None:
    """Delete runs that deleted nothing, and models that were removed."""
    async with leader.engine.begin() as connection:
        await runs.delete_idle(connection)
        await housekeeping.remove_emptied(connection)


async def delete_tombstones(leader: Leader) -> None:
    """Delete tombstones of events that Kafka no longer has, and uids that erasures took of exports
    as long ago."""
    seconds = leader.settings.tombstone_seconds
    await leader.repeat(partial(pending_deletions.delete_old, older_than_seconds=seconds))
    await leader.repeat(partial(forget_uids, older_than_seconds=seconds))


async def delete_old_exports(leader: Leader) -> None:
    """Delete exports that ended long ago, or whose model was removed, with what they know of
    copies."""
    seconds = leader.settings.audit_keep_seconds
    await leader.repeat(partial(delete_old_jobs, older_than_seconds=seconds))


async def maintain_partitions(leader: Leader) -> None:
    """Collect the statistics of partitions, and merge small old ones."""
    await partitions.analyse(leader.engine)
    await partitions.merge(leader.engine, older_than=_MERGED_AFTER)


async def redact_ledger(leader: Leader) -> None:
    """Redact the entries of the ledger that are old enough; they stay, and count as `ledger`."""
    redacted = 1
    while redacted:
        await leader.check.confirm_step()
        seconds = leader.settings.ledger_values_keep_seconds
        redacted = await leader.ledger.redact(older_than_seconds=seconds)
        PRUNED.labels("ledger").inc(redacted)


class _NotDue(Exception):
    """Nothing is to be cut, and a checkpoint is recent enough."""


async def delete_records(leader: Leader) -> None:
    """Delete the store's own records that are older than their settings; of the audit, only chained
    entries."""
    await link_all(leader.engine)
    await _write_checkpoint(leader)
    for records in RECORD_KINDS:
        seconds = getattr(leader.settings, records.setting)
        pruned = await leader.repeat(partial(records.prune, seconds=seconds, limit=_RECORDS))
        PRUNED.labels(records.name).inc(pruned)


async def _write_checkpoint(leader: Leader) -> None:
    """Write the end of the audit's chain to the ledger, and sign the ledger's end at once, before
    anything is cut: where it reveals a truncated chain."""

    async def make_body(connection: AsyncConnection) -> dict[str, Any]:
        checkpoint = await audit_chain.make_checkpoint(
            connection,
            every_seconds=_CHECKPOINT_SECONDS,
            keep_seconds=leader.settings.audit_keep_seconds,
        )
        if checkpoint is None:
            raise _NotDue
        return checkpoint

    with suppress(Unavailable, _NotDue):  # others write: the next run records it
        await leader.ledger.write(AUDIT_CHECKPOINT, make_body, actor="retention")
    # also if the last run wrote a checkpoint, and then could not sign the end
    if leader.certifier is not None:
        await leader.certifier.write_head(at_once=True)


def link(engine: AsyncEngine, ledger: Ledger) -> AbstractAsyncContextManager[None]:
    """Link committed entries and write what waits every second; at a handover two leaders wait for
    each other."""
    steps = (("audit", partial(link_all, engine)), ("ledger", ledger.write_outbox))
    return in_background(*(_repeat(*step) for step in steps))


async def _repeat(what: str, step: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await step()
        except (DBAPIError, PoolTimeout, OSError, ObjectStoreUnavailable, Unavailable) as error:
            _log.warning("entries wait", action=what, error=type(error).__name__)
        await asyncio.sleep(_LINK_EVERY_SECONDS)


async def link_all(engine: AsyncEngine) -> None:
    """Link all committed entries, batch by batch."""
    linked = _LINKED
    while linked == _LINKED:
        async with engine.begin() as connection:
            linked = await audit_chain.link_entries(connection, limit=_LINKED)


# Measures the age of the oldest thing that should be deleted and is not, which shows late
# deletion.
#
# For policies it searches as a run does, without what a run has not read yet and what a hold
# protects.

_SECONDS = 5.0
_QUERY_SECONDS = 2
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


class Overdue:
    """Measures repeatedly; if there are many models, some of them for a few seconds each time."""

    def __init__(self, keep: Mapping[str, float]) -> None:
        self._keep = keep
        self._after = -1
        self._round = 0.0
        self._before = 0.0

    async def measure_seconds(self, connection: AsyncConnection) -> float:
        """Return the longest delay in seconds; 0: nothing is overdue.

        It is measured for erasures from their request, for the store's own records from the end of
        their retention, and for what policies let expire from then or from the beginning of the
        policy.
        """
        return max(
            await _measure_erasures(connection),
            await housekeeping.find_overdue_seconds(connection, self._keep),
            await self._measure_policies(connection),
        )

    async def _measure_policies(self, connection: AsyncConnection) -> float:
        until = time.monotonic() + _SECONDS
        now = await connection.scalar(select(func.now())) or datetime.now(UTC)
        chains = await policies.find_effective_policies(connection)
        begun = await watermarks.load_watermarks(connection, chains, now)
        versions = await find_in_force(connection)
        for model in sorted(model for model in chains if model > self._after):
            try:
                seconds = await _measure_model(
                    connection, model, chains[model], begun=begun, now=now, versions=versions
                )
            except StoreError:  # a filter that cannot be evaluated: runs and holds report it
                seconds = 0.0
            self._round = max(self._round, seconds)
            self._after = model
            if time.monotonic() > until:
                return max(self._round, self._before)
        self._after, self._before, self._round = -1, self._round, 0.0
        return self._before


async def _measure_model(
    connection: AsyncConnection,
    model: int,
    policy: EffectivePolicy,
    *,
    begun: Mapping[watermarks.WatermarkKey, datetime],
    now: datetime,
    versions: Mapping[PolicyOwner, PolicyVersion],
) -> float:
    """Return the delay of a model's policy: nothing was overdue before it began."""
    rules, longest = await selection.compile_rules(connection, policy, now), 0.0
    for work in list_work(model, policy, rules):
        # every run reads all that is not rechecked: an index has them
        lo = begun.get(work.watermark_key, _BEGINNING) if work.is_rechecked else _BEGINNING
        # what is coming may have kept the rest until now
        end = policy.find_settled(work.cutoff, work.scope, now)
        if lo < end:
            late = await _measure_work(connection, work, lo, end)
            since = versions[policy.rules[work.rule].of].effective_at
            longest = max(longest, min(late, (now - since).total_seconds()))
    return longest


async def _measure_work(
    connection: AsyncConnection, work: Work, lo: datetime, end: datetime
) -> float:
    """Return how long ago the oldest of [lo, end) should have been deleted.

    If that takes too long to find, return how long ago the last run read it.
    """
    where = ScanRange(work.model, uid_floor(lo), uid_floor(end))
    query = selection.select_expired(where, work).limit(1)
    try:
        async with connection.begin_nested():
            await connection.execute(text(f"SET LOCAL statement_timeout = '{_QUERY_SECONDS}s'"))
            held = await holds.build_held_condition(connection, where)
            oldest = await connection.scalar(query.where(not_(held)))
    except DBAPIError as error:
        if not isinstance(cause_of(error), QueryCanceledError):
            raise
        return (end - lo).total_seconds() if lo > _BEGINNING else 0.0
    return 0.0 if oldest is None else (end - received_at_of(oldest)).total_seconds()


async def _measure_erasures(connection: AsyncConnection) -> float:
    """Return the age of the oldest unfinished erasure.

    Failed ones count, because what they name is still there. What a hold protects is not overdue.
    """
    age = func.extract("epoch", func.now() - func.min(erasure.c.requested_at))
    over = (*ENDED, "partly_held", "giving_up")
    seconds = await connection.scalar(select(age).where(erasure.c.state.not_in(over)))
    return float(seconds or 0)

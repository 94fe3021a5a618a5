"""Folds, deletes or measures data that grows with time, when the schedule is due."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.housekeeping import removed_exports, removed_models
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.chain_head import ChainHead
from inference_store.erasure.mark import tombstones
from inference_store.erasure.preview import previews
from inference_store.export.jobs.job_deletion import delete_old_jobs
from inference_store.export.ledger import notices
from inference_store.index import accounting, key_registry, partitions, web_sessions
from inference_store.platform.settings import RetentionSettings

from . import record_deletion
from .leadership_check import LeadershipCheck

_PRODUCERS_BATCH: Final = 500
# Late events are rare by then.
_MERGED_AFTER: Final = timedelta(days=3)


class Housekeeping:
    """Works batch by batch, each in its own transaction; the next schedule repeats failed work."""

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        ledger: Ledger,
        check: LeadershipCheck,
        audit_head: ChainHead | None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._ledger = ledger
        self._check = check
        self._audit_head = audit_head

    async def delete_idle_records(self) -> None:
        """Delete runs that deleted nothing, old previews, and models that were removed."""
        async with self._engine.begin() as connection:
            await runs.delete_idle(connection)
            await previews.delete_expired(connection)
            await removed_models.remove_emptied(connection)
        await self._repeat(removed_exports.delete_rows)

    async def delete_ended_sessions(self) -> None:
        """Delete sessions of browsers that have ended by themselves."""
        await self._repeat(web_sessions.delete_ended)

    async def delete_tombstones(self) -> None:
        """Delete tombstones of events that Kafka no longer has, and uids that erasures took of
        exports as long ago."""
        seconds = self._settings.tombstone_seconds
        await self._repeat(partial(tombstones.delete_old, older_than_seconds=seconds))
        await self._repeat(partial(notices.forget_uids, older_than_seconds=seconds))

    async def fold_key_registry(self) -> None:
        """Fold the deltas of the key registry into its counts."""
        await self._repeat(key_registry.fold)

    async def fold_producers(self) -> None:
        """Fold producers that have been silent for long into their sums."""
        await self._repeat(partial(accounting.fold_producers, limit=_PRODUCERS_BATCH))

    async def delete_old_records(self) -> None:
        """Delete our own records that are older than their settings."""
        await record_deletion.delete_old_records(
            self._engine, self._settings, self._check, self._ledger, audit_head=self._audit_head
        )

    async def delete_old_exports(self) -> None:
        """Delete exports that ended long ago, with what they know of copies."""
        seconds = self._settings.run_keep_seconds
        await self._repeat(partial(delete_old_jobs, older_than_seconds=seconds))

    async def redact_ledger(self) -> None:
        """Redact the entries of the ledger that are old enough."""
        await record_deletion.redact_ledger(self._ledger, self._settings, self._check)

    async def maintain_partitions(self) -> None:
        """Tune the vacuum of partitions, collect their statistics, and merge small old ones."""
        await partitions.tune_vacuum(self._engine)
        await partitions.analyse(self._engine)
        target = self._settings.partition_inferences
        await partitions.merge(self._engine, target=target, older_than=_MERGED_AFTER)

    async def _repeat(self, step: Callable[[AsyncConnection], Awaitable[int]]) -> None:
        """Repeat a step until it finds nothing more, each time in its own transaction."""
        count = 1
        while count:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                count = await step(connection)

"""Walks the table of jobs (`jobs.py`), turn by turn, while this service leads."""

import asyncio

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.export.ledger.bucket_exports import BucketExports
from inference_store.export.ledger.restoring import restore_exports
from inference_store.index import registrations
from inference_store.objects import Blobs
from inference_store.platform.settings import KafkaSettings, RetentionSettings

from .jobs import list_jobs
from .labels import remove_unused_labels
from .leadership_check import LeadershipCheck
from .workers import build_workers

_log = structlog.get_logger()


class RetentionWorker:
    """Works as long as it leads.

    Raises Stopped, ObjectStoreUnavailable and the errors of the database.
    """

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        due: asyncio.Event,
        *,
        kafka: KafkaSettings | None = None,
    ) -> None:
        self._engine = engine
        self._bucket_exports = BucketExports(blobs)
        self._check = check
        self._workers = build_workers(settings, engine, blobs, check, due, kafka)
        self._jobs = list_jobs(self._workers)

    async def begin(self) -> None:
        """Restart the runs of a process that died, remove the unused labels that it left, and
        import what only the bucket has of certificates and exports."""
        await self._workers.taken_over_parts.remember()
        async with self._engine.begin() as connection:
            await runs.reset_interrupted(connection)
            models = await registrations.every_model(connection)
        await remove_unused_labels(self._engine, models, self._check)
        await self._workers.certificates.begin()
        # before anything is erased: an erasure finds what is listed
        await restore_exports(self._engine, self._bucket_exports, self._check.confirm_step)

    async def end(self) -> None:
        """Write the newest certificate to the head before the service ends."""
        await self._workers.certificates.end()

    async def run_turn(self) -> None:
        """Run every job that is due, in the order of the table."""
        await self._check.confirm_step()
        self._workers.schedule.begin_turn()
        for job in self._jobs:
            if job.is_due():
                _log.debug("job", action="retention_job", job=job.name)
                await job.run()

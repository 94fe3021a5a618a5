"""Compares the bucket with the index between deletions: for a few seconds of each turn."""

import time

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.leader_election import RECONCILING, open_election
from inference_store.erasure.verify.failure_reasons import count_failure
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.reconciliations import FINAL, Reconciliation
from inference_store.platform.metrics import RECONCILIATIONS
from inference_store.platform.settings import KafkaSettings, RetentionSettings

from .leadership_check import LeadershipCheck

_SECONDS = 5.0
_log = structlog.get_logger()


class ReconciliationWorker:
    """Carries out requested reconciliations, and one a day if that is set."""

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        kafka: KafkaSettings | None,
    ) -> None:
        self._engine = engine
        self._check = check
        self._scheduled = settings.reconcile_schedule == "daily"
        self._reconciler = Reconciler(settings, engine, blobs, kafka=kafka)

    async def run_turn(self) -> None:
        """Work for a few seconds, unless a command does the work.

        If the object store is unavailable, or listing is forbidden, deletion goes on, and the next
        turn tries again.
        """
        reconciliation = await self._reconciler.find_due(scheduled=self._scheduled)
        if reconciliation is None:
            return
        async with open_election(self._engine, RECONCILING) as lock:
            if not await lock.take():
                return
            try:
                await self._work(reconciliation)
            except ObjectStoreUnavailable as error:
                count_failure("object_store")
                _log.warning("away", action="reconcile_waits", error=str(error)[:500])

    async def _work(self, reconciliation: Reconciliation) -> None:
        until = time.monotonic() + _SECONDS
        while reconciliation.state not in FINAL and time.monotonic() < until:
            await self._check.confirm_step()
            reconciliation = await self._check.unless_stopped(self._reconciler.step(reconciliation))
        if reconciliation.state in FINAL:
            RECONCILIATIONS.labels(reconciliation.state).inc()

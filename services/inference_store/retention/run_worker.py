"""Carries out the runs that are pending, one after the other."""

import time
from datetime import UTC, datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.runs import RetentionRun
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LAST_RUN, RETENTION_RUNS, RUN_SECONDS

from .eraser import Eraser
from .run_executor import RunExecutor

_CAUSE = "inference_store.retention.cause"
_log = structlog.get_logger()


class RunWorker:
    """Starts and ends runs.

    Raises Stopped, ObjectStoreUnavailable and the errors of the database.
    """

    def __init__(self, engine: AsyncEngine, ledger: Ledger, eraser: Eraser, *, batch: int) -> None:
        self._engine = engine
        self._ledger = ledger
        self._eraser = eraser
        self._batch = batch

    async def request_scheduled(self) -> None:
        """Request the run of the schedule, unless one is requested already."""
        async with self._engine.begin() as connection:
            if not await runs.is_scheduled(connection):
                await runs.request_run(connection, cause="schedule")

    async def carry_out_pending(self) -> None:
        """Carry out all pending runs."""
        async with self._engine.connect() as connection:
            pending = await runs.list_pending(connection)
        for run in pending:
            await self._carry_out(run)

    async def _carry_out(self, run: RetentionRun) -> None:
        failpoint("retention.run_start.before")
        async with self._engine.begin() as connection:
            await runs.start_run(connection, run.id)
        failpoint("retention.run_start.after")
        began = time.monotonic()
        error = await self._execute(run)
        RUN_SECONDS.observe(time.monotonic() - began)
        failpoint("retention.run_finish.before")
        async with self._engine.begin() as connection:
            await runs.finish_run(connection, run.id, error=error)
        failpoint("retention.run_finish.after")
        RETENTION_RUNS.labels("failed" if error else "done").inc()
        if error is None:
            LAST_RUN.set_to_current_time()
        _log.info("retention run", action="retention_run", id=str(run.id), error=error)

    async def _execute(self, run: RetentionRun) -> str | None:
        executor = RunExecutor(
            self._engine,
            self._ledger,
            self._eraser,
            run,
            batch=self._batch,
            now=datetime.now(UTC),
        )
        with traces.ended(traces.begin("retention run", attributes={_CAUSE: run.cause})) as span:
            error = await executor.carry_out()
            if error is not None:
                traces.failed(span, "ErasureFailure")
        return error

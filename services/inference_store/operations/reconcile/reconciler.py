"""Carries out reconciliations, step by step: whoever works may stop between two steps."""

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import EVERYTHING
from inference_store.index import registrations, tables
from inference_store.index.registrations import refuse_model
from inference_store.index.tables import erased_total, inference, kafka_partition, reconciliation
from inference_store.inference.errors import StoreError
from inference_store.objects import Blobs
from inference_store.platform.settings import KafkaSettings, ReconcileSettings

from . import age_bound, reconciliations, unstored_names
from .bucket_prefixes import BucketPrefix, parse_prefixes
from .compare import WINDOW, Comparison
from .reconciliations import Reconciliation

_DAY = timedelta(days=1)
# The time that ingesters have to read what is in the topic when a reconciliation begins.
_READING_TIME = timedelta(seconds=15)
_RETRY_SECONDS = 0.5
_log = structlog.get_logger()


class Reconciler:
    """Compares, and stores the results.

    Raises ObjectStoreUnavailable and the errors of the database.
    """

    def __init__(
        self,
        settings: ReconcileSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        *,
        kafka: KafkaSettings | None,
        window: int = WINDOW,
        patience: timedelta = _READING_TIME,
    ) -> None:
        """`kafka`: where events may be unread; None: unknown, so that no orphan is judged.

        `patience`: how long to wait for ingesters to read them.
        """
        self._settings = settings
        self._kafka = kafka
        self._patience = patience
        self._engine = engine
        self._blobs = blobs
        self._comparison = Comparison(
            engine, blobs, apart=list_own_prefixes(settings), window=window
        )

    async def find_due(self, *, scheduled: bool) -> Reconciliation | None:
        """Return the reconciliation to work on; with `scheduled`, once a day a new one."""
        async with self._engine.begin() as connection:
            unfinished = await reconciliations.find_unfinished(connection, repairs=("none",))
            if unfinished is not None or not scheduled:
                return unfinished
            last = await reconciliations.find_last_request(connection, "schedule")
            if last is not None and datetime.now(UTC) - last < _DAY:
                return None
            return await reconciliations.request_reconciliation(
                connection, model_id=None, cause="schedule"
            )

    def list_prefixes(self, reconciliation: Reconciliation) -> list[BucketPrefix]:
        """Return the prefixes that it reads. Raises Invalid for settings that do not fit."""
        return parse_prefixes(
            self._settings.reconcile_prefixes, self._blobs.buckets, model_id=reconciliation.model_id
        )

    async def step(self, reconciliation: Reconciliation) -> Reconciliation:
        """Do the next step; repeatable. A setting that does not fit ends the reconciliation."""
        try:
            prefixes = self.list_prefixes(reconciliation)
        except StoreError as error:
            return await self._finish(reconciliation, error=error.detail)
        if reconciliation.places and reconciliation.places != [str(prefix) for prefix in prefixes]:
            return await self._finish(
                reconciliation, error="the prefixes were changed while it was running"
            )
        if reconciliation.state in {"pending", "repairing"}:
            return await self.begin(reconciliation, prefixes)
        if reconciliation.state == "comparing" and reconciliation.place < len(prefixes):
            return await self._comparison.step(reconciliation, prefixes)
        return await self._finish(reconciliation, error=await self._find_fault(reconciliation))

    async def _find_fault(self, reconciliation: Reconciliation) -> str | None:
        """Return why what was compared is nothing: a model without a registration and objects.

        One with objects alone is compared and rebuilt: its registration may be what was lost.
        """
        model_id = reconciliation.model_id
        if model_id is None or reconciliation.count("objects"):
            return None
        async with self._engine.connect() as connection:
            if await registrations.find_by_ids(connection, [model_id]):
                return None
            unknown = await refuse_model(connection, model_id, EVERYTHING)
        return f"{unknown.detail} No object of it is under {', '.join(reconciliation.places)}."

    async def begin(
        self, reconciliation: Reconciliation, prefixes: list[BucketPrefix]
    ) -> Reconciliation:
        """Find what may be judged, and what unstored events name.

        The ingesters get some time to read what is in the topic now. Until then the reconciliation
        does not change, and this is called again.
        """
        try:
            reconciliation = await self._note_end(reconciliation)
            if await self._is_waiting(reconciliation):
                await asyncio.sleep(_RETRY_SECONDS)
                return reconciliation
            read = await self._find_newest_read()
        except age_bound.NotKnown as error:
            return await self._store_beginning(
                reconciliation, prefixes, age_bound.Bound(None, str(error))
            )
        async with self._engine.connect() as connection:
            grace = self._settings.reconcile_grace_seconds
            bound = await age_bound.find_bound(connection, read, grace_seconds=grace)
        return await self._store_beginning(reconciliation, prefixes, bound)

    async def _note_end(self, reconciliation: Reconciliation) -> Reconciliation:
        """Note, once, where the topic ends."""
        if reconciliation.noted_at is not None:
            return reconciliation
        async with self._engine.begin() as connection:
            note = await age_bound.note_end(connection, self._kafka)
            values = {"noted_at": note.at, "noted": note.document}
            return await reconciliations.update_reconciliation(
                connection, reconciliation.id, **values
            )

    async def _is_waiting(self, reconciliation: Reconciliation) -> bool:
        """Return whether ingesters still have time to read up to this reconciliation's note."""
        at, kafka = reconciliation.noted_at, self._kafka
        if at is None or kafka is None or datetime.now(UTC) - at > self._patience:
            return False
        async with self._engine.connect() as connection:
            if not await age_bound.is_ever_read(connection, kafka):
                return False
            note = age_bound.Note.of(at, reconciliation.noted or {})
            return not await age_bound.is_read(connection, kafka, note)

    async def _find_newest_read(self) -> age_bound.Note | None:
        """Return the newest note up to which everything is read, perhaps of an earlier
        reconciliation."""
        assert self._kafka is not None, "without Kafka there is no note"
        async with self._engine.connect() as connection:
            for note in await reconciliations.list_notes(connection):
                if await age_bound.is_read(connection, self._kafka, note):
                    return note
        return None

    async def _store_beginning(
        self, reconciliation: Reconciliation, prefixes: list[BucketPrefix], bound: age_bound.Bound
    ) -> Reconciliation:
        async with self._engine.begin() as connection:
            await unstored_names.store_names(connection, reconciliation.id, self._blobs.buckets)
            return await reconciliations.update_reconciliation(
                connection,
                reconciliation.id,
                state="comparing",
                started_at=func.coalesce(tables.reconciliation.c.started_at, func.now()),
                places=[str(prefix) for prefix in prefixes],
                place=0,
                after="",
                orphans_before=bound.before,
                because=bound.because,
            )

    async def _finish(
        self, reconciliation: Reconciliation, *, error: str | None = None
    ) -> Reconciliation:
        books = None if error else await count_against_accounting(self._engine)
        async with self._engine.begin() as connection:
            await unstored_names.remove_names(connection, reconciliation.id)
            await reconciliations.update_reconciliation(connection, reconciliation.id, books=books)
            ended = await reconciliations.finish_reconciliation(
                connection, reconciliation.id, error=error
            )
        _log.info(
            "reconciliation",
            action="reconciliation",
            id=str(reconciliation.id),
            state=ended.state,
            error=error,
            **ended.counts,
        )
        return ended


def list_own_prefixes(settings: ReconcileSettings) -> tuple[str, ...]:
    """Return the prefixes of the default bucket where the store keeps objects of its own."""
    ledger = str(getattr(settings, "ledger_prefix", "")).strip("/")
    return tuple(f"{prefix}/" for prefix in (ledger, "certificates") if prefix)


async def count_against_accounting(engine: AsyncEngine) -> dict[str, int]:
    """Count inferences stored by the offset accounting, rebuilt and erased since, and indexed now.

    The difference is 0 if nothing is lost. All numbers are of one moment.
    """
    async with engine.connect() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        stored = await connection.scalar(select(func.sum(kafka_partition.c.stored)))
        rebuilt = await connection.scalar(
            select(func.sum(reconciliation.c.counts["rebuilt"].as_integer()))
        )
        erased = await connection.scalar(select(erased_total.c.inferences))
        indexed = await connection.scalar(select(func.count()).select_from(inference))
    counts = {
        "stored": int(stored or 0),
        "rebuilt": int(rebuilt or 0),
        "erased": int(erased or 0),
        "indexed": int(indexed or 0),
    }
    expected = counts["stored"] + counts["rebuilt"] - counts["erased"]
    return {**counts, "difference": counts["indexed"] - expected}

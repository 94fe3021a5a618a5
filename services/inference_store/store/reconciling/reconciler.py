"""One reconciliation after the other, step by step: whoever works may stop between two steps."""

from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.blobs import Blobs
from inference_store.store.errors import StoreError
from inference_store.store.settings import KafkaSettings, ReconcileSettings
from inference_store.store.tables import reconciliation

from . import awaited, counts, named, reconciliations
from .compare import WINDOW, Comparison
from .places import Place, places_of
from .reconciliations import Reconciliation

_DAY = timedelta(days=1)
_log = structlog.get_logger()


class Reconciler:
    """Compares, and says so in the tables. Raises BlobsAway and the database's trouble."""

    def __init__(
        self,
        settings: ReconcileSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        *,
        kafka: KafkaSettings | None,
        window: int = WINDOW,
    ) -> None:
        """`kafka`: where events may be unread; None: not known, so that no orphan is judged."""
        self._settings = settings
        self._kafka = kafka
        self._engine = engine
        self._blobs = blobs
        self._comparison = Comparison(engine, blobs, apart=apart(settings), window=window)

    async def due(self, *, scheduled: bool) -> Reconciliation | None:
        """What is to be worked on; with `scheduled` once a day one that nobody asked for."""
        async with self._engine.begin() as connection:
            found = await reconciliations.unfinished(connection, repairs=("none",))
            if found is not None or not scheduled:
                return found
            last = await reconciliations.last(connection, "schedule")
            if last is not None and datetime.now(UTC) - last < _DAY:
                return None
            return await reconciliations.request(connection, model_id=None, cause="schedule")

    def places(self, one: Reconciliation) -> list[Place]:
        """Where it looks. Raises Invalid for settings that do not fit."""
        return places_of(
            self._settings.reconcile_prefixes, self._blobs.buckets, model_id=one.model_id
        )

    async def step(self, one: Reconciliation) -> Reconciliation:
        """Do the next thing; repeatable. A setting that does not fit ends it."""
        try:
            places = self.places(one)
        except StoreError as wrong:
            return await self._finish(one, error=wrong.detail)
        if one.places and one.places != [str(place) for place in places]:
            return await self._finish(one, error="the prefixes were changed while it went on")
        if one.state == "pending":
            return await self.begin(one, places)
        if one.state == "comparing" and one.place < len(places):
            return await self._comparison.step(one, places)
        return await self._finish(one)

    async def begin(self, one: Reconciliation, places: list[Place]) -> Reconciliation:
        """Find what may be judged, and what events name that are not stored."""
        async with self._engine.begin() as connection:
            found = await awaited.bound(
                connection, self._kafka, grace_seconds=self._settings.reconcile_grace_seconds
            )
            await named.gather(connection, one.id, self._blobs.buckets)
            return await reconciliations.update(
                connection,
                one.id,
                state="comparing",
                started_at=func.coalesce(reconciliation.c.started_at, func.now()),
                places=[str(place) for place in places],
                place=0,
                after="",
                orphans_before=found.before,
                because=found.because,
            )

    async def _finish(self, one: Reconciliation, *, error: str | None = None) -> Reconciliation:
        books = None if error else await counts.against_books(self._engine)
        async with self._engine.begin() as connection:
            await named.forget(connection, one.id)
            await reconciliations.update(connection, one.id, books=books)
            ended = await reconciliations.finish(connection, one.id, error=error)
        _log.info(
            "reconciliation",
            action="reconciliation",
            id=str(one.id),
            state=ended.state,
            error=error,
            **ended.counts,
        )
        return ended


def apart(settings: ReconcileSettings) -> tuple[str, ...]:
    """Prefixes of the default bucket where the store keeps what is no inference's."""
    ledger = str(getattr(settings, "ledger_prefix", "")).strip("/")
    return tuple(f"{each}/" for each in (ledger, "certificates") if each)

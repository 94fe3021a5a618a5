"""One reconciliation after the other, step by step: whoever works may stop between two steps."""

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import reconciliation
from inference_store.inference.errors import StoreError
from inference_store.objects import Blobs
from inference_store.platform.settings import KafkaSettings, ReconcileSettings

from . import awaited, counts, named, reconciliations
from .bucket_prefixes import BucketPrefix, parse_prefixes
from .compare import WINDOW, Comparison
from .reconciliations import Reconciliation

_DAY = timedelta(days=1)
# So long the ingesters have to read what is in the topic when a reconciliation begins.
_PATIENCE = timedelta(seconds=15)
_ASKED_AGAIN_SECONDS = 0.5
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
        patience: timedelta = _PATIENCE,
    ) -> None:
        """`kafka`: where events may be unread; None: not known, so that no orphan is judged.
        `patience`: how long ingesters are waited for to read them."""
        self._settings = settings
        self._kafka = kafka
        self._patience = patience
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

    def places(self, one: Reconciliation) -> list[BucketPrefix]:
        """Where it looks. Raises Invalid for settings that do not fit."""
        return parse_prefixes(
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
        if one.state in {"pending", "repairing"}:
            return await self.begin(one, places)
        if one.state == "comparing" and one.place < len(places):
            return await self._comparison.step(one, places)
        return await self._finish(one)

    async def begin(self, one: Reconciliation, places: list[BucketPrefix]) -> Reconciliation:
        """Find what may be judged, and what events name that are not stored.

        The ingesters are given a moment to read what is in the topic now; until then it stays as
        it is, and this is to be called again.
        """
        try:
            one = await self._note(one)
            if await self._is_waited_for(one):
                await asyncio.sleep(_ASKED_AGAIN_SECONDS)
                return one
            read = await self._newest_read()
        except awaited.NotKnown as error:
            return await self._begun(one, places, awaited.Bound(None, str(error)))
        async with self._engine.connect() as connection:
            grace = self._settings.reconcile_grace_seconds
            found = await awaited.bound(connection, read, grace_seconds=grace)
        return await self._begun(one, places, found)

    async def _note(self, one: Reconciliation) -> Reconciliation:
        """Once: where the topic ends."""
        if one.noted_at is not None:
            return one
        async with self._engine.begin() as connection:
            made = await awaited.note(connection, self._kafka)
            values = {"noted_at": made.at, "noted": made.document}
            return await reconciliations.update(connection, one.id, **values)

    async def _is_waited_for(self, one: Reconciliation) -> bool:
        """Whether the ingesters have a moment still to read up to this one's note."""
        at, kafka = one.noted_at, self._kafka
        if at is None or kafka is None or datetime.now(UTC) - at > self._patience:
            return False
        async with self._engine.connect() as connection:
            if not await awaited.is_ever_read(connection, kafka):
                return False
            note = awaited.Note.of(at, one.noted or {})
            return not await awaited.is_read(connection, kafka, note)

    async def _newest_read(self) -> awaited.Note | None:
        """The newest note up to which everything is read, a former one's maybe."""
        assert self._kafka is not None, "without Kafka there is no note"
        async with self._engine.connect() as connection:
            for note in await reconciliations.noted(connection):
                if await awaited.is_read(connection, self._kafka, note):
                    return note
        return None

    async def _begun(
        self, one: Reconciliation, places: list[BucketPrefix], found: awaited.Bound
    ) -> Reconciliation:
        async with self._engine.begin() as connection:
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

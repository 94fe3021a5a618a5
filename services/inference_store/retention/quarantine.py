"""Erases dead letters and parked events of what is being erased: bytes, objects and all.

From the first one that is taken on, the erasure cannot be cancelled; what a legal hold protects
stays, and the erasure is then partly held. A search reads, outside of any transaction; writes marks
for the events of a subject to the ledger; and then, in one transaction, after the locks of the
offset accounting and the fence, removes what no hold protects and queues its objects. After a crash
before that, all of it is searched again.
"""

import asyncio
from collections.abc import AsyncIterator

import structlog
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import audit_chain, erasures, holds
from inference_store.erasure.erasures import Erasure, aside_holds, chosen, marking, unstored
from inference_store.erasure.erasures.aside_metadata import metadata_of
from inference_store.erasure.erasures.chosen import Subject
from inference_store.erasure.erasures.unstored import Aside, Metadatas
from inference_store.erasure.holds import kept
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark import marks
from inference_store.index import accounting, registrations
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from .certifier import Certifier
from .leadership_check import LeadershipCheck
from .residual_in_holds import ResidualInHolds

# Entries of the audit that are checked in one transaction.
_AUDITED = 1000
_log = structlog.get_logger()


class QuarantineEraser:
    """Searches quarantined events, once for each erasure.

    Raises BlobsAway and the errors of the database: search again later.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        certifier: Certifier | None = None,
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._check = check
        self._residual_in_holds = ResidualInHolds(engine, check, certifier)

    async def remove_subject(self, erasure: Erasure, ledger: Ledger, *, actor: str) -> None:
        """Mark the events of the erasure's subject, so that their objects are deleted, and remove
        them."""
        subject = chosen.subject_in(erasure.asked)
        if subject is None or erasure.asked is None:
            return
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, erasure)
            predicate = await chosen.build_predicate(connection, models, erasure.asked)
        async for model, table, some in self._iterate_pages(erasure):
            metadata = await asyncio.to_thread(metadata_of, self._blobs, some)
            found = unstored.of_subject(some, subject, predicate, metadata)
            async with self._engine.connect() as connection:
                free, _ = await aside_holds.parted(connection, erasure, model, found, metadata)
                named = [each.mark() for each in free if each.event is not None]
                batch = await marking.entry(connection, erasure, model, named)
            if named:
                await ledger.write("erasure_batch", batch, actor=actor)
            if not await self._remove(erasure, model, table, found, metadata):
                return

    async def remove_erased(self, erasure: Erasure) -> None:
        """Remove events of inferences that were erased, by this erasure or before it."""
        ids = frozenset((erasure.asked or {}).get("inference_ids", ()))
        async for model, table, some in self._iterate_pages(erasure):
            async with self._engine.connect() as connection:
                found = await unstored.erased(connection, model, some, ids)
                asks = bool(found) and bool(await holds.in_force(connection, [model]))
            metadata = await asyncio.to_thread(metadata_of, self._blobs, found) if asks else {}
            if not await self._remove(erasure, model, table, found, metadata):
                return

    async def remove_mentions(self, erasure: Erasure) -> None:
        """Remove what the audit and holds say about the subject, unless the erasure was cancelled.

        Each page has a transaction of its own; a crash only makes it search again.
        """
        subject = chosen.subject_in(erasure.asked)
        if subject is None:
            return
        after: int | None = 0
        while after is not None:
            await self._check.confirm_step()
            after = await self._redact_audit_page(erasure, subject, after)
        await self._residual_in_holds.remove_subject(erasure, subject)

    async def _redact_audit_page(
        self, erasure: Erasure, subject: Subject, after: int
    ) -> int | None:
        """Redact a page of the audit; return the last entry that was checked.

        None: there are no more, or the erasure was cancelled, and nothing is redacted.
        """
        async with self._engine.connect() as connection:
            taken, last = await audit_chain.forget_mentions(
                connection, erasure.id, subject.key, subject.value, after=after, limit=_AUDITED
            )
            if taken:
                if not await erasures.begin_deleting(connection, erasure.id):
                    return None
                await erasures.count(connection, erasure.id, table_rows={"audit": taken})
                await connection.commit()
        return last

    async def _iterate_pages(
        self, erasure: Erasure
    ) -> AsyncIterator[tuple[int, Table, list[Aside]]]:
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, erasure)
            names = await registrations.names(connection, set(models))
        for model, name in sorted(names.items()):
            for table in unstored.TABLES:
                after = 0
                while some := await self._read_page(table, name, after):
                    yield model, table, some
                    after = some[-1].id

    async def _read_page(self, table: Table, model_id: str, after: int) -> list[Aside]:
        await self._check.confirm_step()
        async with self._engine.connect() as connection:
            return await unstored.page(
                connection, table, model_id, after=after, buckets=self._blobs.buckets
            )

    async def _remove(
        self, erasure: Erasure, model: int, table: Table, found: list[Aside], metadata: Metadatas
    ) -> bool:
        """Remove what no hold protects; False if the erasure was cancelled meanwhile."""
        if not found:
            return True
        failpoint("retention.aside.take.before")
        async with self._engine.begin() as connection:
            # The offset accounting first, as in the ingester: so neither holds what the other waits
            # for.
            await accounting.lock_partitions(connection, {each.place for each in found})
            await marks.gate_exclusive(connection)
            free, held = await aside_holds.parted(connection, erasure, model, found, metadata)
            await kept.remember_left_out(connection, erasure.id, model, table.name, held)
            if free and not await erasures.begin_deleting(connection, erasure.id):
                return False
            because = f"erased by the erasure {erasure.id}"
            taken = await unstored.take(connection, table, free, because=because)
            await unstored.doom(connection, erasure.id, model, taken)
            await erasures.count(connection, erasure.id, table_rows={table.name: len(taken)})
        failpoint("retention.aside.take.after")
        said = {"table": table.name, "count": len(taken), "held": len(held)}
        _log.info("taken", action="erased_aside", id=str(erasure.id), **said)
        return True

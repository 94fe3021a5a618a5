"""Dead letters and parked events of what is being erased go with it: bytes, objects and all.

From the first that is taken the erasure cannot be cancelled; what a legal hold keeps stays, and
the erasure is partly held by it. A look goes: read, outside of any transaction · marks for what
tells of a subject, in the ledger · then in one transaction, after the books and the gate, what no
hold keeps is taken, and its objects are queued with it. A crash before leaves all to be looked at
again.
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
from inference_store.index import books, registrations
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from .certifier import Certifier
from .leadership_check import LeadershipCheck
from .residual_in_holds import ResidualInHolds

# Entries of the audit that are looked at in one transaction.
_AUDITED = 1000
_log = structlog.get_logger()


class QuarantineEraser:
    """Looks through what is set aside, once an erasure. Raises BlobsAway and the database's
    trouble: look again later."""

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

    async def take_subject(self, one: Erasure, ledger: Ledger, *, actor: str) -> None:
        """What tells of the erasure's subject: marked, so that its objects go, and taken away."""
        subject = chosen.subject_in(one.asked)
        if subject is None or one.asked is None:
            return
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, one)
            predicate = await chosen.build_predicate(connection, models, one.asked)
        async for model, table, some in self._pages(one):
            metadata = await asyncio.to_thread(metadata_of, self._blobs, some)
            found = unstored.of_subject(some, subject, predicate, metadata)
            async with self._engine.connect() as connection:
                free, _ = await aside_holds.parted(connection, one, model, found, metadata)
                named = [each.mark() for each in free if each.event is not None]
                batch = await marking.entry(connection, one, model, named)
            if named:
                await ledger.write("erasure_batch", batch, actor=actor)
            if not await self._take(one, model, table, found, metadata):
                return

    async def take_erased(self, one: Erasure) -> None:
        """What tells of inferences that were erased, by this erasure or before it."""
        ids = frozenset((one.asked or {}).get("inference_ids", ()))
        async for model, table, some in self._pages(one):
            async with self._engine.connect() as connection:
                found = await unstored.erased(connection, model, some, ids)
                asks = bool(found) and bool(await holds.in_force(connection, [model]))
            metadata = await asyncio.to_thread(metadata_of, self._blobs, found) if asks else {}
            if not await self._take(one, model, table, found, metadata):
                return

    async def take_mentions(self, one: Erasure) -> None:
        """What the audit and holds say of the subject goes, unless the erasure has been cancelled:
        page by page, each in a transaction of its own, which a crash only makes look again."""
        subject = chosen.subject_in(one.asked)
        if subject is None:
            return
        after: int | None = 0
        while after is not None:
            await self._check.confirm_step()
            after = await self._take_audited(one, subject, after)
        await self._residual_in_holds.forget_subject(one, subject)

    async def _take_audited(self, one: Erasure, subject: Subject, after: int) -> int | None:
        """A page of the audit; the last that was looked at. None: there is none, or the erasure has
        been cancelled, and nothing is taken."""
        async with self._engine.connect() as connection:
            taken, last = await audit_chain.forget_mentions(
                connection, one.id, subject.key, subject.value, after=after, limit=_AUDITED
            )
            if taken:
                if not await erasures.begin_deleting(connection, one.id):
                    return None
                await erasures.count(connection, one.id, table_rows={"audit": taken})
                await connection.commit()
        return last

    async def _pages(self, one: Erasure) -> AsyncIterator[tuple[int, Table, list[Aside]]]:
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, one)
            names = await registrations.names(connection, set(models))
        for model, name in sorted(names.items()):
            for table in unstored.TABLES:
                after = 0
                while some := await self._page(table, name, after):
                    yield model, table, some
                    after = some[-1].id

    async def _page(self, table: Table, model_id: str, after: int) -> list[Aside]:
        await self._check.confirm_step()
        async with self._engine.connect() as connection:
            return await unstored.page(
                connection, table, model_id, after=after, buckets=self._blobs.buckets
            )

    async def _take(
        self, one: Erasure, model: int, table: Table, found: list[Aside], metadata: Metadatas
    ) -> bool:
        """Take what no hold keeps; False: the erasure has been cancelled meanwhile."""
        if not found:
            return True
        failpoint("retention.aside.take.before")
        async with self._engine.begin() as connection:
            # The books first, as the ingester does: neither then holds what the other waits for.
            await books.lock(connection, {each.place for each in found})
            await marks.gate_exclusive(connection)
            free, held = await aside_holds.parted(connection, one, model, found, metadata)
            await kept.remember_left_out(connection, one.id, model, table.name, held)
            if free and not await erasures.begin_deleting(connection, one.id):
                return False
            because = f"erased by the erasure {one.id}"
            taken = await unstored.take(connection, table, free, because=because)
            await unstored.doom(connection, one.id, model, taken)
            await erasures.count(connection, one.id, table_rows={table.name: len(taken)})
        failpoint("retention.aside.take.after")
        said = {"table": table.name, "count": len(taken), "held": len(held)}
        _log.info("taken", action="erased_aside", id=str(one.id), **said)
        return True

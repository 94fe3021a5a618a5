"""The audit has a retention of its own: a scheduled run removes what is old enough, to the last."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import SecretStr
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.erasure.certify import chain
from inference_store.erasure.certify.audit_checkpoints import CheckpointCheck
from inference_store.erasure.leader_election import open_election
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import key_documents
from inference_store.erasure.log.key_documents import make_key_document
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import sign_document
from inference_store.index.audit import note
from inference_store.index.tables import audit, audit_checkpoint
from inference_store.objects import Blobs
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.record_deletion import delete_old_records
from inference_store.retention.worker import RetentionWorker

from .conftest import NoPace


async def test_a_scheduled_run_prunes_the_audit(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO audit (at, actor, action)"
                " SELECT now() - n * interval '1 second', 'x', 'y'"
                " FROM generate_series(25000, 1, -1) AS n"
            )
        )
    keep = settings.model_copy(update={"audit_keep_seconds": 1000.0})
    due = asyncio.Event()
    due.set()
    async with open_election(engine) as election:
        assert await election.take()
        leader = RetentionWorker(
            keep, engine, blobs, LeadershipCheck(election, Heartbeat(), asyncio.Event()), due
        )
        await leader.run_turn()
    async with engine.connect() as connection:
        count = await connection.scalar(select(func.count()).select_from(audit))
    assert count is not None
    assert 900 <= count <= 1000


class _Overtaken(Ledger):
    """Something happens before it has its turn."""

    def __init__(self, *args: Any, first: Callable[[], Awaitable[None]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._first = first

    async def write(self, kind: str, body: Any, **more: Any) -> Any:
        await self._first()
        return await super().write(kind, body, **more)


async def test_only_one_of_two_services_notes_a_due_checkpoint(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    key = new_key()
    keyed = settings.model_copy(update={"certificate_key": SecretStr(key.pem)})
    async with engine.begin() as connection:
        document = make_key_document(key.public, after=await chain.find_head(connection))
        await chain.add_document(connection, sign_document(key, key_documents.KIND, document))

    async def write() -> None:
        async with engine.begin() as connection:
            for _ in range(3):
                await note(connection, Who("key:ada", None), Action.LINKS_MADE)

    async def other() -> None:
        await write()
        ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        await delete_old_records(engine, keyed, NoPace(), ledger)

    await write()
    late = _Overtaken(engine, blobs, prefix=settings.ledger_prefix, first=other)
    await delete_old_records(engine, keyed, NoPace(), late)
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        numbers = list((await connection.execute(select(audit_checkpoint.c.number))).scalars())
        verdict = await audit_chain.verify(connection, await CheckpointCheck.of(connection))
    assert numbers == [6]
    assert verdict.failures == []

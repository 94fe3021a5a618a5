"""The books and the index agree whatever was erased, and however long ago."""

from uuid import UUID, uuid4

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.audit_chain import unsigned
from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.mark.batches import mark_batch
from inference_store.erasure.progress.erasure import find_erasure
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.operations.reconcile.counts import count_against_accounting
from inference_store.retention.eraser import Eraser

from .stored import Storing, ago


async def test_counts_erased_inferences_once_and_for_all(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    await storing.inferences(await storing.model("m"), 3, ago(days=2))
    other = await storing.model("n")
    doomed = [inference.uid for inference in await storing.inferences(other, 2, ago(days=1))]
    # marked by a replay, and never stored here
    absent = storing.uid(ago(days=1))
    number = uuid4()
    about = {"erasure": str(number), "cause": "request", "scope": "inference", "run": None}
    rows = [[str(uid), None, None, None, None] for uid in (*doomed, absent)]
    batch = about | {"requested_by": "a", "model_id": "n", "marks": rows}
    async with engine.begin() as connection:
        await open_partition(connection, PartitionId("c", "t", 0, 0), first=0, began="earliest")
        await connection.execute(text("UPDATE kafka_partition SET next = 5, stored = 5"))
        assert await mark_batch(connection, batch, ago(hours=1), "a") == 3
    assert await _find_difference(engine) == 0
    await _finish_erasure(engine, eraser, number)
    assert await _find_difference(engine) == 0
    (ended,) = [kind for kind in RECORD_KINDS if kind.name == "erasures"]
    async with engine.begin() as connection:
        assert await ended.prune(connection, -60.0, 10, unsigned) == 1
    assert await _find_difference(engine) == 0


async def _finish_erasure(engine: AsyncEngine, eraser: Eraser, number: UUID) -> None:
    async with engine.connect() as connection:
        erasure = await find_erasure(connection, number)
    assert erasure is not None
    assert await eraser.finish(erasure) == "deleted"


async def _find_difference(engine: AsyncEngine) -> int:
    counts = await count_against_accounting(engine)
    async with engine.connect() as connection:
        rows = await connection.scalar(text("SELECT count(*) FROM inference"))
    assert counts["indexed"] == rows
    return counts["difference"]

"""Captures that are packed into segments: ingested, read, copied, compared, and rebuilt."""

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from tests.integration.ingester.conftest import StartIngester, start_ingester, wait_for_counts
from tests.producer import capture
from tests.transactions import opened

from .conftest import Command
from .test_rebuild import empty, read_everything

__all__ = ["empty", "start_ingester"]


async def test_packed_captures_are_rebuilt(
    start_ingester: StartIngester, engine: AsyncEngine, blobs: Blobs, command: Command, empty: str
) -> None:
    service, producer = await start_ingester(INGESTER_SIDECARS="on")
    await producer.produce_packed(*(capture(number) for number in range(5)))
    await producer.produce_packed(*(capture(n, model_id="other/model") for n in range(5, 8)))
    await producer.produce(capture(9))
    await wait_for_counts(engine, stored=9)
    service.stop()
    before = await read_everything(engine)
    async with opened(empty) as again:
        code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
        assert (code, report["state"], report["counts"]["rebuilt"]) == (0, "done", 9), report
        assert await read_everything(again) == before

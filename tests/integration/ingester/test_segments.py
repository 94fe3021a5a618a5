"""Segments are recorded with their events, and one that a spool writes again is erased again."""

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress import list_unfinished
from inference_store.index.tables import inference, segment
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.erasure_requests import request_erasure
from tests.integration.ingester.conftest import RunningIngester, erase, wait_for_counts
from tests.producer import capture
from tests.transactions import fetch, transact


@pytest.mark.real_minio
async def test_a_segment_that_a_spool_writes_again_is_erased_again(
    running: RunningIngester, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    _, producer = running
    packed = await producer.produce_packed(*(capture(number) for number in range(4)))
    await wait_for_counts(engine, stored=4)
    [row] = await fetch(engine, select(segment))
    assert (row.storage_key, row.members) == (f"s3://{bucket}/{packed.key}", 4)
    assert row.bytes == len(packed.tar)
    stored = await fetch(
        engine, select(inference.c.model, inference.c.uid).order_by(inference.c.inference_id)
    )
    (model, first), (_, second), *_ = stored
    whole = await transact(engine, request_erasure, model=model, uids=[first])
    part = await transact(engine, request_erasure, model=model, uids=[second], scope="input")
    await erase(engine, blobs, whole, part)
    await producer.put_bytes(packed.key, packed.tar)
    await producer.publish_all(packed.events)
    await wait_for_counts(engine, stored=4, duplicate=3, erased_again=1)
    await erase(engine, blobs, *await transact(engine, list_unfinished, failed=False))
    tar = blobs.get(StorageKey(bucket, packed.key), limit=10**6)
    assert [b"datum %d" % number in tar for number in range(4)] == [False, False, True, True]

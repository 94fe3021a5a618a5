"""Segments are recorded with their events, and one that a spool writes again is erased again."""

import json
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress import list_unfinished
from inference_store.index.tables import inference, segment
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.erasure_requests import request_erasure
from tests.integration.ingester.conftest import RunningIngester, erase, wait_for_counts
from tests.producer import capture, pack
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
    assert (row.sizes, row.hashes) == ([len(packed.tar)], [sha256(packed.tar).hexdigest()])
    assert ([(span.lower, span.upper) for span in row.announced], row.contested) == (
        [(0, 4)],
        False,
    )
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


@pytest.mark.real_minio
async def test_what_an_event_invents_of_a_segment_harms_nobody(
    running: RunningIngester, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    """Captures that fill it are not all of it; a false size and hash hide no true ones."""
    _, producer = running
    packed = pack(*(capture(number) for number in range(3)))
    await producer.put_bytes(packed.key, packed.tar)
    events = [json.loads(event) for event in packed.events]

    def invent(number: int, length: int, **more: Any) -> bytes:
        capture_id = str(UUID(int=UUID(events[number]["capture_id"]).int + (1 << 90)))
        key = f"{packed.key}#{600 + number}+{length}"
        names = {"inference_id": f"invented-{number}", "data_storage_key": key}
        gone = {"inference_storage_key": "", "metadata_storage_key": "", "metadata": "[]"}
        event = events[number] | names | gone | {"capture_id": capture_id}
        return json.dumps(event | more).encode()

    await producer.publish_all([invent(0, 0, segment_bytes=7)])
    await wait_for_counts(engine, stored=1)
    await producer.publish_all([invent(1, 0, segment_hash="0" * 64)])
    await wait_for_counts(engine, stored=2)
    await producer.publish_all(packed.events)
    await wait_for_counts(engine, stored=5)
    await producer.publish_all([invent(2, len(packed.tar) - 1024 - 3 * 512)])
    await wait_for_counts(engine, stored=6)
    [row] = await fetch(engine, select(segment))
    assert (row.contested, row.sizes) == (True, [7, len(packed.tar)])
    query = select(inference.c.model, inference.c.uid).order_by(inference.c.inference_id)
    stored = await fetch(engine, query)
    (model, first), *_ = stored
    place = StorageKey(bucket, packed.key)
    uids = [uid for _, uid in stored[3:]]
    await erase(engine, blobs, await transact(engine, request_erasure, model=model, uids=uids))
    assert blobs.get(place, limit=10**6) == packed.tar
    await erase(engine, blobs, await transact(engine, request_erasure, model=model, uids=[first]))
    tar = blobs.get(place, limit=10**6)
    assert [b"datum %d" % number in tar for number in range(3)] == [False, True, True]

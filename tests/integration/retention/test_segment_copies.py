"""What is left of nearly empty segments moves to new ones; every crash on the way is harmless."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import func, insert, select

from inference_store.erasure import segment_claims
from inference_store.index.tables import blob_reference, inference, registration, segment
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.segment_copier import copy_sparse, delete_other_copies
from tests.integration.backups import Backup, Restore
from tests.kill_chain import KillChain, chain_kills
from tests.servers.minio import S3
from tests.service_process import Service

from .stored import Stored, Storing, ago, make_leader
from .test_segments import count_with, find_place, list_names, read_versions

pytestmark = pytest.mark.real_minio
COPY_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("copy.")]


async def store_sparse(
    storing: Storing, model: int, at: datetime, **more: Any
) -> tuple[Stored, Stored]:
    """Store nine inferences in one segment, and erase all but the fifth and the last."""
    those = await storing.packed(model, 9, at, **more)
    await storing.erase(*those[:4], *those[5:8])
    return those[4], those[8]


async def lapse(storing: Storing) -> None:
    """Let the time pass that readers and makers of copies have."""
    await storing.execute(segment.update().values(leased_until=func.now()))


async def read_keys(storing: Storing, *those: Stored) -> list[StorageKey]:
    """Return the keys of all blobs, as the rows have them."""
    here, keys = inference.c, []
    for each in those:
        query = select(here.data_storage_key, here.response_storage_key, here.metadata_storage_key)
        async with storing.engine.connect() as connection:
            row = (await connection.execute(query.where(here.uid == each.uid))).one()
        keys += [storing.blobs.parse(key) for key in row]
    return keys


async def test_what_is_left_moves_and_is_erased_from_there(
    storing: Storing, minio_server: S3, backup: Backup, restore: Restore
) -> None:
    config = VersioningConfig(ENABLED)
    minio_server.client().set_bucket_versioning(storing.bucket, config)
    model = await storing.model()
    left = await store_sparse(storing, model, ago(days=40))
    old = find_place(left[0])
    before = [storing.blobs.get(key, limit=10_000) for each in left for key in each.objects]
    # one whose metadata were edited refers to the old ones
    edited = {"model": model, "uid": left[0].uid, "storage_key": str(left[0].objects[2])}
    await storing.execute(insert(blob_reference).values(edited))
    dump = backup()
    await storing.lead(turns=2)
    keys = await read_keys(storing, *left)
    [place] = {StorageKey(key.bucket, key.key.partition("#")[0]) for key in keys}
    # readers that have old keys finish
    assert storing.objects() == {old.key, place.key}
    for each in (*left[0].objects, *keys):
        assert storing.blobs.exists(each)
    await lapse(storing)
    await storing.lead(turns=1, scheduled=False)
    [tar] = read_versions(minio_server, storing.bucket).pop(place.key)
    assert set(read_versions(minio_server, storing.bucket)) == {place.key}
    assert [storing.blobs.get(key, limit=10_000) for key in keys] == before
    assert list_names(tar) == ["data", "response", "metadata.json"] * 2
    assert await storing.fetch(select(blob_reference.c.storage_key)) == [str(keys[2])]
    [row] = await storing.fetch(select(segment))
    assert (row.storage_key, row.sizes, row.other_copy) == (str(place), [len(tar)], None)
    # a backup of before finds them too
    again = storing.on(await restore(dump))
    await again.ledger.replay()
    assert await read_keys(again, *left) == keys
    await storing.erase(left[0])
    assert [count_with(minio_server, storing.bucket, b"datum %d" % n) for n in (4, 8)] == [0, 1]
    await storing.erase(left[1])
    assert read_versions(minio_server, storing.bucket) == {}
    assert await storing.fetch(select(segment)) == await storing.fetch(select(blob_reference)) == []


async def test_a_segment_that_something_needs_stays(storing: Storing) -> None:
    """Young, held, shared, marked, with a capture that was never stored, or a part that went."""
    models = [await storing.model(), await storing.model("held")]
    (held, _) = await store_sparse(storing, models[1], ago(days=40), name="held")
    await storing.hold(models[1], None, held.uid)
    every = [held]
    for hours in range(1, 6):
        at = ago(days=2 if hours == 5 else 40, hours=hours)
        every.append((await store_sparse(storing, models[0], at))[0])
    _, shared, marked, absent, part, _ = every
    names = [key.key for key in shared.objects]
    await storing.foreign(models[0], ago(hours=1), *names, put=False)
    await storing.erase(part, scope="response")
    await storing.request(marked)
    await storing.execute(inference.delete().where(inference.c.uid == absent.uid))
    before = storing.objects()
    await copy_sparse(make_leader(storing.engine, storing.blobs))
    assert storing.objects() == before
    assert await storing.fetch(select(segment.c.other_copy)) == [None] * 6
    # and without the shared one's reference
    await storing.execute(blob_reference.delete())
    await copy_sparse(make_leader(storing.engine, storing.blobs))
    assert len(storing.objects()) == 7


async def test_a_maker_that_is_late_moves_nothing(
    storing: Storing,
    settings: RetentionSettings,
    minio_server: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copy was given up while it was being put."""
    left = await store_sparse(storing, await storing.model(), ago(days=40))
    loop = asyncio.get_running_loop()

    async def overtake() -> None:
        await lapse(storing)
        for _ in range(2):
            await delete_other_copies(make_leader(storing.engine, storing.blobs))

    class Late(Blobs):
        def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
            super().put(key, data, content_type=content_type)
            if key.key.endswith(".tar"):
                asyncio.run_coroutine_threadsafe(overtake(), loop).result(180)

    with Late(settings) as blobs:
        await copy_sparse(make_leader(storing.engine, blobs))
    assert await read_keys(storing, *left) == [key for each in left for key in each.objects]
    assert storing.objects() == {find_place(left[0]).key}
    # and another copies it then; nothing is erased before the old object is gone
    await copy_sparse(make_leader(storing.engine, storing.blobs))
    assert len(storing.objects()) == 2
    monkeypatch.setattr(segment_claims, "LEASE_SECONDS", 0.1)
    erasure = await storing.request(left[0])
    for _ in range(2):
        assert await storing.eraser.finish(await storing.reload(erasure)) == "failed"
        await lapse(storing)
    await delete_other_copies(storing.eraser.leader)
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    assert count_with(minio_server, storing.bucket, b"datum 4") == 0


@pytest.mark.kills
@chain_kills(COPY_FAILPOINTS)
async def test_a_kill_loses_nothing_and_leaves_nothing(
    kills: KillChain,
    storing: Storing,
    environment: dict[str, str],
    minio_server: S3,
    tmp_path: Path,
) -> None:
    """A nearly empty segment for each kill."""
    config = VersioningConfig(ENABLED)
    minio_server.client().set_bucket_versioning(storing.bucket, config)
    model = await storing.model()
    those: list[Stored] = []
    for turn, kill in enumerate(kills):
        those += await store_sparse(storing, model, ago(days=40, hours=turn))
        if kill == "copy.deleted":
            await copy_sparse(make_leader(storing.engine, storing.blobs))
        await lapse(storing)
        failing = Service("retention", environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
        await kills.wait_until_killed(failing)
        assert [
            storing.blobs.get(key, limit=100) for key in (await read_keys(storing, *those))[::3]
        ] == [b"datum %d" % n for n in (4, 8)] * (turn + 1)
    for _ in range(2):  # the next schedule makes again what this one gives up
        await lapse(storing)
        await storing.lead(turns=3)
    await lapse(storing)
    await storing.lead(turns=2, scheduled=False)
    keys = await read_keys(storing, *those)
    versions = read_versions(minio_server, storing.bucket)
    assert set(versions) == {key.key.partition("#")[0] for key in keys}
    tars = [list_names(tar) for [tar] in versions.values()]
    assert tars == [["data", "response", "metadata.json"] * 2] * len(kills.failpoints)
    assert await storing.stored() == {each.uid for each in those}
    rows = await storing.fetch(select(segment.c.other_copy))
    assert rows == [None] * len(versions)
    await storing.erase(*those)
    assert read_versions(minio_server, storing.bucket) == {}
    assert await storing.fetch(select(registration.c.model_id)) == ["model"]

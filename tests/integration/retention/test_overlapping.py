"""Batches of an erasure overlap: the next one is claimed and listed while objects of the one before
go."""

import asyncio
from collections.abc import Iterable
from threading import Event

from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.holds.changes import Placement
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.polling import until
from tests.servers.minio import S3

from .conftest import NoPace
from .holding import place_hold
from .stored import Storing, ago
from .test_erasures import reload_erasure, request
from .test_holds import Watched, _find_marked


async def test_the_next_batch_does_not_spare_objects_being_erased(
    storing: Storing, engine: AsyncEngine, settings: RetentionSettings
) -> None:
    """A hold on it comes while its objects go: it was claimed, and a later one shares a blob."""
    model = await storing.model()
    first = await storing.foreign(model, ago(days=2), "a", "shared", None)
    second = await storing.foreign(model, ago(days=1), "b", "shared", None)
    erasure = await request(engine, first, second)
    loop, calls, placed = asyncio.get_running_loop(), 0, []

    def tell(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            placed.append(asyncio.run_coroutine_threadsafe(hold(), loop).result(300))

    async def hold() -> Placement:
        placement = await place_hold(engine, model, None, first.uid)
        # the second batch is claimed while the first is at its objects
        query = "SELECT count(*) FROM erasing WHERE claimed_at IS NOT NULL"
        await until(lambda: storing.scalar(query), lambda count: count == 2)
        return placement

    with Watched(settings) as blobs:
        blobs.tell = tell
        state = await Eraser(engine, blobs, NoPace(), batch=1).finish(erasure)
    assert first.uid in {claim.uid for claim in placed[0].claimed}
    assert state == "deleted"
    assert (await reload_erasure(engine, erasure)).inferences == 2
    assert (await storing.stored(), storing.objects()) == (set(), set())
    assert await _find_marked(engine) == set()


class _Beside(Blobs):
    """Deletes the first batch when the versions of the next were listed."""

    listed = 0

    def list_versions(self, keys: Iterable[StorageKey]) -> Listed:
        versions = super().list_versions(keys)
        self.listed += 1
        if self.listed == 2:
            self.next_is_listed.set()
        return versions

    def delete_objects(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        assert self.next_is_listed.wait(180)
        return super().delete_objects(keys, listed)

    def __enter__(self) -> "_Beside":
        self.next_is_listed = Event()
        return self


async def test_versions_of_the_next_batch_are_listed_while_objects_go(
    storing: Storing,
    engine: AsyncEngine,
    settings: RetentionSettings,
    minio_server: S3,
) -> None:
    minio_server.client().set_bucket_versioning(storing.bucket, VersioningConfig(ENABLED))
    model = await storing.model()
    erasure = await request(engine, *await storing.inferences(model, 3, ago(days=1)))
    with _Beside(settings) as blobs:
        state = await Eraser(engine, blobs, NoPace(), batch=1).finish(erasure)
    assert state == "deleted"
    assert (await storing.stored(), storing.objects()) == (set(), set())
    assert (await reload_erasure(engine, erasure)).versions == 9

"""An edit that crashes, and one that meets an erasure: nothing is left over, nothing comes back."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import uuid4

import httpx
import pytest
from obstore.exceptions import PermissionDeniedError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.policies import Scope
from inference_store.index.tables import blob_reference, inference
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.layout import key_of
from inference_store.objects import Blobs
from inference_store.objects.reading import translated
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import ApiSettings
from inference_store.retention.eraser import Eraser
from inference_store.retention.leadership_check import LeadershipCheck
from tests.integration import by_uids
from tests.integration.api.conftest import MakeApp, client_of
from tests.integration.stored import Made, at, store
from tests.integration.waiting import lock_waiters
from tests.polling import until
from tests.servers.fixtures import MakeEnvironment
from tests.servers.minio import S3
from tests.service_process import Service

PLACES = [name for name in FAILPOINTS if name.startswith("metadata_edit.")]
_ITEMS = [("k", "int", "5")]
_BLOB = b'[{"key": "k", "type": "int", "value": "5"}]'
_EDIT = {"metadata": [{"key": "k", "type": "int", "value": "6"}]}


class NoPace(LeadershipCheck):
    """Never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...


class Trial:
    """Two inferences of a model, and what is done to them."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, server: S3, bucket: str) -> None:
        self.engine = engine
        self.bucket = bucket
        self._blobs = blobs
        self._server = server
        self._eraser = Eraser(engine, blobs, NoPace(), batch=10)
        self.one = Made("one", at(0), _ITEMS, keys=(None, None, f"{bucket}/shared"))
        self.two = Made("two", at(1), _ITEMS, keys=(None, None, f"{bucket}/shared"))

    async def begin(self, *made: Made) -> "Trial":
        self.put("shared")
        self.model = await store(self.engine, *(made or (self.one, self.two)))
        return self

    def put(self, key: str, blob: bytes = _BLOB) -> None:
        self._blobs.put(StorageKey(self.bucket, key), blob, content_type="application/json")

    async def mark(self, made: Made, scope: Scope = "inference") -> Erasure:
        async with self.engine.begin() as connection:
            return await by_uids.request(connection, model=self.model, uids=[made.uid], scope=scope)

    async def finish(self, one: Erasure) -> None:
        assert await self._eraser.finish(one) == "deleted"

    async def erase(self, made: Made) -> None:
        await self.finish(await self.mark(made))

    @property
    def objects(self) -> list[str]:
        listed = self._server.client().list_objects(
            self.bucket, recursive=True, include_version=True
        )
        names = (str(item.object_name) for item in listed)
        return sorted(name for name in names if not name.startswith("ledger/"))

    async def references(self) -> set[tuple[str, Any]]:
        async with self.engine.connect() as connection:
            query = select(blob_reference.c.storage_key, blob_reference.c.uid)
            rows = await connection.execute(query)
            return {(key.rsplit("/", 1)[1], uid) for key, uid in rows}

    async def metadata_key(self, made: Made) -> str:
        async with self.engine.connect() as connection:
            query = select(inference.c.metadata_storage_key).where(inference.c.uid == made.uid)
            return str(await connection.scalar(query)).removeprefix(f"s3://{self.bucket}/")


@pytest.fixture
def trial(engine: AsyncEngine, blobs: Blobs, minio_server: S3, bucket: str) -> Trial:
    return Trial(engine, blobs, minio_server, bucket)


def own(made: Made) -> str:
    return f"metadata/model/{made.uid}"


class SlowBlobs(Blobs):
    """Waits with a write until it is let go."""

    def __init__(self, settings: ApiSettings) -> None:
        super().__init__(settings)
        self.arrived, self.go = threading.Event(), threading.Event()

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
        self.arrived.set()
        assert self.go.wait(180)
        super().put(key, data, content_type=content_type)


@pytest.fixture
async def slow(settings: Callable[..., ApiSettings]) -> AsyncIterator[SlowBlobs]:
    with SlowBlobs(settings()) as made:
        yield made
        made.go.set()


@pytest.fixture
async def slow_client(make_app: MakeApp, slow: SlowBlobs) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an api whose object store takes its time."""
    app = make_app()
    app.state.blobs = slow
    async with client_of(app) as made:
        yield made


async def edit(client: httpx.AsyncClient, made: Made) -> httpx.Response:
    return await client.post(f"/v1/models/model/inferences/uid:{made.uid}/metadata", json=_EDIT)


@pytest.mark.kills
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("repeated", [False, True], ids=["then_erased", "then_repeated"])
async def test_a_crash_between_blob_and_rows_leaves_no_orphan(
    trial: Trial,
    service_environment: MakeEnvironment,
    client: httpx.AsyncClient,
    tmp_path: Path,
    place: str,
    repeated: bool,
) -> None:
    await trial.begin()
    environment = service_environment(API_PORT="0", FAILPOINT=place)
    service = Service("api", environment, tmp_path)
    try:
        await asyncio.to_thread(service.wait_ready)
        async with httpx.AsyncClient(base_url=address_of(service), timeout=120) as killing:
            with pytest.raises(httpx.TransportError):
                await edit(killing, trial.one)
        assert await asyncio.to_thread(service.process.wait, 180) == 128 + SIGKILL
    finally:
        service.stop()
    assert (own(trial.one) in trial.objects) == place.endswith("after")
    assert await trial.metadata_key(trial.one) == "shared"
    if repeated:
        answer = await edit(client, trial.one)
        assert (answer.status_code, answer.json()["revision"]) == (200, 2)
        assert await trial.metadata_key(trial.one) == own(trial.one)
    await trial.erase(trial.one)
    assert trial.objects == ["shared"]
    assert await trial.references() == {("shared", trial.two.uid)}
    await trial.erase(trial.two)
    assert trial.objects == []


def address_of(service: Service) -> str:
    for line in service.text.splitlines():
        if '"action": "api_listening"' in line:
            return f"http://127.0.0.1:{json.loads(line)['port']}"
    raise AssertionError(service.text)


@pytest.mark.parametrize("shared", [True, False])
async def test_an_erasure_waits_for_the_edit_before_it(
    trial: Trial, slow: SlowBlobs, slow_client: httpx.AsyncClient, shared: bool
) -> None:
    await trial.begin(*([trial.one, trial.two] if shared else [trial.one]))
    editing = asyncio.create_task(edit(slow_client, trial.one))
    assert await asyncio.to_thread(slow.arrived.wait, 180)
    erasing = asyncio.create_task(trial.erase(trial.one))
    await until(lambda: lock_waiters(trial.engine), lambda count: count == 1)
    slow.go.set()
    assert (await editing).status_code == 200
    await erasing
    assert trial.objects == (["shared"] if shared else [])
    assert await trial.references() == ({("shared", trial.two.uid)} if shared else set())


async def test_what_came_again_is_erased_after_the_edit_that_did_not_see_it_come(
    trial: Trial, slow: SlowBlobs, slow_client: httpx.AsyncClient
) -> None:
    """The ingester marks without the row's lock; the edit writes what it read, the request too."""
    capture = uuid4()
    key = key_of("captures", "model", at(0), capture, "metadata")
    extras, keys = Extras(capture_id=capture), (None, None, f"{trial.bucket}/{key}")
    captured = Made("captured", at(0), _ITEMS, extras=extras, keys=keys)
    trial.put(key, b'{"metadata": %b, "request": {"prompt": "secret"}}' % _BLOB)
    await trial.begin(captured)
    editing = asyncio.create_task(edit(slow_client, captured))
    assert await asyncio.to_thread(slow.arrived.wait, 180)
    async with trial.engine.begin() as connection:
        storage_key = str(StorageKey(trial.bucket, key))
        arrival = (trial.model, captured.uid, "input", None, None, storage_key, None)
        await erasures.enqueue_arrivals(connection, [arrival], cause="erased_again")
        (again,) = await erasures.unfinished(connection, failed=False)
    erasing = asyncio.create_task(trial.finish(again))
    await until(lambda: lock_waiters(trial.engine), lambda count: count == 1 or erasing.done())
    slow.go.set()
    assert (await editing).status_code == 200
    await erasing
    left = json.loads(slow.get(StorageKey(trial.bucket, key), limit=1000))
    assert left == {"metadata": _EDIT["metadata"]}


async def test_an_edit_behind_an_erasure_writes_nothing(
    trial: Trial, client: httpx.AsyncClient
) -> None:
    await trial.begin()
    asked = await trial.mark(trial.one)
    assert (await edit(client, trial.one)).status_code == 404
    await trial.finish(asked)
    assert (await edit(client, trial.one)).status_code == 404
    assert trial.objects == ["shared"]
    assert await trial.references() == {("shared", trial.two.uid)}


async def test_an_edit_waits_until_the_input_has_gone(
    trial: Trial, client: httpx.AsyncClient
) -> None:
    await trial.begin()
    asked = await trial.mark(trial.one, "input")
    refused = await edit(client, trial.one)
    assert (refused.status_code, "input" in refused.json()["detail"]) == (409, True)
    assert trial.objects == ["shared"]
    await trial.finish(asked)
    assert (await edit(client, trial.one)).status_code == 200
    assert trial.objects == [own(trial.one), "shared"]


async def test_a_blob_is_left_to_others_only_if_they_stay(
    trial: Trial, slow: SlowBlobs, slow_client: httpx.AsyncClient
) -> None:
    """The other one is erased while the edit is on its way: who deletes the blob they shared?"""
    await trial.begin()
    editing = asyncio.create_task(edit(slow_client, trial.one))
    assert await asyncio.to_thread(slow.arrived.wait, 180)
    await trial.erase(trial.two)
    assert trial.objects == ["shared"]
    slow.go.set()
    assert (await editing).status_code == 200
    assert await trial.metadata_key(trial.one) == own(trial.one)
    assert trial.objects == [own(trial.one), "shared"]
    await trial.erase(trial.one)
    assert trial.objects == []
    assert await trial.references() == set()


async def test_the_last_that_shares_deletes_the_blob(
    trial: Trial, client: httpx.AsyncClient
) -> None:
    await trial.begin()
    assert (await edit(client, trial.one)).status_code == 200
    await trial.erase(trial.two)
    assert trial.objects == [own(trial.one)]
    await trial.erase(trial.one)
    assert trial.objects == []


async def test_a_key_that_is_being_deleted_is_not_written(
    trial: Trial, client: httpx.AsyncClient
) -> None:
    """A stranger's event named the key that the edit would make, and is being erased."""
    alone = Made("alone", at(5), _ITEMS)
    stranger = Made("stranger", at(9), _ITEMS, keys=(None, None, f"{trial.bucket}/{own(alone)}"))
    trial.put(own(alone))
    await trial.begin(alone, stranger)
    asked = await trial.mark(stranger)
    assert (await edit(client, alone)).status_code == 409
    await trial.finish(asked)
    assert trial.objects == ["shared"]
    assert (await edit(client, alone)).status_code == 200
    assert trial.objects == [own(alone), "shared"]


class Archived(Blobs):
    """Has put every object away, as S3 does: it lists them, and does not give them."""

    def get(self, key: StorageKey, *, limit: int) -> bytes:
        assert super().get(key, limit=limit)
        raise translated(key, PermissionDeniedError("403 <Code>InvalidObjectState</Code>"))


async def test_an_archived_blob_is_not_written_over(
    trial: Trial, make_app: MakeApp, settings: Callable[..., ApiSettings], blobs: Blobs
) -> None:
    alone = Made("alone", at(5), _ITEMS, keys=(None, None, f"{trial.bucket}/archived"))
    trial.put("archived")
    await trial.begin(alone)
    app = make_app()
    with Archived(settings()) as archived:
        app.state.blobs = archived
        async with client_of(app) as client:
            refused = await edit(client, alone)
    assert (refused.status_code, "InvalidObjectState" in refused.text) == (409, True)
    assert blobs.get(StorageKey(trial.bucket, "archived"), limit=1000) == _BLOB

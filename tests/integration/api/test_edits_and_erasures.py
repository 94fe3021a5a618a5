"""Edits that crash, and edits during an erasure, leave nothing over and restore nothing."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import select

from inference_store.erasure.pending_deletions import enqueue_arrivals
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import Erasure, list_unfinished
from inference_store.index.tables import blob_reference, inference
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.layout import key_of
from inference_store.objects import Blobs
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import ApiSettings
from tests.integration import erasure_requests
from tests.integration.retention.stored import Archived, Eraser, make_leader
from tests.integration.stored_inferences import NewInference, at
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.producer import capture, pack
from tests.servers.fixtures import MakeEnvironment
from tests.servers.minio import S3
from tests.servers.waiting import wait_until
from tests.service_process import Service

from .conftest import Api, MakeApp, make_client

PLACES = [name for name in FAILPOINTS if name.startswith("metadata_edit.")]
_ITEMS = [("k", "int", "5")]
_BLOB = b'[{"key": "k", "type": "int", "value": "5"}]'
_EDIT = {"metadata": [{"key": "k", "type": "int", "value": "6"}]}


def make_inference(name: str, seconds: float, key: str | None, **more: Any) -> NewInference:
    return NewInference(name, at(seconds), _ITEMS, keys=(None, None, key), **more)


class Trial:
    """Two inferences of a model that share a metadata blob, and the actions of the tests."""

    def __init__(self, api: Api, server: S3) -> None:
        self.api = api
        self._server = server
        self._eraser = Eraser(make_leader(api.engine, api.blobs))
        shared = api.put_blob("shared", _BLOB)
        self.first = make_inference("one", 0, shared)
        self.second = make_inference("two", 1, shared)

    async def begin(self, *inferences: NewInference) -> "Trial":
        self.model = await self.api.store(*(inferences or (self.first, self.second)))
        return self

    async def request_erasure(
        self, target: NewInference, scope: ErasureScope = "inference"
    ) -> Erasure:
        return await self.api.transact(
            erasure_requests.request_erasure, model=self.model, uids=[target.uid], scope=scope
        )

    async def finish_erasure(self, erasure: Erasure) -> None:
        assert await self._eraser.finish(erasure) == "deleted"

    async def erase(self, target: NewInference) -> None:
        await self.finish_erasure(await self.request_erasure(target))

    @property
    def object_names(self) -> list[str]:
        listed = self._server.client().list_objects(
            self.api.bucket, recursive=True, include_version=True
        )
        names = (str(item.object_name) for item in listed)
        return sorted(name for name in names if not name.startswith("ledger/"))

    async def list_references(self) -> set[tuple[str, Any]]:
        query = select(blob_reference.c.storage_key, blob_reference.c.uid)
        return {(key.rsplit("/", 1)[1], uid) for key, uid in await self.api.fetch(query)}

    async def read_metadata_key(self, target: NewInference) -> str:
        query = select(inference.c.metadata_storage_key).where(inference.c.uid == target.uid)
        [key] = await self.api.fetch(query)
        return str(key).removeprefix(f"s3://{self.api.bucket}/")


@pytest.fixture
def trial(api: Api, minio_server: S3) -> Trial:
    return Trial(api, minio_server)


def own_key(target: NewInference) -> str:
    return f"metadata/model/{target.uid}"


class SlowBlobs(Blobs):
    """Holds back each write until `go` is set."""

    def __init__(self, settings: ApiSettings) -> None:
        super().__init__(settings)
        self.arrived, self.go = threading.Event(), threading.Event()

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
        self.arrived.set()
        assert self.go.wait(180)
        super().put(key, data, content_type=content_type)


@pytest.fixture
async def slow(settings: Callable[..., ApiSettings]) -> AsyncIterator[SlowBlobs]:
    with SlowBlobs(settings()) as slow_blobs:
        yield slow_blobs
        slow_blobs.go.set()


@pytest.fixture
async def slow_client(make_app: MakeApp, slow: SlowBlobs) -> AsyncIterator[Api]:
    app = make_app()
    app.state.blobs = slow
    async with make_client(app) as http_client:
        yield http_client


async def edit(client: httpx.AsyncClient, target: NewInference) -> httpx.Response:
    return await client.post(f"/v1/models/model/inferences/uid:{target.uid}/metadata", json=_EDIT)


async def begin_edit(client: Api, slow: SlowBlobs, target: NewInference) -> Any:
    editing = asyncio.create_task(edit(client, target))
    assert await asyncio.to_thread(slow.arrived.wait, 180)
    return editing


@pytest.mark.kills
async def test_a_crash_between_blob_and_rows_leaves_no_orphan(
    trial: Trial, service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """At each failpoint an edit is killed and repeated, and another is killed and erased.

    KILL=<failpoint> in the environment runs one kill alone.
    """
    places = [place for place in PLACES if os.environ.get("KILL", place) == place]
    shared = f"{trial.api.bucket}/shared"
    repeated = [make_inference(f"repeated at {place}", n, shared) for n, place in enumerate(places)]
    left = [make_inference(f"left at {place}", 60 + n, shared) for n, place in enumerate(places)]
    await trial.begin(trial.first, *repeated, *left)
    killed: dict[str, int | None] = {}
    service: Service | None = None
    try:
        for place, again, once in zip(places, repeated, left, strict=True):
            for target in (again, once):
                if service is None:
                    environment = service_environment(API_PORT="0", FAILPOINT=place)
                    service = Service("api", environment, tmp_path)
                else:
                    service.restart(FAILPOINT=place)
                await asyncio.to_thread(service.wait_ready)
                address = await asyncio.to_thread(wait_for_address, service)
                async with httpx.AsyncClient(base_url=address, timeout=300) as killing:
                    with pytest.raises(httpx.TransportError):
                        await edit(killing, target)
                status = await asyncio.to_thread(service.process.wait, 180)
                killed[f"{place} {target.inference_id}"] = status
                assert (own_key(target) in trial.object_names) == place.endswith("after"), place
                assert await trial.read_metadata_key(target) == "shared", place
            answer = await edit(trial.api, again)
            assert (answer.status_code, answer.json()["revision"]) == (200, 2), place
            assert await trial.read_metadata_key(again) == own_key(again), place
    finally:
        if service is not None:
            service.stop()
    # the process died at every failpoint of the list, twice
    names = [f"{place} {how} at {place}" for place in places for how in ("repeated", "left")]
    assert killed == dict.fromkeys(names, 128 + SIGKILL)
    for target in (*repeated, *left):
        await trial.erase(target)
    assert trial.object_names == ["shared"]
    assert await trial.list_references() == {("shared", trial.first.uid)}
    await trial.erase(trial.first)
    assert trial.object_names == []


def wait_for_address(service: Service) -> str:
    wait_until(lambda: '"api_listening"' in service.text, seconds=180, what="the api")
    for line in service.text.splitlines():
        if '"action": "api_listening"' in line:
            return f"http://127.0.0.1:{json.loads(line)['port']}"
    raise AssertionError(service.text)


@pytest.mark.parametrize("shared", [True, False])
async def test_erasure_waits_for_running_edit(
    trial: Trial, slow: SlowBlobs, slow_client: Api, shared: bool
) -> None:
    await trial.begin(*([trial.first, trial.second] if shared else [trial.first]))
    editing = await begin_edit(slow_client, slow, trial.first)
    erasing = asyncio.create_task(trial.erase(trial.first))
    await until(lambda: count_lock_waiters(trial.api.engine), lambda count: count == 1)
    slow.go.set()
    assert (await editing).status_code == 200
    await erasing
    assert trial.object_names == (["shared"] if shared else [])
    assert await trial.list_references() == ({("shared", trial.second.uid)} if shared else set())


async def test_erases_redelivered_input_after_a_concurrent_edit(
    trial: Trial, slow: SlowBlobs, slow_client: Api
) -> None:
    """The ingester marks without the row's lock; the edit writes what it read, with the request."""
    capture, api = uuid4(), trial.api
    key = key_of("captures", "model", at(0), capture, "metadata")
    place = api.put_blob(key, b'{"metadata": %b, "request": {"prompt": "secret"}}' % _BLOB)
    captured = make_inference("captured", 0, place, extras=Extras(capture_id=capture))
    await trial.begin(captured)
    editing = await begin_edit(slow_client, slow, captured)
    async with api.engine.begin() as connection:
        arrival = (trial.model, captured.uid, "input", None, None, f"s3://{place}", None)
        await enqueue_arrivals(connection, [arrival], cause="erased_again")
        (erasure,) = await list_unfinished(connection, failed=False)
    erasing = asyncio.create_task(trial.finish_erasure(erasure))
    await until(lambda: count_lock_waiters(api.engine), lambda count: count == 1 or erasing.done())
    slow.go.set()
    assert (await editing).status_code == 200
    await erasing
    stored = json.loads(slow.get(StorageKey(api.bucket, key), limit=1000))
    assert stored == {"metadata": _EDIT["metadata"]}


async def test_edit_after_an_erasure_writes_nothing(trial: Trial) -> None:
    await trial.begin()
    erasure = await trial.request_erasure(trial.first)
    assert (await edit(trial.api, trial.first)).status_code == 404
    await trial.finish_erasure(erasure)
    assert (await edit(trial.api, trial.first)).status_code == 404
    assert trial.object_names == ["shared"]
    assert await trial.list_references() == {("shared", trial.second.uid)}


async def test_edit_is_refused_until_the_input_is_erased(trial: Trial) -> None:
    await trial.begin()
    erasure = await trial.request_erasure(trial.first, "input")
    refused = await edit(trial.api, trial.first)
    assert (refused.status_code, "input" in refused.json()["detail"]) == (409, True)
    assert trial.object_names == ["shared"]
    await trial.finish_erasure(erasure)
    assert (await edit(trial.api, trial.first)).status_code == 200
    assert trial.object_names == [own_key(trial.first), "shared"]


async def test_edit_deletes_blob_whose_other_users_are_erased(
    trial: Trial, slow: SlowBlobs, slow_client: Api
) -> None:
    """The other inference of a shared blob is erased during the edit: who deletes the blob?"""
    await trial.begin()
    editing = await begin_edit(slow_client, slow, trial.first)
    await trial.erase(trial.second)
    assert trial.object_names == ["shared"]
    slow.go.set()
    assert (await editing).status_code == 200
    assert await trial.read_metadata_key(trial.first) == own_key(trial.first)
    assert trial.object_names == [own_key(trial.first), "shared"]
    await trial.erase(trial.first)
    assert trial.object_names == []
    assert await trial.list_references() == set()


async def test_last_user_of_a_shared_blob_deletes_it(trial: Trial) -> None:
    await trial.begin()
    assert (await edit(trial.api, trial.first)).status_code == 200
    await trial.erase(trial.second)
    assert trial.object_names == [own_key(trial.first)]
    await trial.erase(trial.first)
    assert trial.object_names == []


async def test_does_not_write_a_key_that_is_being_deleted(trial: Trial) -> None:
    """Another event used the key that the edit would write, and is being erased."""
    alone = NewInference("alone", at(5), _ITEMS)
    stranger = make_inference("stranger", 9, trial.api.put_blob(own_key(alone), _BLOB))
    await trial.begin(alone, stranger)
    erasure = await trial.request_erasure(stranger)
    assert (await edit(trial.api, alone)).status_code == 409
    await trial.finish_erasure(erasure)
    assert trial.object_names == ["shared"]
    assert (await edit(trial.api, alone)).status_code == 200
    assert trial.object_names == [own_key(alone), "shared"]


async def test_does_not_overwrite_an_archived_blob(
    api: Api, make_app: MakeApp, settings: Callable[..., ApiSettings]
) -> None:
    alone = make_inference("alone", 5, api.put_blob("archived", _BLOB))
    await api.store(alone)
    app = make_app()
    with Archived(settings()) as app.state.blobs:
        async with make_client(app) as client:
            refused = await edit(client, alone)
    assert (refused.status_code, "InvalidObjectState" in refused.text) == (409, True)
    assert api.blobs.get(StorageKey(api.bucket, "archived"), limit=1000) == _BLOB


async def test_an_edit_of_a_member_is_written_beside_the_segment(trial: Trial) -> None:
    """What the input's erasure leaves of both has no request, and no value from before the edit."""
    first, second = [capture(n, model_id="model", received_at=at(n)) for n in range(2)]
    packed = pack(first, second)
    place = trial.api.put_blob(packed.key, packed.tar, "application/x-tar")
    targets = []
    for item, event, members in zip((first, second), packed.events, packed.members, strict=True):
        extras = Extras(capture_id=UUID(json.loads(event)["capture_id"]))
        data, response, metadata = (
            f"{trial.api.bucket}/{members[kind]}" for kind in ("data", "response", "metadata")
        )
        received_at, keys = item.received_at or at(0), (data, response, metadata)
        name = f"inference-{item.number}"
        targets.append(NewInference(name, received_at, _ITEMS, keys=keys, extras=extras))
    await trial.begin(*targets)
    edited, other = targets
    assert (await edit(trial.api, edited)).status_code == 200
    assert await trial.read_metadata_key(edited) == own_key(edited)
    assert trial.object_names == [packed.key, own_key(edited), "shared"]
    await trial.finish_erasure(await trial.request_erasure(edited, "input"))
    tar = trial.api.blobs.get(StorageKey(*place.split("/", 1)), limit=10**6)
    assert [tar.count(value) for value in (b"datum 0", b"camera-0", b"datum 1", b"camera-1")] == [
        *(0, 0, 1, 1)
    ]
    blob = json.loads(
        trial.api.blobs.get(StorageKey(trial.api.bucket, own_key(edited)), limit=9999)
    )
    assert "request" not in blob
    assert {"key": "k", "type": "int", "value": "6"} in blob["metadata"]
    await trial.erase(edited)
    await trial.erase(other)
    assert (trial.object_names, await trial.list_references()) == (["shared"], set())

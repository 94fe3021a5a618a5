"""Sidecars keep the events of other producers in the bucket, which alone can rebuild the index."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies, runs
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index import registrations, sidecars
from inference_store.index.registrations import Details
from inference_store.index.tables import erasure, inference
from inference_store.inference.events import Buckets, StorageKey, decode, encode
from inference_store.inference.layout import key_of
from inference_store.objects import Blobs
from tests.integration.ingester.conftest import StartIngester, read_health, wait_for_counts
from tests.polling import until
from tests.producer import Capture, Producer, capture
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3, MinioServer
from tests.service_process import Service
from tests.transactions import fetch, transact

MANY = [capture(number) for number in range(5)]
NOW = datetime.now(UTC).replace(microsecond=0)


def list_keys(server: S3, bucket: str, prefix: str = "", *, versions: bool = False) -> list[str]:
    """Return the keys under a prefix; with `versions` each version and delete marker."""
    objects = server.client().list_objects(
        bucket, prefix=prefix, recursive=True, include_version=versions
    )
    return sorted(str(item.object_name) for item in objects)


@pytest.mark.real_minio
async def test_each_stored_inference_has_one_sidecar_with_its_event(
    start_ingester: StartIngester, engine: AsyncEngine, minio_server: S3, bucket: str, blobs: Blobs
) -> None:
    """Redeliveries write none, nor do dead letters. `reconcile --repair rebuild` reads them."""
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    _, producer = await start_ingester(INGESTER_SIDECARS="on")
    inline = capture(9, extras={"metadata": [{"key": "k", "type": "int", "value": "1"}]})
    bare = encode(model_id="a/b", inference_id="bare", received_at=NOW)
    await producer.produce(*MANY, inline)
    await producer.publish_all([bare])
    await wait_for_counts(engine, stored=7)
    await producer.publish_all([*(item.event for item in (*MANY, *MANY)), b"not json"])
    await wait_for_counts(engine, stored=7, duplicate=10, dead=1)
    keys = list_keys(minio_server, bucket, "sidecars/", versions=True)
    assert len(keys) == 7
    stored_keys = await fetch(engine, select(inference.c.sidecar_storage_key))
    assert set(stored_keys) == {f"s3://{bucket}/{key}" for key in keys}
    contents = [sidecars.decode(blobs.get(StorageKey(bucket, key), limit=10**6)) for key in keys]
    buckets = Buckets(default=bucket, allowed=frozenset())
    for key, sidecar in zip(keys, contents, strict=True):
        at = datetime.fromisoformat(sidecar.record["time"])
        event = decode(sidecar.event, record_time=at, buckets=buckets)
        assert sidecars.make_key(bucket, event).key == key
        assert sidecar.record["topic"] == producer.topic
    assert {item.event for item in contents} == {item.event for item in (*MANY, inline)} | {bare}
    metadata = {item.event: item.metadata for item in contents}
    for item in MANY:
        assert metadata[item.event] == item.blobs[item.key("metadata")]


async def test_no_sidecar_for_our_own_layout_or_what_waits_or_if_off(
    start_ingester: StartIngester, engine: AsyncEngine, minio_server: S3, bucket: str
) -> None:
    service, producer = await start_ingester()
    await producer.produce(*MANY[1:])
    await wait_for_counts(engine, stored=4)
    service.stop()
    service.restart(INGESTER_SIDECARS="on", KAFKA_GROUP=unique("group"))
    capture_id = uuid4()
    keys = [key_of("p", "m", NOW, capture_id, kind) for kind in ("data", "response", "metadata")]
    names = ("data_storage_key", "inference_storage_key", "metadata_storage_key")
    values: dict[str, Any] = dict(zip(names, keys, strict=True))
    values |= {"capture_id": str(capture_id), "metadata": "[]", "response": "{}"}
    await producer.publish(encode(model_id="m", inference_id="own", received_at=NOW, **values))
    await producer.put(MANY[0], "metadata")
    await producer.publish(MANY[0].event)
    await wait_for_counts(engine, stored=5, parked=1)
    assert list_keys(minio_server, bucket, "sidecars/") == []
    await producer.put(MANY[0], "response")
    await wait_for_counts(engine, stored=6)
    assert len(list_keys(minio_server, bucket, "sidecars/")) == 1


def make_capture(number: int, days: int, **extras: Any) -> Capture:
    return capture(number, received_at=NOW - timedelta(days=days), extras=extras)


async def set_policy(engine: AsyncEngine, model_id: str, **rule: str) -> int:
    async with engine.begin() as connection:
        registration, _ = await registrations.put(connection, model_id, Details())
        policy = RetentionPolicy.model_validate({"rules": [rule]})
        await policies.set_policy(connection, registration.model, policy)
    return registration.model


@pytest.mark.real_minio
async def test_policies_delete_the_sidecar_and_expired_events_get_none(
    start_ingester: StartIngester, engine: AsyncEngine, minio_server: S3, bucket: str, blobs: Blobs
) -> None:
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    list_versions = partial(list_keys, minio_server, bucket, versions=True)
    service, producer = await start_ingester(INGESTER_SIDECARS="on")
    old, input_old = make_capture(1, 30), make_capture(2, 5, prompt="secret")
    model = await set_policy(engine, old.model_id, keep_input="P2D", keep_inference="P10D")
    # As if a crash came between the object and the commit, before the event expired.
    buckets = Buckets(default=bucket, allowed=frozenset())
    leftover = sidecars.make_key(bucket, decode(old.event, record_time=NOW, buckets=buckets))
    blobs.put(leftover, b"{}", content_type="application/json")
    await producer.produce(old, input_old)
    await wait_for_counts(engine, stored=1, expired=1)
    environment = service._environment
    with Service("retention", environment, service.log.parent):
        states = partial(fetch, engine, select(erasure.c.state))
        await until(states, lambda result: len(result) > 1 and {*result} == {"deleted"})
        [key] = list_versions("sidecars/")
        contents = sidecars.decode(blobs.get(StorageKey(bucket, key), limit=10**6))
        assert (contents.input_deleted, b"secret" in contents.event) == (True, False)
        await set_policy(engine, old.model_id, keep_input="P1D", keep_inference="P4D")
        await transact(engine, runs.request_run, model)
        await until(
            lambda: asyncio.to_thread(list_versions),
            lambda keys: all(key.startswith("ledger/") for key in keys),
        )
    await producer.produce(input_old)
    await wait_for_counts(engine, stored=1, expired=1, erased_again=1)
    assert list_versions("sidecars/") == []


@pytest.mark.real_minio
async def test_waits_while_no_sidecar_can_be_written(
    database: str,
    engine: AsyncEngine,
    kafka_server: Kafka,
    own_minio: MinioServer,
    topic: Any,
    tmp_path: Path,
) -> None:
    bucket, name = own_minio.create_bucket(unique()), topic(1)
    changes = {"KAFKA_TOPIC": name, "INGESTER_SIDECARS": "on", "S3_TIMEOUT_SECONDS": "1"}
    environment = environment_of(database, kafka_server, own_minio, bucket, **changes)
    with Service("ingester", environment, tmp_path) as service:
        await asyncio.to_thread(service.wait_ready)
        await asyncio.to_thread(own_minio.stop)
        async with Producer(environment, name) as producer:
            bare = [
                encode(model_id="m", inference_id=str(n), received_at=NOW, metadata="[]")
                for n in range(3)
            ]
            await producer.publish_all(bare)
        await until(lambda: read_health(service, "object store"), lambda part: part != "ready")
        await wait_for_counts(engine)
        await asyncio.to_thread(own_minio.start)
        await wait_for_counts(engine, stored=3)
        assert len(list_keys(own_minio, bucket, "sidecars/")) == 3

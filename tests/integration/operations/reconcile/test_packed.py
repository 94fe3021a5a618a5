"""Captures that are packed into segments: ingested, read, copied, compared, and rebuilt."""

import json
from datetime import datetime, timedelta
from tarfile import BLOCKSIZE, USTAR_FORMAT, TarInfo
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure.ledger import Ledger
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index import tables, unsettled
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.tables import blob_reference, inference
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans
from inference_store.platform.settings import ApiSettings, KafkaSettings
from tests.integration.api.api_client import Api
from tests.integration.api.people import download, list_parts, read_export, request_export
from tests.integration.ingester.conftest import StartIngester, start_ingester, wait_for_counts
from tests.integration.retention.exported import read_contents, read_links
from tests.integration.retention.stored import Stored, Storing, ago, place_hold
from tests.integration.stored_inferences import NewInference, store
from tests.producer import Segment, capture, pack
from tests.servers.minio import S3
from tests.settings import make_settings
from tests.transactions import opened, transact
from tests.unit.api.thumbnails.pictures import make_picture

from .conftest import Command, Reconcile
from .test_rebuild import empty, read_everything

__all__ = ["empty", "start_ingester"]


@pytest.fixture
def api(database: str, engine: AsyncEngine, blobs: Blobs, minio_server: S3, bucket: str) -> Api:
    where = {"postgres_dsn": database, **minio_server.settings, "s3_bucket": bucket}
    settings = make_settings(ApiSettings, **where, auth="off", query_timeout_seconds=600.0)
    return Api(create_app(settings, engine, blobs))


PICTURE = make_picture()
DATA = [PICTURE, b"", b"text " * 20_000, b"\0binary", b"last"]


async def test_packed_captures_are_ingested_read_copied_and_rebuilt(
    start_ingester: StartIngester, api: Api, command: Command, empty: str
) -> None:
    service, producer = await start_ingester(INGESTER_SIDECARS="on")
    first, second = (
        pack(*(capture(10 * n + k, model_id="model", data=data) for k, data in enumerate(DATA)))
        for n in range(2)
    )
    await producer.put_bytes(first.key, first.tar)
    await producer.publish_all([*first.events, *second.events])
    # events of a segment that is not there wait for it
    await wait_for_counts(api.engine, stored=5, parked=5)
    await producer.put_bytes(second.key, second.tar)
    await producer.produce_packed(capture(30, model_id="other/model"))
    await producer.produce(capture(31))
    await wait_for_counts(api.engine, stored=12)
    service.stop()
    await check_reads(api, first, second)
    await check_copies(api, first, second)
    await move_metadata(api, first, 1)
    await move_metadata(api, first, 2, is_erased=True)
    before = await read_everything(api.engine)
    async with opened(empty) as again:
        code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
        assert (code, report["state"], report["counts"]["rebuilt"]) == (0, "done", 12), report
        assert await read_everything(again) == before
    code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
    assert (code, report["counts"]["present"]) == (0, 12)


async def test_what_was_copied_to_a_new_segment_is_rebuilt(
    start_ingester: StartIngester, storing: Storing, command: Command, empty: str
) -> None:
    service, producer = await start_ingester()
    at = ago(days=40)
    times = [at + timedelta(seconds=number) for number in range(9)]
    packed = pack(*(capture(n, model_id="model", received_at=at) for n, at in enumerate(times)))
    await producer.put_bytes(packed.key, packed.tar)
    await producer.publish_all(packed.events)
    await wait_for_counts(storing.engine, stored=9)
    service.stop()
    rows = await storing.fetch(select(inference.c.uid).order_by(inference.c.uid))
    [model] = await storing.fetch(select(inference.c.model).distinct())
    await storing.erase(*(Stored(model, uid, (None, None, None)) for uid in rows[:7]))
    await storing.lead(turns=1)
    await storing.execute(tables.segment.update().values(leased_until=func.now()))
    await storing.lead(turns=1, scheduled=False)
    assert storing.objects().isdisjoint({packed.key})
    before = await read_everything(storing.engine)
    assert [packed.key in str(row) for row in before["inference"]] == [False] * 2
    async with opened(empty) as again:
        await Ledger(again, storing.blobs, prefix="ledger/").replay()
        code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
        assert (code, report["state"], report["counts"]["rebuilt"]) == (0, "done", 2), report
        assert await read_everything(again) == before


async def move_metadata(
    api: Api, segment: Segment, number: int, *, is_erased: bool = False
) -> None:
    """Leave what an edit of packed metadata leaves; or else the erasure of an input."""
    members, key = segment.members[number], StorageKey(api.bucket, segment.key)
    tar = bytearray(api.blobs.get(key, limit=len(segment.tar)))
    old = members["metadata"]
    document = json.loads(tar[old.offset :][: old.length])
    if is_erased:
        del document["request"]
        for gone in (members["data"], old):
            header = TarInfo("erased")
            header.size = gone.length
            written = header.tobuf(USTAR_FORMAT) + bytes(gone.length)
            tar[gone.offset - BLOCKSIZE : gone.offset + gone.length] = written
        api.put_blob(segment.key, bytes(tar))
    here = inference.c
    own = here.data_storage_key == f"s3://{api.bucket}/{members['data']}"
    async with api.engine.begin() as connection:
        query = select(here.model, here.uid).where(own)
        owner = dict((await connection.execute(query)).one()._mapping)
        place = api.put_blob(f"metadata/model/{owner['uid']}", json.dumps(document).encode())
        changes: dict[str, Any] = {"metadata_storage_key": f"s3://{place}"}
        changes |= {"data_deleted_at": func.now()} if is_erased else {}
        await connection.execute(inference.update().where(own).values(changes))
        for name in [place] if is_erased else [place, f"{api.bucket}/{old}"]:
            reference = owner | {"storage_key": f"s3://{name}"}
            await connection.execute(blob_reference.insert().values(reference))


async def check_reads(api: Api, *segments: Segment) -> None:
    """Check every blob, by the routes of the api and by the links that it gives, and a picture."""
    for segment in segments:
        for event, members in zip(map(json.loads, segment.events), segment.members, strict=True):
            path = f"/v1/models/model/inferences/{event['inference_id']}"
            urls = (await api.read(path))["urls"]
            for kind, member in members.items():
                expected = segment.tar[member.offset :][: member.length]
                for link in (f"{path}/{kind}", urls[kind]):
                    answer = await api.get(link)
                    assert (answer.status_code, answer.content) == (200, expected), link
    drawing = await api.read("/v1/models/model/inferences/inference-10/drawing")
    assert [shape["label"] for shape in drawing["shapes"]] == ["person", "car"]
    thumbnail = await api.get("/v1/models/model/inferences/inference-10/thumbnail")
    assert thumbnail.content[:2] == b"\xff\xd8"


async def check_copies(api: Api, *segments: Segment) -> None:
    """Check exports of every format that copies blobs, or has links to them."""
    formats = [format.name for format in PART_FORMATS.values() if format.copied]
    exports = {name: await request_export(api, format=name, blobs="copy") for name in formats}
    linking = {
        name: await request_export(api, format=name, blobs="links") for name in ("chariot", "csv")
    }
    await api.run_retention()
    expected = sorted(DATA * len(segments))
    for format, export in exports.items():
        done = await read_export(api, export)
        assert (done["state"], done["rows"], done["missing"]) == ("done", 10, 0), done
        parts = [await download(part) for part in await list_parts(api, export)]
        contents = [read_contents(format, part) for part in parts]
        copied = [blobs["data"] or b"" for some in contents for blobs in some.values()]
        assert sorted(copied) == expected, format
    for format, export in linking.items():
        parts = [await download(part) for part in await list_parts(api, export)]
        links = [link for part in parts for link in read_links(format, part)]
        assert sorted([(await api.get(link)).content for link in links]) == expected, format


def list_inferences(bucket: str, segment: Segment) -> list[NewInference]:
    """Return what the index has of a segment's captures."""
    return [
        NewInference(
            event["inference_id"],
            datetime.fromisoformat(event["request_received_at"]),
            model_id=event["model_id"],
            extras=Extras(capture_id=UUID(event["capture_id"])),
            keys=(
                f"{bucket}/{event['data_storage_key']}",
                f"{bucket}/{event['inference_storage_key']}",
                f"{bucket}/{event['metadata_storage_key']}",
            ),
        )
        for event in map(json.loads, segment.events)
    ]


async def test_compares_segments_with_what_names_them(
    storing: Storing, reconcile: Reconcile, kafka: KafkaSettings
) -> None:
    at = ago(hours=5)

    def make(number: int) -> Segment:
        times = [at + timedelta(minutes=20 * number + n) for n in range(4)]
        captures = [capture(10 * number + n, received_at=times[n]) for n in range(4)]
        return pack(*captures, prefix="p")

    whole, lost, cut, parked, orphan, strange = map(make, range(6))
    end = cut.members[2]["data"].offset
    for segment in (whole, cut, parked, orphan, strange):
        tar = segment.tar[:end] if segment is cut else segment.tar
        key = StorageKey(storing.bucket, segment.key)
        storing.blobs.put(key, tar, content_type="application/x-tar")
    engine, bucket = storing.engine, storing.bucket
    models = {}
    for segment in (whole, lost, cut):
        models["people-detector"] = await store(engine, *list_inferences(bucket, segment))
    # a stranger's inference names a member that is not its own
    foreign = f"{bucket}/{strange.members[0]['data']}"
    odd = NewInference("odd", at, model_id="stranger", keys=(foreign, None, None))
    models["stranger"] = await store(engine, odd)
    partition_id = PartitionId(kafka.kafka_cluster, kafka.kafka_topic, 0, 0)
    letter = Record(partition_id, 1, at, None, parked.events[0], ())
    async with engine.begin() as connection:
        await open_partition(connection, partition_id, first=0)
        await unsettled.add_dead(connection, [(letter, Rejection("blob_missing", "", "m", "i"))])
    reconciliation, findings = await reconcile()
    by_kind = {
        kind: [finding.storage_key for finding in findings if finding.kind == kind]
        for kind in ("orphan", "missing")
    }
    gone = [*lost.members, *cut.members[2:]]
    missing = sorted(f"s3://{bucket}/{member}" for one in gone for member in one.values())
    assert by_kind == {"orphan": [f"s3://{bucket}/{orphan.key}"], "missing": missing}
    assert (reconciliation.count("objects"), reconciliation.count("awaited")) == (5, 1)
    assert reconciliation.count("named") == 3 * 4 * 3 + 1
    # it is erased as one object, unless a hold may be meant for its model
    keys = {f"s3://{bucket}/{segment.key}" for segment in (whole, cut, strange, orphan)}
    doomed = [f"s3://{bucket}/{orphan.key}"]
    assert await transact(engine, orphans.judge, reconciliation.id, keys) == (doomed, [])
    await place_hold(engine, models["stranger"], "ok")
    assert await transact(engine, orphans.judge, reconciliation.id, keys) == (doomed, [])
    await place_hold(engine, models["people-detector"], "ok")
    assert await transact(engine, orphans.judge, reconciliation.id, keys) == ([], doomed)

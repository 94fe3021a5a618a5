"""Captures that are packed into segments: ingested, read, copied, compared, and rebuilt."""

import json
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import unsettled
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.platform.settings import KafkaSettings
from tests.integration.ingester.conftest import StartIngester, start_ingester, wait_for_counts
from tests.integration.retention.stored import Storing, ago
from tests.integration.stored_inferences import NewInference, store
from tests.producer import Segment, capture, pack
from tests.transactions import opened

from .conftest import Command, Reconcile
from .test_rebuild import empty, read_everything

__all__ = ["empty", "start_ingester"]


async def test_packed_captures_are_rebuilt(
    start_ingester: StartIngester, engine: AsyncEngine, command: Command, empty: str
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
    for segment in (whole, lost, cut):
        await store(engine, *list_inferences(bucket, segment))
    # a stranger's inference names a member that is not its own
    foreign = f"{bucket}/{strange.members[0]['data']}"
    await store(engine, NewInference("odd", at, model_id="stranger", keys=(foreign, None, None)))
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

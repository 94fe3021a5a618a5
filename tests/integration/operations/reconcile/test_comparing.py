"""Bucket and index compared on real servers: what only one side knows, and what is not judged."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters, parked
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Trouble
from inference_store.index.tables import dead_letter, erasure_held
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import key_of
from inference_store.platform.settings import KafkaSettings
from tests.integration import by_uids
from tests.integration.retention.stored import KINDS, NOW, Storing, ago

from .conftest import Reconcile


def _put(storing: Storing, key: str) -> str:
    place = StorageKey(storing.bucket, key)
    storing.blobs.put(place, b"left over", content_type="text/plain")
    return str(place)


async def test_what_agrees_is_all_there_is(storing: Storing, reconcile: Reconcile) -> None:
    first, second = await storing.model("model"), await storing.model("other model")
    await storing.inferences(first, 7, ago(hours=3), step=1500)
    await storing.foreign(second, ago(days=2), "p/strange/one", "p/strange/two", "p/strange/three")
    one, found = await reconcile()
    assert (one.state, found) == ("done", [])
    assert (one.count("objects"), one.count("named"), one.count("bytes") > 0) == (24, 24, True)
    assert one.places == [
        f"s3://{storing.bucket}/{each}/" for each in ("p", "sidecars", "metadata")
    ]


async def test_each_side_says_what_the_other_does_not_know(
    storing: Storing, reconcile: Reconcile
) -> None:
    model = await storing.model()
    stored = await storing.inferences(model, 9, ago(hours=5), step=1000)
    strange = await storing.foreign(model, ago(days=1), None, "p/z/answer", "p/a/metadata")
    lost = [stored[2].keys[0], stored[5].keys[1], strange.keys[1]]
    storing.blobs.delete_objects([key for key in lost if key is not None])
    capture = key_of("p", "model", ago(hours=5), uuid4(), "data")
    orphans = sorted(
        _put(storing, key)
        for key in (capture, "p/nobody/knows", "sidecars/model/2026/01/01/00/x", "p/readme.txt")
    )
    _put(storing, "elsewhere/object")  # under no prefix of ours
    one, found = await reconcile()
    by_kind = {
        kind: [each.storage_key for each in found if each.kind == kind]
        for kind in ("orphan", "missing")
    }
    assert by_kind == {"orphan": orphans, "missing": sorted(map(str, lost))}
    assert (one.count("orphans"), one.count("missing")) == (4, 3)
    assert one.count("orphan_bytes") == 4 * len(b"left over")
    of_row = {each.storage_key: (each.model_id, each.uid) for each in found}
    assert of_row[str(lost[0])] == ("model", stored[2].uid)


async def test_what_names_the_hours_of_a_local_clock_is_known(
    storing: Storing, reconcile: Reconcile
) -> None:
    model = await storing.model()
    for number, hours in enumerate((9, -11, 14)):
        clock = timedelta(hours=hours)
        await storing.inferences(model, 2, ago(days=number + 1), clock=clock, step=4000)
    one, found = await reconcile()
    assert (one.state, found, one.count("objects")) == ("done", [], 18)


async def test_what_a_hold_keeps_of_an_event_that_came_too_late_is_no_orphan(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine
) -> None:
    model = await storing.model()
    kept = [_put(storing, f"p/model/{kind}") for kind in ("data", "response", "metadata", "side")]
    values = {"erasure": uuid4(), "model": model, "uid": storing.uid(NOW), "scope": "inference"}
    keys = dict(zip((f"{kind}_storage_key" for kind in (*KINDS, "sidecar")), kept, strict=True))
    async with engine.begin() as connection:
        held = erasure_held.insert().values(**values, **keys, hold=uuid4(), hold_revision=1)
        await connection.execute(held)
    _, found = await reconcile()
    assert found == []


async def test_what_is_young_is_not_judged(storing: Storing, reconcile: Reconcile) -> None:
    await storing.model()
    _put(storing, "p/model/new")
    one, found = await reconcile(reconcile_grace_seconds=60)
    assert (found, one.count("young"), one.count("orphans")) == ([], 1, 0)
    assert one.orphans_before is not None
    assert datetime.now(UTC) - one.orphans_before > timedelta(seconds=60)


async def test_what_dead_letters_and_parked_events_name_is_awaited(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    place = PartitionId(kafka.kafka_cluster, kafka.kafka_topic, 0, 0)
    await storing.model()
    dead, waiting = _put(storing, "p/model/dead"), _put(storing, "p/model/parked")
    broken = _put(storing, "p/model/broken")
    nested = _put(storing, "p/model/nested")
    trouble = Trouble("invalid_time", "x", "model", "1")
    async with engine.begin() as connection:
        await open_partition(connection, place, first=0, began="first")
        letters = [
            Record(place, 1, NOW, None, b'{"data_storage_key": "p/model/dead"}', ()),
            Record(place, 2, NOW, None, f'no json: "{broken}" …'.replace("/", r"\/").encode(), ()),
            Record(place, 4, NOW, None, b'[{"inputs": {"data": "p/model/nested"}}]', ()),
        ]
        await dead_letters.add(connection, [(letter, trouble) for letter in letters])
        record = Record(place, 3, NOW, None, f'{{"k": "{waiting}"}}'.encode(), ())
        minute = timedelta(minutes=1)
        schedule = parked.Schedule(first=minute, longest=minute, give_up=minute)
        await parked.add(connection, [(record, trouble, waiting)], schedule)
    one, found = await reconcile()
    assert (found, one.count("awaited")) == ([], 4), nested
    async with engine.begin() as connection:
        await connection.execute(dead_letter.delete().where(dead_letter.c.offset == 1))
    _, found = await reconcile()
    assert [each.storage_key for each in found] == [dead]


async def test_what_is_being_erased_is_neither(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine
) -> None:
    model = await storing.model()
    stored = await storing.inferences(model, 4, ago(hours=1))
    async with engine.begin() as connection:
        await by_uids.request(connection, model=model, uids=[one.uid for one in stored])
    storing.blobs.delete_objects([key for one in stored[:2] for key in one.objects])
    one, found = await reconcile()
    assert (one.state, found) == ("done", [])


async def test_one_model_is_compared_alone(storing: Storing, reconcile: Reconcile) -> None:
    model, other = await storing.model("model"), await storing.model("other")
    await storing.inferences(model, 3, ago(hours=1))
    await storing.foreign(other, ago(hours=1), "p/other/data", None, None)
    mine, _ = _put(storing, "p/model/orphan"), _put(storing, "p/other/orphan")
    one, found = await reconcile(model_id="model")
    assert [each.storage_key for each in found] == [mine]
    assert one.count("objects") == 10


async def test_a_prefix_within_another_is_refused(reconcile: Reconcile) -> None:
    one, _ = await reconcile(reconcile_prefixes="p,p/model")
    assert one.state == "failed"
    assert one.error is not None
    assert "name the wider one alone" in one.error

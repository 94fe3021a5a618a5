"""Comparisons of bucket and index on real servers: what only one has, and what is not judged."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.pending_deletions import KEYS
from inference_store.index import unsettled
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.tables import erasure_held, unsettled_event
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.layout import key_of
from inference_store.operations.reconcile import owned
from inference_store.platform.settings import KafkaSettings
from inference_store.query.explain import Explain, summarize_plan
from tests.integration import erasure_requests
from tests.integration.retention.stored import KINDS, NOW, Storing, ago
from tests.transactions import execute

from .conftest import Command, Reconcile, put


async def test_finds_nothing_where_both_agree(storing: Storing, reconcile: Reconcile) -> None:
    first, second = await storing.model("model"), await storing.model("other model")
    await storing.inferences(first, 7, ago(hours=3), step=1500)
    await storing.foreign(second, ago(days=2), "p/strange/one", "p/strange/two", "p/strange/three")
    reconciliation, findings = await reconcile()
    assert (reconciliation.state, findings) == ("done", [])
    assert (reconciliation.count("objects"), reconciliation.count("named")) == (24, 24)
    assert reconciliation.count("bytes") > 0
    assert reconciliation.places == [
        f"s3://{storing.bucket}/{prefix}/" for prefix in ("p", "sidecars", "metadata")
    ]


async def test_finds_orphans_and_missing_objects(storing: Storing, reconcile: Reconcile) -> None:
    model = await storing.model()
    stored = await storing.inferences(model, 9, ago(hours=5), step=1000)
    strange = await storing.foreign(model, ago(days=1), None, "p/z/answer", "p/a/metadata")
    lost = [stored[2].keys[0], stored[5].keys[1], strange.keys[1]]
    storing.blobs.delete_objects([key for key in lost if key is not None])
    capture = key_of("p", "model", ago(hours=5), uuid4(), "data")
    strays = (capture, "p/nobody/knows", "sidecars/model/2026/01/01/00/x", "p/readme.txt")
    orphans = put(storing, *strays)
    put(storing, "elsewhere/object")  # it is under none of our prefixes
    reconciliation, findings = await reconcile()
    by_kind = {
        kind: [finding.storage_key for finding in findings if finding.kind == kind]
        for kind in ("orphan", "missing")
    }
    assert by_kind == {"orphan": orphans, "missing": sorted(map(str, lost))}
    assert (reconciliation.count("orphans"), reconciliation.count("missing")) == (4, 3)
    assert reconciliation.count("orphan_bytes") == 4 * len(b"left over")
    of_row = {finding.storage_key: (finding.model_id, finding.uid) for finding in findings}
    assert of_row[str(lost[0])] == ("model", stored[2].uid)


async def test_an_unknown_model_fails_with_the_nearest(storing: Storing, command: Command) -> None:
    await storing.model("model")
    code, report = await command("--model", "modle", RECONCILE_PREFIXES="p")
    assert (code, report["state"]) == (2, "failed")
    assert report["error"].startswith(
        "There is no model 'modle'. The nearest are model."
        f" No object of it is under s3://{storing.bucket}/p/modle/, "
    )
    code, report = await command("--model", "model", RECONCILE_PREFIXES="p")
    assert (code, report["state"], report["error"]) == (0, "done", None)


async def test_a_model_that_only_the_bucket_has_is_compared(
    storing: Storing, reconcile: Reconcile
) -> None:
    """Its registration may be what was lost."""
    [orphan] = put(storing, key_of("p", "lost", ago(hours=5), uuid4(), "data"))
    reconciliation, findings = await reconcile(model_id="lost")
    assert (reconciliation.state, reconciliation.error) == ("done", None)
    assert [finding.storage_key for finding in findings] == [orphan]


async def test_knows_keys_with_hours_of_local_time(storing: Storing, reconcile: Reconcile) -> None:
    model = await storing.model()
    for number, hours in enumerate((9, -11, 14)):
        clock = timedelta(hours=hours)
        await storing.inferences(model, 2, ago(days=number + 1), clock=clock, step=4000)
    reconciliation, findings = await reconcile()
    assert (reconciliation.state, findings, reconciliation.count("objects")) == ("done", [], 18)


async def test_held_objects_of_a_late_event_are_no_orphans(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine
) -> None:
    model = await storing.model()
    storage_keys = put(storing, *(f"p/model/{number}" for number in range(4)))
    values = {"erasure": uuid4(), "model": model, "uid": storing.uid(NOW), "scope": "inference"}
    keys = dict(
        zip((f"{kind}_storage_key" for kind in (*KINDS, "sidecar")), storage_keys, strict=True)
    )
    held = erasure_held.insert().values(**values, **keys, hold=uuid4(), hold_revision=1)
    await execute(engine, held)
    _, findings = await reconcile()
    assert findings == []


async def test_does_not_judge_young_objects(storing: Storing, reconcile: Reconcile) -> None:
    await storing.model()
    put(storing, "p/model/new")
    reconciliation, findings = await reconcile(reconcile_grace_seconds=60)
    assert (findings, reconciliation.count("young"), reconciliation.count("orphans")) == ([], 1, 0)
    assert reconciliation.orphans_before is not None
    assert datetime.now(UTC) - reconciliation.orphans_before > timedelta(seconds=60)


async def test_objects_of_dead_letters_and_parked_events_are_no_orphans(
    storing: Storing, reconcile: Reconcile, engine: AsyncEngine, kafka: KafkaSettings
) -> None:
    partition_id = PartitionId(kafka.kafka_cluster, kafka.kafka_topic, 0, 0)
    await storing.model()
    names = ("broken", "dead", "nested", "parked")
    broken, dead, nested, waiting = put(storing, *(f"p/model/{name}" for name in names))
    rejection = Rejection("invalid_time", "x", "model", "1")
    async with engine.begin() as connection:
        await open_partition(connection, partition_id, first=0, began="first")
        escaped = f'no json: "{broken}" …'.replace("/", r"\/").encode()
        letters = [
            Record(partition_id, 1, NOW, None, b'{"data_storage_key": "p/model/dead"}', ()),
            Record(partition_id, 2, NOW, None, escaped, ()),
            Record(partition_id, 4, NOW, None, b'[{"inputs": {"data": "p/model/nested"}}]', ()),
        ]
        await unsettled.add_dead(connection, [(letter, rejection) for letter in letters])
        record = Record(partition_id, 3, NOW, None, f'{{"k": "{waiting}"}}'.encode(), ())
        minute = timedelta(minutes=1)
        schedule = unsettled.Schedule(first=minute, longest=minute, give_up=minute)
        await unsettled.park(connection, [(record, rejection, waiting)], schedule)
    reconciliation, findings = await reconcile()
    assert (findings, reconciliation.count("awaited")) == ([], 4), nested
    await execute(engine, unsettled_event.delete().where(unsettled_event.c.offset == 1))
    _, findings = await reconcile()
    assert [finding.storage_key for finding in findings] == [dead]


async def test_ignores_what_is_being_erased(storing: Storing, reconcile: Reconcile) -> None:
    model = await storing.model()
    stored = await storing.inferences(model, 4, ago(hours=1))
    uids = [inference.uid for inference in stored]
    await storing.transact(erasure_requests.request_erasure, model=model, uids=uids)
    storing.blobs.delete_objects([key for inference in stored[:2] for key in inference.objects])
    reconciliation, findings = await reconcile()
    assert (reconciliation.state, findings) == ("done", [])


async def test_compares_one_model_alone(storing: Storing, reconcile: Reconcile) -> None:
    model, other = await storing.model("model"), await storing.model("other")
    await storing.inferences(model, 3, ago(hours=1))
    await storing.foreign(other, ago(hours=1), "p/other/data", None, None)
    mine, _ = put(storing, "p/model/orphan", "p/other/orphan")
    reconciliation, findings = await reconcile(model_id="model")
    assert [finding.storage_key for finding in findings] == [mine]
    assert reconciliation.count("objects") == 10


async def test_rejects_a_prefix_within_another(reconcile: Reconcile) -> None:
    reconciliation, _ = await reconcile(reconcile_prefixes="p,p/model")
    assert reconciliation.state == "failed"
    assert reconciliation.error is not None
    assert "name the wider one alone" in reconciliation.error


async def test_finds_held_keys_by_index(engine: AsyncEngine) -> None:
    """However many there are: this runs in the fence."""
    values = ", ".join(f"'s3://b/{name}/' || n" for name in KEYS)
    insert = (
        f"INSERT INTO erasure_held ({', '.join(KEYS)},"
        " erasure, model, uid, scope, hold, hold_revision)"
        f" SELECT {values}, gen_random_uuid(), 1, gen_random_uuid(), 'inference',"
        " gen_random_uuid(), 1 FROM generate_series(1, 20000) AS n"
    )
    held_keys = {f"s3://b/{name}/{n}" for name in KEYS for n in (7, 20000)}
    query = owned.select_held({*held_keys, "s3://b/data_storage_key/0"})
    async with engine.begin() as connection:
        for statement in (insert, "ANALYZE erasure_held"):
            await connection.exec_driver_sql(statement)
        plan = summarize_plan((await connection.execute(Explain(query))).scalar_one())
        assert set((await connection.execute(query)).scalars()) == held_keys
    assert ("erasure_held" in plan.scans, "Seq Scan" in plan.scans) == (True, False)

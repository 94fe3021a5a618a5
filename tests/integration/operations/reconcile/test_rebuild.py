"""Bucket and index are compared, and the index is rebuilt from the bucket alone."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.api.metadata_changes import MetadataItem, change_tags, check_change
from inference_store.api.metadata_edits import Edit, Editor, edit, reserve
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.pending_deletions import KEYS
from inference_store.index import registrations, unsettled
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import (
    PARTITIONED,
    awaiting_truth,
    blob_reference,
    erasure_held,
    inference,
    label,
    metadata_key,
    model_key,
    model_label,
    registration,
    truth_set,
    unsettled_event,
)
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.layout import Kind, key_of
from inference_store.inference.metadata import MetadataCaps
from inference_store.objects import Blobs
from inference_store.operations.reconcile import owned
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import KafkaSettings
from inference_store.proxy.capture.segments import (
    complete_event,
    encode_event,
    encode_metadata,
    make_metadata_blob,
)
from inference_store.query.explain import Explain, summarize_plan
from inference_store.truth.awaiting import await_sets
from inference_store.truth.documents import TruthItem, TruthSet
from inference_store.truth.rows import Address, Row
from inference_store.truth.sets import TruthWriter, put_truth
from tests.integration import erasure_requests
from tests.integration.ingester.conftest import StartIngester, start_ingester, wait_for_counts
from tests.integration.retention.stored import KINDS, NOW, Storing, ago
from tests.kill_chain import KillChain, chain_kills
from tests.producer import START, capture
from tests.servers.fixtures import unique
from tests.servers.postgres import Postgres
from tests.transactions import execute, opened, scalar, transact

from .conftest import Command, Reconcile, put

__all__ = ["start_ingester"]
_KEYS: Final[dict[str, Kind]] = {
    "data_storage_key": "data",
    "inference_storage_key": "response",
    "metadata_storage_key": "metadata",
}
_REQUEST = {"method": "POST", "path": "/v2/models/m/infer", "messages": [["the request"]]}


@dataclass(frozen=True)
class CapturedInference:
    """A captured inference; `inline`: the event also has its metadata and response."""

    number: int
    model_id: str = "cameras/hall"
    inline: bool = True
    received_at: datetime = START
    capture_id: UUID = field(default_factory=uuid4)

    def key(self, kind: Kind) -> str:
        return key_of("captures", self.model_id, self.received_at, self.capture_id, kind)

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "inference_id": f"i-{self.number % 7}",
            "received_at": self.received_at,
            "responded_at": self.received_at,
            "published_at": self.received_at + timedelta(seconds=2),
            **{name: self.key(kind) for name, kind in _KEYS.items()},
            "capture_id": str(self.capture_id),
            "task_type": "Image-Text-to-Text",
            "ok": True,
            "aliases": [f"alias-{self.number}"],
            "batch_index": 0,
            "data_size": 5,
        }

    @property
    def _envelope(self) -> bytes:
        items = [
            {"key": "frame_number", "type": "int", "value": str(self.number)},
            {"key": "camera_position", "type": "json", "value": '{"angle": "10.5"}'},
        ]
        return json.dumps(items).encode()

    @property
    def response(self) -> bytes:
        answers = [{"prompt": "what?", "answer": f"a cat, {self.number}"}]
        output = {"name": "o", "shape": [1], "datatype": "BYTES", "data": [json.dumps(answers)]}
        return json.dumps({"outputs": [output]}).encode()

    @property
    def blobs(self) -> dict[str, bytes]:
        rest = {"request": _REQUEST, "capture": {"transport": "rest"}}
        event = encode_event(self._fields | {"published_at": None})
        metadata = make_metadata_blob(self._metadata, event, rest)
        return {
            self.key("data"): b"datum",
            self.key("metadata"): metadata,
            self.key("response"): self.response,
        }

    @property
    def event(self) -> bytes:
        event = encode_event(self._fields)
        if not self.inline:
            return event
        key = self.key("metadata")
        response = self.response
        return complete_event(event, metadata_key=key, metadata=self._metadata, response=response)

    @property
    def _metadata(self) -> bytes:
        return encode_metadata({"http_version": "1.1"}, [self._envelope])


REBUILD_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("rebuild.")]
OURS = [CapturedInference(number, inline=number % 2 == 0) for number in range(6)]
_ITEMS = [{"key": "k", "type": "int", "value": "1"}]
INLINE = capture(9, metadata=_ITEMS, extras={"task_type": "Object Detection", "metadata": _ITEMS})
FOREIGN = [*(capture(number) for number in range(4)), INLINE]
# docs/how-to/reconcile.md names them
_NOT_REBUILT = "indexed_at revision data_deleted_at registered_at registered_by updated_at"
REBUILT = (*PARTITIONED, blob_reference, awaiting_truth, registration, model_key, model_label)


@pytest.fixture
def empty(postgres_server: Postgres, migrated_template: str) -> Iterator[str]:
    name = unique()
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


async def read_everything(engine: AsyncEngine) -> dict[str, list[Any]]:
    """Return all rows that a rebuild fills by table, with names instead of their integers."""
    names: dict[str, dict[int, str]] = {}
    by_table: dict[str, list[Any]] = {}
    async with engine.connect() as connection:
        rows = await connection.execute(select(registration.c.model, registration.c.model_id))
        names["model"] = {row[0]: row[1] for row in rows}
        for table, name in ((metadata_key, "key"), (label, "label")):
            rows = await connection.execute(select(*list(table.c)[:2]))
            names[name] = {row[0]: row[1] for row in rows}
        names["top_label"] = names["label"]
        for part in REBUILT:
            columns = [column for column in part.c if column.name not in _NOT_REBUILT.split()]
            rows = await connection.execute(select(*columns))
            by_table[part.name] = sorted(
                (
                    tuple(
                        names[column.name].get(value) if column.name in names else value
                        for column, value in zip(columns, row, strict=True)
                    )
                    for row in rows
                ),
                key=str,
            )
        gone = select(inference.c.uid).where(inference.c.data_deleted_at.is_not(None))
        by_table["without input"] = sorted(map(str, (await connection.execute(gone)).scalars()))
    return by_table


async def store_events(start: StartIngester, engine: AsyncEngine) -> None:
    """Store events of our proxy, without the times of their publishing, and of other producers."""
    service, producer = await start(INGESTER_SIDECARS="on")
    captures: list[Any] = [*OURS, *FOREIGN]
    await producer.produce(*captures)
    await wait_for_counts(engine, stored=11)
    service.stop()
    ours = inference.update().where(inference.c.sidecar_storage_key.is_(None))
    await execute(engine, ours.values(published_at=None))


async def find_inference(engine: AsyncEngine, key: str) -> Any:
    query = select(inference.c.model, inference.c.uid)
    query = query.where(inference.c.data_storage_key.like(f"%{key}"))
    async with engine.connect() as connection:
        return (await connection.execute(query)).one()


async def edit_metadata(engine: AsyncEngine, blobs: Blobs, key: str) -> None:
    model, uid = await find_inference(engine, key)
    caps = MetadataCaps()
    given = [("frame_number", "int", "4711"), ("new", "str", "x")]
    items = [MetadataItem(key=key, type=type, value=value) for key, type, value in given]
    tag = partial(change_tags, add=["night", "x"], remove=["x"], caps=caps)
    untyped = check_change(items, remove=["gone"], caps=caps)
    editor = Editor(blobs, Dictionary(engine), caps)
    names = {"frame_number", "new", "tags", "tags[]"}
    await editor.dictionary.resolve({model: names}, {})
    (name,) = (await transact(engine, registrations.names, [model])).values()
    registration = (await transact(engine, registrations.find_by_ids, [name]))[name]
    for choose in (lambda _: untyped, tag):
        await transact(engine, reserve, blobs.buckets.default, registration, uid, revision=None)
        await transact(engine, edit, editor, registration, uid, Edit(choose, names))


async def label_inference(engine: AsyncEngine, blobs: Blobs, key: str, one: TruthSet) -> None:
    model, uid = await find_inference(engine, key)
    (name,) = (await transact(engine, registrations.names, [model])).values()
    registration = (await transact(engine, registrations.find_by_ids, [name]))[name]

    async def note(_: AsyncConnection, __: int) -> None:
        """Audit nothing."""

    writer = TruthWriter(engine, blobs)
    await put_truth(writer, registration, uid, one, by="me", tag=None, note=note)


async def erase_inference(engine: AsyncEngine, blobs: Blobs, key: str, scope: Any) -> None:
    model, uid = await find_inference(engine, key)
    storing = Storing(engine, blobs)
    erasure = await storing.transact(
        erasure_requests.request_erasure, model=model, uids=[uid], scope=scope
    )
    assert await storing.eraser.finish(erasure) == "deleted"


@pytest.mark.long
async def test_rebuilds_an_empty_database(
    start_ingester: StartIngester, engine: AsyncEngine, blobs: Blobs, command: Command, empty: str
) -> None:
    await store_events(start_ingester, engine)
    for key in (OURS[0].key("data"), FOREIGN[1].key("data")):
        await edit_metadata(engine, blobs, key)
    for key in (OURS[1].key("data"), FOREIGN[2].key("data")):
        await erase_inference(engine, blobs, key, "input")
    for key in (OURS[2].key("data"), FOREIGN[3].key("data")):
        await erase_inference(engine, blobs, key, "inference")
    before = await read_everything(engine)
    assert len(before["inference"]) == 9
    assert len(before["without input"]) == 2
    async with opened(empty) as again:
        assert await Ledger(again, blobs, prefix="ledger/").replay() > 0
        code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
        assert (code, report["state"]) == (0, "done"), report
        assert report["counts"]["rebuilt"] == 9
        assert report["books"]["difference"] == 0
        assert not {"missing", "orphans", "unreadable"} & {
            n for n, c in report["counts"].items() if c
        }
        assert await read_everything(again) == before
    code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
    assert (code, report["counts"]["present"], report["counts"].get("rebuilt")) == (0, 9, None)


@pytest.mark.kills
@chain_kills(["rebuild.commit.before:2", *REBUILD_FAILPOINTS])
async def test_killed_rebuild_continues(
    kills: KillChain,
    start_ingester: StartIngester,
    engine: AsyncEngine,
    command: Command,
    empty: str,
) -> None:
    await store_events(start_ingester, engine)
    before = await read_everything(engine)
    for failpoint in kills:
        code, _ = await command("--repair", "rebuild", POSTGRES_DSN=empty, FAILPOINT=failpoint)
        kills.check_killed(code, "")
    code, report = await command("--repair", "rebuild", POSTGRES_DSN=empty)
    assert (code, report["counts"]["rebuilt"]) == (0, 11), report
    assert report["books"]["difference"] == 0
    async with opened(empty) as again:
        assert await read_everything(again) == before
        assert await scalar(again, "SELECT count(*) FROM reconciliation") == 1


async def test_rebuilds_lost_rows_but_not_erased_ones(
    start_ingester: StartIngester, engine: AsyncEngine, blobs: Blobs, command: Command
) -> None:
    await store_events(start_ingester, engine)
    item = TruthItem("cat", (1.0, 2.0, 3.0, 4.5), "a cat", Decimal("1.50"))
    for number in (1, 3):
        for items in ([TruthItem("dog")], [item, TruthItem("dog")]):
            await label_inference(engine, blobs, OURS[number].key("data"), TruthSet(items))
    await label_inference(engine, blobs, OURS[1].key("data"), TruthSet([], "inspector", False))
    name = OURS[0].model_id
    known = (await transact(engine, registrations.find_by_ids, [name]))[name]
    later = Address("inference_id", "later")
    waiting = {(later, "human"): Row(1, later, TruthSet([item]))}
    about: Any = {"by": "me", "keep": timedelta(days=9)}
    assert await transact(engine, await_sets, TruthWriter(engine, blobs), known, waiting, **about)
    await erase_inference(engine, blobs, OURS[3].key("data"), "inference")
    for key, blob in OURS[3].blobs.items():  # somebody's copy is put back into the bucket
        blobs.put(blobs.parse(key), blob, content_type="application/json")
    before = await read_everything(engine)
    async with engine.begin() as connection:
        for table in (*PARTITIONED, blob_reference, awaiting_truth):
            await connection.execute(table.delete())
    code, report = await command("--repair", "rebuild", "--model", OURS[0].model_id)
    assert report["counts"]["erased_again"] == 1
    # The rows of the other model are still lost.
    assert (code, report["counts"]["rebuilt"]) == (1, 5)
    assert report["counts"]["truth_rebuilt"] == 2
    revisions = select(truth_set.c.source, truth_set.c.revision).order_by(truth_set.c.source)
    async with engine.connect() as connection:
        rows = [tuple(row) for row in await connection.execute(revisions)]
    assert rows == [("human", 2), ("inspector", 1)]
    code, report = await command("--repair", "rebuild")
    assert (report["counts"]["rebuilt"], report["counts"]["present"]) == (5, 5)
    assert report["counts"]["truth_present"] == 2
    assert await read_everything(engine) == before


async def test_lists_unreadable_objects(
    start_ingester: StartIngester, engine: AsyncEngine, blobs: Blobs, command: Command
) -> None:
    await store_events(start_ingester, engine)
    broken = OURS[4].key("metadata")
    blobs.put(blobs.parse(broken), b"no json", content_type="text/plain")
    code, report = await command("--repair", "rebuild", RECONCILE_GRACE_SECONDS="0")
    assert (code, report["counts"]["unreadable"]) == (1, 1)
    assert [finding["storage_key"] for finding in report["findings"]] == [str(blobs.parse(broken))]


async def test_finds_nothing_where_both_agree(storing: Storing, reconcile: Reconcile) -> None:
    first, second = await storing.model("model"), await storing.model("other model")
    await storing.inferences(first, 7, ago(hours=3), step=1500)
    await storing.foreign(second, ago(days=2), "p/strange/one", "p/strange/two", "p/strange/three")
    reconciliation, findings = await reconcile()
    assert (reconciliation.state, findings) == ("done", [])
    assert (reconciliation.count("objects"), reconciliation.count("named")) == (24, 24)
    assert reconciliation.count("bytes") > 0
    assert reconciliation.places == [
        f"s3://{storing.bucket}/{prefix}/"
        for prefix in ("p", "sidecars", "metadata", "ground-truth")
    ]


async def test_finds_orphans_and_missing_objects(storing: Storing, reconcile: Reconcile) -> None:
    model, stored = await storing.begin(9, ago(hours=5), step=1000)
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
        "There is no model 'modle'. The nearest is model."
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
        await open_partition(connection, partition_id, first=0)
        escaped = f'no json: "{broken}" …'.replace("/", r"\/").encode()
        letters = [
            Record(partition_id, 1, NOW, None, b'{"data_storage_key": "p/model/dead"}', ()),
            Record(partition_id, 2, NOW, None, escaped, ()),
            Record(partition_id, 4, NOW, None, b'[{"inputs": {"data": "p/model/nested"}}]', ()),
        ]
        await unsettled.add_dead(connection, [(letter, rejection) for letter in letters])
        record = Record(partition_id, 3, NOW, None, f'{{"k": "{waiting}"}}'.encode(), ())
        await unsettled.park(connection, [(record, rejection, waiting)])
    reconciliation, findings = await reconcile()
    assert (findings, reconciliation.count("awaited")) == ([], 4), nested
    await execute(engine, unsettled_event.delete().where(unsettled_event.c.offset == 1))
    _, findings = await reconcile()
    assert [finding.storage_key for finding in findings] == [dead]


async def test_ignores_what_is_being_erased(storing: Storing, reconcile: Reconcile) -> None:
    model, stored = await storing.begin(4, ago(hours=1))
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

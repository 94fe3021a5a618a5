"""A subject's value is planted in every table that can have it, in every object and answer; after
the erasure by subject is certified no table, no version of an object and no route has it."""

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import httpx
import orjson
import pytest
from fastapi.routing import iter_route_contexts
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.ledger import Ledger
from inference_store.index import dead_letters, parked
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Trouble
from inference_store.index.tables import METADATA, kafka_partition
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.builders import NOW, make_payload
from tests.integration.stored import Made, at, store
from tests.servers.minio import S3

from .conftest import MakeApp, client_of
from .test_erasures import Serve, asked, followed, serving

VALUE = "ann-4711"
SUBJECT = {"subject": {"key": "person", "value": VALUE}}
FILTER = f"person = '{VALUE}'"
_M = "/v1/models/model"
_PLACE = PartitionId("default", "inference-events", 0, 0)
_NOBODY = {"key": "person", "type": "string", "value": "nobody"}


@pytest.fixture
def serve(engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]) -> Serve:
    """One turn of a retention service that signs certificates."""
    return serving(engine, blobs, settings(), certificate_key=new_key().pem)


@pytest.fixture
async def app(make_app: MakeApp) -> Any:
    return make_app()


@pytest.fixture
async def client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as made:
        yield made


async def said(client: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
    answer = await client.request(method, path, json=body or None)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


@pytest.fixture
async def planted(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str, minio_server: S3
) -> None:
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    await plant_inferences(engine, blobs, bucket)
    await plant_asides(engine, blobs, bucket)
    await plant_requests(client)


async def plant_inferences(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """With the value in every column of text, in the objects and in their keys."""
    keys = [f"captures/{VALUE}/{kind}" for kind in ("data", "response", "metadata")]
    blob = orjson.dumps([{"key": "person", "type": "string", "value": VALUE}])
    for key in keys:
        for version in (blob, blob + b" "):
            blobs.put(StorageKey(bucket, key), version, content_type="text/plain")
    words: dict[str, Any] = {
        name: f"{name} {VALUE}" for name in ("prompt", "answer", "text", "output_name")
    }
    face = Prediction(ordinal=0, rank=1, output=0, label=f"face of {VALUE}", score=0.9, **words)
    items = [("person", "string", VALUE), ("long", "string", VALUE * 200), ("n", "int", 1)]
    extras = Extras(model_version=VALUE, error=VALUE, trace_id=VALUE, data_hash=VALUE)
    named = (f"{bucket}/{keys[0]}", f"{bucket}/{keys[1]}", f"{bucket}/{keys[2]}")
    of_ann = Made(f"of-{VALUE}", at(1), items, [face], (f"alias-{VALUE}",), extras, named)
    cat = [("person", "string", "bob"), ("n", "int", 2)]
    await store(engine, of_ann, Made("of-bob", at(2), cat, [("cat", 0.5)]))


async def plant_asides(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """A dead letter and a parked event, in every column that a producer fills."""
    named = f"late/{VALUE}/metadata"
    blob = orjson.dumps([{"key": "person", "type": "string", "value": VALUE}])
    blobs.put(StorageKey(bucket, named), blob, content_type="text/plain")
    pairs = []
    for offset in (0, 1):
        of = f"late-{offset}-{VALUE}"
        event = make_payload(
            model_id="model",
            inference_id=of,
            inference_storage_key=None,
            data_storage_key=None,
            metadata_storage_key=named,
        )
        record = Record(_PLACE, offset, NOW, VALUE.encode(), event, (("h", VALUE),))
        pairs.append((record, Trouble("blob_missing", f"of {VALUE}", "model", of)))
    schedule = parked.Schedule(*(3 * [NOW - NOW]))
    async with engine.begin() as connection:
        await open_partition(connection, _PLACE, first=0, began="earliest")
        await dead_letters.add(connection, pairs[:1])
        await parked.add(connection, [(*pairs[1], f"s3://{bucket}/{named}")], schedule)
        counted = kafka_partition.update().values(next=2, dead=1, parked=1)
        await connection.execute(counted)


async def plant_requests(client: httpx.AsyncClient) -> None:
    """A policy that is replaced, a hold that is released, an erasure that is cancelled, and every
    kind of question."""
    kept = {"keep_input": "P9Y", "keep_inference": "P9Y"}
    for rules in ([{"name": VALUE, "filter": FILTER, **kept}, kept], [kept]):
        await said(client, "PUT", f"{_M}/retention-policy", rules=rules)
    hold = {"name": VALUE, "reason": VALUE, "model_id": "model", "filter": FILTER}
    placed = await said(client, "POST", "/v1/holds", **hold)
    await said(client, "DELETE", f"/v1/holds/{placed['id']}?reason={VALUE}")
    cancelled = await asked(client, {"filter": FILTER}, f"{_M}/erasures")
    await said(client, "POST", f"/v1/erasures/{cancelled['id']}/cancel")
    await ask_everything(client)


NEAR = "face of ann-4712"


async def ask_everything(client: httpx.AsyncClient) -> str:
    """All that these questions answer: suggestions, warnings, groups, plans, dry runs."""
    questions: list[tuple[str, dict[str, Any]]] = [
        ("inferences/query", {"filter": f"top_label = '{NEAR}'", "explain": True}),
        ("inferences/query", {"filter": "persn = 'x'", "unknown_keys": "empty"}),
        ("inferences/query", {"filter": "persn = 'x'"}),
        ("inferences/query", {"include": ["metadata", "predictions", "urls"]}),
        ("inferences/count", {"filter": f"prediction(label = '{NEAR}')"}),
        ("inferences/aggregate", {"group_by": ["top_label"], "measures": {"n": "count"}}),
        ("inferences/aggregate", {"group_by": ["person"], "measures": {"n": "count"}}),
        ("erasures", {"filter": "n > 0", "dry_run": True}),
        ("retention-policy/preview", {"rules": [{"keep_input": "P1D", "keep_inference": "P1D"}]}),
    ]
    answers = [await client.post(f"{_M}/{path}", json=body) for path, body in questions]
    assert [each.status_code for each in answers if each.status_code not in (200, 422)] == []
    return "\n".join(each.text for each in answers)


async def in_tables(engine: AsyncEngine) -> dict[str, int]:
    """In which tables a row has the value, as text or as bytes, and how many."""
    found: dict[str, int] = {}
    async with engine.connect() as connection:
        for table in METADATA.sorted_tables:
            bytes = f"position('\\x{VALUE.encode().hex()}'::bytea IN %s) > 0"
            texts = [f"CAST(row AS text) LIKE '%{VALUE}%'"]
            columns = [c.name for c in table.c if "BYTEA" in str(c.type.compile(engine.dialect))]
            blobs = [bytes % f'row."{name}"' for name in columns]
            query = f"SELECT count(*) FROM {table.name} AS row WHERE " + " OR ".join(texts + blobs)
            if count := await connection.scalar(text(query)):
                found[table.name] = count
    return found


def in_objects(minio_server: S3, bucket: str) -> list[str]:
    """The versions of objects that have the value, in their key or in what they hold."""
    client = minio_server.client()
    found = []
    for each in client.list_objects(bucket, recursive=True, include_version=True):
        if each.is_delete_marker:
            continue
        answer = client.get_object(bucket, each.object_name, version_id=each.version_id)
        if VALUE in each.object_name or VALUE.encode() in answer.read():
            found.append(f"{each.object_name} {each.version_id}")
    return found


async def in_routes(app: Any, client: httpx.AsyncClient, ids: dict[str, str]) -> list[str]:
    """The routes that answer with the value."""
    routes = {
        each.path for each in iter_route_contexts(app.routes) if "GET" in (each.methods or ())
    }
    found = []
    for path in sorted(each for each in routes if each and each.startswith("/v1/")):
        answer = await client.get(path.format(**ids))
        assert answer.status_code in (200, 404), (path, answer.text)
        if VALUE in answer.text:
            found.append(path)
    return found


@pytest.mark.usefixtures("planted")
async def test_no_table_no_object_and_no_route_has_it(
    app: Any,
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    minio_server: S3,
    serve: Serve,
) -> None:
    assert "label" in await in_tables(engine)
    assert VALUE in await ask_everything(client)
    one = await asked(client, SUBJECT, f"{_M}/erasures")
    await serve()
    one = await followed(client, one)
    assert one["state"] == "certified", one
    await serve()
    while await Ledger(engine, blobs, prefix="ledger/").forget(older_than_seconds=0):
        pass
    async with engine.connect() as connection:
        letter = await connection.scalar(text("SELECT id FROM dead_letter"))
    ids = {
        **{"model_id": "model", "project_id": "project", "inference_id": "of-bob"},
        **{
            "erasure_id": one["id"],
            "certificate": str(one["certificate"]),
            "hold_id": str(UUID(int=0)),
        },
        **{
            "id": str(letter),
            "run_id": str(UUID(int=0)),
            "key_id": "x",
            "reconciliation_id": str(UUID(int=0)),
        },
    }
    left = (
        await in_tables(engine),
        in_objects(minio_server, bucket),
        await in_routes(app, client, ids),
    )
    assert left == ({}, [], [])
    assert VALUE not in await ask_everything(client)

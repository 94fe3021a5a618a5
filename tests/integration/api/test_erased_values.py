"""After an erasure of a subject is certified, no table, object version or route has its value.

The value is planted first in every table, object and answer that can contain it.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, get_type_hints
from uuid import UUID

import httpx
import orjson
import pytest
from fastapi.routing import iter_route_contexts
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.keys import new_key
from inference_store.index import dead_letters, parked
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Rejection
from inference_store.index.tables import METADATA, kafka_partition
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.builders import NOW, make_payload
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.minio import S3

from .conftest import MakeApp, make_client
from .test_erasures import RunRetention, make_run_retention, read_erasure, request_erasure

VALUE = "ann-4711"
SUBJECT = {"subject": {"key": "person", "value": VALUE}}
FILTER = f"person = '{VALUE}'"
_M = "/v1/models/model"
_PARTITION = PartitionId("default", "inference-events", 0, 0)
# Without waiting, since the stream would last an hour.
QUERIES = {"/v1/models/{model_id}/inferences/follow": {"seconds": "0"}}
_TEXTS = [name for name, kind in get_type_hints(Extras).items() if kind == (str | None)]
_NOBODY = {"key": "person", "type": "string", "value": "nobody"}


@pytest.fixture
def run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> RunRetention:
    """A function that runs one turn of a retention service that signs certificates."""
    return make_run_retention(engine, blobs, settings(), certificate_key=new_key().pem)


@pytest.fixture
async def app(make_app: MakeApp) -> Any:
    return make_app()


@pytest.fixture
async def client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(app) as http_client:
        yield http_client


async def send(client: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
    answer = await client.request(method, path, json=body or None)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


@pytest.fixture
async def plant_value(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    minio_server: S3,
    settings: Callable[..., ApiSettings],
) -> None:
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    await plant_inferences(engine, blobs, bucket)
    await plant_letters(engine, blobs, bucket)
    await plant_requests(client)
    await plant_export(client, make_run_retention(engine, blobs, settings()), minio_server, bucket)


async def plant_export(
    client: httpx.AsyncClient, run_retention: RunRetention, minio_server: S3, bucket: str
) -> None:
    """Write an export by a filter, whose part has the value; and give out a link to it."""
    body = {"filter": f"{FILTER} OR person = 'bob'", "format": "csv"}
    export = (await send(client, "POST", f"{_M}/exports", **body))["id"]
    await run_retention()
    [part] = (await send(client, "GET", f"/v1/exports/{export}/parts"))["items"]
    assert part["rows"] == 2
    planted = find_in_objects(minio_server, bucket)
    assert [version for version in planted if version.startswith(f"exports/{export}/parts/")]


async def plant_inferences(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """Store inferences with the value in every text column, in the objects and in their keys."""
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
    texts: dict[str, Any] = dict.fromkeys(_TEXTS, VALUE)
    references = (f"{bucket}/{keys[0]}", f"{bucket}/{keys[1]}", f"{bucket}/{keys[2]}")
    of_ann = NewInference(
        f"of-{VALUE}", at(1), items, [face], (f"alias-{VALUE}",), Extras(**texts), references
    )
    cat = [("person", "string", "bob"), ("n", "int", 2)]
    await store(engine, of_ann, NewInference("of-bob", at(2), cat, [("cat", 0.5)]))


async def plant_letters(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """Store a dead letter and a parked event with the value in every column of the producer."""
    key = f"late/{VALUE}/metadata"
    blob = orjson.dumps([{"key": "person", "type": "string", "value": VALUE}])
    blobs.put(StorageKey(bucket, key), blob, content_type="text/plain")
    pairs = []
    for offset in (0, 1):
        inference_id = f"late-{offset}-{VALUE}"
        event = make_payload(
            model_id="model",
            inference_id=inference_id,
            inference_storage_key=None,
            data_storage_key=None,
            metadata_storage_key=key,
        )
        record = Record(_PARTITION, offset, NOW, VALUE.encode(), event, (("h", VALUE),))
        pairs.append((record, Rejection("blob_missing", f"of {VALUE}", "model", inference_id)))
    schedule = parked.Schedule(*(3 * [NOW - NOW]))
    async with engine.begin() as connection:
        await open_partition(connection, _PARTITION, first=0, began="earliest")
        await dead_letters.add(connection, pairs[:1])
        await parked.add(connection, [(*pairs[1], f"s3://{bucket}/{key}")], schedule)
        counted = kafka_partition.update().values(next=2, dead=1, parked=1)
        await connection.execute(counted)


async def plant_requests(client: httpx.AsyncClient) -> None:
    """Mention the value in a policy, hold, erasure, views and queries; all but the views end."""
    ages = {"keep_input": "P9Y", "keep_inference": "P9Y"}
    for rules in ([{"name": VALUE, "filter": FILTER, **ages}, ages], [ages]):
        await send(client, "PUT", f"{_M}/retention-policy", rules=rules)
    hold = {"name": VALUE, "reason": VALUE, "model_id": "model", "filter": FILTER}
    placed = await send(client, "POST", "/v1/holds", **hold)
    await send(client, "DELETE", f"/v1/holds/{placed['id']}?reason={VALUE}")
    cancelled = await request_erasure(client, {"filter": FILTER}, f"{_M}/erasures")
    await send(client, "POST", f"/v1/erasures/{cancelled['id']}/cancel")
    for name, shared in ((VALUE, "project"), ("of a person", "private")):
        view = {"name": name, "model_id": "model", "filter": FILTER, "shared": shared}
        await send(client, "POST", "/v1/views", **view, columns=[f"metadata.{VALUE}"])
    await ask_everything(client)


NEAR = "face of ann-4712"


async def ask_everything(client: httpx.AsyncClient) -> str:
    """Return the text of answers with suggestions, warnings, groups, plans and dry runs."""
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
    assert [answer.status_code for answer in answers if answer.status_code not in (200, 422)] == []
    return "\n".join(answer.text for answer in answers)


async def find_in_tables(engine: AsyncEngine) -> dict[str, int]:
    """Return how many rows have the value, as text or as bytes, by table; only tables with any."""
    counts: dict[str, int] = {}
    async with engine.connect() as connection:
        for table in METADATA.sorted_tables:
            bytes = f"position('\\x{VALUE.encode().hex()}'::bytea IN %s) > 0"
            texts = [f"CAST(row AS text) LIKE '%{VALUE}%'"]
            columns = [c.name for c in table.c if "BYTEA" in str(c.type.compile(engine.dialect))]
            blobs = [bytes % f'row."{name}"' for name in columns]
            query = f"SELECT count(*) FROM {table.name} AS row WHERE " + " OR ".join(texts + blobs)
            if count := await connection.scalar(text(query)):
                counts[table.name] = count
    return counts


def find_in_objects(minio_server: S3, bucket: str) -> list[str]:
    """Return the versions of objects that have the value in their key or content."""
    client = minio_server.client()
    versions = []
    for item in client.list_objects(bucket, recursive=True, include_version=True):
        if item.is_delete_marker:
            continue
        answer = client.get_object(bucket, item.object_name, version_id=item.version_id)
        if VALUE in item.object_name or VALUE.encode() in answer.read():
            versions.append(f"{item.object_name} {item.version_id}")
    return versions


async def find_in_routes(app: Any, client: httpx.AsyncClient, ids: dict[str, str]) -> list[str]:
    """Return the routes whose answers contain the value."""
    routes = {
        context.path
        for context in iter_route_contexts(app.routes)
        if "GET" in (context.methods or ())
    }
    paths = []
    for path in sorted(route for route in routes if route and route.startswith("/v1/")):
        answer = await client.get(path.format(**ids), params=QUERIES.get(path))
        assert answer.status_code in (200, 404), (path, answer.text)
        if VALUE in answer.text:
            paths.append(path)
    return paths


@pytest.mark.usefixtures("plant_value")
async def test_no_table_object_or_route_has_the_value(
    app: Any,
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    minio_server: S3,
    run_retention: RunRetention,
) -> None:
    assert "label" in await find_in_tables(engine)
    assert VALUE in await ask_everything(client)
    erasure = await request_erasure(client, SUBJECT, f"{_M}/erasures")
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert erasure["state"] == "certified", erasure
    await run_retention()
    while await Ledger(engine, blobs, prefix="ledger/").redact(older_than_seconds=0):
        pass
    async with engine.connect() as connection:
        letter = await connection.scalar(text("SELECT id FROM dead_letter"))
        view = await connection.scalar(text("SELECT id FROM saved_view LIMIT 1"))
        export = await connection.scalar(text("SELECT id FROM export_job"))
    ids = {
        **{"model_id": "model", "project_id": "project", "inference_id": "of-bob"},
        **{
            "erasure_id": erasure["id"],
            "certificate": str(erasure["certificate"]),
            "hold_id": str(UUID(int=0)),
        },
        **{
            "id": str(letter),
            "run_id": str(UUID(int=0)),
            "key_id": "x",
            "view_id": str(view),
            **{"export_id": str(export), "number": "1"},
            "reconciliation_id": str(UUID(int=0)),
        },
    }
    remains = (
        await find_in_tables(engine),
        find_in_objects(minio_server, bucket),
        await find_in_routes(app, client, ids),
    )
    assert remains == ({}, [], [])
    await check_views(client, erasure["id"])
    assert VALUE not in await ask_everything(client)


async def check_views(client: httpx.AsyncClient, erasure: str) -> None:
    """Check that the views are left without texts, and that they can only be deleted."""
    views = (await client.get("/v1/views")).json()["items"]
    assert [(view["name"], view["filter"], view["erased_by"]) for view in views] == [
        (None, None, erasure),
        (None, None, erasure),
    ]
    for view in views:
        path = f"/v1/views/{view['id']}"
        assert (await client.patch(path, json={"name": "x"})).status_code == 409
        assert (await client.delete(path)).status_code == 204

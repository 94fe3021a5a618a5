"""After an erasure of a subject is certified, no table, object version or route has its value.

The value is planted first in every table, object and answer that can contain it.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints
from uuid import UUID

import orjson
import pytest
from fastapi.routing import iter_route_contexts
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import insert, text

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import new_key
from inference_store.export.jobs import REPLAY, NewExport, request_export
from inference_store.index import unsettled
from inference_store.index.accounting import open_partition
from inference_store.index.tables import METADATA, kafka_partition, replay_item
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction
from inference_store.replay.items import ReplayPlan
from tests.builders import NOW, make_payload
from tests.integration.stored_inferences import NewInference, at
from tests.policy_owners import name_owner
from tests.servers.minio import S3

from .conftest import Api
from .people import PARTITION, erase, place_hold, release_hold, request_erasure

VALUE = "ann-4711"
SUBJECT = {"subject": {"key": "person", "value": VALUE}}
FILTER = f"person = '{VALUE}'"
_M = "/v1/models/model"
# Without waiting, since the stream would last an hour.
QUERIES = {"/v1/models/{model_id}/inferences/follow": {"seconds": "0"}}
_TEXTS = [name for name, kind in get_type_hints(Extras).items() if kind == (str | None)]


@pytest.fixture
async def plant_value(api: Api, minio_server: S3) -> None:
    minio_server.client().set_bucket_versioning(api.bucket, VersioningConfig(ENABLED))
    await plant_inferences(api)
    await plant_letters(api)
    await plant_requests(api)
    await plant_export(api, minio_server)
    await plant_replay(api)


async def plant_replay(api: Api) -> None:
    """Request a replay by a filter that has the value, with a difference of what matches it."""
    [(model, document)] = await api.fetch("SELECT model, document FROM export_job")
    plan = ReplayPlan(model, None, None, share=1, most=9, rate=1, tolerance=0)
    asked = document | {"replay": plan._asdict()}
    new = NewExport(model, REPLAY, asked, "test", datetime.now(UTC) + timedelta(days=1))
    job = await api.transact(request_export, new)
    uid = await api.scalar(f"SELECT uid FROM inference WHERE inference_id LIKE '%{VALUE}'")
    difference = {"label": {"before": VALUE, "after": None}}
    item = {"job": job.id, "uid": uid, "model": model, "state": "compared"}
    await api.execute(insert(replay_item).values(**item, difference=difference))


async def plant_export(api: Api, minio_server: S3) -> None:
    """Write an export by a filter, whose part has the value; and give out a link to it."""
    body = {"filter": f"{FILTER} OR person = 'bob'", "format": "csv"}
    export = (await api.ask(f"{_M}/exports", body, status=202))["id"]
    await api.run_retention()
    [part] = (await api.read(f"/v1/exports/{export}/parts"))["items"]
    assert part["rows"] == 2
    planted = find_in_objects(minio_server, api.bucket)
    assert [version for version in planted if version.startswith(f"exports/{export}/parts/")]


async def plant_inferences(api: Api) -> None:
    """Store inferences with the value in every text column, in the objects and in their keys."""
    blob = orjson.dumps([{"key": "person", "type": "string", "value": VALUE}])
    names = [f"captures/{VALUE}/{kind}" for kind in ("data", "response", "metadata")]
    for version in (blob, blob + b" "):
        data, response, metadata = (api.put_blob(name, version) for name in names)
    words: dict[str, Any] = {
        name: f"{name} {VALUE}" for name in ("prompt", "answer", "text", "output_name")
    }
    face = Prediction(ordinal=0, rank=1, output=0, label=f"face of {VALUE}", score=0.9, **words)
    items = [("person", "string", VALUE), ("long", "string", VALUE * 200), ("n", "int", 1)]
    texts: dict[str, Any] = dict.fromkeys(_TEXTS, VALUE)
    keys = (data, response, metadata)
    of_ann = NewInference(
        f"of-{VALUE}", at(1), items, [face], (f"alias-{VALUE}",), Extras(**texts), keys
    )
    cat = [("person", "string", "bob"), ("n", "int", 2)]
    await api.store(of_ann, NewInference("of-bob", at(2), cat, [("cat", 0.5)]))
    tag = {"add": [f"tag of {VALUE}"], "filter": FILTER, "expected": 1}
    assert (await api.ask(f"{_M}/inferences/tags", tag))["changed"] == 1
    note = {"metadata": [{"key": "note", "type": "string", "value": f"seen {VALUE}"}]}
    await api.ask(f"{_M}/inferences/of-{VALUE}/metadata", note)
    for name in ("child", "adult"):
        said = {"label": f"{name} like {VALUE}", "text": f"{name} {VALUE}"}
        body = {"source": VALUE, "items": [said]}
        await api.call("PUT", f"{_M}/inferences/of-{VALUE}/ground-truth", body)


async def plant_letters(api: Api) -> None:
    """Store a dead letter and a parked event with the value in every column of the producer."""
    key = f"late/{VALUE}/metadata"
    place = api.put_blob(key, orjson.dumps([{"key": "person", "type": "string", "value": VALUE}]))
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
        record = Record(PARTITION, offset, NOW, VALUE.encode(), event, (("h", VALUE),))
        pairs.append((record, Rejection("blob_missing", f"of {VALUE}", "model", inference_id)))
    async with api.engine.begin() as connection:
        await open_partition(connection, PARTITION, first=0)
        await unsettled.add_dead(connection, pairs[:1])
        await unsettled.park(connection, [(*pairs[1], f"s3://{place}")])
        counted = kafka_partition.update().values(next=2, dead=1, parked=1)
        await connection.execute(counted)


async def plant_requests(api: Api) -> None:
    """Mention the value in a policy, hold, erasure, views and queries; all but the views end."""
    ages = {"keep_input": "P9Y", "keep_inference": "P9Y"}
    for rules in ([{"name": VALUE, "filter": FILTER, **ages}, ages], [ages]):
        await api.call("PUT", f"{_M}/retention-policy", {"rules": rules})
    await release_hold(api, await place_hold(api, FILTER, name=VALUE, reason=VALUE), VALUE)
    cancelled = await request_erasure(api, {"filter": FILTER})
    await api.ask(f"/v1/erasures/{cancelled['id']}/cancel", None, status=202)
    for name, shared in ((VALUE, "project"), ("of a person", "private")):
        view = {"name": name, "model_id": "model", "filter": FILTER, "shared": shared}
        await api.ask("/v1/views", view | {"columns": [f"metadata.{VALUE}"]}, status=201)
    await ask_everything(api)


NEAR = "face of ann-4712"


async def ask_everything(api: Api) -> str:
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
    answers = [
        await api.post(f"{_M}/{path}", json=name_owner(f"{_M}/{path}", body))
        for path, body in questions
    ]
    assert [answer.status_code for answer in answers if answer.status_code not in (200, 422)] == []
    return "\n".join(answer.text for answer in answers)


async def find_in_tables(api: Api) -> dict[str, int]:
    """Return how many rows have the value, as text or as bytes, by table; only tables with any."""
    counts: dict[str, int] = {}
    async with api.engine.connect() as connection:
        for table in METADATA.sorted_tables:
            bytes = f"position('\\x{VALUE.encode().hex()}'::bytea IN %s) > 0"
            texts = [f"CAST(row AS text) LIKE '%{VALUE}%'"]
            columns = [
                c.name for c in table.c if "BYTEA" in str(c.type.compile(api.engine.dialect))
            ]
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


async def find_in_routes(api: Api, ids: dict[str, str]) -> list[str]:
    contexts = iter_route_contexts(api.app.routes)
    routes = {context.path for context in contexts if "GET" in (context.methods or ())}
    paths = []
    for path in sorted(route for route in routes if route and route.startswith("/v1/")):
        answer = await api.get(path.format(**ids), params=QUERIES.get(path))
        assert answer.status_code in (200, 404, 410), (path, answer.text)
        if VALUE in answer.text:
            paths.append(path)
    return paths


@pytest.mark.usefixtures("plant_value")
async def test_no_table_object_or_route_has_the_value(api: Api, minio_server: S3) -> None:
    held = await find_in_tables(api)
    assert {"label", "replay_item"} <= held.keys()
    assert VALUE in await ask_everything(api)
    api.retention["certificate_key"] = new_key().pem
    erasure = await erase(api, SUBJECT)
    assert erasure["state"] == "certified", erasure
    await api.run_retention()
    while await Ledger(api.engine, api.blobs, prefix="ledger/").redact(older_than_seconds=0):
        pass
    [letter] = await api.fetch("SELECT id FROM unsettled_event WHERE was_dead")
    [view, _] = await api.fetch("SELECT id FROM saved_view")
    [replay, export] = await api.fetch("SELECT id FROM export_job ORDER BY format = 'replay' DESC")
    nothing = str(UUID(int=0))
    ids = {
        **{"model_id": "model", "project_id": "project", "inference_id": "of-bob"},
        **{"erasure_id": erasure["id"], "certificate": str(erasure["certificate"])},
        **{"hold_id": nothing, "run_id": nothing, "reconciliation_id": nothing, "key_id": "x"},
        **{"id": str(letter), "view_id": str(view), "export_id": str(export), "number": "1"},
        "replay_id": str(replay),
    }
    objects = find_in_objects(minio_server, api.bucket)
    remains = (await find_in_tables(api), objects, await find_in_routes(api, ids))
    assert remains == ({}, [], [])
    vacuumed = await api.fetch(
        "SELECT coalesce(inhparent, relid)::regclass::text FROM pg_stat_user_tables"
        " LEFT JOIN pg_inherits ON inhrelid = relid WHERE vacuum_count > 0"
    )
    assert set(held) <= set(vacuumed)
    await check_views(api, erasure["id"])
    assert VALUE not in await ask_everything(api)


async def check_views(api: Api, erasure: str) -> None:
    """Check that the views are left without texts, and that they can only be deleted."""
    views = (await api.read("/v1/views"))["items"]
    shown = [(view["name"], view["filter"], view["erased_by"]) for view in views]
    assert shown == [(None, None, erasure)] * 2
    for view in views:
        await api.call("PATCH", f"/v1/views/{view['id']}", {"name": "x"}, status=409)
        await api.call("DELETE", f"/v1/views/{view['id']}", status=204)

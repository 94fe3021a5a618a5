"""Exports: requested, written by the retention service, downloaded, cancelled, expired."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import nanoarrow
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.part_formats import PART_FORMATS
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.stored_inferences import NewInference, at, store

from .conftest import MakeApp, make_client
from .test_erasures import RunRetention, make_run_retention

EXPORTS = "/v1/models/model/exports"
_STORED = 25
_LIST = 10


@pytest.fixture
def run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> RunRetention:
    """A function that runs one turn of the retention service."""
    return make_run_retention(engine, blobs, settings(), export_part_inferences=_LIST)


@pytest.fixture(autouse=True)
async def stored(engine: AsyncEngine) -> None:
    """Store some inferences, of which a part has fewer."""
    await store(
        engine,
        *(
            NewInference(str(number), at(number), [("n", "int", str(number))], [("person", 0.5)])
            for number in range(_STORED)
        ),
    )


async def request(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Request an export, and return it."""
    answer = await client.post(EXPORTS, json=body)
    assert answer.status_code == 202, answer.text
    export: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/exports/{export['id']}"
    return export


async def follow(client: httpx.AsyncClient, export: dict[str, Any]) -> dict[str, Any]:
    """Return an export as it is now."""
    answer = await client.get(f"/v1/exports/{export['id']}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def list_parts(client: httpx.AsyncClient, export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of an export, with links."""
    answer = await client.get(f"/v1/exports/{export['id']}/parts")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def download(part: dict[str, Any]) -> bytes:
    """Return what a part's presigned link leads to."""
    async with httpx.AsyncClient(timeout=120) as client:
        return (await client.get(part["url"])).content


async def read_lines(client: httpx.AsyncClient, export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of all parts, in order, each checked by its SHA-256."""
    lines: list[dict[str, Any]] = []
    for part in await list_parts(client, export):
        content = await download(part)
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        assert len(content) == part["bytes"]
        rows = [json.loads(line) for line in content.splitlines()]
        assert len(rows) == part["rows"]
        lines += rows
    return lines


async def test_writes_all_that_match_in_parts(
    client: httpx.AsyncClient, run_retention: RunRetention
) -> None:
    export = await request(client, filter="n < 23", format="jsonl")
    assert export["state"] == "pending"
    await run_retention()
    done = await follow(client, export)
    assert done["state"] == "done", done
    counts = {name: done[name] for name in ("members", "rows", "parts", "parts_written", "gone")}
    assert counts == {"members": 23, "rows": 23, "parts": 3, "parts_written": 3, "gone": 0}
    lines = await read_lines(client, export)
    stream = await client.post(
        "/v1/models/model/inferences/query",
        json={"filter": "n < 23", "sort": "received_at", "include": ["metadata", "predictions"]},
        headers={"Accept": "application/x-ndjson"},
    )
    expected = [json.loads(line) for line in stream.text.splitlines()[:-1]]
    assert lines == [{k: v for k, v in line.items() if k != "cursor"} for line in expected]


@pytest.mark.parametrize("format", PART_FORMATS)
async def test_writes_each_format(
    client: httpx.AsyncClient, run_retention: RunRetention, blobs: Blobs, format: str
) -> None:
    export = await request(client, format=format, include=["metadata"])
    await run_retention()
    assert (await follow(client, export))["rows"] == _STORED
    parts = await list_parts(client, export)
    assert [part["rows"] for part in parts] == [10, 10, 5]
    direct = await client.get(f"/v1/exports/{export['id']}/parts/1")
    assert direct.status_code == 200
    assert direct.headers["content-type"].partition(";")[0] == PART_FORMATS[format].media_type
    assert direct.content == await download(parts[0])
    manifest = read_object(blobs, export, "manifest.json")
    assert [part["sha256"] for part in manifest["parts"]] == [part["sha256"] for part in parts]
    if format == "arrow":
        rows = nanoarrow.ArrayStream.from_readable(direct.content).read_all().to_pylist()
        assert [row["metadata.n"] for row in rows] == list(range(10))


def read_object(blobs: Blobs, export: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a JSON object of an export in the bucket."""
    key = StorageKey(blobs.buckets.default, f"exports/{export['id']}/{name}")
    content: dict[str, Any] = json.loads(blobs.get(key, limit=1_000_000))
    return content


def list_objects(blobs: Blobs) -> list[str]:
    """Return the keys of all exports in the bucket."""
    listed = blobs.page(blobs.buckets.default, "exports/", after="", limit=1000)
    return [item.place.key for item in listed]


async def test_the_bucket_has_lists_and_no_filter(
    client: httpx.AsyncClient, run_retention: RunRetention, blobs: Blobs
) -> None:
    export = await request(client, filter="n < 12", format="csv")
    await run_retention()
    assert "filter" not in read_object(blobs, export, "export.json")
    assert "filter" not in read_object(blobs, export, "manifest.json")
    names = [key.partition(f"{export['id']}/")[2] for key in list_objects(blobs)]
    assert [name.split("-")[0] for name in names] == [
        *("export.json", "manifest.json", "members/00001", "members/00002"),
        *("parts/00001", "parts/00002"),
    ]


async def test_what_comes_later_is_not_in_it(
    client: httpx.AsyncClient, run_retention: RunRetention, engine: AsyncEngine
) -> None:
    export = await request(client, format="jsonl")
    await store(engine, NewInference("later", datetime.now(UTC) + timedelta(seconds=1)))
    await run_retention()
    assert (await follow(client, export))["rows"] == _STORED


async def test_an_export_of_nothing_has_no_part(
    client: httpx.AsyncClient, run_retention: RunRetention
) -> None:
    export = await request(client, filter="n > 1000")
    await run_retention()
    done = await follow(client, export)
    assert (done["state"], done["members"], done["parts"]) == ("done", 0, 0)
    assert await list_parts(client, export) == []


async def test_cancelled_exports_leave_nothing(
    client: httpx.AsyncClient, run_retention: RunRetention, blobs: Blobs
) -> None:
    export = await request(client)
    await run_retention()
    answer = await client.post(f"/v1/exports/{export['id']}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    await run_retention()
    assert (await follow(client, export))["state"] == "cancelled"
    assert list_objects(blobs) == []
    again = await client.post(f"/v1/exports/{export['id']}/cancel")
    assert again.status_code == 409
    assert (await client.get(f"/v1/exports/{export['id']}/parts/1")).status_code == 410


async def test_expired_exports_are_deleted_and_lists_of_copies_stay(
    client: httpx.AsyncClient, run_retention: RunRetention, blobs: Blobs, engine: AsyncEngine
) -> None:
    export, unread = await request(client), await request(client)
    await run_retention()
    await list_parts(client, export)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE export_job SET expires_at = now()"))
    await run_retention()
    assert (await follow(client, export))["state"] == "expired"
    assert list_objects(blobs) == []
    assert {part["state"] for part in await list_parts(client, export)} == {"removed"}
    assert await list_parts(client, unread) == []
    assert (await client.get(f"/v1/exports/{export['id']}/parts/1")).status_code == 410


async def test_an_export_of_a_model_that_is_gone_fails_and_the_next_is_written(
    client: httpx.AsyncClient, run_retention: RunRetention, engine: AsyncEngine
) -> None:
    orphan, export = await request(client), await request(client)
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE export_job SET model = 4711 WHERE id = :id"), {"id": orphan["id"]}
        )
    await run_retention()
    assert (await follow(client, export))["state"] == "done"
    assert (await client.get(f"/v1/exports/{orphan['id']}")).status_code == 404
    async with engine.connect() as connection:
        query = text("SELECT state, error FROM export_job WHERE id = :id")
        row = (await connection.execute(query, {"id": orphan["id"]})).one()
    assert tuple(row) == ("failed", "The model of this export was removed.")


async def test_requests_and_a_removal_at_once_leave_no_export_without_a_model(
    client: httpx.AsyncClient, run_retention: RunRetention, engine: AsyncEngine
) -> None:
    async def race(number: int) -> set[int]:
        path = f"/v1/models/short-lived-{number}"
        assert (await client.put(path, json={})).status_code in {200, 201}
        requests = [client.post(f"{path}/exports", json={}) for _ in range(3)]
        answers = await asyncio.gather(
            *requests,
            client.delete(path),
            *(client.post(f"{path}/exports", json={}) for _ in range(3)),
        )
        return {answer.status_code for answer in answers}

    statuses = [await race(number) for number in range(8)]
    assert set().union(*statuses) <= {202, 204, 404, 409}
    await run_retention()
    async with engine.connect() as connection:
        orphans = "SELECT count(*) FROM export_job WHERE state = 'failed'"
        assert await connection.scalar(text(orphans)) == 0


async def test_one_caller_has_no_more_unfinished_exports_than_twenty(
    client: httpx.AsyncClient,
) -> None:
    answers = await asyncio.gather(*(client.post(EXPORTS, json={}) for _ in range(30)))
    assert sorted(answer.status_code for answer in answers) == [202] * 20 + [409] * 10


async def test_names_who_was_given_links(
    client: httpx.AsyncClient, run_retention: RunRetention
) -> None:
    export = await request(client)
    await list_parts(client, export)  # nothing is written yet
    assert (await follow(client, export))["downloads"] == []
    await run_retention()
    await list_parts(client, export)
    [download] = (await follow(client, export))["downloads"]
    assert (download["actor"], download["parts"]) == ("anyone", 3)
    path = "/v1/audit?action=export_read&model_id=model"
    entries = (await client.get(path)).json()["items"]
    assert [entry["detail"]["export"] for entry in entries] == [export["id"]]


async def test_a_policy_ends_it_sooner(make_app: MakeApp) -> None:
    rules = {"rules": [{"keep_input": "P40D", "keep_inference": "P40D"}]}
    async with make_client(make_app(policy_grace_seconds=0)) as client:
        answer = await client.put("/v1/models/model/retention-policy", json=rules)
        assert answer.status_code == 200, answer.text
        for days, expected in [(30, 30), (60, 40)]:
            export = await request(client, expires_in=f"P{days}D")
            times = [
                datetime.fromisoformat(export[f"{name}_at"]) for name in ("requested", "expires")
            ]
            assert abs(times[1] - times[0] - timedelta(days=expected)) < timedelta(minutes=1)


async def test_needs_confirmation_for_very_many(make_app: MakeApp) -> None:
    async with make_client(make_app(export_confirm_above=24)) as client:
        refused = await client.post(EXPORTS, json={})
        assert refused.status_code == 409
        assert "25 inferences match" in refused.json()["detail"]
        assert "confirm" in refused.json()["detail"]
        assert (await client.post(EXPORTS, json={"filter": "n < 24"})).status_code == 202
        assert (await client.post(EXPORTS, json={"confirm": True})).status_code == 202


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"format": "xlsx"}, "format"),
        ({"filter": "nn < 3"}, "filter"),
        ({"filter": "n <"}, "filter"),
        ({"include": ["urls"]}, "include"),
        ({"expires_in": "soon"}, "expires_in"),
        ({"expires_in": "forever"}, "expires_in"),
        ({"expires_in": "P91D"}, "expires_in"),
        ({"expires_in": "PT0S"}, "expires_in"),
        ({"limit": 3}, "limit"),
    ],
)
async def test_refuses_bad_requests(
    client: httpx.AsyncClient, body: dict[str, Any], fault: str
) -> None:
    answer = await client.post(EXPORTS, json=body)
    assert answer.status_code == 422, answer.text
    assert any(error["path"].startswith(fault) for error in answer.json()["errors"]), answer.text
    assert (await client.get("/v1/exports")).json()["items"] == []


async def test_unknown_exports_are_not_found(client: httpx.AsyncClient) -> None:
    for method, path in [("GET", ""), ("GET", "/parts"), ("GET", "/parts/1"), ("POST", "/cancel")]:
        answer = await client.request(method, f"/v1/exports/{uuid4()}{path}")
        assert answer.status_code == 404, path


async def test_a_cursor_beyond_every_part_is_refused(client: httpx.AsyncClient) -> None:
    export = await request(client)
    cursor = base64.urlsafe_b64encode(b"[2147483648]").decode().rstrip("=")
    answer = await client.get(f"/v1/exports/{export['id']}/parts?cursor={cursor}")
    assert answer.status_code == 422, answer.text


async def test_lists_exports_newest_first(
    client: httpx.AsyncClient, run_retention: RunRetention
) -> None:
    first, second = await request(client), await request(client)
    page = (await client.get("/v1/exports?limit=1")).json()
    assert [item["id"] for item in page["items"]] == [second["id"]]
    rest = (await client.get(f"/v1/exports?limit=1&cursor={page['next']}")).json()
    assert [item["id"] for item in rest["items"]] == [first["id"]]
    await run_retention()
    assert len((await client.get("/v1/exports?state=done&model_id=model")).json()["items"]) == 2
    assert (await client.get("/v1/exports?state=failed")).json()["items"] == []


async def test_a_page_of_large_filters_is_short_and_the_next_goes_on(
    client: httpx.AsyncClient,
) -> None:
    large = f"n > 0 AND inference_id <> '{'x' * 90_000}'"
    for _ in range(16):
        await request(client, filter=large, format="csv")
    ids: list[str] = []
    sizes: list[int] = []
    following = ""
    while following is not None:
        page = (await client.get(f"/v1/exports?limit=1000{following}")).json()
        sizes.append(len(page["items"]))
        ids += [item["id"] for item in page["items"]]
        following = page["next"] and f"&cursor={page['next']}"
    assert len(set(ids)) == len(ids) == 16
    assert len(sizes) > 1
    assert max(sizes) < 12

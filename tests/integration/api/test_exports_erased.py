"""What an erasure takes of an export: gone from the bucket, and told to whoever exported."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.part_formats import PART_FORMATS
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.worker import RetentionWorker
from tests.integration.stored_inferences import NewInference, at, store

from .test_erasures import AlwaysLeader, RunRetention, make_run_retention

PLANTED = "planted-5f2b"
INFERENCES = [
    NewInference(str(n), at(n), [("who", "string", PLANTED if n % 2 else "other")])
    for n in range(6)
]
UID = {inference.inference_id: str(inference.uid) for inference in INFERENCES}


@pytest.fixture
def run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> RunRetention:
    """A function that runs one turn of the retention service, in which a list has four."""
    return make_run_retention(engine, blobs, settings(), export_part_inferences=4)


@pytest.fixture(autouse=True)
async def stored(engine: AsyncEngine) -> None:
    """Store six inferences."""
    await store(engine, *INFERENCES)


async def call(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await client.request(method, f"/v1{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def list_erased(client: httpx.AsyncClient, export: str, limit: int) -> list[dict[str, Any]]:
    """Return what was erased of an export, page by page."""
    items: list[dict[str, Any]] = []
    following: str | None = ""
    while following is not None:
        page = await call(client, "GET", f"/exports/{export}/erased?limit={limit}{following}")
        assert len(page["items"]) <= limit
        items += page["items"]
        following = None if page["next"] is None else f"&cursor={page['next']}"
    return items


def read_exports(blobs: Blobs) -> bytes:
    """Every byte of all exports in the bucket."""
    bucket = blobs.buckets.default
    listed = blobs.page(bucket, "exports/", after="", limit=1000)
    return b"".join(blobs.get(StorageKey(bucket, o.place.key), limit=100_000) for o in listed)


@pytest.mark.parametrize("format", PART_FORMATS)
async def test_a_person_is_erased_from_an_export(
    client: httpx.AsyncClient, run_retention: RunRetention, blobs: Blobs, format: str
) -> None:
    export = (await call(client, "POST", "/models/model/exports", {"format": format}))["id"]
    await run_retention()
    parts = (await call(client, "GET", f"/exports/{export}/parts"))["items"]
    assert [part["rows"] for part in parts] == [4, 2]
    assert await list_erased(client, export, 10) == []
    subject = {"filter": f"who = '{PLANTED}'"}
    erasure = (await call(client, "POST", "/models/model/erasures", subject))["id"]
    await run_retention()
    done = await call(client, "GET", f"/exports/{export}")
    assert {name: done[name] for name in ("state", "rows", "gone", "members")} == {
        **{"state": "done", "rows": 3, "gone": 3, "members": 6},
    }
    after = (await call(client, "GET", f"/exports/{export}/parts"))["items"]
    assert [part["rows"] for part in after] == [2, 1]
    assert {part["sha256"] for part in parts}.isdisjoint(part["sha256"] for part in after)
    everything = read_exports(blobs)
    assert PLANTED.encode() not in everything
    for number, uid in UID.items():
        assert (UUID(uid).bytes in everything) == (int(number) % 2 == 0)
    for limit in (1, 2, 10):
        erased = await list_erased(client, export, limit)
        assert [item["uid"] for item in erased] == [UID["1"], UID["3"], UID["5"]]
    path = f"/exports/{export}/erased?cursor="
    assert (await call(client, "GET", path + erased[-1]["cursor"]))["items"] == []
    assert (await call(client, "GET", path + erased[0]["cursor"]))["items"] == erased[1:]
    assert {item["erasure"] for item in erased} == {erasure}
    assert {(item["scope"], item["inferences"]) for item in erased} == {("inference", 1)}


async def test_dry_runs_and_previews_say_in_how_many_exports_it_is(
    client: httpx.AsyncClient, run_retention: RunRetention
) -> None:
    both = [
        (await call(client, "POST", "/models/model/exports", {"filter": filter}))["id"]
        for filter in ("who = 'other'", "who LIKE '%'")
    ]
    await run_retention()

    async def foretell(body: dict[str, Any]) -> tuple[int, list[str], bool]:
        dry = await call(client, "POST", "/models/model/erasures", body | {"dry_run": True})
        return dry["exports"], dry["export_ids"], dry["partial"]

    assert await foretell({"filter": f"who = '{PLANTED}'"}) == (1, [both[1]], False)
    assert await foretell({"inference_ids": ["4"]}) == (2, sorted(both), False)
    assert await foretell({"filter": "who = 'nobody'"}) == (0, [], False)
    hold = {"name": "a hold", "reason": "a file", "model_id": "model", "filter": "who LIKE '%'"}
    rules = {"rules": [{"filter": f"who = '{PLANTED}'", "keep_inference": "P0D"}]}
    path = "/models/model/retention-policy/preview"
    preview = await call(client, "POST", path, rules)
    assert (preview["would_delete"]["exports"], preview["would_delete"]["partial"]) == (1, False)
    await call(client, "POST", "/holds", hold)
    assert await foretell({"inference_ids": ["4"]}) == (0, [], False)
    assert (await call(client, "POST", path, rules))["would_delete"]["exports"] == 0


async def test_a_part_that_waits_for_its_erasure_holds_up_no_other_export(
    client: httpx.AsyncClient, run_retention: RunRetention, engine: AsyncEngine
) -> None:
    first, second = [
        (await call(client, "POST", "/models/model/exports", {}))["id"] for _ in range(2)
    ]
    await run_retention()
    async with engine.begin() as connection:
        for statement in (
            "UPDATE export_job SET state = 'writing'",
            f"UPDATE export_part SET state = 'stale' WHERE export = '{first}'",
            f"UPDATE export_part SET state = 'listed' WHERE export = '{second}'",
        ):
            await connection.execute(text(statement))
    await run_retention()
    jobs = [await call(client, "GET", f"/exports/{export}") for export in (first, second)]
    assert [job["state"] for job in jobs] == ["writing", "done"]
    assert "an erasure has still to delete a part" in jobs[0]["error"]


async def test_uids_are_forgotten_with_the_tombstones(
    client: httpx.AsyncClient,
    run_retention: RunRetention,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: Callable[..., ApiSettings],
) -> None:
    export = (await call(client, "POST", "/models/model/exports", {"format": "jsonl"}))["id"]
    await run_retention()
    await call(client, "POST", "/models/model/erasures", {"filter": f"who = '{PLANTED}'"})
    await run_retention()
    [page] = [await call(client, "GET", f"/exports/{export}/erased?limit=1")]
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE export_erased SET erased_at = erased_at - interval '30 days'")
        )
    await run_housekeeping(engine, blobs, settings())
    forgotten = await list_erased(client, export, 10)
    assert [(item["uid"], item["inferences"]) for item in forgotten] == [(None, 2), (None, 1)]
    later = await call(client, "GET", f"/exports/{export}/erased?cursor={page['next']}")
    assert [item["inferences"] for item in later["items"]] == [1]


async def run_housekeeping(engine: AsyncEngine, blobs: Blobs, settings: ApiSettings) -> None:
    """Run a turn whose schedule is due."""
    names, due = RetentionSettings.model_fields.keys(), asyncio.Event()
    due.set()
    own = RetentionSettings.model_validate({n: value for n, value in settings if n in names})
    await RetentionWorker(own, engine, blobs, AlwaysLeader(), due).run_turn()


async def test_exports_of_a_removed_model_go_with_it(
    client: httpx.AsyncClient,
    run_retention: RunRetention,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: Callable[..., ApiSettings],
) -> None:
    export = (await call(client, "POST", "/models/model/exports", {}))["id"]
    await run_retention()
    await call(client, "GET", f"/exports/{export}/parts")
    await call(client, "POST", "/models/model/erasures", {"inference_ids": list(UID)})
    await run_retention()
    assert (await client.delete("/v1/models/model")).status_code == 204
    assert (await client.get(f"/v1/exports/{export}")).status_code == 404
    assert (await call(client, "GET", "/exports"))["items"] == []
    await run_retention()
    await run_housekeeping(engine, blobs, settings())
    assert read_exports(blobs) == b""
    async with engine.connect() as connection:
        for table in ("export_job", "export_part", "export_download", "export_erased"):
            assert await connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0


async def test_refusals(client: httpx.AsyncClient) -> None:
    nothing = await client.get("/v1/exports/00000000-0000-4000-8000-000000000000/erased")
    assert nothing.status_code == 404
    export = (await call(client, "POST", "/models/model/exports", {}))["id"]
    damaged = await client.get(f"/v1/exports/{export}/erased?cursor=x")
    assert damaged.status_code == 422
    assert damaged.json()["type"].endswith("#invalid-cursor")

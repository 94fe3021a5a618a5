"""An erasure of a subject redacts holds that mention it, once they are over; the holds remain."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.keys import new_key
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.worker import RetentionWorker

from .test_erasures import AlwaysLeader, read_erasure, request_erasure, stored

__all__ = ["stored"]
pytestmark = pytest.mark.usefixtures("stored")
KEY = new_key()
SUBJECT = {"subject": {"key": "person", "value": "ann"}}
RunRetention = Callable[..., Awaitable[None]]


@pytest.fixture
def run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> RunRetention:
    """A function that runs one turn of the retention service, with a certificate key or without."""
    names = RetentionSettings.model_fields.keys()
    shared = {name: value for name, value in settings() if name in names}

    async def run_turn(*, key: str | None = KEY.pem) -> None:
        own_settings = RetentionSettings.model_validate(shared | {"certificate_key": key})
        await RetentionWorker(
            own_settings, engine, blobs, AlwaysLeader(), asyncio.Event()
        ).run_turn()

    return run_turn


async def place_hold(client: httpx.AsyncClient, **body: Any) -> str:
    values = {"name": "a case", "reason": "a file", "model_id": "model"} | body
    answer = await client.post("/v1/holds", json=values)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def release_hold(client: httpx.AsyncClient, hold: str, reason: str = "over") -> None:
    answer = await client.delete(f"/v1/holds/{hold}", params={"reason": reason})
    assert answer.status_code == 200, answer.text


async def read_hold(client: httpx.AsyncClient, hold: str) -> dict[str, Any]:
    """Return a hold, with the documents of its revisions in `history`."""
    current, history = [await client.get(f"/v1/holds/{hold}{path}") for path in ("", "/history")]
    document: dict[str, Any] = current.json()
    return document | {"history": [revision["document"] for revision in history.json()["items"]]}


async def count_mentions(engine: AsyncEngine) -> int:
    """Return how many rows of both tables contain the name ann."""
    as_text = "SELECT {0}::text AS document FROM {0}"
    both = " UNION ALL ".join(as_text.format(table) for table in ("hold", "hold_change"))
    query = text(rf"SELECT count(*) FROM ({both}) AS t WHERE document ~* '\mann\M'")
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


async def test_redacts_released_holds_and_keeps_them(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    of_ann = await place_hold(client, name="case of ann", filter="person = 'ann'")
    of_ids = await place_hold(client, reason="ann asked", inference_ids=["i0", "i2"])
    of_bob = await place_hold(client, name="annual", filter="person = 'bob'")
    for hold in (of_ann, of_ids):
        await release_hold(client, hold)
    await release_hold(client, of_bob, reason="person ann has agreed")
    before = await read_hold(client, of_ann)
    erasure = await request_erasure(client, SUBJECT)
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "certified"
    assert await count_mentions(engine) == 0
    after = await read_hold(client, of_ann)
    hashed = {
        name: f"erased:{KEY.keyed_hash('hold', before[name].encode()).hex()}"
        for name in ("name", "reason")
    }
    assert {name: after[name] for name in hashed} == hashed
    assert after["filter"].startswith("erased:")
    assert after["history"][0]["filter"] == after["filter"]
    same = ("id", "model_id", "state", "placed_by", "placed_at", "released_by", "release_reason")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert all(
        id.startswith("erased:") for id in (await read_hold(client, of_ids))["inference_ids"]
    )
    bob = await read_hold(client, of_bob)
    assert (bob["name"], bob["filter"]) == ("annual", "metadata.person = 'bob'")
    assert bob["release_reason"].startswith("erased:")
    refused = await client.get(f"/v1/holds/{of_ann}/held")
    assert (refused.status_code, "an erasure took its filter" in refused.text) == (409, True)


async def test_redacts_hold_in_force_after_its_release(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    hold = await place_hold(client, reason="ann against bob", filter="person = 'bob'")
    erasure = await request_erasure(client, SUBJECT)
    await run_retention(key=None)
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    still = await read_hold(client, hold)
    assert (still["reason"], still["state"]) == ("ann against bob", "in_force")
    assert (await client.get(f"/v1/holds/{hold}/held")).json()["inferences"] == 3
    await release_hold(client, hold)
    await run_retention(key=None)
    assert await count_mentions(engine) == 0
    gone = await read_hold(client, hold)
    assert [gone[name] for name in ("name", "reason", "filter")] == ["erased"] * 3
    assert gone["release_reason"] == "over"


async def test_redacts_only_revisions_that_mention_the_subject(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    hold = await place_hold(client, filter="person = 'ann' AND n > 100")
    change = {"name": "b", "reason": "c", "model_id": "model", "filter": "person = 'bob'"}
    assert (await client.put(f"/v1/holds/{hold}", json=change)).status_code == 200
    await request_erasure(client, SUBJECT)
    await run_retention()
    await release_hold(client, hold)
    await run_retention()
    assert await count_mentions(engine) == 0
    after = await read_hold(client, hold)
    assert (after["name"], after["reason"]) == ("b", "c")
    assert after["history"][0]["name"].startswith("erased:")
    assert after["history"][1]["name"] == "b"


async def test_redacts_every_revision_of_an_extended_hold(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    values = {"name": "ann", "reason": "r", "model_id": "model", "filter": "n > 100"}
    hold = await place_hold(client, **values)
    await request_erasure(client, SUBJECT)
    await run_retention()
    longer = values | {"until": "2999-01-01T00:00:00Z"}
    assert (await client.put(f"/v1/holds/{hold}", json=longer)).status_code == 200
    await release_hold(client, hold)
    await run_retention()
    assert await count_mentions(engine) == 0
    audited = await client.get("/v1/audit", params={"action": "hold_released"})
    assert [entry["detail"] for entry in audited.json()["items"]] == [
        {"hold": hold, "revision": 3, "reason": "over"}
    ]

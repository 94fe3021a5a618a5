"""What holds say of a subject goes with the subject, once they are over; that they were stays."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certificates.keys import new_key
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.worker import RetentionWorker

from .test_erasures import NoPace, asked, followed, stored

__all__ = ["stored"]
pytestmark = pytest.mark.usefixtures("stored")
KEY = new_key()
SUBJECT = {"subject": {"key": "person", "value": "ann"}}
Serve = Callable[..., Awaitable[None]]


@pytest.fixture
def serve(engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]) -> Serve:
    """One turn of the retention service, with a key of certificates or without."""
    known = RetentionSettings.model_fields.keys()
    here = {name: value for name, value in settings() if name in known}

    async def turn(*, key: str | None = KEY.pem) -> None:
        to = RetentionSettings.model_validate(here | {"certificate_key": key})
        await RetentionWorker(to, engine, blobs, NoPace(), asyncio.Event()).run_turn()

    return turn


async def place(client: httpx.AsyncClient, **body: Any) -> str:
    said = {"name": "a case", "reason": "a file", "model_id": "model"} | body
    answer = await client.post("/v1/holds", json=said)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def release(client: httpx.AsyncClient, hold: str, reason: str = "over") -> None:
    answer = await client.delete(f"/v1/holds/{hold}", params={"reason": reason})
    assert answer.status_code == 200, answer.text


async def shown(client: httpx.AsyncClient, hold: str) -> dict[str, Any]:
    """The hold, and the documents of its revisions."""
    one, history = [await client.get(f"/v1/holds/{hold}{path}") for path in ("", "/history")]
    found: dict[str, Any] = one.json()
    return found | {"history": [each["document"] for each in history.json()["items"]]}


async def naming_ann(engine: AsyncEngine) -> int:
    """How many rows of either table have the value."""
    said = "SELECT {0}::text AS said FROM {0}"
    both = " UNION ALL ".join(said.format(table) for table in ("hold", "hold_change"))
    query = text(rf"SELECT count(*) FROM ({both}) AS t WHERE said ~* '\mann\M'")
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


async def test_a_released_hold_loses_its_values_and_stays(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    of_ann = await place(client, name="case of ann", filter="person = 'ann'")
    of_ids = await place(client, reason="ann asked", inference_ids=["i0", "i2"])
    of_bob = await place(client, name="annual", filter="person = 'bob'")
    for hold in (of_ann, of_ids):
        await release(client, hold)
    await release(client, of_bob, reason="person ann has agreed")
    before = await shown(client, of_ann)
    one = await asked(client, SUBJECT)
    await serve()
    assert (await followed(client, one))["state"] == "certified"
    assert await naming_ann(engine) == 0
    after = await shown(client, of_ann)
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
        each.startswith("erased:") for each in (await shown(client, of_ids))["inference_ids"]
    )
    bob = await shown(client, of_bob)
    assert (bob["name"], bob["filter"]) == ("annual", "metadata.person = 'bob'")
    assert bob["release_reason"].startswith("erased:")
    refused = await client.get(f"/v1/holds/{of_ann}/held")
    assert (refused.status_code, "an erasure took its filter" in refused.text) == (409, True)


async def test_a_hold_in_force_loses_its_values_when_it_is_released(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    hold = await place(client, reason="ann against bob", filter="person = 'bob'")
    one = await asked(client, SUBJECT)
    await serve(key=None)
    assert (await followed(client, one))["state"] == "deleted"
    still = await shown(client, hold)
    assert (still["reason"], still["state"]) == ("ann against bob", "in_force")
    assert (await client.get(f"/v1/holds/{hold}/held")).json()["inferences"] == 3
    await release(client, hold)
    await serve(key=None)
    assert await naming_ann(engine) == 0
    gone = await shown(client, hold)
    assert [gone[name] for name in ("name", "reason", "filter")] == ["erased"] * 3
    assert gone["release_reason"] == "over"


async def test_a_hold_that_was_changed_keeps_what_does_not_mention_the_subject(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    hold = await place(client, filter="person = 'ann' AND n > 100")
    said = {"name": "b", "reason": "c", "model_id": "model", "filter": "person = 'bob'"}
    assert (await client.put(f"/v1/holds/{hold}", json=said)).status_code == 200
    await asked(client, SUBJECT)
    await serve()
    await release(client, hold)
    await serve()
    assert await naming_ann(engine) == 0
    after = await shown(client, hold)
    assert (after["name"], after["reason"]) == ("b", "c")
    assert after["history"][0]["name"].startswith("erased:")
    assert after["history"][1]["name"] == "b"


async def test_a_hold_that_is_extended_repeats_its_values_and_loses_them(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    said = {"name": "ann", "reason": "r", "model_id": "model", "filter": "n > 100"}
    hold = await place(client, **said)
    await asked(client, SUBJECT)
    await serve()
    longer = said | {"until": "2999-01-01T00:00:00Z"}
    assert (await client.put(f"/v1/holds/{hold}", json=longer)).status_code == 200
    await release(client, hold)
    await serve()
    assert await naming_ann(engine) == 0
    audited = await client.get("/v1/audit", params={"action": "hold_released"})
    assert [each["detail"] for each in audited.json()["items"]] == [
        {"hold": hold, "revision": 3, "reason": "over"}
    ]

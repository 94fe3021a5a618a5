"""Dry runs of erasures count what would be erased and, separately, what holds keep."""

from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import dead_letter, inference, registration
from inference_store.inference.events import decode
from inference_store.objects import Blobs
from tests.builders import NOW
from tests.integration.retention.holding import place_hold
from tests.integration.stored_inferences import at

from .test_erased_asides import SUBJECT, is_at_offset, letters_and_parked, make_event
from .test_erasures import (
    ERASURES,
    RunRetention,
    make_person,
    read_erasure,
    request_erasure,
    run_retention,
    stored,
)

__all__ = ["letters_and_parked", "run_retention", "stored"]
pytestmark = pytest.mark.usefixtures("stored", "letters_and_parked")
_FILTER = "person = 'ann'"
# the inferences of ann are i0, i2 and i4
_BODIES: list[dict[str, Any]] = [
    {"filter": _FILTER},
    {"inference_ids": ["i0", "i2", "i4"]},
    SUBJECT,
]


async def count_erasure(
    client: httpx.AsyncClient, body: dict[str, Any], path: str = ERASURES
) -> dict[str, Any]:
    answer = await client.post(path, json={**body, "dry_run": True})
    assert answer.status_code == 200, answer.text
    counts: dict[str, Any] = answer.json()
    return counts


async def hold_on_model(engine: AsyncEngine, filter: str) -> None:
    query = select(registration.c.model).where(registration.c.model_id == "model")
    async with engine.connect() as connection:
        model = int(await connection.scalar(query) or 0)
    await place_hold(engine, model, filter)


@pytest.mark.parametrize("body", _BODIES, ids=str)
async def test_counts_held_inferences_separately(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    run_retention: RunRetention,
    body: dict[str, Any],
) -> None:
    await hold_on_model(engine, "inference_ids = 'i2'")
    dry = await count_erasure(client, body)
    erasure = await request_erasure(client, body)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    # a dead letter or parked event that can be decoded counts as an erased inference too
    aside = dry["dead_letters"] + dry["parked_events"]
    assert (dry["inferences"] + aside, dry["held"]) == (
        erasure["inferences"],
        erasure["progress"]["held"],
    )
    # the dead letter that cannot be decoded may be held as well
    expected = (2, 2, 2) if body == SUBJECT else (2, 2, 1)
    assert (dry["inferences"], dry["objects"], dry["held"]) == expected


@pytest.mark.parametrize("held", [False, True])
async def test_counts_letters_and_parked_events_as_the_erasure_does(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention, held: bool
) -> None:
    if held:
        await hold_on_model(engine, "received_at > TIMESTAMP('2000-01-01T00:00:00Z')")
    dry = await count_erasure(client, SUBJECT)
    erasure = await request_erasure(client, SUBJECT)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    rows = erasure["rows"]
    counts = (rows.get("dead_letter", 0), rows.get("parked_event", 0), erasure["progress"]["held"])
    assert (dry["dead_letters"], dry["parked_events"], dry["held"]) == counts
    assert counts == ((0, 0, 6) if held else (2, 1, 0))


async def test_counts_letters_of_matching_inferences(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, run_retention: RunRetention
) -> None:
    event = make_event(0, received_at=at(0)).replace(b'"late-0"', b'"i0"')
    uid = decode(event, record_time=NOW, buckets=blobs.buckets).uid
    async with engine.begin() as connection:
        await connection.execute(dead_letter.update().values(payload=event).where(is_at_offset(0)))
        target = inference.update().where(inference.c.inference_id == "i0")
        await connection.execute(target.values(uid=uid))
    body = {"filter": "inference_id = 'i0'"}
    dry = await count_erasure(client, body)
    assert (dry["inferences"], dry["dead_letters"], dry["parked_events"]) == (1, 1, 0)
    erasure = await request_erasure(client, body)
    await run_retention()
    assert (await read_erasure(client, erasure))["rows"]["dead_letter"] == 1


async def test_counts_equal_those_of_a_preview(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await hold_on_model(engine, "inference_ids = 'i2'")
    rules = {"rules": [{"filter": _FILTER, "keep_inference": "P1D"}]}
    answer = await client.post("/v1/models/model/retention-policy/preview", json=rules)
    expired = answer.json()["would_delete"]["inferences"]
    dry = await count_erasure(client, {"filter": _FILTER})
    same = ("held", "oldest", "newest")
    assert (expired["count"], *(expired[name] for name in same)) == (
        dry["inferences"],
        *(dry[name] for name in same),
    )
    assert (expired["count"], expired["held"]) == (2, 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_lists_uids_in_pages(
    client: httpx.AsyncClient, engine: AsyncEngine, limit: int
) -> None:
    await hold_on_model(engine, "inference_ids = 'i2'")
    body = {**SUBJECT, "uids": True, "limit": limit}
    uids: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        dry = await count_erasure(
            client, body | ({"cursor": cursor} if cursor else {}), "/v1/erasures"
        )
        assert (dry["inferences"], dry["held"]) == (3, 2)
        assert len(dry["uids"]) <= limit
        uids += [(item["model_id"], item["uid"]) for item in dry["uids"]]
        cursor = dry["next"]
        if cursor is None:
            break
    expected = [("model", make_person(0, "ann")), ("model", make_person(4, "ann"))]
    expected += [("other", make_person(9, "ann", model_id="other"))]
    assert uids == [(model_id, str(target.uid)) for model_id, target in expected]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"uids": True}, "give `dry_run` as well"),
        ({"dry_run": True, "limit": 5}, "give `uids` as well"),
        ({"dry_run": True, "uids": True, "cursor": "x"}, "cursor"),
        ({"dry_run": True, "uids": True, "limit": 10_001}, "limit"),
    ],
    ids=str,
)
async def test_rejects_invalid_list_options(
    client: httpx.AsyncClient, body: dict[str, Any], words: str
) -> None:
    answer = await client.post(ERASURES, json={**SUBJECT, **body})
    assert answer.status_code in (400, 422)
    assert words in answer.text

"""Dry runs of erasures count what goes, and apart from it what holds keep, as previews do."""

from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import dead_letter, inference, registration
from inference_store.inference.events import decode
from inference_store.objects import Blobs
from tests.builders import NOW
from tests.integration.retention.holding import place
from tests.integration.stored import at

from .test_erased_asides import SUBJECT, of_offset, payload, set_aside
from .test_erasures import ERASURES, Serve, asked, followed, person, serve, stored

__all__ = ["serve", "set_aside", "stored"]
pytestmark = pytest.mark.usefixtures("stored", "set_aside")
_FILTER = "person = 'ann'"
# ann's are i0, i2 and i4
_ASKED: list[dict[str, Any]] = [
    {"filter": _FILTER},
    {"inference_ids": ["i0", "i2", "i4"]},
    SUBJECT,
]


async def told(
    client: httpx.AsyncClient, body: dict[str, Any], path: str = ERASURES
) -> dict[str, Any]:
    answer = await client.post(path, json={**body, "dry_run": True})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def hold(engine: AsyncEngine, filter: str) -> None:
    query = select(registration.c.model).where(registration.c.model_id == "model")
    async with engine.connect() as connection:
        model = int(await connection.scalar(query) or 0)
    await place(engine, model, filter)


@pytest.mark.parametrize("body", _ASKED, ids=str)
async def test_what_holds_keep_is_counted_apart(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve, body: dict[str, Any]
) -> None:
    await hold(engine, "inference_ids = 'i2'")
    dry = await told(client, body)
    one = await asked(client, body)
    await serve()
    one = await followed(client, one)
    # of an event that is set aside, and can be decoded, the inference is named as erased too
    aside = dry["dead_letters"] + dry["parked_events"]
    assert (dry["inferences"] + aside, dry["held"]) == (
        one["inferences"],
        one["progress"]["held"],
    )
    # the dead letter that cannot be decoded may be held
    expected = (2, 2, 2) if body == SUBJECT else (2, 2, 1)
    assert (dry["inferences"], dry["objects"], dry["held"]) == expected


@pytest.mark.parametrize("held", [False, True])
async def test_dead_letters_and_parked_events_are_counted_as_they_go(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve, held: bool
) -> None:
    if held:
        await hold(engine, "received_at > TIMESTAMP('2000-01-01T00:00:00Z')")
    dry = await told(client, SUBJECT)
    one = await asked(client, SUBJECT)
    await serve()
    one = await followed(client, one)
    rows = one["rows"]
    went = (rows.get("dead_letter", 0), rows.get("parked_event", 0), one["progress"]["held"])
    assert (dry["dead_letters"], dry["parked_events"], dry["held"]) == went
    assert went == ((0, 0, 6) if held else (2, 1, 0))


async def test_events_of_the_inferences_that_match_are_counted(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, serve: Serve
) -> None:
    event = payload(0, received_at=at(0)).replace(b'"late-0"', b'"i0"')
    uid = decode(event, record_time=NOW, buckets=blobs.buckets).uid
    async with engine.begin() as connection:
        await connection.execute(dead_letter.update().values(payload=event).where(of_offset(0)))
        same = inference.update().where(inference.c.inference_id == "i0")
        await connection.execute(same.values(uid=uid))
    body = {"filter": "inference_id = 'i0'"}
    dry = await told(client, body)
    assert (dry["inferences"], dry["dead_letters"], dry["parked_events"]) == (1, 1, 0)
    one = await asked(client, body)
    await serve()
    assert (await followed(client, one))["rows"]["dead_letter"] == 1


async def test_a_preview_counts_the_same(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await hold(engine, "inference_ids = 'i2'")
    rules = {"rules": [{"filter": _FILTER, "keep_inference": "P1D"}]}
    answer = await client.post("/v1/models/model/retention-policy/preview", json=rules)
    expired = answer.json()["would_delete"]["inferences"]
    dry = await told(client, {"filter": _FILTER})
    same = ("held", "oldest", "newest")
    assert (expired["count"], *(expired[name] for name in same)) == (
        dry["inferences"],
        *(dry[name] for name in same),
    )
    assert (expired["count"], expired["held"]) == (2, 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_the_uids_that_would_go_are_listed_page_by_page(
    client: httpx.AsyncClient, engine: AsyncEngine, limit: int
) -> None:
    await hold(engine, "inference_ids = 'i2'")
    body = {**SUBJECT, "uids": True, "limit": limit}
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        dry = await told(client, body | ({"cursor": cursor} if cursor else {}), "/v1/erasures")
        assert (dry["inferences"], dry["held"]) == (3, 2)
        assert len(dry["uids"]) <= limit
        found += [(each["model_id"], each["uid"]) for each in dry["uids"]]
        cursor = dry["next"]
        if cursor is None:
            break
    going = [("model", person(0, "ann")), ("model", person(4, "ann"))]
    going += [("other", person(9, "ann", model_id="other"))]
    assert found == [(model_id, str(each.uid)) for model_id, each in going]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"uids": True}, "give `dry_run` as well"),
        ({"dry_run": True, "limit": 5}, "give `uids` as well"),
        ({"dry_run": True, "uids": True, "cursor": "x"}, "cursor"),
        ({"dry_run": True, "uids": True, "limit": 10_001}, "limit"),
    ],
    ids=str,
)
async def test_a_list_that_makes_no_sense_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    answer = await client.post(ERASURES, json={**SUBJECT, **body})
    assert answer.status_code in (400, 422)
    assert said in answer.text

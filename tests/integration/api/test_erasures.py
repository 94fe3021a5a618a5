"""Erasures by a filter, ids or a subject: asked for through the api, carried out by the service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference, metadata_number
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker
from tests.integration.stored import Made, at, store

ERASURES = "/v1/models/model/erasures"
Serve = Callable[[], Awaitable[None]]
pytestmark = pytest.mark.usefixtures("stored")


class NoPace(LeadershipCheck):
    """Never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...

    async def unless_stopped(self, work: Any) -> Any:
        return await work


@pytest.fixture
def serve(engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]) -> Serve:
    """One turn of the retention service."""
    return serving(engine, blobs, settings())


def serving(engine: AsyncEngine, blobs: Blobs, settings: ApiSettings, **more: Any) -> Serve:
    """One turn of a retention service with the api's settings, and some of its own."""
    known = RetentionSettings.model_fields.keys()
    here = {name: value for name, value in settings if name in known} | more

    async def turn() -> None:
        to = RetentionSettings.model_validate(here)
        await RetentionWorker(to, engine, blobs, NoPace(), asyncio.Event()).run_turn()

    return turn


def person(number: int, who: str, **more: Any) -> Made:
    items = [("person", "string", who), ("n", "int", number)]
    return Made(f"i{number}", at(number), items, **more)


@pytest.fixture
async def stored(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """Six inferences of `model`, of ann and bob by turns, each with an object; one of `other`."""
    made = [person(n, ("ann", "bob")[n % 2], keys=(f"{bucket}/d{n}", None, None)) for n in range(6)]
    for n in range(6):
        blobs.put(StorageKey(bucket, f"d{n}"), b"x", content_type="text/plain")
    await store(engine, *made)
    await store(engine, person(9, "ann", model_id="other"))


async def left(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(inference.c.inference_id))).scalars())


async def asked(client: httpx.AsyncClient, body: Any, path: str = ERASURES) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/v1/erasures/{found['id']}"
    return found


async def followed(client: httpx.AsyncClient, one: dict[str, Any]) -> dict[str, Any]:
    answer = await client.get(f"/v1/erasures/{one['id']}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        ({"filter": "person = 'ann' AND n > 0"}, ["i2", "i4"]),
        ({"filter": {"op": ">=", "args": [{"property": "n"}, 4]}}, ["i4", "i5"]),
        ({"subject": {"key": "person", "value": "ann"}}, ["i0", "i2", "i4"]),
        ({"subject": {"key": "n", "type": "int", "value": "3"}}, ["i3"]),
        ({"inference_ids": ["i1", "i5"]}, ["i1", "i5"]),
    ],
    ids=str,
)
async def test_what_matches_goes_and_nothing_else(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    serve: Serve,
    body: Any,
    gone: list[str],
) -> None:
    everything = await left(engine)
    told = (await client.post(ERASURES, json={**body, "dry_run": True})).json()
    assert (told["inferences"], told["objects"]) == (len(gone), len(gone))
    one = await asked(client, body)
    assert (one["state"], one["inferences"]) == ("pending", 0)
    await serve()
    one = await followed(client, one)
    assert one["state"] == "deleted", one
    assert (one["inferences"], one["objects"], one["progress"]["marked"]) == (len(gone),) * 3
    assert one["progress"]["left"] == 0
    assert await left(engine) == everything - set(gone)


async def test_what_the_index_lacks_takes_nothing_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    """Which keys it has is not known of i0 and i1: that none is there is not certain of them."""
    capped = inference.update().where(inference.c.inference_id.in_(["i0", "i1"]))
    async with engine.begin() as connection:
        await connection.execute(capped.values(flags=["metadata_keys_capped"]))
        await connection.execute(metadata_number.delete())
    told = (await client.post(ERASURES, json={"filter": "n IS NULL", "dry_run": True})).json()
    assert (told["inferences"], told["undecided"]) == (4, 2)
    assert [each["undecided"] for each in told["models"]] == [2]
    known = {"filter": "NOT (person = 'bob')", "dry_run": True}
    told = (await client.post(ERASURES, json=known)).json()
    assert (told["inferences"], told["undecided"]) == (3, 0)
    await asked(client, {"filter": "n IS NULL"})
    await serve()
    assert await left(engine) == {"i0", "i1", "i9"}


async def test_a_subject_goes_from_every_model_by_one_erasure(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    one = await asked(client, {"subject": {"key": "person", "value": "ann"}}, "/v1/erasures")
    assert one["model_ids"] == ["model", "other"]
    assert one["model_id"] is None
    await serve()
    assert (await followed(client, one))["inferences"] == 4
    assert await left(engine) == {"i1", "i3", "i5"}


async def test_what_does_not_exist_is_said(client: httpx.AsyncClient, serve: Serve) -> None:
    none = await client.post(ERASURES, json={"inference_ids": ["nobody", "no one"]})
    assert none.status_code == 404
    some = await asked(client, {"inference_ids": ["i1", "nobody"]})
    assert some["not_found"] == ["nobody"]
    slip = await client.post(ERASURES, json={"filter": "persn = 'ann'"})
    assert slip.status_code == 422
    assert "person" in slip.text
    nothing = await asked(client, {"subject": {"key": "person", "value": "nobody"}})
    await serve()
    nothing = await followed(client, nothing)
    assert (nothing["state"], nothing["inferences"]) == ("deleted", 0)
    assert "Nothing that is stored matched" in nothing["message"]


async def test_what_another_erasure_hides_is_there_to_be_erased(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    """The other is cancelled, and what it had hidden goes all the same."""
    other = (await client.delete("/v1/models/model/inferences/i1")).json()
    body: dict[str, Any] = {"inference_ids": ["i1", f"uid:{person(1, 'bob').uid}", "nobody"]}
    told = (await client.post(ERASURES, json={**body, "dry_run": True})).json()
    assert (told["inferences"], told["not_found"]) == (1, ["nobody"])
    one = await asked(client, body)
    assert one["not_found"] == ["nobody"]
    assert (await client.post(f"/v1/erasures/{other['id']}/cancel")).status_code == 202
    await serve()
    assert (await followed(client, other))["state"] == "cancelled"
    assert (await followed(client, one))["inferences"] == 1
    assert "i1" not in await left(engine)


@pytest.mark.parametrize("id", ["i1", f"uid:{person(1, 'bob').uid}"])
async def test_what_another_erasure_hides_is_erased_by_its_id(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve, id: str
) -> None:
    """Asked twice: the first is cancelled, and what it had hidden goes by the second."""
    first = (await client.delete("/v1/models/model/inferences/i1")).json()
    again = await client.delete(f"/v1/models/model/inferences/{id}")
    assert again.status_code == 202, again.text
    assert (await client.post(f"/v1/erasures/{first['id']}/cancel")).status_code == 202
    await serve()
    assert (await followed(client, again.json()))["inferences"] == 1
    assert "i1" not in await left(engine)
    assert (await client.delete("/v1/models/model/inferences/i1")).status_code == 404


@pytest.mark.parametrize("body", [{}, {"filter": "n > 1", "inference_ids": ["i1"]}], ids=str)
async def test_exactly_one_question_is_asked(client: httpx.AsyncClient, body: Any) -> None:
    answer = await client.post(ERASURES, json=body)
    assert answer.status_code == 422
    assert "exactly one of filter, inference_ids, subject" in answer.text


async def test_cancelled_before_it_began_nothing_is_erased(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    everything = await left(engine)
    one = (await client.delete("/v1/models/model/inferences/i1")).json()
    hidden = await client.get("/v1/models/model/inferences/i1")
    assert hidden.status_code == 404
    answer = await client.post(f"/v1/erasures/{one['id']}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    await serve()
    assert (await followed(client, one))["state"] == "cancelled"
    assert await left(engine) == everything
    assert (await client.get("/v1/models/model/inferences/i1")).status_code == 200
    again = await client.post(f"/v1/erasures/{one['id']}/cancel")
    assert (again.status_code, again.json()["state"]) == (202, "cancelled")


async def test_what_has_begun_to_delete_cannot_be_cancelled(
    client: httpx.AsyncClient, serve: Serve
) -> None:
    one = await asked(client, {"inference_ids": ["i1"]})
    await serve()
    answer = await client.post(f"/v1/erasures/{one['id']}/cancel")
    assert answer.status_code == 409
    assert "begun to delete" in answer.json()["detail"]


async def test_what_holds_keep_is_given_up(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    hold = {"name": "case 7", "reason": "x", "model_id": "model", "inference_ids": ["i1"]}
    placed = (await client.post("/v1/holds", json=hold)).json()
    one = await asked(client, {"inference_ids": ["i1", "i3"]})
    path = f"/v1/erasures/{one['id']}/give-up"
    assert (await client.post(path, json={})).status_code == 422
    assert (await client.post(path, json={"reason": "long"})).status_code == 409
    await serve()
    answer = await client.post(path, json={"reason": "long"})
    assert (answer.status_code, answer.json()["state"]) == (202, "giving_up")
    assert answer.json()["given_up"] == {"by": "anyone", "held": []}
    await client.delete(f"/v1/holds/{placed['id']}", params={"reason": "over"})
    await serve()
    ended = await followed(client, one)
    assert (ended["state"], ended["inferences"], ended["progress"]["held"]) == ("deleted", 1, 0)
    assert ended["given_up"]["held"] == [{"hold": placed["id"], "inferences": 1}]
    assert "i1" in await left(engine)
    audited = await client.get("/v1/audit", params={"action": "erasure_rest_given_up"})
    assert [each["detail"]["reason"] for each in audited.json()["items"]] == ["long"]

"""Erasures by filter, ids or subject: requested through the api, carried out by the service."""

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
from tests.integration.stored_inferences import NewInference, at, store

ERASURES = "/v1/models/model/erasures"
RunRetention = Callable[[], Awaitable[None]]
pytestmark = pytest.mark.usefixtures("stored")


class AlwaysLeader(LeadershipCheck):
    """A check that always passes: never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...

    async def confirm_leading(self) -> None: ...

    async def unless_stopped(self, work: Any) -> Any:
        return await work


@pytest.fixture
def run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> RunRetention:
    """A function that runs one turn of the retention service."""
    return make_run_retention(engine, blobs, settings())


def make_run_retention(
    engine: AsyncEngine, blobs: Blobs, settings: ApiSettings, **more: Any
) -> RunRetention:
    """Return a function that runs one turn of retention, with the api's settings and `more`."""
    names = RetentionSettings.model_fields.keys()
    values = {name: value for name, value in settings if name in names} | more

    async def run_turn() -> None:
        own_settings = RetentionSettings.model_validate(values)
        await RetentionWorker(
            own_settings, engine, blobs, AlwaysLeader(), asyncio.Event()
        ).run_turn()

    return run_turn


def make_person(number: int, who: str, **more: Any) -> NewInference:
    items = [("person", "string", who), ("n", "int", number)]
    return NewInference(f"i{number}", at(number), items, **more)


@pytest.fixture
async def stored(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """Six inferences of `model`, of ann and bob in turn, each with an object; one of `other`."""
    inferences = [
        make_person(n, ("ann", "bob")[n % 2], keys=(f"{bucket}/d{n}", None, None)) for n in range(6)
    ]
    for n in range(6):
        blobs.put(StorageKey(bucket, f"d{n}"), b"x", content_type="text/plain")
    await store(engine, *inferences)
    await store(engine, make_person(9, "ann", model_id="other"))


async def list_inference_ids(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(inference.c.inference_id))).scalars())


async def request_erasure(
    client: httpx.AsyncClient, body: Any, path: str = ERASURES
) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    erasure: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/v1/erasures/{erasure['id']}"
    return erasure


async def read_erasure(client: httpx.AsyncClient, requested: dict[str, Any]) -> dict[str, Any]:
    answer = await client.get(f"/v1/erasures/{requested['id']}")
    assert answer.status_code == 200, answer.text
    erasure: dict[str, Any] = answer.json()
    return erasure


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
async def test_erases_only_what_matches(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    run_retention: RunRetention,
    body: Any,
    gone: list[str],
) -> None:
    everything = await list_inference_ids(engine)
    counts = (await client.post(ERASURES, json={**body, "dry_run": True})).json()
    assert (counts["inferences"], counts["objects"]) == (len(gone), len(gone))
    erasure = await request_erasure(client, body)
    assert (erasure["state"], erasure["inferences"]) == ("pending", 0)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert erasure["state"] == "deleted", erasure
    assert (erasure["inferences"], erasure["objects"], erasure["progress"]["marked"]) == (
        len(gone),
    ) * 3
    assert erasure["progress"]["left"] == 0
    assert await list_inference_ids(engine) == everything - set(gone)


async def test_keeps_inferences_whose_keys_are_not_all_indexed(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    """The index does not know all keys of i0 and i1, so it cannot tell that `n` is missing."""
    capped = inference.update().where(inference.c.inference_id.in_(["i0", "i1"]))
    async with engine.begin() as connection:
        await connection.execute(capped.values(flags=["metadata_keys_capped"]))
        await connection.execute(metadata_number.delete())
    counts = (await client.post(ERASURES, json={"filter": "n IS NULL", "dry_run": True})).json()
    assert (counts["inferences"], counts["undecided"]) == (4, 2)
    assert [model["undecided"] for model in counts["models"]] == [2]
    body = {"filter": "NOT (person = 'bob')", "dry_run": True}
    counts = (await client.post(ERASURES, json=body)).json()
    assert (counts["inferences"], counts["undecided"]) == (3, 0)
    await request_erasure(client, {"filter": "n IS NULL"})
    await run_retention()
    assert await list_inference_ids(engine) == {"i0", "i1", "i9"}


async def test_erases_subject_from_every_model(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    erasure = await request_erasure(
        client, {"subject": {"key": "person", "value": "ann"}}, "/v1/erasures"
    )
    assert erasure["model_ids"] == ["model", "other"]
    assert erasure["model_id"] is None
    await run_retention()
    assert (await read_erasure(client, erasure))["inferences"] == 4
    assert await list_inference_ids(engine) == {"i1", "i3", "i5"}


async def test_reports_unknown_ids(client: httpx.AsyncClient, run_retention: RunRetention) -> None:
    none = await client.post(ERASURES, json={"inference_ids": ["nobody", "no one"]})
    assert none.status_code == 404
    some = await request_erasure(client, {"inference_ids": ["i1", "nobody"]})
    assert some["not_found"] == ["nobody"]
    slip = await client.post(ERASURES, json={"filter": "persn = 'ann'"})
    assert slip.status_code == 422
    assert "person" in slip.text
    nothing = await request_erasure(client, {"subject": {"key": "person", "value": "nobody"}})
    await run_retention()
    nothing = await read_erasure(client, nothing)
    assert (nothing["state"], nothing["inferences"]) == ("deleted", 0)
    assert "Nothing that is stored matched" in nothing["message"]


async def test_finds_inferences_hidden_by_another_erasure(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    """The first erasure is cancelled, and the second erases what the first had hidden."""
    other = (await client.delete("/v1/models/model/inferences/i1")).json()
    body: dict[str, Any] = {"inference_ids": ["i1", f"uid:{make_person(1, 'bob').uid}", "nobody"]}
    counts = (await client.post(ERASURES, json={**body, "dry_run": True})).json()
    assert (counts["inferences"], counts["not_found"]) == (1, ["nobody"])
    erasure = await request_erasure(client, body)
    assert erasure["not_found"] == ["nobody"]
    assert (await client.post(f"/v1/erasures/{other['id']}/cancel")).status_code == 202
    await run_retention()
    assert (await read_erasure(client, other))["state"] == "cancelled"
    assert (await read_erasure(client, erasure))["inferences"] == 1
    assert "i1" not in await list_inference_ids(engine)


@pytest.mark.parametrize("id", ["i1", f"uid:{make_person(1, 'bob').uid}"])
async def test_erases_hidden_inference_by_id(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention, id: str
) -> None:
    """Of two erasures the first is cancelled, and the second erases what the first had hidden."""
    first = (await client.delete("/v1/models/model/inferences/i1")).json()
    again = await client.delete(f"/v1/models/model/inferences/{id}")
    assert again.status_code == 202, again.text
    assert (await client.post(f"/v1/erasures/{first['id']}/cancel")).status_code == 202
    await run_retention()
    assert (await read_erasure(client, again.json()))["inferences"] == 1
    assert "i1" not in await list_inference_ids(engine)
    assert (await client.delete("/v1/models/model/inferences/i1")).status_code == 404


@pytest.mark.parametrize("body", [{}, {"filter": "n > 1", "inference_ids": ["i1"]}], ids=str)
async def test_requires_exactly_one_selection(client: httpx.AsyncClient, body: Any) -> None:
    answer = await client.post(ERASURES, json=body)
    assert answer.status_code == 422
    assert "exactly one of filter, inference_ids, subject" in answer.text


async def test_erasure_cancelled_in_time_erases_nothing(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    everything = await list_inference_ids(engine)
    erasure = (await client.delete("/v1/models/model/inferences/i1")).json()
    hidden = await client.get("/v1/models/model/inferences/i1")
    assert hidden.status_code == 404
    answer = await client.post(f"/v1/erasures/{erasure['id']}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "cancelled"
    assert await list_inference_ids(engine) == everything
    assert (await client.get("/v1/models/model/inferences/i1")).status_code == 200
    again = await client.post(f"/v1/erasures/{erasure['id']}/cancel")
    assert (again.status_code, again.json()["state"]) == (202, "cancelled")


async def test_cannot_cancel_after_deletion_began(
    client: httpx.AsyncClient, run_retention: RunRetention
) -> None:
    erasure = await request_erasure(client, {"inference_ids": ["i1"]})
    await run_retention()
    answer = await client.post(f"/v1/erasures/{erasure['id']}/cancel")
    assert answer.status_code == 409
    assert "begun to delete" in answer.json()["detail"]


async def test_gives_up_held_inferences(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    hold = {"name": "case 7", "reason": "x", "model_id": "model", "inference_ids": ["i1"]}
    placed = (await client.post("/v1/holds", json=hold)).json()
    erasure = await request_erasure(client, {"inference_ids": ["i1", "i3"]})
    path = f"/v1/erasures/{erasure['id']}/give-up"
    assert (await client.post(path, json={})).status_code == 422
    assert (await client.post(path, json={"reason": "long"})).status_code == 409
    await run_retention()
    answer = await client.post(path, json={"reason": "long"})
    assert (answer.status_code, answer.json()["state"]) == (202, "giving_up")
    assert answer.json()["given_up"] == {"by": "anyone", "held": []}
    await client.delete(f"/v1/holds/{placed['id']}", params={"reason": "over"})
    await run_retention()
    ended = await read_erasure(client, erasure)
    assert (ended["state"], ended["inferences"], ended["progress"]["held"]) == ("deleted", 1, 0)
    assert ended["given_up"]["held"] == [{"hold": placed["id"], "inferences": 1}]
    assert "i1" in await list_inference_ids(engine)
    audited = await client.get("/v1/audit", params={"action": "erasure_rest_given_up"})
    assert [entry["detail"]["reason"] for entry in audited.json()["items"]] == ["long"]

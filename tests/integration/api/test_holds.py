"""Legal holds over HTTP: placed, read, changed, released, with their history."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import model_numbers, registrations
from inference_store.index.tables import erasing, hold
from tests.integration import erasure_requests
from tests.integration.stored_inferences import NewInference, at, store
from tests.integration.waiting import count_lock_waiters
from tests.polling import until

_BODY = {"name": "hallway", "reason": "file 47", "model_id": "model", "filter": "camera = 'a'"}


async def _store_two(engine: AsyncEngine) -> int:
    inferences = [
        NewInference(name, at(n), [("camera", "string", name)]) for n, name in enumerate("ab")
    ]
    return await store(engine, *inferences)


async def _place_hold(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post("/v1/holds", json=_BODY | changes)
    assert answer.status_code == 201, answer.text
    assert answer.headers["ETag"] == '"1"'
    assert answer.headers["Location"] == f"/v1/holds/{answer.json()['id']}"
    placed: dict[str, Any] = answer.json()
    return placed


async def test_a_hold_is_placed_read_changed_and_released(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _store_two(engine)
    placed = await _place_hold(client)
    assert (placed["claimed"], placed["claims"], placed["warnings"]) == (0, [], [])
    url = f"/v1/holds/{placed['id']}"
    read = (await client.get(url)).json()
    assert read == {name: placed[name] for name in read}
    assert (read["state"], read["revision"], read["placed_by"]) == ("in_force", 1, "anyone")
    # The filter as shown can be sent again.
    body = _BODY | {"filter": read["filter"], "reason": "file 48", "until": "2099-01-01T00:00:00Z"}
    stale = await client.put(url, json=body, headers={"If-Match": '"7"'})
    assert stale.status_code == 412
    changed = await client.put(url, json=body, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["ETag"]) == (200, '"2"')
    assert changed.json()["filter"] == read["filter"]
    released = await client.delete(url, params={"reason": "closed"})
    assert released.status_code == 200
    assert released.json()["state"] == "released"
    assert released.json()["release_reason"] == "closed"
    assert (await client.delete(url, params={"reason": "again"})).status_code == 409
    assert (await client.put(url, json=body)).status_code == 409
    history = (await client.get(f"{url}/history", params={"limit": 2})).json()
    rest = await client.get(f"{url}/history", params={"cursor": history["next"]})
    changes = [*history["items"], *rest.json()["items"]]
    assert [change["change"] for change in changes] == ["placed", "changed", "released"]
    assert [change["document"]["reason"] for change in changes] == ["file 47", "file 48", "closed"]
    entries = (await client.get("/v1/audit")).json()["items"]
    assert [entry["action"] for entry in entries] == [
        "hold_released",
        "hold_changed",
        "hold_placed",
    ]
    assert entries[0]["model_id"] == "model"


async def test_holds_are_listed_by_state_and_model(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _store_two(engine)
    await store(engine, NewInference("x", model_id="other"))
    of_model = await _place_hold(client)
    of_all_models = await _place_hold(client, model_id=None, inference_ids=["a"], filter=None)
    released = await _place_hold(client, model_id="other", filter="ok")
    ended = await _place_hold(client, until="2099-01-01T00:00:00Z")
    async with engine.begin() as connection:
        past = update(hold).where(hold.c.id == ended["id"])
        await connection.execute(past.values(until=at(0).replace(year=2020)))
    await client.delete(f"/v1/holds/{released['id']}", params={"reason": "closed"})

    async def list_ids(**params: Any) -> list[str]:
        answer = await client.get("/v1/holds", params=params)
        return [item["id"] for item in answer.json()["items"]]

    assert await list_ids() == [item["id"] for item in (ended, released, of_all_models, of_model)]
    assert await list_ids(state="in_force") == [of_all_models["id"], of_model["id"]]
    assert await list_ids(state="released") == [released["id"]]
    assert await list_ids(state="ended") == [ended["id"]]
    assert await list_ids(model_id="other") == [released["id"], of_all_models["id"]]
    first = (await client.get("/v1/holds", params={"limit": 3})).json()
    assert await list_ids(cursor=first["next"]) == [of_model["id"]]
    assert (await client.get("/v1/holds", params={"model_id": "nobody"})).status_code == 404


async def test_rejects_invalid_holds(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _store_two(engine)

    async def check_refused(status: int, words: str, **changes: Any) -> None:
        answer = await client.post("/v1/holds", json=_BODY | changes)
        assert answer.status_code == status, answer.text
        assert words in answer.text

    await check_refused(422, "exactly one of", filter=None)
    await check_refused(422, "exactly one of", inference_ids=["a"])
    await check_refused(422, "types", filter=None, inference_ids=["a"], types={"camera": "string"})
    await check_refused(422, "has passed", until="2020-01-01T00:00:00Z")
    await check_refused(422, "project_id", filter="project_id = 'p'")
    await check_refused(422, "impossible-comparison", filter="camera > 3")
    await check_refused(422, "invalid-filter", filter="camera >")
    await check_refused(422, "types.lens", filter="lens = 'x'", types={"lens": "json"})
    await check_refused(422, "colour", colour="red")
    assert (await client.get("/v1/holds")).json()["items"] == []
    url = f"/v1/holds/{uuid4()}"
    for answer in (
        await client.get(url),
        await client.put(url, json=_BODY),
        await client.delete(url, params={"reason": "x"}),
        await client.get(f"{url}/history"),
    ):
        assert answer.status_code == 404


async def test_accepts_unknown_key_with_a_warning(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _store_two(engine)
    placed = await _place_hold(client, filter="lens = 'wide'", types={"lens": "string"})
    assert any("lens" in warning for warning in placed["warnings"])


async def test_gives_back_the_declared_types(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Also as they may be repeated by a change; the filter's other keys have none."""
    await _store_two(engine)
    types = {"lens": "string", "stops": "int"}
    filter = "lens = 'wide' AND stops > 3 AND camera = 'a'"
    placed = await _place_hold(client, filter=filter, types=types)
    assert placed["types"] == {"lens": "string", "stops": "number"}
    url = f"/v1/holds/{placed['id']}"
    assert (await client.get(url)).json()["types"] == placed["types"]
    body = _BODY | {"filter": placed["filter"], "types": placed["types"], "name": "again"}
    changed = await client.put(url, json=body, headers={"If-Match": '"1"'})
    assert changed.json()["types"] == placed["types"]
    by_ids = await _place_hold(client, filter=None, inference_ids=["a"])
    assert by_ids["types"] == {}


async def test_lists_inferences_already_claimed(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Only inferences of the hold are listed; a mark alone is no claim."""
    model = await _store_two(engine)
    inferences = [
        NewInference(name, at(n + 5), [("camera", "string", "a")]) for n, name in enumerate("xyz")
    ]
    await store(engine, *inferences)
    async with engine.begin() as connection:
        erasure = await erasure_requests.request_erasure(
            connection, model=model, uids=[inference.uid for inference in inferences]
        )
        other = NewInference("b", at(1), [("camera", "string", "b")])
        values = {"model": model, "uid": other.uid, "scope": "inference", "erasure": erasure.id}
        await connection.execute(insert(erasing).values(values))
        is_claimed = erasing.c.uid.in_([inferences[0].uid, inferences[1].uid, other.uid])
        await connection.execute(update(erasing).where(is_claimed).values(claimed_at=at(100)))
    placed = await _place_hold(client)
    assert placed["claimed"] == 2
    assert [claim["uid"] for claim in placed["claims"]] == [
        str(inference.uid) for inference in inferences[:2]
    ]
    assert placed["claims"][0] | {"uid": ""} == {
        "uid": "",
        "model_id": "model",
        "scope": "inference",
        "erasure": str(erasure.id),
        "claimed_at": "2026-11-01T00:01:40.000000Z",
    }


async def test_counts_held_inferences(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """It holds inferences with that camera, and those without any."""
    await _store_two(engine)
    await store(
        engine, NewInference("c", at(2)), NewInference("d", at(3), [("camera", "string", "d")])
    )
    await store(engine, NewInference("a", at(9), [("camera", "string", "a")], model_id="other"))
    placed, every = await _place_hold(client), await _place_hold(client, model_id=None)
    held = (await client.get(f"/v1/holds/{placed['id']}/held")).json()
    assert (held["inferences"], held["partial"]) == (2, False)
    assert held["oldest"] == "2026-11-01T00:00:00.000000Z"
    assert held["newest"] == "2026-11-01T00:00:02.000000Z"
    everywhere = (await client.get(f"/v1/holds/{every['id']}/held")).json()
    assert everywhere["inferences"] == 3


async def test_hold_on_unregistered_model_keeps_later_arrivals(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    placed = await _place_hold(client, model_id="to-come", types={"camera": "string"})
    assert placed["model_id"] == "to-come"
    assert "There is no model 'to-come' yet" in placed["warnings"][0]
    assert "camera" in placed["warnings"][1]
    # the hold does not register the model; its first event does, with the details of the event
    assert (await client.get("/v1/models/to-come")).status_code == 404
    listed = (await client.get("/v1/holds", params={"model_id": "to-come"})).json()
    assert [item["id"] for item in listed["items"]] == [placed["id"]]
    cameras = [
        NewInference(name, at(n), [("camera", "string", name)]) for n, name in enumerate("ab")
    ]
    await store(engine, *(replace(camera, model_id="to-come") for camera in cameras))
    held = (await client.get(f"/v1/holds/{placed['id']}/held")).json()
    assert held["inferences"] == 1
    body = {"filter": "camera = 'a'", "dry_run": True}
    counts = (await client.post("/v1/models/to-come/erasures", json=body)).json()
    assert counts["held"] == 1
    read = (await client.get(f"/v1/holds/{placed['id']}")).json()
    assert read["model_id"] == "to-come"


async def test_concurrent_registration_uses_the_reserved_number(
    engine: AsyncEngine,
) -> None:
    """The registration waits for the reservation and takes its integer, and the reverse."""
    async with engine.begin() as reserving:
        number = await model_numbers.reserve(reserving, "first")
        registering = asyncio.create_task(store(engine, NewInference("x", model_id="first")))
        await until(lambda: count_lock_waiters(engine), lambda count: count == 1)
    assert await registering == number
    async with engine.begin() as connection:
        details = registrations.Details()
        registered, _ = await registrations.put(connection, "second", details)
        holding = asyncio.create_task(_reserve(engine, "second"))
        await until(lambda: count_lock_waiters(engine), lambda count: count == 1)
    assert await holding == registered.model


async def _reserve(engine: AsyncEngine, model_id: str) -> int:
    async with engine.begin() as connection:
        return await model_numbers.reserve(connection, model_id)

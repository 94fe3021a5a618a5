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
from tests.integration import by_uids
from tests.integration.stored import Made, at, store
from tests.integration.waiting import lock_waiters
from tests.polling import until

_BODY = {"name": "hallway", "reason": "file 47", "model_id": "model", "filter": "camera = 'a'"}


async def _two(engine: AsyncEngine) -> int:
    here = [Made(name, at(n), [("camera", "string", name)]) for n, name in enumerate("ab")]
    return await store(engine, *here)


async def _placed(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post("/v1/holds", json=_BODY | changes)
    assert answer.status_code == 201, answer.text
    assert answer.headers["ETag"] == '"1"'
    assert answer.headers["Location"] == f"/v1/holds/{answer.json()['id']}"
    found: dict[str, Any] = answer.json()
    return found


async def test_a_hold_is_placed_read_changed_and_released(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _two(engine)
    placed = await _placed(client)
    assert (placed["claimed"], placed["claims"], placed["warnings"]) == (0, [], [])
    url = f"/v1/holds/{placed['id']}"
    read = (await client.get(url)).json()
    assert read == {name: placed[name] for name in read}
    assert (read["state"], read["revision"], read["placed_by"]) == ("in_force", 1, "anyone")
    # What is shown can be said again.
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
    assert [each["change"] for each in changes] == ["placed", "changed", "released"]
    assert [each["document"]["reason"] for each in changes] == ["file 47", "file 48", "closed"]
    noted = (await client.get("/v1/audit")).json()["items"]
    assert [each["action"] for each in noted] == ["hold_released", "hold_changed", "hold_placed"]
    assert noted[0]["model_id"] == "model"


async def test_holds_are_listed_by_state_and_model(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _two(engine)
    await store(engine, Made("x", model_id="other"))
    one = await _placed(client)
    every = await _placed(client, model_id=None, inference_ids=["a"], filter=None)
    over = await _placed(client, model_id="other", filter="ok")
    ended = await _placed(client, until="2099-01-01T00:00:00Z")
    async with engine.begin() as connection:
        past = update(hold).where(hold.c.id == ended["id"])
        await connection.execute(past.values(until=at(0).replace(year=2020)))
    await client.delete(f"/v1/holds/{over['id']}", params={"reason": "closed"})

    async def ids(**asked: Any) -> list[str]:
        answer = await client.get("/v1/holds", params=asked)
        return [each["id"] for each in answer.json()["items"]]

    assert await ids() == [each["id"] for each in (ended, over, every, one)]
    assert await ids(state="in_force") == [every["id"], one["id"]]
    assert await ids(state="released") == [over["id"]]
    assert await ids(state="ended") == [ended["id"]]
    assert await ids(model_id="other") == [over["id"], every["id"]]
    first = (await client.get("/v1/holds", params={"limit": 3})).json()
    assert await ids(cursor=first["next"]) == [one["id"]]
    assert (await client.get("/v1/holds", params={"model_id": "nobody"})).status_code == 404


async def test_what_makes_no_sense_is_refused_by_name(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _two(engine)

    async def refused(status: int, said: str, **changes: Any) -> None:
        answer = await client.post("/v1/holds", json=_BODY | changes)
        assert answer.status_code == status, answer.text
        assert said in answer.text

    await refused(422, "exactly one of", filter=None)
    await refused(422, "exactly one of", inference_ids=["a"])
    await refused(422, "types", filter=None, inference_ids=["a"], types={"camera": "string"})
    await refused(422, "has passed", until="2020-01-01T00:00:00Z")
    await refused(422, "project_id", filter="project_id = 'p'")
    await refused(422, "impossible-comparison", filter="camera > 3")
    await refused(422, "invalid-filter", filter="camera >")
    await refused(422, "types.lens", filter="lens = 'x'", types={"lens": "json"})
    await refused(422, "colour", colour="red")
    assert (await client.get("/v1/holds")).json()["items"] == []
    url = f"/v1/holds/{uuid4()}"
    for answer in (
        await client.get(url),
        await client.put(url, json=_BODY),
        await client.delete(url, params={"reason": "x"}),
        await client.get(f"{url}/history"),
    ):
        assert answer.status_code == 404


async def test_a_key_not_yet_seen_is_accepted_with_a_warning(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await _two(engine)
    placed = await _placed(client, filter="lens = 'wide'", types={"lens": "string"})
    assert any("lens" in each for each in placed["warnings"])


async def test_the_answer_lists_what_was_claimed_already(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Of what the hold keeps, and nothing else; a mark alone is no claim."""
    model = await _two(engine)
    made = [Made(name, at(n + 5), [("camera", "string", "a")]) for n, name in enumerate("xyz")]
    await store(engine, *made)
    async with engine.begin() as connection:
        asked = await by_uids.request(connection, model=model, uids=[each.uid for each in made])
        other = Made("b", at(1), [("camera", "string", "b")])
        values = {"model": model, "uid": other.uid, "scope": "inference", "erasure": asked.id}
        await connection.execute(insert(erasing).values(values))
        claimed = erasing.c.uid.in_([made[0].uid, made[1].uid, other.uid])
        await connection.execute(update(erasing).where(claimed).values(claimed_at=at(100)))
    placed = await _placed(client)
    assert placed["claimed"] == 2
    assert [each["uid"] for each in placed["claims"]] == [str(each.uid) for each in made[:2]]
    assert placed["claims"][0] | {"uid": ""} == {
        "uid": "",
        "model_id": "model",
        "scope": "inference",
        "erasure": str(asked.id),
        "claimed_at": "2026-11-01T00:01:40.000000Z",
    }


async def test_what_a_hold_keeps_is_counted(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Where the camera is the one, and where it is not known."""
    await _two(engine)
    await store(engine, Made("c", at(2)), Made("d", at(3), [("camera", "string", "d")]))
    await store(engine, Made("a", at(9), [("camera", "string", "a")], model_id="other"))
    placed, every = await _placed(client), await _placed(client, model_id=None)
    held = (await client.get(f"/v1/holds/{placed['id']}/held")).json()
    assert (held["inferences"], held["partial"]) == (2, False)
    assert held["oldest"] == "2026-11-01T00:00:00.000000Z"
    assert held["newest"] == "2026-11-01T00:00:02.000000Z"
    everywhere = (await client.get(f"/v1/holds/{every['id']}/held")).json()
    assert everywhere["inferences"] == 3


async def test_a_hold_of_a_model_that_is_not_registered_yet_keeps_what_comes(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    placed = await _placed(client, model_id="to-come", types={"camera": "string"})
    assert placed["model_id"] == "to-come"
    assert "There is no model 'to-come' yet" in placed["warnings"][0]
    assert "camera" in placed["warnings"][1]
    # the model is not registered by it: its first event does that, with all that the event says
    assert (await client.get("/v1/models/to-come")).status_code == 404
    listed = (await client.get("/v1/holds", params={"model_id": "to-come"})).json()
    assert [each["id"] for each in listed["items"]] == [placed["id"]]
    cameras = [Made(name, at(n), [("camera", "string", name)]) for n, name in enumerate("ab")]
    await store(engine, *(replace(each, model_id="to-come") for each in cameras))
    kept = (await client.get(f"/v1/holds/{placed['id']}/held")).json()
    assert kept["inferences"] == 1
    dry = {"filter": "camera = 'a'", "dry_run": True}
    told = (await client.post("/v1/models/to-come/erasures", json=dry)).json()
    assert told["held"] == 1
    read = (await client.get(f"/v1/holds/{placed['id']}")).json()
    assert read["model_id"] == "to-come"


async def test_a_model_that_is_registered_at_the_same_moment_has_the_holds_integer(
    engine: AsyncEngine,
) -> None:
    """Who registers it waits for the reservation, and takes its integer; and the other way."""
    async with engine.begin() as reserving:
        number = await model_numbers.reserve(reserving, "first")
        registering = asyncio.create_task(store(engine, Made("x", model_id="first")))
        await until(lambda: lock_waiters(engine), lambda count: count == 1)
    assert await registering == number
    async with engine.begin() as connection:
        details = registrations.Details()
        registered, _ = await registrations.put(connection, "second", details)
        holding = asyncio.create_task(_reserved(engine, "second"))
        await until(lambda: lock_waiters(engine), lambda count: count == 1)
    assert await holding == registered.model


async def _reserved(engine: AsyncEngine, model_id: str) -> int:
    async with engine.begin() as connection:
        return await model_numbers.reserve(connection, model_id)

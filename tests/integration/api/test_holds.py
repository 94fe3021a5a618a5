"""Legal holds over HTTP: placed, read, changed, released, with their history."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update

from inference_store.index import model_numbers, registrations
from inference_store.index.tables import hold
from tests.integration.stored_inferences import NewInference, at
from tests.integration.waiting import count_lock_waiters
from tests.polling import until

from .conftest import Api

_BODY = {"name": "hallway", "reason": "file 47", "model_id": "model", "filter": "camera = 'a'"}


def _make_two(model_id: str) -> list[NewInference]:
    return [
        NewInference(name, at(n), [("camera", "string", name)], model_id=model_id)
        for n, name in enumerate("ab")
    ]


@pytest.fixture
async def model(api: Api) -> int:
    """The integer of a model with two inferences, of the cameras a and b."""
    return await api.store(*_make_two("model"))


async def _place_hold(api: Api, **changes: Any) -> dict[str, Any]:
    answer = await api.post("/v1/holds", json=_BODY | changes)
    assert answer.status_code == 201, answer.text
    assert answer.headers["ETag"] == '"1"'
    assert answer.headers["Location"] == f"/v1/holds/{answer.json()['id']}"
    return dict(answer.json())


@pytest.mark.usefixtures("model")
async def test_a_hold_is_placed_read_changed_and_released(api: Api) -> None:
    placed = await _place_hold(api)
    assert (placed["claimed"], placed["claims"], placed["warnings"]) == (0, [], [])
    url = f"/v1/holds/{placed['id']}"
    read = await api.read(url)
    assert read == {name: placed[name] for name in read}
    assert (read["state"], read["revision"], read["placed_by"]) == ("in_force", 1, "anyone")
    # The filter as shown can be sent again.
    body = _BODY | {"filter": read["filter"], "reason": "file 48", "until": "2099-01-01T00:00:00Z"}
    await api.call("PUT", url, body, status=412, headers={"If-Match": '"7"'})
    changed = await api.put(url, json=body, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["ETag"]) == (200, '"2"')
    assert changed.json()["filter"] == read["filter"]
    released = await api.call("DELETE", url, status=200, params={"reason": "closed"})
    assert (released["state"], released["release_reason"]) == ("released", "closed")
    await api.call("DELETE", url, status=409, params={"reason": "again"})
    await api.call("PUT", url, body, status=409)
    history = await api.read(f"{url}/history", limit=2)
    rest = await api.read(f"{url}/history", cursor=history["next"])
    changes = [*history["items"], *rest["items"]]
    assert [change["change"] for change in changes] == ["placed", "changed", "released"]
    assert [change["document"]["reason"] for change in changes] == ["file 47", "file 48", "closed"]
    entries = (await api.read("/v1/audit"))["items"]
    actions = ["hold_released", "hold_changed", "hold_placed"]
    assert [entry["action"] for entry in entries] == actions
    assert entries[0]["model_id"] == "model"


@pytest.mark.usefixtures("model")
async def test_holds_are_listed_by_state_and_model(api: Api) -> None:
    await api.store(NewInference("x", model_id="other"))
    of_model = await _place_hold(api)
    of_all_models = await _place_hold(api, model_id=None, inference_ids=["a"], filter=None)
    released = await _place_hold(api, model_id="other", filter="ok")
    ended = await _place_hold(api, until="2099-01-01T00:00:00Z")
    past = update(hold).where(hold.c.id == ended["id"])
    await api.execute(past.values(until=at(0).replace(year=2020)))
    await api.call("DELETE", f"/v1/holds/{released['id']}", params={"reason": "closed"})

    async def list_ids(**params: Any) -> list[str]:
        return [item["id"] for item in (await api.read("/v1/holds", **params))["items"]]

    assert await list_ids() == [item["id"] for item in (ended, released, of_all_models, of_model)]
    assert await list_ids(state="in_force") == [of_all_models["id"], of_model["id"]]
    assert await list_ids(state="released") == [released["id"]]
    assert await list_ids(state="ended") == [ended["id"]]
    assert await list_ids(model_id="other") == [released["id"], of_all_models["id"]]
    first = await api.read("/v1/holds", limit=3)
    assert await list_ids(cursor=first["next"]) == [of_model["id"]]
    await api.read("/v1/holds?model_id=nobody", status=404)


@pytest.mark.usefixtures("model")
async def test_rejects_invalid_holds_and_gives_back_the_declared_types(api: Api) -> None:
    by_id: dict[str, Any] = {"filter": None, "inference_ids": ["a"]}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("exactly one of", {"filter": None}),
        ("exactly one of", {"inference_ids": ["a"]}),
        ("types", by_id | {"types": {"camera": "string"}}),
        ("is in the past", {"until": "2020-01-01T00:00:00Z"}),
        ("project_id", {"filter": "project_id = 'p'"}),
        ("impossible-comparison", {"filter": "camera > 3"}),
        ("invalid-filter", {"filter": "camera >"}),
        ("types.lens", {"filter": "lens = 'x'", "types": {"lens": "json"}}),
        ("colour", {"colour": "red"}),
    ]
    for words, changes in cases:
        assert words in str(await api.ask("/v1/holds", _BODY | changes, status=422)), changes
    assert (await api.read("/v1/holds"))["items"] == []
    url = f"/v1/holds/{uuid4()}"
    for method, path, body in (
        ("GET", url, None),
        ("PUT", url, _BODY),
        ("DELETE", f"{url}?reason=x", None),
        ("GET", f"{url}/history", None),
    ):
        await api.call(method, path, body, status=404)
    # Also as they may be repeated by a change; the filter's other keys have none.
    types = {"lens": "string", "stops": "int"}
    filter = "lens = 'wide' AND stops > 3 AND camera = 'a'"
    placed = await _place_hold(api, filter=filter, types=types)
    assert any("lens" in warning for warning in placed["warnings"])  # no inference has it
    assert placed["types"] == {"lens": "string", "stops": "number"}
    url = f"/v1/holds/{placed['id']}"
    assert (await api.read(url))["types"] == placed["types"]
    body = _BODY | {"filter": placed["filter"], "types": placed["types"], "name": "again"}
    assert (await api.call("PUT", url, body))["types"] == placed["types"]
    by_ids = await _place_hold(api, filter=None, inference_ids=["a"])
    assert by_ids["types"] == {}


@pytest.mark.usefixtures("model")
async def test_counts_held_inferences(api: Api) -> None:
    """It holds inferences with that camera, and those without any."""
    await api.store(NewInference("c", at(2)), NewInference("d", at(3), [("camera", "string", "d")]))
    await api.store(NewInference("a", at(9), [("camera", "string", "a")], model_id="other"))
    placed, every = await _place_hold(api), await _place_hold(api, model_id=None)
    held = await api.read(f"/v1/holds/{placed['id']}/held")
    assert (held["inferences"], held["partial"]) == (2, False)
    assert held["oldest"] == "2026-11-01T00:00:00.000000Z"
    assert held["newest"] == "2026-11-01T00:00:02.000000Z"
    assert (await api.read(f"/v1/holds/{every['id']}/held"))["inferences"] == 3


async def test_hold_on_unregistered_model_keeps_later_arrivals(api: Api) -> None:
    placed = await _place_hold(api, model_id="to-come", types={"camera": "string"})
    assert placed["model_id"] == "to-come"
    assert "There is no model 'to-come' yet" in placed["warnings"][0]
    assert "camera" in placed["warnings"][1]
    # the hold does not register the model; its first event does, with the details of the event
    await api.read("/v1/models/to-come", status=404)
    listed = await api.read("/v1/holds", model_id="to-come")
    assert [item["id"] for item in listed["items"]] == [placed["id"]]
    await api.store(*_make_two("to-come"))
    assert (await api.read(f"/v1/holds/{placed['id']}/held"))["inferences"] == 1
    body = {"filter": "camera = 'a'", "dry_run": True}
    assert (await api.ask("/v1/models/to-come/erasures", body))["held"] == 1
    assert (await api.read(f"/v1/holds/{placed['id']}"))["model_id"] == "to-come"


async def test_concurrent_registration_uses_the_reserved_number(api: Api) -> None:
    """The registration waits for the reservation and takes its integer, and the reverse."""

    async def wait_for_lock() -> None:
        await until(lambda: count_lock_waiters(api.engine), lambda count: count == 1)

    async def reserve() -> int:
        return await api.transact(model_numbers.reserve, "second")

    async with api.engine.begin() as reserving:
        number = await model_numbers.reserve(reserving, "first")
        registering = asyncio.create_task(api.store(NewInference("x", model_id="first")))
        await wait_for_lock()
    assert await registering == number
    async with api.engine.begin() as connection:
        details = registrations.Details()
        registered, _ = await registrations.put(connection, "second", details)
        holding = asyncio.create_task(reserve())
        await wait_for_lock()
    assert await holding == registered.model

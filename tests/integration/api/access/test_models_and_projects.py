"""Rights to register and move a model, and to see the bytes of a dead letter."""

import asyncio
from typing import Any

import pytest

from inference_store.index import registrations
from tests.builders import make_event
from tests.integration.api.conftest import Api
from tests.integration.api.people import ACROSS, SUBJECT
from tests.integration.api.quarantined import add_quarantined, make_rejected, read_letters
from tests.integration.stored_inferences import NewInference, at
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys

_PROJECT = f"{OPEN}-project"
_OWNER: dict[str, Any] = {"role": "owner"}
_ADMIN: dict[str, Any] = {"rights": ["read", "admin"]}
_OF_NEW, _OF_OPEN = _OWNER | {"model_id": "new"}, _OWNER | {"model_id": OPEN}
_OF_PROJECT, _OF_ANOTHER, _OF_MINE = (
    _OWNER | {"project_id": project} for project in (_PROJECT, "another", "mine")
)
# the grants of a key, the model and the project that it asks for, and the status
_MOVES: list[tuple[list[dict[str, Any]], str, str | None, int]] = [
    # a new model needs everything or its own id; a project would reveal what exists
    ([_OWNER], "new", "anything", 201),
    ([_OF_NEW], "new", None, 201),
    ([_OF_NEW], "new", _PROJECT, 403),
    ([_OF_NEW, _OF_PROJECT], "new", _PROJECT, 201),
    ([_OF_PROJECT], "new", _PROJECT, 404),
    ([_OF_PROJECT], SECRET, _PROJECT, 404),
    ([{"role": "reader"}], "new", None, 403),
    # an existing model: unchanged, or moved between two projects of the grants
    ([_OF_PROJECT], OPEN, _PROJECT, 200),
    ([_OF_PROJECT], OPEN, "another", 403),
    ([_OF_PROJECT], OPEN, None, 403),
    ([_OF_OPEN], OPEN, _PROJECT, 200),
    ([_OF_OPEN], OPEN, "another", 403),
    ([_OF_PROJECT, _OF_ANOTHER], OPEN, "another", 200),
    ([_OWNER], OPEN, None, 200),
    # a move must not give its caller a new right over the model
    ([_ADMIN, _OF_MINE], SECRET, "mine", 403),
    ([_ADMIN, {"rights": ["read_inputs"], "project_id": "mine"}], SECRET, "mine", 403),
    ([_ADMIN, _OF_MINE], SECRET, "another", 200),
    ([_ADMIN, _OF_MINE, _OWNER | {"model_id": SECRET}], SECRET, "mine", 200),
    ([_ADMIN, _OF_MINE], "new", "mine", 201),
]


@pytest.mark.usefixtures("two_models")
async def test_registering_and_moving(keys: Keys) -> None:
    for grants, model_id, project_id, status in _MOVES:
        key = await keys.make(*grants)
        body = {"project_id": project_id}
        await keys.call(key, "PUT", f"/v1/models/{model_id}", body, status=status)
        await keys.ask(TOKEN, "DELETE", "/v1/models/new")
        for moved in (SECRET, OPEN):
            await keys.call(TOKEN, "PUT", f"/v1/models/{moved}", {"project_id": f"{moved}-project"})


@pytest.mark.parametrize(
    ("more", "status", "project_id"),
    [({"project_id": "theirs"}, 200, "mine"), ({"model_id": "another"}, 403, "theirs")],
)
async def test_event_registers_the_model_during_the_request(
    keys: Keys, guarded: Api, more: dict[str, str], status: int, project_id: str
) -> None:
    """The model is missing when the right is checked, and in a project when it is written."""
    key = await keys.make(_OF_NEW, _OF_MINE, {**_OWNER, **more})
    async with guarded.engine.begin() as connection:
        events = {"new": make_event(model_id="new", project_id="theirs")}
        await registrations.register_missing(connection, events)
        body = {"project_id": "mine"}
        request = asyncio.create_task(keys.ask(key, "PUT", "/v1/models/new", body))
        assert await until(lambda: count_lock_waiters(guarded.engine), bool)
    answer = await request
    assert answer.status_code == status, answer.text
    model = await keys.call(TOKEN, "GET", "/v1/models/new")
    assert (model["registered_by"], model["project_id"]) == ("event", project_id)


@pytest.mark.usefixtures("two_models")
async def test_suggests_only_names_that_the_caller_may_read(keys: Keys) -> None:
    reader = await keys.make({"role": "reader", "model_id": OPEN})
    everyone = "The nearest are secret-model, open-model."
    model = "/v1/models/secret-modle"
    for key, hint in ((reader, "The nearest are open-model."), (TOKEN, everyone)):
        for method, path, body in (
            ("GET", model, None),
            ("POST", f"{model}/inferences/count", {}),
            ("POST", "/v1/inferences/count", {"model_ids": ["secret-modle"]}),
        ):
            problem = await keys.call(key, method, path, body, status=404)
            assert problem["detail"] == f"There is no model 'secret-modle'. {hint}", path
    hidden = await keys.call(reader, "GET", f"/v1/models/{SECRET}", status=404)
    assert hidden["detail"] == f"There is no model '{SECRET}'. The nearest are open-model."
    condition = {"key": f"{SECRET}-key", "operator": "eq", "value": "x"}
    named = {"metadata_filter": [condition], "prediction": {"label": "secret-label"}}
    path = f"/v1/models/{OPEN}"
    refused = await keys.call(reader, "POST", f"{path}/inferences/query", named, status=422)
    assert refused["errors"][0]["known"] == [f"{OPEN}-key"]
    metadata_keys = await keys.call(reader, "GET", f"{path}/metadata-keys")
    assert [item["name"] for item in metadata_keys["items"]] == [f"{OPEN}-key"]


@pytest.mark.usefixtures("two_models")
async def test_the_bytes_of_a_dead_letter_are_input(keys: Keys, guarded: Api) -> None:
    letters = [make_rejected(n, b"a-payload", model) for n, model in enumerate((OPEN, None))]
    await add_quarantined(guarded, letters)
    items = (await keys.call(TOKEN, "GET", "/v1/dead-letters"))["items"]
    ids = {item["model_id"]: item["id"] for item in items}
    inputs: dict[str, Any] = {"rights": ["read_inputs"]}
    for grants, model_id, status, is_shown in (
        ([_ADMIN], OPEN, 200, False),
        ([_ADMIN, inputs | {"model_id": OPEN}], OPEN, 200, True),
        ([_ADMIN, inputs | {"model_id": OPEN}], None, 200, False),
        ([_ADMIN, inputs], None, 200, True),
        ([_ADMIN | {"model_id": OPEN}], OPEN, 200, False),
        ([_ADMIN | {"model_id": OPEN}], None, 404, False),
    ):
        key = await keys.make(*grants)
        [before] = await guarded.fetch("SELECT count(*) FROM audit")
        letter = await keys.call(key, "GET", f"/v1/dead-letters/{ids[model_id]}", status=status)
        assert ("a-payload" in str(letter)) == is_shown, grants
        assert await guarded.fetch("SELECT count(*) FROM audit") == [before + int(is_shown)]


@pytest.mark.usefixtures("two_models")
async def test_only_who_may_erase_everything_reaches_them(keys: Keys, guarded: Api) -> None:
    await guarded.store(NewInference("p", at(1), [("person", "string", "ann")], model_id=OPEN))
    payload = f'{{"model_id":"{OPEN}","person":"ann","pet":"cat","broken'.encode()
    await add_quarantined(guarded, [make_rejected(0, payload, None)])
    narrow = await keys.make({"role": "owner", "model_id": OPEN})
    for path in (f"/v1/models/{OPEN}/erasures", ACROSS):
        # nor does the refusal of a key say whether such a letter has it
        unseen = {"subject": {"key": "pet", "value": "cat"}, "dry_run": True}
        for key, counted, status in ((narrow, 0, 422), (TOKEN, 1, 200)):
            dry = await keys.call(key, "POST", path, {**SUBJECT, "dry_run": True}, status=200)
            assert dry["dead_letters"] == counted, path
            await keys.call(key, "POST", path, unseen, status=status)
    for key, state in ((narrow, ("open", True)), (TOKEN, ("discarded", False))):
        requested = await keys.call(key, "POST", ACROSS, SUBJECT, status=202)
        await guarded.run_retention()
        erasure = await keys.call(key, "GET", f"{ACROSS}/{requested['id']}")
        assert erasure["state"] == "deleted", erasure
        assert await read_letters(guarded) == {0: state}

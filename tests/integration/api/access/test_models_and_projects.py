"""Who may register a model and move it; whose bytes a dead letter shows."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters, registrations
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Trouble
from tests.builders import NOW, make_event
from tests.integration.waiting import lock_waiters
from tests.polling import until
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys

_PROJECT = f"{OPEN}-project"
_OWNER = {"role": "owner"}
_ADMIN = {"rights": ["read", "admin"]}


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize(
    ("grants", "model_id", "project_id", "status"),
    [
        # a new model: everything, or its own id; not by a project, which would tell what exists
        ([_OWNER], "new", "anything", 201),
        ([{**_OWNER, "model_id": "new"}], "new", None, 201),
        ([{**_OWNER, "model_id": "new"}], "new", _PROJECT, 403),
        ([{**_OWNER, "model_id": "new"}, {**_OWNER, "project_id": _PROJECT}], "new", _PROJECT, 201),
        ([{**_OWNER, "project_id": _PROJECT}], "new", _PROJECT, 404),
        ([{**_OWNER, "project_id": _PROJECT}], SECRET, _PROJECT, 404),
        ([{"role": "reader"}], "new", None, 403),
        # one that is there: as it is, or between projects that were both given
        ([{**_OWNER, "project_id": _PROJECT}], OPEN, _PROJECT, 200),
        ([{**_OWNER, "project_id": _PROJECT}], OPEN, "another", 403),
        ([{**_OWNER, "project_id": _PROJECT}], OPEN, None, 403),
        ([{**_OWNER, "model_id": OPEN}], OPEN, _PROJECT, 200),
        ([{**_OWNER, "model_id": OPEN}], OPEN, "another", 403),
        (
            [{**_OWNER, "project_id": _PROJECT}, {**_OWNER, "project_id": "another"}],
            OPEN,
            "another",
            200,
        ),
        ([_OWNER], OPEN, None, 200),
        # moving gives nobody a right over it that they had not
        ([_ADMIN, {**_OWNER, "project_id": "mine"}], SECRET, "mine", 403),
        ([_ADMIN, {"rights": ["read_inputs"], "project_id": "mine"}], SECRET, "mine", 403),
        ([_ADMIN, {**_OWNER, "project_id": "mine"}], SECRET, "another", 200),
        (
            [_ADMIN, {**_OWNER, "project_id": "mine"}, {**_OWNER, "model_id": SECRET}],
            SECRET,
            "mine",
            200,
        ),
        ([_ADMIN, {**_OWNER, "project_id": "mine"}], "new", "mine", 201),
    ],
)
async def test_registering_and_moving(
    a_key: Keys, grants: list[Any], model_id: str, project_id: str | None, status: int
) -> None:
    key = await a_key.make(*grants)
    body = {"project_id": project_id}
    answer = await a_key.ask(key, "PUT", f"/v1/models/{model_id}", body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("more", "status", "project_id"),
    [({"project_id": "theirs"}, 200, "mine"), ({"model_id": "another"}, 403, "theirs")],
)
async def test_an_event_registers_the_model_while_it_is_asked_for(
    a_key: Keys, engine: AsyncEngine, more: dict[str, str], status: int, project_id: str
) -> None:
    """The model is missing when the right is looked at, and in a project when it is written."""
    mine = [{**_OWNER, "model_id": "new"}, {**_OWNER, "project_id": "mine"}, {**_OWNER, **more}]
    key = await a_key.make(*mine)
    async with engine.begin() as connection:
        events = {"new": make_event(model_id="new", project_id="theirs")}
        await registrations.register_missing(connection, events)
        body = {"project_id": "mine"}
        asked = asyncio.create_task(a_key.ask(key, "PUT", "/v1/models/new", body))
        assert await until(lambda: lock_waiters(engine), bool)
    answer = await asked
    assert answer.status_code == status, answer.text
    shown = (await a_key.ask(TOKEN, "GET", "/v1/models/new")).json()
    assert (shown["registered_by"], shown["project_id"]) == ("event", project_id)


@pytest.mark.usefixtures("two_models")
async def test_the_bytes_of_a_dead_letter_are_input(a_key: Keys, engine: AsyncEngine) -> None:
    place = PartitionId("default", "inference-events", 0, 0)
    async with engine.begin() as connection:
        await open_partition(connection, place, first=0, began="earliest")
        for offset, model_id in enumerate((OPEN, None)):
            record = Record(place, offset, NOW, b"a-key", b"a-payload", (("a", "header"),))
            letter = (record, Trouble("not_an_event", "x", model_id, None))
            await dead_letters.add(connection, [letter])
    listed = (await a_key.ask(TOKEN, "GET", "/v1/dead-letters")).json()["items"]
    ids = {each["model_id"]: each["id"] for each in listed}
    admin = {"rights": ["read", "admin"]}
    for grants, model_id, status, shown in (
        ([admin], OPEN, 200, False),
        ([admin, {"rights": ["read_inputs"], "model_id": OPEN}], OPEN, 200, True),
        ([admin, {"rights": ["read_inputs"], "model_id": OPEN}], None, 200, False),
        ([admin, {"rights": ["read_inputs"]}], None, 200, True),
        ([{**admin, "model_id": OPEN}], OPEN, 200, False),
        ([{**admin, "model_id": OPEN}], None, 404, False),
    ):
        key = await a_key.make(*grants)
        before = len((await a_key.ask(TOKEN, "GET", "/v1/audit")).json()["items"])
        answer = await a_key.ask(key, "GET", f"/v1/dead-letters/{ids[model_id]}")
        assert answer.status_code == status
        assert ("a-payload" in answer.text) == shown
        noted = (await a_key.ask(TOKEN, "GET", "/v1/audit")).json()["items"]
        assert len(noted) - before == int(shown)


@pytest.mark.usefixtures("two_models")
async def test_suggestions_come_from_the_model_alone(a_key: Keys) -> None:
    key = await a_key.make({"role": "owner", "model_id": OPEN})
    asked = {"key": f"{SECRET}-key", "operator": "eq", "value": "x"}
    body = {"metadata_filter": [asked], "prediction": {"label": "secret-label"}}
    path = f"/v1/models/{OPEN}/inferences/query"
    refused = await a_key.ask(key, "POST", path, body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["known"] == [f"{OPEN}-key"]
    keys = (await a_key.ask(key, "GET", f"/v1/models/{OPEN}/metadata-keys")).json()
    assert [each["name"] for each in keys["items"]] == [f"{OPEN}-key"]

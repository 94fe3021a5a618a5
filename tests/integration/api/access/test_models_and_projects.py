"""Rights to register and move a model, and to see the bytes of a dead letter."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters, registrations
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Rejection
from tests.builders import NOW, make_event
from tests.integration.waiting import count_lock_waiters
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
        # a new model needs everything or its own id; a project would reveal what exists
        ([_OWNER], "new", "anything", 201),
        ([{**_OWNER, "model_id": "new"}], "new", None, 201),
        ([{**_OWNER, "model_id": "new"}], "new", _PROJECT, 403),
        ([{**_OWNER, "model_id": "new"}, {**_OWNER, "project_id": _PROJECT}], "new", _PROJECT, 201),
        ([{**_OWNER, "project_id": _PROJECT}], "new", _PROJECT, 404),
        ([{**_OWNER, "project_id": _PROJECT}], SECRET, _PROJECT, 404),
        ([{"role": "reader"}], "new", None, 403),
        # an existing model: unchanged, or moved between two projects of the grants
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
        # a move must not give its caller a new right over the model
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
    keys: Keys, grants: list[Any], model_id: str, project_id: str | None, status: int
) -> None:
    key = await keys.make(*grants)
    body = {"project_id": project_id}
    answer = await keys.ask(key, "PUT", f"/v1/models/{model_id}", body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("more", "status", "project_id"),
    [({"project_id": "theirs"}, 200, "mine"), ({"model_id": "another"}, 403, "theirs")],
)
async def test_event_registers_the_model_during_the_request(
    keys: Keys, engine: AsyncEngine, more: dict[str, str], status: int, project_id: str
) -> None:
    """The model is missing when the right is checked, and in a project when it is written."""
    mine = [{**_OWNER, "model_id": "new"}, {**_OWNER, "project_id": "mine"}, {**_OWNER, **more}]
    key = await keys.make(*mine)
    async with engine.begin() as connection:
        events = {"new": make_event(model_id="new", project_id="theirs")}
        await registrations.register_missing(connection, events)
        body = {"project_id": "mine"}
        request = asyncio.create_task(keys.ask(key, "PUT", "/v1/models/new", body))
        assert await until(lambda: count_lock_waiters(engine), bool)
    answer = await request
    assert answer.status_code == status, answer.text
    model = (await keys.ask(TOKEN, "GET", "/v1/models/new")).json()
    assert (model["registered_by"], model["project_id"]) == ("event", project_id)


@pytest.mark.usefixtures("two_models")
async def test_an_unknown_model_is_refused_with_the_nearest_that_the_caller_may_read(
    keys: Keys,
) -> None:
    reader = await keys.make({"role": "reader", "model_id": OPEN})
    everyone = "The nearest are secret-model, open-model."
    for key, hint in ((reader, "The nearest are open-model."), (TOKEN, everyone)):
        single = await keys.ask(key, "GET", "/v1/models/secret-modle")
        count = await keys.ask(key, "POST", "/v1/models/secret-modle/inferences/count", {})
        across = await keys.ask(
            key, "POST", "/v1/inferences/count", {"model_ids": ["secret-modle"]}
        )
        for answer in (single, count, across):
            assert answer.status_code == 404
            detail = answer.json()["detail"]
            assert detail == f"There is no model 'secret-modle'. {hint}"
    hidden = await keys.ask(reader, "GET", f"/v1/models/{SECRET}")
    assert hidden.json()["detail"] == f"There is no model '{SECRET}'. The nearest are open-model."


@pytest.mark.usefixtures("two_models")
async def test_the_bytes_of_a_dead_letter_are_input(keys: Keys, engine: AsyncEngine) -> None:
    partition = PartitionId("default", "inference-events", 0, 0)
    async with engine.begin() as connection:
        await open_partition(connection, partition, first=0, began="earliest")
        for offset, model_id in enumerate((OPEN, None)):
            record = Record(partition, offset, NOW, b"a-key", b"a-payload", (("a", "header"),))
            letter = (record, Rejection("not_an_event", "x", model_id, None))
            await dead_letters.add(connection, [letter])
    items = (await keys.ask(TOKEN, "GET", "/v1/dead-letters")).json()["items"]
    ids = {item["model_id"]: item["id"] for item in items}
    admin = {"rights": ["read", "admin"]}
    for grants, model_id, status, is_shown in (
        ([admin], OPEN, 200, False),
        ([admin, {"rights": ["read_inputs"], "model_id": OPEN}], OPEN, 200, True),
        ([admin, {"rights": ["read_inputs"], "model_id": OPEN}], None, 200, False),
        ([admin, {"rights": ["read_inputs"]}], None, 200, True),
        ([{**admin, "model_id": OPEN}], OPEN, 200, False),
        ([{**admin, "model_id": OPEN}], None, 404, False),
    ):
        key = await keys.make(*grants)
        before = len((await keys.ask(TOKEN, "GET", "/v1/audit")).json()["items"])
        answer = await keys.ask(key, "GET", f"/v1/dead-letters/{ids[model_id]}")
        assert answer.status_code == status
        assert ("a-payload" in answer.text) == is_shown
        entries = (await keys.ask(TOKEN, "GET", "/v1/audit")).json()["items"]
        assert len(entries) - before == int(is_shown)


@pytest.mark.usefixtures("two_models")
async def test_suggests_only_names_of_the_model(keys: Keys) -> None:
    key = await keys.make({"role": "owner", "model_id": OPEN})
    condition = {"key": f"{SECRET}-key", "operator": "eq", "value": "x"}
    body = {"metadata_filter": [condition], "prediction": {"label": "secret-label"}}
    path = f"/v1/models/{OPEN}/inferences/query"
    refused = await keys.ask(key, "POST", path, body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["known"] == [f"{OPEN}-key"]
    metadata_keys = (await keys.ask(key, "GET", f"/v1/models/{OPEN}/metadata-keys")).json()
    assert [item["name"] for item in metadata_keys["items"]] == [f"{OPEN}-key"]

"""Lists filtered by state, model and project, within what a key may see."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.log.key_documents import KIND, make_key_document
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import sign_document
from inference_store.erasure.progress.erasure import find_erasures
from inference_store.erasure.progress.state_changes import advance_erasure
from inference_store.index import registrations
from inference_store.index.accounting import open_partition
from inference_store.index.registrations import Details
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys
from .path_values import PARTITION, Ids, add_path_values


@pytest.fixture
async def ids(engine: AsyncEngine, two_models: dict[str, int]) -> dict[str, Ids]:
    async with engine.begin() as connection:
        await open_partition(connection, PARTITION, first=0, began="earliest")
        return {
            name: await add_path_values(connection, name, number, offset)
            for offset, (name, number) in enumerate(two_models.items())
        }


async def _read_items(keys: Keys, path: str, key: str = TOKEN) -> list[dict[str, Any]]:
    answer = await keys.ask(key, "GET", path)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_erasures_by_state_and_model(
    keys: Keys, engine: AsyncEngine, ids: dict[str, Ids]
) -> None:
    erasures = await _read_items(keys, "/v1/erasures")
    states = {erasure["id"]: erasure["state"] for erasure in erasures}
    async with engine.begin() as connection:
        [first, *_] = await find_erasures(connection)
        await advance_erasure(connection, first.id, "deleted")
    for query, expected in (
        ("state=deleted", [str(first.id)]),
        ("state=failed", []),
        (f"state=deleted&state={states[str(first.id)]}", list(states)),
    ):
        assert [
            erasure["id"] for erasure in await _read_items(keys, f"/v1/erasures?{query}")
        ] == expected
    erasures_of_model = await _read_items(keys, f"/v1/erasures?model_id={OPEN}")
    assert erasures_of_model
    assert {erasure["model_id"] for erasure in erasures_of_model} == {OPEN}
    assert ids[OPEN]["erasure_id"] in {erasure["id"] for erasure in erasures_of_model}
    refused = await keys.ask(TOKEN, "GET", "/v1/erasures?state=gone")
    assert refused.status_code == 422


async def test_certificates_by_model(keys: Keys, ids: dict[str, Ids]) -> None:
    [certificate] = await _read_items(keys, f"/v1/certificates?model_id={SECRET}")
    assert (certificate["model_ids"], str(certificate["number"])) == (
        [SECRET],
        ids[SECRET]["certificate"],
    )


async def test_every_reader_may_read_key_documents(
    keys: Keys, engine: AsyncEngine, two_models: dict[str, int]
) -> None:
    assert two_models
    signing = new_key()
    async with engine.begin() as connection:
        head = await chain.find_head(connection)
        document = make_key_document(signing.public, after=head)
        introduced = sign_document(signing, KIND, document)
        await chain.add_document(connection, introduced)
    path = f"/v1/certificates/{introduced.number}"
    narrow = await keys.make({"role": "reader", "model_id": OPEN})
    for key in (TOKEN, narrow):
        assert (await keys.ask(key, "GET", path)).content == introduced.data
    assert (await keys.ask(TOKEN, "GET", f"{path}/leaves")).status_code == 404


async def test_models_by_project(keys: Keys, two_models: dict[str, int]) -> None:
    assert two_models
    path = f"/v1/models?project_id={OPEN}-project"
    assert [model["model_id"] for model in await _read_items(keys, path)] == [OPEN]
    assert await _read_items(keys, "/v1/models?project_id=nobody") == []
    narrow = await keys.make({"role": "owner", "model_id": SECRET})
    assert await _read_items(keys, path, narrow) == []


async def test_projects(keys: Keys, engine: AsyncEngine, two_models: dict[str, int]) -> None:
    assert two_models
    async with engine.begin() as connection:
        await registrations.put(connection, "third", Details(project_id=f"{OPEN}-project"))
        await registrations.put(connection, "alone", Details())
    both = [
        {"project_id": f"{OPEN}-project", "models": 2},
        {"project_id": f"{SECRET}-project", "models": 1},
    ]
    assert await _read_items(keys, "/v1/projects") == both
    page = (await keys.ask(TOKEN, "GET", "/v1/projects?limit=1")).json()
    assert page["items"] == both[:1]
    assert await _read_items(keys, f"/v1/projects?limit=1&cursor={page['next']}") == both[1:]
    narrow = await keys.make({"role": "reader", "model_id": OPEN})
    expected = [{"project_id": f"{OPEN}-project", "models": 1}]
    assert await _read_items(keys, "/v1/projects", narrow) == expected


@pytest.mark.parametrize("path", ["/v1/erasures", "/v1/certificates"])
async def test_hidden_model_looks_absent(keys: Keys, two_models: dict[str, int], path: str) -> None:
    assert two_models
    key = await keys.make({"role": "owner", "model_id": OPEN})
    hidden, absent = [
        await keys.ask(key, "GET", f"{path}?model_id={name}") for name in (SECRET, "nobody")
    ]
    assert hidden.status_code == absent.status_code == 404
    assert hidden.text.replace(SECRET, "nobody") == absent.text

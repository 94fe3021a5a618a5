"""Lists filtered by state, model and project, within what a key may see."""

from typing import Any

import pytest

from inference_store.erasure.certify import chain
from inference_store.erasure.log.key_documents import KIND, make_key_document
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import sign_document
from inference_store.erasure.progress.erasure import find_erasures
from inference_store.erasure.progress.state_changes import advance_erasure
from inference_store.index import registrations
from inference_store.index.registrations import Details
from tests.integration.api.conftest import Api
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys
from .path_values import Ids, add_path_values

pytestmark = pytest.mark.usefixtures("two_models")


@pytest.fixture
async def ids(guarded: Api, two_models: dict[str, int]) -> dict[str, Ids]:
    async with guarded.engine.begin() as connection:
        return {
            name: await add_path_values(connection, name, number, offset)
            for offset, (name, number) in enumerate(two_models.items())
        }


async def _read_items(keys: Keys, path: str, key: str = TOKEN) -> list[dict[str, Any]]:
    return list((await keys.call(key, "GET", path, status=200))["items"])


async def test_erasures_and_certificates(keys: Keys, guarded: Api, ids: dict[str, Ids]) -> None:
    erasures = await _read_items(keys, "/v1/erasures")
    states = {erasure["id"]: erasure["state"] for erasure in erasures}
    async with guarded.engine.begin() as connection:
        [first, *_] = await find_erasures(connection)
        await advance_erasure(connection, first.id, "deleted")
    for query, expected in (
        ("state=deleted", [str(first.id)]),
        ("state=failed", []),
        (f"state=deleted&state={states[str(first.id)]}", list(states)),
    ):
        found = await _read_items(keys, f"/v1/erasures?{query}")
        assert [erasure["id"] for erasure in found] == expected, query
    erasures_of_model = await _read_items(keys, f"/v1/erasures?model_id={OPEN}")
    assert erasures_of_model
    assert {erasure["model_id"] for erasure in erasures_of_model} == {OPEN}
    assert ids[OPEN]["erasure_id"] in {erasure["id"] for erasure in erasures_of_model}
    await keys.call(TOKEN, "GET", "/v1/erasures?state=gone", status=422)
    [certificate] = await _read_items(keys, f"/v1/certificates?model_id={SECRET}")
    assert certificate["model_ids"] == [SECRET]
    assert str(certificate["number"]) == ids[SECRET]["certificate"]
    key = await keys.make({"role": "owner", "model_id": OPEN})
    for path in ("/v1/erasures", "/v1/certificates"):
        hidden, absent = [
            await keys.ask(key, "GET", f"{path}?model_id={name}") for name in (SECRET, "nobody")
        ]
        assert hidden.status_code == absent.status_code == 404, path
        assert hidden.text.replace(SECRET, "nobody") == absent.text, path


async def test_every_reader_may_read_key_documents(keys: Keys, guarded: Api) -> None:
    signing = new_key()
    async with guarded.engine.begin() as connection:
        head = await chain.find_head(connection)
        document = make_key_document(signing.public, after=head)
        introduced = sign_document(signing, KIND, document)
        await chain.add_document(connection, introduced)
    path = f"/v1/certificates/{introduced.number}"
    narrow = await keys.make({"role": "reader", "model_id": OPEN})
    for key in (TOKEN, narrow):
        assert (await keys.ask(key, "GET", path)).content == introduced.data
    await keys.call(TOKEN, "GET", f"{path}/leaves", status=404)


async def test_models_and_projects(keys: Keys, guarded: Api) -> None:
    path = f"/v1/models?project_id={OPEN}-project"
    assert [model["model_id"] for model in await _read_items(keys, path)] == [OPEN]
    assert await _read_items(keys, "/v1/models?project_id=nobody") == []
    narrow = await keys.make({"role": "owner", "model_id": SECRET})
    assert await _read_items(keys, path, narrow) == []
    async with guarded.engine.begin() as connection:
        await registrations.put(connection, "third", Details(project_id=f"{OPEN}-project"))
        await registrations.put(connection, "alone", Details())
    both = [
        {"project_id": f"{OPEN}-project", "models": 2},
        {"project_id": f"{SECRET}-project", "models": 1},
    ]
    assert await _read_items(keys, "/v1/projects") == both
    page = await keys.call(TOKEN, "GET", "/v1/projects?limit=1")
    assert page["items"] == both[:1]
    assert await _read_items(keys, f"/v1/projects?limit=1&cursor={page['next']}") == both[1:]
    assert await _read_items(keys, "/v1/projects", narrow) == both[1:]

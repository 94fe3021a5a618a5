"""Questions of several models: what a caller may not read shows nowhere."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored import Made, store

from .conftest import OPEN, SECRET, Keys

_QUERY, _COUNT = "/v1/inferences/query", "/v1/inferences/count"


@pytest.mark.usefixtures("two_models")
async def test_what_a_caller_may_not_read_shows_nowhere(a_key: Keys, engine: AsyncEngine) -> None:
    for model_id in (SECRET, OPEN):
        label = [(f"{model_id}-label", 0.5)]
        await store(engine, Made("two", predictions=label, model_id=model_id))
    key = await a_key.make({"role": "owner", "model_id": "open-model"})
    for path in (_QUERY, _COUNT):
        answer = await a_key.ask(key, "POST", path, {"explain": True})
        assert answer.status_code == 200
        assert "secret" not in answer.text
        steps = answer.json()["explain"]["steps"]
        assert {step["estimated_rows"] for step in steps} == {None}
        asked = {"key": "secret-model-key", "operator": "eq", "value": "x"}
        unknown = await a_key.ask(key, "POST", path, {"metadata_filter": [asked]})
        assert unknown.status_code == 422
        assert unknown.json()["errors"][0]["known"] == ["open-model-key"]
        near = {"prediction": {"label": "secret-model-labe"}}
        warned = await a_key.ask(key, "POST", path, near)
        assert "The nearest are open-model-label." in warned.text
        assert "secret-model-label" not in warned.text
        hidden = await a_key.ask(key, "POST", path, {"model_ids": ["open-model", "secret-model"]})
        absent = await a_key.ask(key, "POST", path, {"model_ids": ["open-model", "nobody"]})
        assert hidden.status_code == absent.status_code == 404
        assert hidden.text.replace("secret-model", "nobody") == absent.text
        theirs = await a_key.ask(key, "POST", path, {"project_id": "secret-model-project"})
        nobodys = await a_key.ask(key, "POST", path, {"project_id": "nobody-project"})
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace("secret-model", "nobody") == nobodys.text
    for sort in ("secret-model-key", "metadata.secret-model-key"):
        unknown = await a_key.ask(key, "POST", _QUERY, {"sort": sort})
        assert unknown.status_code == 422
        assert "secret-model-key" not in unknown.json()["errors"][0]["known"]
    reader = await a_key.make({"rights": ["read"]}, {"role": "owner", "model_id": "open-model"})
    for body, status in (({}, 403), ({"model_ids": ["open-model"]}, 200)):
        answer = await a_key.ask(reader, "POST", _QUERY, {**body, "include": ["urls"]})
        assert answer.status_code == status

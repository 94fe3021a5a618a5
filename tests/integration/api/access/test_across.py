"""Queries across models show nothing that the caller may not read."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, store

from .conftest import OPEN, SECRET, Keys

_QUERY, _COUNT = "/v1/inferences/query", "/v1/inferences/count"


@pytest.mark.usefixtures("two_models")
async def test_hides_models_the_caller_may_not_read(keys: Keys, engine: AsyncEngine) -> None:
    for model_id in (SECRET, OPEN):
        label = [(f"{model_id}-label", 0.5)]
        await store(engine, NewInference("two", predictions=label, model_id=model_id))
    key = await keys.make({"role": "owner", "model_id": "open-model"})
    for path in (_QUERY, _COUNT):
        answer = await keys.ask(key, "POST", path, {"explain": True})
        assert answer.status_code == 200
        assert "secret" not in answer.text
        steps = answer.json()["explain"]["steps"]
        assert {step["estimated_rows"] for step in steps} == {None}
        condition = {"key": "secret-model-key", "operator": "eq", "value": "x"}
        unknown = await keys.ask(key, "POST", path, {"metadata_filter": [condition]})
        assert unknown.status_code == 422
        assert unknown.json()["errors"][0]["known"] == ["open-model-key"]
        misspelled = {"prediction": {"label": "secret-model-labe"}}
        warning = await keys.ask(key, "POST", path, misspelled)
        assert "The nearest are open-model-label." in warning.text
        assert "secret-model-label" not in warning.text
        hidden = await keys.ask(key, "POST", path, {"model_ids": ["open-model", "secret-model"]})
        absent = await keys.ask(key, "POST", path, {"model_ids": ["open-model", "nobody"]})
        assert hidden.status_code == absent.status_code == 404
        assert hidden.text.replace("secret-model", "nobody") == absent.text
        theirs = await keys.ask(key, "POST", path, {"project_id": "secret-model-project"})
        nobodys = await keys.ask(key, "POST", path, {"project_id": "nobody-project"})
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace("secret-model", "nobody") == nobodys.text
    for sort in ("secret-model-key", "metadata.secret-model-key"):
        unknown = await keys.ask(key, "POST", _QUERY, {"sort": sort})
        assert unknown.status_code == 422
        assert "secret-model-key" not in unknown.json()["errors"][0]["known"]
    reader = await keys.make({"rights": ["read"]}, {"role": "owner", "model_id": "open-model"})
    for body, status in (({}, 403), ({"model_ids": ["open-model"]}, 200)):
        answer = await keys.ask(reader, "POST", _QUERY, {**body, "include": ["urls"]})
        assert answer.status_code == status

"""Queries and aggregates across models show nothing that the caller may not read."""

import json
from typing import Any

import pytest

from inference_store.inference.events.event import Extras
from tests.integration.api.conftest import Api
from tests.integration.stored_inferences import NewInference, at

from .conftest import OPEN, SECRET, Keys

_QUERY, _COUNT = "/v1/inferences/query", "/v1/inferences/count"
_AGGREGATE = "/v1/inferences/aggregate"
_MINE: dict[str, Any] = {"role": "owner", "model_id": OPEN}
pytestmark = pytest.mark.usefixtures("two_models")


@pytest.fixture(autouse=True)
async def labelled(guarded: Api, two_models: dict[str, int]) -> None:
    """Each model has a label of its own."""
    for model_id in two_models:
        label = [(f"{model_id}-label", 0.5)]
        await guarded.store(NewInference("two", at(1), predictions=label, model_id=model_id))


async def test_hides_models_the_caller_may_not_read(keys: Keys) -> None:
    key = await keys.make(_MINE)
    condition = {"key": "secret-model-key", "operator": "eq", "value": "x"}
    for path in (_QUERY, _COUNT):
        answer = await keys.call(key, "POST", path, {"explain": True})
        assert "secret" not in str(answer)
        assert {step["estimated_rows"] for step in answer["explain"]["steps"]} == {None}
        unknown = await keys.call(key, "POST", path, {"metadata_filter": [condition]}, status=422)
        assert unknown["errors"][0]["known"] == ["open-model-key"]
        misspelled = {"prediction": {"label": "secret-model-labe"}}
        warning = str(await keys.call(key, "POST", path, misspelled))
        assert "The nearest is open-model-label." in warning
        assert "secret-model-label" not in warning
        for hidden, absent in (
            ({"model_ids": [OPEN, SECRET]}, {"model_ids": [OPEN, "nobody"]}),
            ({"project_id": f"{SECRET}-project"}, {"project_id": "nobody-project"}),
        ):
            theirs = await keys.ask(key, "POST", path, hidden)
            nobodys = await keys.ask(key, "POST", path, absent)
            assert theirs.status_code == nobodys.status_code == 404
            assert theirs.text.replace(SECRET, "nobody") == nobodys.text
    for sort in ("secret-model-key", "metadata.secret-model-key"):
        unknown = await keys.call(key, "POST", _QUERY, {"sort": sort}, status=422)
        assert "secret-model-key" not in unknown["errors"][0]["known"]
    reader = await keys.make({"rights": ["read"]}, _MINE)
    urls = {"include": ["urls"]}
    await keys.call(reader, "POST", _QUERY, urls, status=403)
    await keys.call(reader, "POST", _QUERY, {**urls, "model_ids": [OPEN]}, status=200)


async def test_aggregates_only_readable_models(keys: Keys, guarded: Api) -> None:
    await guarded.store(NewInference("more", at(2), model_id=OPEN))
    reader = await keys.make({"role": "reader"})
    mine = await keys.make({"role": "reader", "model_id": OPEN})
    of_secret = {"project_id": f"{SECRET}-project"}
    # a metadata key that only one of them has is known
    missing = {"metadata_filter": [{"key": f"{OPEN}-key", "operator": "missing"}]}
    cases: list[tuple[str, dict[str, Any], set[tuple[str, int]] | None]] = [
        (reader, {}, {(SECRET, 2), (OPEN, 3)}),
        (mine, {}, {(OPEN, 3)}),
        (mine, {"model_ids": [OPEN]}, {(OPEN, 3)}),
        (mine, {"model_ids": [OPEN, SECRET]}, None),
        (mine, of_secret, None),
        (reader, of_secret, {(SECRET, 2)}),
        (reader, missing, {(SECRET, 2), (OPEN, 2)}),
    ]
    for key, more, expected in cases:
        body = {"group_by": ["model_id", "project_id"], **more}
        status = 404 if expected is None else 200
        answer = await keys.call(key, "POST", _AGGREGATE, body, status=status)
        groups = answer.get("groups", ())
        counts = {(group["key"]["model_id"], group["measures"]["count"]) for group in groups}
        assert counts == (expected or set()), more


async def test_names_of_a_hidden_model_are_unknown_to_aggregates(keys: Keys) -> None:
    mine = await keys.make({"role": "reader", "model_id": OPEN})
    all_of = await keys.make({"role": "reader"})

    async def ask(key: str, body: dict[str, Any], status: int = 200) -> Any:
        return await keys.call(key, "POST", _AGGREGATE, body, status=status)

    for function in ("top", "distinct"):
        of_key = {"measures": [{"function": function, "of": f"{SECRET}-key"}]}
        assert f"{SECRET}-value" in str(await ask(all_of, of_key))
        [fault] = (await ask(mine, of_key, 422))["errors"]
        assert f"{OPEN}-key" in fault["known"]
        assert f"{SECRET}-key" not in fault["known"]
        [group] = (await ask(mine, {**of_key, "unknown_keys": "empty"}))["groups"]
        assert group["measures"][f"{function}({SECRET}-key)"]["values"] == []
        of_label = {"measures": [{"function": function, "of": "label"}]}
        assert f"{SECRET}-label" in str(await ask(all_of, of_label))
        for body in (of_label, {"group_by": ["label"]}):
            answered = str(await ask(mine, body))
            assert f"{OPEN}-label" in answered
            assert SECRET not in answered


async def test_labels_only_models_of_the_right(keys: Keys, guarded: Api) -> None:
    """A model that the caller only reads is refused as one that is not there."""
    mine = {"rights": ["read", "annotate"], "model_id": OPEN}
    same = Extras(data_hash="ab" * 32)
    for model_id in (OPEN, SECRET):
        await guarded.store(NewInference("three", at(3), extras=same, model_id=model_id))
    rows = [
        {"model_id": model_id, "inference_id": "three", "label": "car"}
        for model_id in (OPEN, SECRET, "nobody")
    ]
    rows.append({"data_hash": "ab" * 32, "source": "file", "label": "lamp"})
    body = b"\n".join(json.dumps(row).encode() for row in rows)
    for more in ({"rights": ["read"]}, None):
        key = await keys.make(mine, *([] if more is None else [more]))
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/x-ndjson"}
        loaded = (await guarded.post("/v1/ground-truth", content=body, headers=headers)).json()
        assert (loaded["matched"], loaded["refused"]) == (2, 2)
        theirs, nobodys = (problem["why"] for problem in loaded["problems"])
        assert theirs.replace(SECRET, "nobody") == nobodys == "model_id: there is no model 'nobody'"
    labelled = "SELECT DISTINCT model_id FROM truth_set JOIN registration USING (model)"
    assert await guarded.fetch(labelled) == [OPEN]

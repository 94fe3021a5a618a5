"""Aggregates across models show only models that the caller may read."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, at, store

from .conftest import OPEN, SECRET, Keys


async def test_aggregates_only_readable_models(
    keys: Keys, two_models: dict[str, int], engine: AsyncEngine
) -> None:
    assert set(two_models) == {SECRET, OPEN}
    await store(engine, *(NewInference(f"more-{n}", at(n), model_id=OPEN) for n in range(2)))
    body = {"group_by": ["model_id", "project_id"]}

    async def read_groups(more: dict[str, Any], *grants: dict[str, Any]) -> Any:
        key = await keys.make(*grants)
        answer = await keys.ask(key, "POST", "/v1/inferences/aggregate", {**body, **more})
        if answer.status_code != 200:
            return answer.status_code
        rows = answer.json()["groups"]
        return {(g["key"]["model_id"], g["measures"]["count"]) for g in rows}

    reader = {"role": "reader"}
    assert await read_groups({}, reader) == {(SECRET, 1), (OPEN, 3)}
    mine = {**reader, "model_id": OPEN}
    assert await read_groups({}, mine) == {(OPEN, 3)}
    assert await read_groups({"model_ids": [OPEN]}, mine) == {(OPEN, 3)}
    assert await read_groups({"model_ids": [OPEN, SECRET]}, mine) == 404
    assert await read_groups({"project_id": f"{SECRET}-project"}, mine) == 404
    assert await read_groups({"project_id": f"{SECRET}-project"}, reader) == {(SECRET, 1)}
    # a metadata key that only one of them has is known
    without_key = {"group_by": ["model_id"], "metadata_filter": [
        {"key": f"{OPEN}-key", "operator": "missing"}
    ]}  # fmt: skip
    assert await read_groups(without_key, reader) == {(SECRET, 1), (OPEN, 2)}


async def test_names_of_a_hidden_model_are_unknown(
    keys: Keys, two_models: dict[str, int], engine: AsyncEngine
) -> None:
    assert set(two_models) == {SECRET, OPEN}
    for model_id in (SECRET, OPEN):
        label = f"{model_id}-label"
        await store(
            engine, NewInference("labelled", at(1), predictions=[(label, 0.5)], model_id=model_id)
        )
    mine = await keys.make({"role": "reader", "model_id": OPEN})
    all_of = await keys.make({"role": "reader"})

    async def ask(key: str, body: dict[str, Any]) -> Any:
        return await keys.ask(key, "POST", "/v1/inferences/aggregate", body)

    for function in ("top", "distinct"):
        of_key = {"measures": [{"function": function, "of": f"{SECRET}-key"}]}
        assert f"{SECRET}-value" in (await ask(all_of, of_key)).text
        refused = await ask(mine, of_key)
        assert refused.status_code == 422
        [fault] = refused.json()["errors"]
        assert f"{OPEN}-key" in fault["known"]
        assert f"{SECRET}-key" not in fault["known"]
        nothing = await ask(mine, {**of_key, "unknown_keys": "empty"})
        [group] = nothing.json()["groups"]
        assert group["measures"][f"{function}({SECRET}-key)"]["values"] == []
        of_label = {"measures": [{"function": function, "of": "label"}]}
        assert f"{SECRET}-label" in (await ask(all_of, of_label)).text
        answered = await ask(mine, of_label)
        assert f"{OPEN}-label" in answered.text
        assert SECRET not in answered.text
    by_label = await ask(mine, {"group_by": ["label"]})
    assert f"{OPEN}-label" in by_label.text
    assert SECRET not in by_label.text

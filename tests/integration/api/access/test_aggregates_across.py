"""Aggregates across models show those alone that the caller may read."""

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored import Made, at, store

from .conftest import OPEN, SECRET, Keys


async def test_across_models_only_what_may_be_read(
    a_key: Keys, two_models: dict[str, int], engine: AsyncEngine
) -> None:
    assert set(two_models) == {SECRET, OPEN}
    await store(engine, *(Made(f"more-{n}", at(n), model_id=OPEN) for n in range(2)))
    body = {"group_by": ["model_id", "project_id"]}

    async def groups(more: dict[str, Any], *grants: dict[str, Any]) -> Any:
        key = await a_key.make(*grants)
        answer = await a_key.ask(key, "POST", "/v1/inferences/aggregate", {**body, **more})
        if answer.status_code != 200:
            return answer.status_code
        found = answer.json()["groups"]
        return {(g["key"]["model_id"], g["measures"]["count"]) for g in found}

    reader = {"role": "reader"}
    assert await groups({}, reader) == {(SECRET, 1), (OPEN, 3)}
    mine = {**reader, "model_id": OPEN}
    assert await groups({}, mine) == {(OPEN, 3)}
    assert await groups({"model_ids": [OPEN]}, mine) == {(OPEN, 3)}
    assert await groups({"model_ids": [OPEN, SECRET]}, mine) == 404
    assert await groups({"project_id": f"{SECRET}-project"}, mine) == 404
    assert await groups({"project_id": f"{SECRET}-project"}, reader) == {(SECRET, 1)}
    # a key that only one of them has is known
    known = {"group_by": ["model_id"], "metadata_filter": [
        {"key": f"{OPEN}-key", "operator": "missing"}
    ]}  # fmt: skip
    assert await groups(known, reader) == {(SECRET, 1), (OPEN, 2)}

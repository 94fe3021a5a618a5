"""Heavy queries of one caller: refused above its share, and nobody else is held up."""

import asyncio
import time
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import metadata_number
from tests.integration.query.held_partition import held
from tests.integration.stored import Made, at, store
from tests.polling import until
from tests.settings import TOKEN

from .conftest import MakeApp, client_of

_BASE = "/v1/models/model/inferences"
_HEAVY: dict[str, object] = {"metadata_filter": [{"key": "n", "operator": "gte", "value": 1}]}
_OWNER = {"Authorization": f"Bearer {TOKEN}"}


async def _key(client: httpx.AsyncClient) -> dict[str, str]:
    body = {"name": "x", "grants": [{"role": "owner"}]}
    made = await client.post("/v1/keys", json=body, headers=_OWNER)
    return {"Authorization": f"Bearer {made.json()['key']}"}


async def test_one_callers_heavy_queries_hold_up_nobody_else(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, Made("one", at(1), [("n", "int", "1")]))
    app = make_app(auth="on", api_token=TOKEN, query_timeout_seconds=120, query_wait_seconds=0.5)
    async with client_of(app) as client:
        heavy, other = await _key(client), await _key(client)

        async def count(headers: dict[str, str], body: Any) -> httpx.Response:
            return await client.post(f"{_BASE}/count", json=body, headers=headers)

        async with held(engine, metadata_number, at(0)):
            # Twelve that wait for a lock: of a pool of ten, one caller has three.
            asked = [asyncio.create_task(count(heavy, _HEAVY)) for _ in range(12)]

            async def refused() -> list[httpx.Response]:
                return [task.result() for task in asked if task.done()]

            answers = await until(refused, lambda found: len(found) == 9)
            assert {each.status_code for each in answers} == {429}
            assert {each.headers["retry-after"] for each in answers} == {"1"}
            assert {each.json()["type"] for each in answers} == {"/docs/errors#too-many-queries"}
            # Queries of another caller, look-ups, writes, and the heavy one's own look-ups.
            assert (await count(other, {})).json()["count"] == 1
            page = await client.post(f"{_BASE}/query", json={}, headers=other)
            assert len(page.json()["items"]) == 1
            for who in (heavy, other):
                assert (await client.get(f"{_BASE}/one", headers=who)).status_code == 200
                model = await client.put("/v1/models/model", json={"name": "x"}, headers=who)
                assert model.status_code == 200
            assert not any(task.done() and task.result().status_code == 200 for task in asked)
        left = [await task for task in asked]
        assert sorted(each.status_code for each in left) == [200] * 3 + [429] * 9


async def test_a_short_burst_waits_and_is_answered(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, Made("one", at(1), [("n", "int", "1")]))
    app = make_app(queries_at_once=1, query_wait_seconds=120)
    async with client_of(app) as client:
        answers = await asyncio.gather(
            *(client.post(f"{_BASE}/count", json=_HEAVY) for _ in range(25))
        )
    assert {each.status_code for each in answers} == {200}


async def test_a_query_asks_for_less_time(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, Made("one", at(1), [("n", "int", "1")]))
    async with client_of(make_app(query_timeout_seconds=60)) as client:
        async with held(engine, metadata_number, at(0)):
            began = time.monotonic()
            for path in ("count", "query"):
                body = _HEAVY | {"timeout_seconds": 0.3}
                answer = await client.post(f"{_BASE}/{path}", json=body)
                assert answer.status_code == 503
                assert answer.json()["type"] == "/docs/errors#query-timeout"
            assert time.monotonic() - began < 50
        for seconds in (61, 0.01, -1, "1"):
            body = {"timeout_seconds": seconds}
            answer = await client.post(f"{_BASE}/query", json=body)
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["path"] == "timeout_seconds"
        link = await client.get(_BASE, params={"timeout_seconds": "5"})
        assert link.status_code == 200

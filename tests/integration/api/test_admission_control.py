"""Heavy queries of one caller are refused above its share, and delay nobody else."""

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import metadata_number
from inference_store.query import deadline
from tests.integration.query.held_partition import hold_partition
from tests.integration.stored_inferences import NewInference, at, store
from tests.polling import until
from tests.settings import TOKEN
from tests.stopped_clock import StoppedClock

from .conftest import MakeApp, make_client

_BASE = "/v1/models/model/inferences"
_HEAVY: dict[str, object] = {"metadata_filter": [{"key": "n", "operator": "gte", "value": 1}]}
_OWNER = {"Authorization": f"Bearer {TOKEN}"}


async def _create_key(client: httpx.AsyncClient) -> dict[str, str]:
    body = {"name": "x", "grants": [{"role": "owner"}]}
    answer = await client.post("/v1/keys", json=body, headers=_OWNER)
    return {"Authorization": f"Bearer {answer.json()['key']}"}


async def test_heavy_queries_of_one_caller_do_not_delay_others(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, NewInference("one", at(1), [("n", "int", "1")]))
    app = make_app(auth="on", api_token=TOKEN, query_timeout_seconds=120, query_wait_seconds=0.5)
    async with make_client(app) as client:
        heavy, other = await _create_key(client), await _create_key(client)

        async def count(headers: dict[str, str], body: Any) -> httpx.Response:
            return await client.post(f"{_BASE}/count", json=body, headers=headers)

        async with hold_partition(engine, metadata_number, at(0)):
            # Twelve queries that wait for a lock: one caller may use three of a pool of ten.
            tasks = [asyncio.create_task(count(heavy, _HEAVY)) for _ in range(12)]

            async def list_refused() -> list[httpx.Response]:
                return [task.result() for task in tasks if task.done()]

            answers = await until(list_refused, lambda refusals: len(refusals) == 9)
            assert {answer.status_code for answer in answers} == {429}
            assert {answer.headers["retry-after"] for answer in answers} == {"1"}
            assert {answer.json()["type"] for answer in answers} == {
                "/docs/errors#too-many-queries"
            }
            # Queries and writes of another caller, and look-ups of both.
            assert (await count(other, {})).json()["count"] == 1
            page = await client.post(f"{_BASE}/query", json={}, headers=other)
            assert len(page.json()["items"]) == 1
            for who in (heavy, other):
                assert (await client.get(f"{_BASE}/one", headers=who)).status_code == 200
                model = await client.put("/v1/models/model", json={"name": "x"}, headers=who)
                assert model.status_code == 200
            assert not any(task.done() and task.result().status_code == 200 for task in tasks)
        finished = [await task for task in tasks]
        assert sorted(answer.status_code for answer in finished) == [200] * 3 + [429] * 9


async def test_short_burst_waits_and_succeeds(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, NewInference("one", at(1), [("n", "int", "1")]))
    app = make_app(queries_at_once=1, query_wait_seconds=120)
    async with make_client(app) as client:
        answers = await asyncio.gather(
            *(client.post(f"{_BASE}/count", json=_HEAVY) for _ in range(25))
        )
    assert {answer.status_code for answer in answers} == {200}


async def test_query_may_set_a_shorter_timeout(
    make_app: MakeApp, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "time", StoppedClock())  # Postgres alone measures it
    await store(engine, NewInference("one", at(1), [("n", "int", "1")]))
    async with make_client(make_app(query_timeout_seconds=600)) as client:
        async with hold_partition(engine, metadata_number, at(0)):
            for path in ("count", "query"):
                body = _HEAVY | {"timeout_seconds": 0.3}
                answer = await client.post(f"{_BASE}/{path}", json=body)
                assert answer.status_code == 503
                assert answer.json()["type"] == "/docs/errors#query-timeout"
        for seconds in (601, 0.01, -1, "1"):
            body = {"timeout_seconds": seconds}
            answer = await client.post(f"{_BASE}/query", json=body)
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["path"] == "timeout_seconds"
        link = await client.get(_BASE, params={"timeout_seconds": "500"})
        assert link.status_code == 200

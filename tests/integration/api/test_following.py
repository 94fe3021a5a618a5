"""Following arrivals: in the order of the index, within the caller's rights and time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.rights import Grant
from inference_store.index import api_keys
from inference_store.index.tables import inference
from tests.integration.stored_inferences import NewInference, store
from tests.polling import until
from tests.settings import TOKEN

from .app_server import serve_app
from .conftest import MakeApp

_PATH = "/v1/models/model/inferences/follow"
_NOW = datetime.now(UTC)
Events = AsyncIterator[tuple[str, dict[str, Any]]]


async def _store_arrival(
    engine: AsyncEngine, name: str, *, received: float = 0, **values: Any
) -> NewInference:
    """Store an inference that was received `received` seconds ago, and indexed now."""
    arrival = NewInference(name, _NOW - timedelta(seconds=received), **values)
    await store(engine, arrival)
    async with engine.begin() as connection:
        changed = update(inference).where(inference.c.uid == arrival.uid)
        await connection.execute(changed.values(indexed_at=datetime.now(UTC)))
    return arrival


@asynccontextmanager
async def _follow(client: httpx.AsyncClient, query: str = "", **headers: str) -> Any:
    """Open a stream, and yield its events after the first one, `begin`."""

    async def events(answer: httpx.Response) -> Events:
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))

    async with client.stream("GET", _PATH + query, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        stream = events(answer)
        assert (await anext(stream))[0] == "begin"
        yield stream


async def _read_next(events: Events) -> tuple[str, Any]:
    async with asyncio.timeout(120):
        return await anext(events)


async def _read_ids(events: Events, count: int) -> list[str]:
    ids: list[str] = []
    while len(ids) < count:
        name, data = await _read_next(events)
        assert name == "inferences", data
        ids += [item["inference_id"] for item in data["items"]]
    return ids


async def test_shows_arrivals_in_order(make_app: MakeApp, engine: AsyncEngine) -> None:
    """The time of the request does not matter; each is shown once, and none from before."""
    await store(engine, NewInference("before", _NOW - timedelta(seconds=9)))
    async with serve_app(make_app()) as client, _follow(client) as events:
        for name, received in (("a", 5.0), ("b", 3600.0), ("c", 1.0)):
            await _store_arrival(engine, name, received=received)
        assert await _read_ids(events, 3) == ["a", "b", "c"]
        last = await _store_arrival(engine, "d", predictions=[("person", 0.5)])
        _, data = await _read_next(events)
    [item] = data["items"]
    assert (item["uid"], item["top_label"], item["top_score"]) == (str(last.uid), "person", 0.5)
    assert data["more"] is False


async def test_applies_the_filter(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, NewInference("before", _NOW - timedelta(seconds=9)))
    async with serve_app(make_app()) as client, _follow(client, "?filter=n>5") as events:
        for name, n in (("a", "1"), ("b", "9"), ("c", "2"), ("d", "10")):
            await _store_arrival(engine, name, received=float(n), metadata=[("n", "int", n)])
        assert await _read_ids(events, 2) == ["b", "d"]


async def test_hides_erased_inferences(make_app: MakeApp, engine: AsyncEngine) -> None:
    await _store_arrival(engine, "first", received=60)
    async with serve_app(make_app()) as client:
        secret = await _store_arrival(engine, "secret", received=30)
        erased = await client.delete(f"/v1/models/model/inferences/uid:{secret.uid}")
        assert erased.status_code == 202
        async with _follow(client) as events:
            await _store_arrival(engine, "last", received=10)
            ids = await _read_ids(events, 1)
            while "last" not in ids:
                ids += await _read_ids(events, 1)
    assert "secret" not in ids


async def test_revoking_the_key_ends_the_stream(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, NewInference("one", _NOW))
    async with engine.begin() as connection:
        grant = Grant(role="reader", model_id="model")
        key, secret = await api_keys.create(connection, "x", [grant], by="test")
    app = make_app(auth="on", api_token=TOKEN)
    async with serve_app(app) as client:
        authorization = f"Bearer {secret.text}"
        async with _follow(client, Authorization=authorization) as events:
            revoke = f"/v1/keys/{key.id}/revoke"
            owner = {"Authorization": f"Bearer {TOKEN}"}
            assert (await client.post(revoke, headers=owner)).status_code == 200
            name, problem = await _read_next(events)
            assert (name, problem["status"]) == ("end", 401)
            with pytest.raises(StopAsyncIteration):
                await _read_next(events)


async def test_ends_when_the_api_stops_or_time_is_over(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, NewInference("one", _NOW))
    app: FastAPI = make_app()
    async with serve_app(app) as client:
        async with _follow(client, "?seconds=0") as events:
            with pytest.raises(StopAsyncIteration):
                await _read_next(events)
        async with _follow(client) as events:
            app.state.is_stopping = lambda: True
            with suppress(StopAsyncIteration):
                while True:
                    await _read_next(events)


async def test_limits_followers_per_caller(make_app: MakeApp, engine: AsyncEngine) -> None:
    """A stream that ended makes room for another."""
    await store(engine, NewInference("one", _NOW))
    async with serve_app(make_app(followers_at_once=4)) as client:
        async with _follow(client):
            refused = await client.get(_PATH)
            assert (refused.status_code, refused.json()["type"]) == (
                429,
                "/docs/errors#too-many-queries",
            )
            assert "FOLLOWERS_AT_ONCE" in refused.json()["detail"]

        async def request_status() -> int:
            return (await client.get(f"{_PATH}?seconds=0")).status_code

        assert await until(request_status, lambda status: status != 429) == 200


@pytest.mark.parametrize(
    ("query", "status"), [("?filter=n<", 422), ("?seconds=-1", 422), ("?limit=5", 422)]
)
async def test_refusals(
    client: httpx.AsyncClient, engine: AsyncEngine, query: str, status: int
) -> None:
    await store(engine, NewInference("one", _NOW))
    answer = await client.get(_PATH + query)
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    )
    assert (await client.get(_PATH.replace("model/", "nobody/"))).status_code == 404

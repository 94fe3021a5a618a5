"""Following arrivals: in the order of the index, within the caller's rights and time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from inference_store.index.tables import inference
from tests.integration.stored_inferences import NewInference
from tests.polling import until
from tests.settings import TOKEN

from .app_server import serve_app
from .conftest import OWNER, Api, MakeApp

_PATH = "/v1/models/model/inferences/follow"
_NOW = datetime.now(UTC)
Events = AsyncIterator[tuple[str, dict[str, Any]]]


async def _store_arrival(
    api: Api, name: str, *, received: float = 0, **values: Any
) -> NewInference:
    """Store an inference that was received `received` seconds ago, and indexed now."""
    arrival = NewInference(name, _NOW - timedelta(seconds=received), **values)
    await api.store(arrival)
    changed = update(inference).where(inference.c.uid == arrival.uid)
    await api.execute(changed.values(indexed_at=datetime.now(UTC)))
    return arrival


@pytest.fixture(autouse=True)
async def before(api: Api) -> None:
    """Store an inference that no stream shows: it was indexed before."""
    await api.store(NewInference("before", _NOW - timedelta(seconds=9)))


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
    async with asyncio.timeout(300):
        return await anext(events)


async def _read_ids(events: Events, count: int) -> list[str]:
    ids: list[str] = []
    while len(ids) < count:
        name, data = await _read_next(events)
        assert name == "inferences", data
        ids += [item["inference_id"] for item in data["items"]]
    return ids


async def test_shows_arrivals_in_order(api: Api, make_app: MakeApp) -> None:
    """The time of the request does not matter; each is shown once, and none from before."""
    async with serve_app(make_app()) as client, _follow(client) as events:
        for name, received in (("a", 5.0), ("b", 3600.0), ("c", 1.0)):
            await _store_arrival(api, name, received=received)
        assert await _read_ids(events, 3) == ["a", "b", "c"]
        last = await _store_arrival(api, "d", predictions=[("person", 0.5)])
        _, data = await _read_next(events)
    [item] = data["items"]
    assert (item["uid"], item["top_label"], item["top_score"]) == (str(last.uid), "person", 0.5)
    assert data["more"] is False


async def test_applies_the_filter(api: Api, make_app: MakeApp) -> None:
    async with serve_app(make_app()) as client, _follow(client, "?filter=n>5") as events:
        for name, n in (("a", "1"), ("b", "9"), ("c", "2"), ("d", "10")):
            await _store_arrival(api, name, received=float(n), metadata=[("n", "int", n)])
        assert await _read_ids(events, 2) == ["b", "d"]


async def test_hides_erased_inferences(api: Api, make_app: MakeApp) -> None:
    async with serve_app(make_app()) as client:
        secret = await _store_arrival(api, "secret", received=30)
        await api.call("DELETE", f"/v1/models/model/inferences/uid:{secret.uid}", status=202)
        async with _follow(client) as events:
            await _store_arrival(api, "last", received=10)
            ids = await _read_ids(events, 1)
            while "last" not in ids:
                ids += await _read_ids(events, 1)
    assert "secret" not in ids


async def test_revoking_the_key_ends_the_stream(make_app: MakeApp) -> None:
    async with serve_app(make_app(auth="on", api_token=TOKEN)) as client:
        body = {"name": "x", "grants": [{"role": "reader", "model_id": "model"}]}
        key = (await client.post("/v1/keys", json=body, headers=OWNER)).json()
        async with _follow(client, Authorization=f"Bearer {key['key']}") as events:
            revoked = await client.post(f"/v1/keys/{key['id']}/revoke", headers=OWNER)
            assert revoked.status_code == 200
            name, problem = await _read_next(events)
            assert (name, problem["status"]) == ("end", 401)
            with pytest.raises(StopAsyncIteration):
                await _read_next(events)


async def test_ends_when_the_api_stops_or_time_is_over(make_app: MakeApp) -> None:
    app = make_app()
    async with serve_app(app) as client:
        async with _follow(client, "?seconds=0") as events:
            with pytest.raises(StopAsyncIteration):
                await _read_next(events)
        async with _follow(client) as events:
            app.state.is_stopping = lambda: True
            with suppress(StopAsyncIteration):
                while True:
                    await _read_next(events)


async def test_limits_followers_per_caller(make_app: MakeApp) -> None:
    """A stream that ended makes room for another."""
    async with serve_app(make_app(streams_at_once=4)) as client:
        async with _follow(client):
            refused = await client.get(_PATH)
            assert refused.status_code == 429
            assert refused.json()["type"] == "/docs/errors#too-many-queries"
            assert "of yours" in refused.json()["detail"]

        async def request_status() -> int:
            return (await client.get(f"{_PATH}?seconds=0")).status_code

        assert await until(request_status, lambda status: status != 429) == 200


async def test_refusals(api: Api) -> None:
    for query in ("?filter=n<", "?seconds=-1", "?limit=5"):
        answer = await api.get(_PATH + query)
        assert answer.status_code == 422, query
        assert answer.headers["content-type"] == "application/problem+json", query
    await api.read(_PATH.replace("model/", "nobody/"), status=404)

"""The largest filters over many partitions do not block other requests."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.stored_inferences import NewInference, at, store

_MODEL = "/v1/models/model/inferences"
_DAYS = 64
# One second, with room for a busy machine; a request that blocks the others takes five to nine.
_MOST_SECONDS = 3.0


def _make_inferences() -> list[NewInference]:
    """Return three inferences a day, each day in its own partition."""
    return [
        NewInference(
            f"id-{n}",
            at(-n * 86_400 / 3),
            [("n", "int", str(n)), ("m", "int", str(n % 7)), ("s", "string", f"s{n}")],
            [("person", n / 200)],
        )
        for n in range(3 * _DAYS)
    ]


# Nearly the longest filters, matched by nearly all or by none, so that everything is searched.
FILTERS = {
    "all of many": " AND ".join(f"n <> {k + 500}" for k in range(500)),
    "predictions": " OR ".join(
        f"prediction(score = 9.0{k:03d} AND rank < {k})" for k in range(240)
    ),
}


async def _measure_alone(client: httpx.AsyncClient) -> float:
    """Return the longest time of a small request while the api is idle, in seconds."""
    slowest = 0.0
    for _ in range(5):
        began = time.monotonic()
        await client.post(f"{_MODEL}/query", json={"limit": 1})
        slowest = max(slowest, time.monotonic() - began)
    return slowest


async def _measure_beside(
    request: asyncio.Task[httpx.Response], client: httpx.AsyncClient
) -> float:
    """Return the longest time of a small request while the other one runs, in seconds."""
    slowest = 0.0
    while not request.done():
        began = time.monotonic()
        answer = await client.post(f"{_MODEL}/query", json={"limit": 1})
        slowest = max(slowest, time.monotonic() - began)
        assert answer.status_code == 200, answer.text
        assert [item["inference_id"] for item in answer.json()["items"]] == ["id-0"]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(request), 0.02)
    return slowest


@pytest.fixture(autouse=True)
def freeze_memory() -> Iterator[None]:
    """Exclude existing objects from garbage collection, as the api does when it starts."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("what", ["query", "count", "aggregate"])
async def test_other_requests_are_not_blocked(
    make_app: MakeApp, engine: AsyncEngine, what: str
) -> None:
    await store(engine, *_make_inferences())
    async with make_client(make_app(query_timeout_seconds=4)) as client:
        # the first request opens connections and creates the parser
        await client.post(f"{_MODEL}/query", json={"filter": "n = 3"})
        # allow for a slow machine
        most = max(_MOST_SECONDS, 20 * await _measure_alone(client))
        for name, text in FILTERS.items():
            body: dict[str, Any] = {"filter": text, "explain": what == "count"}
            if what == "aggregate":
                body["measures"] = [{"function": "count"}]
            request = asyncio.ensure_future(client.post(f"{_MODEL}/{what}", json=body))
            slowest = await _measure_beside(request, client)
            # an answer, or a timeout
            assert request.result().status_code in {200, 503}, request.result().text
            assert slowest < most, name

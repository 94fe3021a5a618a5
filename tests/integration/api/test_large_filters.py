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

from tests.integration.stored_inferences import NewInference, at, store

_MODEL = "/v1/models/model/inferences"
_DAYS = 64
# It is a fifth of that; if the statements were built in the loop, twice as much.
_MOST_SECONDS = 0.2


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


async def _measure_turns(longest: list[float]) -> None:
    """Measure how long the loop computes before it lets others go on: in seconds of a processor,
    of which other processes take none."""
    while True:
        began = time.thread_time()
        await asyncio.sleep(0.001)
        longest[0] = max(longest[0], time.thread_time() - began)


async def _ask_beside(request: asyncio.Task[httpx.Response], client: httpx.AsyncClient) -> None:
    """Send small requests while the other one runs."""
    while not request.done():
        answer = await client.post(f"{_MODEL}/query", json={"limit": 1})
        assert answer.status_code == 200, answer.text
        assert [item["inference_id"] for item in answer.json()["items"]] == ["id-0"]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(request), 0.02)


@pytest.fixture(autouse=True)
def freeze_memory() -> Iterator[None]:
    """Exclude existing objects from garbage collection, as the api does when it starts."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.long
@pytest.mark.parametrize("what", ["query", "count", "aggregate"])
async def test_other_requests_are_not_blocked(
    client: httpx.AsyncClient, engine: AsyncEngine, what: str
) -> None:
    await store(engine, *_make_inferences())
    # the first request opens connections and creates the parser
    await client.post(f"{_MODEL}/query", json={"filter": "n = 3"})
    for name, text in FILTERS.items():
        body: dict[str, Any] = {"filter": text, "explain": what == "count", "timeout_seconds": 4}
        if what == "aggregate":
            body["measures"] = [{"function": "count"}]
        longest = [0.0]
        measuring = asyncio.create_task(_measure_turns(longest))
        request = asyncio.ensure_future(client.post(f"{_MODEL}/{what}", json=body))
        await _ask_beside(request, client)
        measuring.cancel()
        # an answer, or a timeout
        assert request.result().status_code in {200, 503}, request.result().text
        assert longest[0] < _MOST_SECONDS, name
